"""What threads gain is measured again while runs go on, and programs follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tgbench as tg
from benchmarks.measure import threads
from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.programs.lowering import Lowerer
from tgbench.programs.program import Instruction
from tgbench.session.planning import Planning
from tgbench.session.regaining import FIRST_NS, SHARE, Regainer

pytest.importorskip("numba")

from tgbench.kernels.numba import rows

WIDE, LAYERS, TEAM = 512, 3, "linear_team_numba"


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(Planning, "calibrate", lambda self, planner: None)
    with threads(2):
        yield


def layers() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (64, WIDE))
    for i in range(LAYERS):
        x = ops.relu(ops.linear(x, g.parameter(f"w{i}", (WIDE, WIDE))))
    g.output("y", x)
    return g.build()


WEIGHTS = {
    f"w{i}": np.random.default_rng(i).integers(-1, 2, (WIDE, WIDE)).astype(np.float32)
    for i in range(LAYERS)
}


def right(row: Any) -> Any:
    for i in range(LAYERS):
        row = np.maximum(row @ WEIGHTS[f"w{i}"].T, 0)
    return row


def go_on(session: tg.GraphSession, runs: int) -> set[str]:
    """One of two rows changes and is looked at; the kernels of the last run."""
    rng, x = np.random.default_rng(0), np.zeros((64, WIDE), np.float32)
    for i in range(runs):
        row = 5 + i % 2
        x[row] = rng.integers(-1, 2, WIDE)
        found = session.run({"x": x}, want={"y": np.s_[row]})["y"]
        np.testing.assert_array_equal(found, right(x[row]))
    assert session.last is not None
    return {made.kernel for made in session.last.program.instructions}


def regainer_of(session: tg.GraphSession) -> Regainer:
    assert session.trying is not None
    return session.trying.regainer


@pytest.mark.parametrize(("first", "then"), [(1.0, 1000.0), (1000.0, 1.0), (1000.0, 900.0)])
def test_programs_follow_what_threads_gain(
    first: float, then: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where others had the processors when it was measured, and where they have them now."""
    monkeypatch.setattr(rows, "gain", lambda threads: first)
    monkeypatch.setattr(rows, "measure_gain", lambda threads: then)
    session = tg.GraphSession(layers(), WEIGHTS, packed_bytes=0, making="always")
    assert (TEAM in go_on(session, 30)) == (first > 1)
    regainer = regainer_of(session)
    assert regainer.changes == 0
    monkeypatch.setattr(rows, "gain", lambda threads: then)
    regainer._due_ns = 0.0
    assert (TEAM in go_on(session, 30)) == (then > 1)
    assert regainer.changes == (1 if 1.0 in (first, then) else 0)


def test_measuring_takes_little_of_what_runs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "gain", lambda threads: 2.0)
    session = tg.GraphSession(layers(), WEIGHTS, packed_bytes=0, making="always")
    go_on(session, 10)
    assert session.last is not None
    program, memory, now, measured = session.last.program, session.keeper.memory, [0], list[int]()
    memory.specialiser.lowerer.team.counted_on = 2.0  # type: ignore[union-attr]

    def measure(threads: int) -> float:
        measured.append(threads)
        now[0] += 300_000_000
        return 2.0

    regainer = Regainer(measure, lambda: now[0])
    program.use.time_ns, spent = 50e6, 0.0
    for run in range(1, 5_000):
        assert not regainer.is_stale(program, memory)
        spent = len(measured) * 300e6
        assert spent <= 2 * SHARE * run * program.use.time_ns + 2 * FIRST_NS
    assert measured
    assert set(measured) == {2}
    assert len(measured) <= 4


def test_nothing_is_measured_where_no_program_counts_on_it() -> None:
    session = tg.GraphSession(layers(), WEIGHTS, packed_bytes=0, making="always")
    go_on(session, 2)
    assert session.last is not None
    memory = session.keeper.memory
    memory.specialiser.lowerer.team.counted_on = 0.0  # type: ignore[union-attr]

    def measure(threads: int) -> float:
        raise AssertionError

    regainer = Regainer(measure, lambda: 0)
    regainer._due_ns = 0.0
    assert not regainer.is_stale(session.last.program, memory)


def test_no_call_of_a_team_s_program_is_exchanged_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its fastest kernel alone may be one whose threads meet, beside helpers that spin."""
    monkeypatch.setattr(rows, "gain", lambda threads: 1000.0)
    monkeypatch.setattr(rows, "measure_gain", lambda threads: 1000.0)
    together, all_again = list[int](), Lowerer.all_again

    def seen(self: Lowerer, made: Sequence[Instruction]) -> list[Instruction]:
        together.append(len(made))
        return all_again(self, made)

    def alone(self: Lowerer, made: Instruction) -> Instruction:
        raise AssertionError(f"{made} by itself")

    monkeypatch.setattr(Lowerer, "all_again", seen)
    monkeypatch.setattr(Lowerer, "again", alone)
    session = tg.GraphSession(layers(), WEIGHTS, packed_bytes=0, making="always")
    assert TEAM in go_on(session, 30)
    assert session.last is not None
    assert session.trying is not None
    program = session.last.program
    everything = list(range(len(program.instructions)))
    session.trying._exchange(program, everything, session.keeper.memory, program.origin or ())
    assert together == [len(everything)]
