"""Kernels that are compiled beside: nobody waits for them, and who ran without takes them up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tgbench.base import processes
from tgbench.base.errors import BudgetError
from tgbench.base.regions import Box
from tgbench.commands.compile import bindings
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.ops.nn import layer_norm, linear
from tgbench.kernels import beside
from tgbench.kernels.numba import rows
from tgbench.kernels.registry import KERNELS, kernel_named
from tgbench.session import opening
from tgbench.session.session import GraphSession

pytestmark = pytest.mark.skipif(rows.loops is None, reason="nothing is compiled without numba")
FOREVER = (sys.executable, "-c", "import time; time.sleep(3600)")
ROWS, WIDE = 16, 64


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine on which nothing is compiled, and whose compiler never comes to an end."""
    file = tmp_path / "cache" / "compiled"
    monkeypatch.setenv("TGBENCH_COMPILING", "beside")
    monkeypatch.setattr(opening, "mark", lambda: file)
    monkeypatch.setattr(beside, "COMMAND", FOREVER)
    monkeypatch.setattr(beside, "_CODE", beside._Code())
    yield file
    if beside._CODE.process is not None:
        beside._CODE.process.kill()
        beside._CODE.process.wait()


def _mlp() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (ROWS, WIDE))
    for i in range(3):
        w, b = g.parameter(f"w{i}", (WIDE, WIDE)), g.parameter(f"b{i}", (WIDE,))
        x = layer_norm(linear(x, w, b), b, b)
    g.output("y", x)
    return g.build()


def _session(**settings: object) -> GraphSession:
    graph, random = _mlp(), np.random.default_rng(0)
    weights = {
        name: random.standard_normal(node.shape).astype(np.float32)
        for name, node in graph.parameters.items()
    }
    return GraphSession(graph, weights=weights, **settings)


def _x(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, WIDE)).astype(np.float32)


def _compiled(session: GraphSession) -> list[bool]:
    """Of the calls of the last run, which kernels were compiled."""
    finished = session.runner.finished
    assert finished is not None
    made = finished.served.program.instructions
    return [
        kernel_named(one.site.call.op.name, one.kernel).compiles
        for one in made
        if one.site is not None
    ]


def _end() -> None:
    process = beside._CODE.process
    assert process is not None
    process.kill()
    process.wait()


def test_runs_do_without_until_the_code_is_there_and_take_it_up_then(mark: Path) -> None:
    told: list[str] = []
    session, full = _session(progress=told.append), _session(calibrate=False)
    assert any("compiled beside" in line for line in told)
    before = session.run(_x(0))["y"]
    assert not any(_compiled(session))
    plans = session.counters.planned
    session.run(_x(1))
    assert session.counters.planned == plans  # nothing happens while it is awaited
    _end()
    again = session.run(_x(0))["y"]
    assert any(_compiled(session))
    np.testing.assert_allclose(again, before, rtol=1e-5, atol=1e-5)
    edited = _x(0)
    edited[3] += 1
    np.testing.assert_allclose(
        session.run(edited)["y"], full.run(edited)["y"], rtol=1e-5, atol=1e-5
    )


def test_a_plan_that_was_asked_for_stays(mark: Path) -> None:
    session = _session()
    edited = _x(0)
    for row in range(4):
        edited = edited.copy()
        edited[row] += 1
        session.run(edited)
    session.optimize("greedy", 1.0)
    slots = dict(session.placement.slots)
    session.run(_x(0))
    _end()
    session.run(_x(1))
    assert dict(session.placement.slots) == slots
    assert any(_compiled(session))


def test_a_budget_that_leaves_no_room_for_them_is_kept(mark: Path) -> None:
    with pytest.raises(BudgetError) as error:
        _session(memory=1).run(_x(0))
    budget_bytes = error.value.needed_bytes
    session = _session(memory=budget_bytes)
    before = session.run(_x(0))["y"]
    _end()
    session.run(_x(1))
    np.testing.assert_allclose(session.run(_x(0))["y"], before, rtol=1e-5, atol=1e-5)
    assert session.placement.size_bytes <= budget_bytes


def test_where_bits_have_to_agree_nobody_does_without(mark: Path) -> None:
    session = _session(exact="bitwise")
    assert beside.is_there()
    assert beside._CODE.process is None
    session.run(_x(0))
    assert not _awaits()  # another session neither


def _awaits() -> bool:
    _session()
    return not beside.is_there()


def test_nothing_is_begun_where_it_is_done_or_not_wanted(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TGBENCH_COMPILING", "first")
        assert not _awaits()
    mark.parent.mkdir()
    mark.touch()
    assert not _awaits()
    assert beside._CODE.process is None


def test_one_process_compiles_for_all(mark: Path) -> None:
    with beside.alone(mark):
        assert _awaits()
        assert not beside.has_come()
        assert beside._CODE.process is None
    assert not beside.has_come()  # whoever did it stopped in the middle: begun again
    assert beside._CODE.process is not None
    process = beside._CODE.process
    _awaits()
    assert beside._CODE.process is process


def test_what_another_process_compiled_is_there(mark: Path) -> None:
    with beside.alone(mark):
        assert _awaits()
        mark.touch()
    assert beside.has_come()
    assert beside._CODE.process is None


def test_a_search_elsewhere_does_without_as_well(mark: Path) -> None:
    session = _session()
    session.run(_x(0))
    task = session.planning.task(session.runner.happened, None)
    beside.agree(True)  # as in another process
    site = session.costs.site(session.scheduled.schedule[-1].call, Box(((0, 1), (0, WIDE))))
    ranking = task.optimiser().judge.planner.choices.ranking
    assert not any(kernel.compiles for kernel in ranking(site))


def test_where_no_process_can_be_started_kernels_compile_when_they_are_bound(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "COMMAND", (str(mark),))
    assert not _awaits()


def test_the_copy_is_compiled_that_is_imported(
    mark: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the mark of this copy never comes, and every session starts a process beside it."""
    found = tmp_path / "found"
    told = f"import tgbench, pathlib; pathlib.Path({str(found)!r}).write_text(tgbench.__file__)"
    monkeypatch.setattr(beside, "COMMAND", (sys.executable, "-P", "-c", told))
    monkeypatch.setattr(processes, "HERE", tmp_path / "copy")
    package = tmp_path / "copy" / "tgbench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    assert beside.awaits(mark)
    assert beside._CODE.process is not None
    beside._CODE.process.wait(60)
    assert Path(found.read_text()) == package / "__init__.py"


COVERED = """
import numpy as np
from numba.core import event
from tgbench.graph.graph import GraphBuilder
from tgbench.graph.ops.nn import *
from tgbench.session.session import GraphSession

compiled = []

class Listener(event.Listener):
    def on_start(self, one):
        compiled.append(one.data["dispatcher"].py_func.__qualname__)
    def on_end(self, one):
        pass

event.register("numba:compile", Listener())
g = GraphBuilder()
x, w = g.input("x", (8, 64)), g.parameter("w", (64, 64))
b, wide = g.parameter("b", (64,)), g.parameter("wide", (256, 64))
h = gelu(layer_norm(linear(x, w, b), b, b)) + x
q = h.reshape(1, 8, 4, 16).permute(0, 2, 1, 3)
h = attention(q, q, q).permute(0, 2, 1, 3).reshape(8, 64)
g.output("y", linear(softmax(silu(relu(rms_norm(h, b)))), wide))
random = np.random.default_rng(0)
graph = g.build()
weights = {name: random.standard_normal(node.shape).astype("float32")
           for name, node in graph.parameters.items()}
session = GraphSession(graph, weights=weights)
x = random.standard_normal((8, 64)).astype("float32")
for row in (None, 3, 5, 3):
    if row is not None:
        x = x.copy()
        x[row] += 1
    session.run(x, want=None if row is None else np.s_[row])
assert not compiled, compiled
"""


def test_the_command_compiles_what_models_need(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path), "TGBENCH_MAKING": "measured"}
    for command in (["-m", "tgbench", "compile", "--again"], ["-c", COVERED]):
        subprocess.run([sys.executable, *command], check=True, env=os.environ | cache)
    told = subprocess.run(
        [sys.executable, "-m", "tgbench", "compile"], check=True, capture_output=True, text=True
    )
    assert told.stdout.startswith("compiled already: ")


def test_everything_that_compiles_is_compiled_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for clusters that a graph has of its own, and what goes by others' loops."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)  # for a team, too
    others = {"sub_numba", "mul_numba", "reshape_numba", "expand_numba", "rowwise_numba"}
    known = {one.name for kernels in KERNELS.values() for one in kernels if one.compiles}
    assert known - {kernel.name for kernel, _ in bindings()} == others & known
