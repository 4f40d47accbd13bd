"""What a session remembers is bounded, counted in true bytes, and goes with it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import tgbench as tg
from tgbench import ops
from tgbench.base import collector, memo
from tgbench.base.collector import FEW
from tgbench.graph import dims
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.op_table import Call
from tgbench.graph.ops.opaque import aten
from tgbench.programs.exact import findings
from tgbench.programs.states import States
from tgbench.runs import trace
from tgbench.runs.entry import LoggedCall
from tgbench.session import choosing, experience, planning, running

ROWS = 24
# What all sessions share; a compiled loop knows its compiler, and that every loop it ever made.
OF_THE_PROCESS = {"OpDef", "Kernel", "Host", "CPUDispatcher", "CPUTarget"}


def decoder() -> Graph:
    """Rows that see the rows before them; the mask is a constant of its own."""
    g = GraphBuilder()
    x = g.input("x", (ROWS, 4))
    mask = g.constant(np.tri(ROWS, dtype=bool))
    for _ in range(2):
        heads = [(x @ g.parameter(f"w{i}", (4, 4))).reshape(1, 1, ROWS, 4) for i in range(3)]
        x = x + ops.attention(*heads, mask).reshape(ROWS, 4)
    g.output("y", ops.softmax(x))
    return g.build()


def session(**options: Any) -> tg.GraphSession:
    weights = {f"w{i}": np.eye(4, dtype="float32") * (i + 1) for i in range(3)}
    return tg.GraphSession(decoder(), weights, calibrate=False, **options)


def edits(count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Rows changed anywhere, and rows asked for anywhere."""
    random, x = np.random.default_rng(0), np.zeros((ROWS, 4), "float32")
    for _ in range(count):
        x = x.copy()
        x[random.integers(ROWS, size=random.integers(1, 4))] += 1
        first = int(random.integers(ROWS))
        yield {"x": x}, {"y": np.s_[first : int(random.integers(first, ROWS)) + 1]}


def true_bytes(roots: list[Any], apart: set[int]) -> int:
    """Everything reachable that is not held by something else as well. The list is nobody's: who is
    made after it is gone may have its number.
    """
    waiting, size = [*roots], 0
    while waiting:
        one = waiting.pop()
        if id(one) in apart or issubclass(type(one), (type, ModuleType, FunctionType)):
            continue
        apart.add(id(one))
        size += sys.getsizeof(one) + 16 * gc.is_tracked(one)
        waiting += gc.get_referents(one)
    return size


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds are made small, so that all of them are met."""
    allowed = 1 << 20
    monkeypatch.setattr(memo.Allowance.__init__, "__defaults__", (allowed,))
    monkeypatch.setattr(running, "STATE_BYTES", 100_000)
    monkeypatch.setattr(trace, "MOST_BYTES", 50_000)
    made, most = session(making="always", program_bytes=1), dict.fromkeys(("states", "trace"), 0)
    largest = 0
    for values, want in edits(150):
        made.run(values, want)
        found = made.remembered
        assert len(made.programs) == 1
        assert found["answers"] < allowed * 1.2
        assert found["trace"] <= 50_000
        assert found["states"] < 100_000 + 50_000  # those of one run more
        most = {name: max(most[name], found[name]) for name in most}
        largest = max(largest, found["answers"])
    assert largest > allowed / 2
    assert most["states"] > 100_000
    assert most["trace"] > 40_000
    assert 0 < len(made.trace) < 150


def test_programs_stay_where_patterns_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many are made as where all patterns stay, and the answers are the same bits; although what
    is remembered is bounded again and again.
    """
    forgets = list[int]()
    forget_others = States.forget_others

    def counted(states: States, numbers: Any) -> None:
        before = len(states)
        forget_others(states, numbers)
        forgets.append(before - len(states))

    monkeypatch.setattr(States, "forget_others", counted)
    ample = session(making="always")
    expected = [ample.run(*edit)["y"].copy() for edit in edits(200)]
    assert not forgets
    monkeypatch.setattr(running, "STATE_BYTES", round(0.9 * ample.states.size_bytes))
    bounded = session(making="always")
    for edit, right in zip(edits(200), expected, strict=True):
        np.testing.assert_array_equal(bounded.run(*edit)["y"], right)
    assert sum(forgets) > 0
    assert bounded.counters.specialised == ample.counters.specialised
    assert len(bounded.programs) == len(ample.programs)


@pytest.mark.parametrize("most_bytes", [0, 20_000, 60_000])
def test_answers_are_right_whenever_patterns_go(
    most_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is wanted, noted or asked about may go as well."""
    monkeypatch.setattr(running, "STATE_BYTES", most_bytes)
    made, reference = session(), session(making="always")
    for edit in edits(120):
        reference.forget()
        found, right = made.run(*edit)["y"], reference.run(*edit)["y"]
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-6)


def test_what_is_counted_is_what_it_takes() -> None:
    made = session(making="always")
    for values, want in edits(60):
        made.run(values, want)
    found, apart = made.remembered, {id(made)}
    apart |= {id(one) for one in gc.get_objects() if type(one).__name__ in OF_THE_PROCESS}
    true_bytes([made.graph, made.scheduled, made.placement, made.pool, made.memory.buffers], apart)
    memos = [(one.entries, one.older) for one in made.rules.allowance._memos]
    programs = [program for _, _, program in made.programs]
    together = true_bytes([memos, programs, made.states.patterns, made.trace.calls], apart)
    assert 0.5 < sum(found.values()) / together < 1.5


def test_a_session_that_is_dropped_leaves_nothing() -> None:
    def used() -> list[weakref.ref[Any]]:
        made = session(making="always")
        for values, want in edits(5):
            made.run(values, want)
        calls = {node.call for node in made.graph.nodes if not node.is_leaf}
        return [weakref.ref(one) for one in (made, made.graph, made.rules.allowance, *calls)]

    used()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(3):
        gone = used()
        gc.collect()
        assert [one() for one in gone] == [None] * len(gone)
    assert len(gc.get_objects()) - before < 300


def test_what_a_dropped_session_held_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it is freed, and where it was much: the C library kept 770 MiB that three had packed."""
    given_back = list[bool]()
    g = GraphBuilder()
    g.output("y", ops.linear(g.input("x", (4, 64)), g.parameter("w", (64, 64))))
    graph, weights = g.build(), {"w": np.ones((64, 64), np.float32)}
    gc.collect()  # sessions of other tests
    for most_bytes in (1 << 20, 64 * 64 * 4):
        monkeypatch.setattr(collector._Owners, "freed_bytes", 0)
        monkeypatch.setattr(collector, "MUCH_BYTES", most_bytes)
        session: Any = tg.GraphSession(graph, weights, calibrate=False)
        session.run({"x": np.ones((4, 64), np.float32)})
        held = weakref.ref(session.pool.buffers["w", "float32"])
        monkeypatch.setattr(
            collector, "give_back_freed", lambda held=held: given_back.append(held() is None)
        )
        gc.collect()
        assert not given_back
        del session
        gc.collect()
        assert given_back == ([] if most_bytes > 64 * 64 * 4 else [True])
    gc.collect()
    assert given_back == [True]


WIDE = 512  # of a layer whose weights kernels lay out


def test_what_laying_weights_out_took_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the first answer, and not each time: a U-Net's 380 MiB were 510 to the system."""
    given_back = list[int]()
    g = GraphBuilder()
    g.output("y", ops.linear(g.input("x", (32, WIDE)), g.parameter("w", (WIDE, WIDE))))
    weights, x = {"w": np.ones((WIDE, WIDE), np.float32)}, np.ones((32, WIDE), np.float32)
    made = tg.GraphSession(g.build(), weights, calibrate=False)
    gc.collect()
    monkeypatch.setattr(collector._Owners, "freed_bytes", 0)
    monkeypatch.setattr(collector, "MUCH_BYTES", weights["w"].nbytes)
    monkeypatch.setattr(
        collector, "give_back_freed", lambda: given_back.append(len(made.pool._prepared))
    )
    made.run({"x": x})
    assert given_back == [1]
    made.run({"x": x + 1})
    assert given_back == [1]


def test_an_import_that_is_dropped_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """What weights were folded from stayed with the C library: 98 MiB of a ResNet-50."""
    given_back = list[bool]()
    conv = torch.nn.Conv2d(64, 64, 3, padding=1)
    module = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(64)).eval()
    imported: Any = tg.from_torch(module, (torch.ones(1, 64, 16, 16),))
    kept = weakref.ref(imported.weights["0.weight"])
    made = tg.GraphSession(imported, calibrate=False)
    gc.collect()
    monkeypatch.setattr(collector._Owners, "freed_bytes", 0)
    monkeypatch.setattr(collector, "MUCH_BYTES", 64 * 64 * 9 * 4)
    monkeypatch.setattr(collector, "give_back_freed", lambda: given_back.append(kept() is None))
    del imported
    gc.collect()
    assert given_back == [True]
    assert made.pool.parameter_bytes < 2 * 64 * 64 * 9 * 4


def test_making_a_program_counts_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """All objects of a process are counted once; each time would take longer than the program."""
    counts: list[int] = []
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    made = session(making="always")
    for values, want in edits(10):
        made.run(values, want)
    assert len(counts) > 10
    assert len([one for one in counts if one >= FEW]) <= 1


def test_calls_of_a_trace_with_a_file_go_once_they_are_in_it(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "MOST_BYTES", 20_000)
    with tg.Trace(tmp_path / "calls.jsonl") as found:
        made = session(trace=found)
        for values, want in edits(100):
            made.run(values, want)
            found.flush()
            assert found.size_bytes <= 20_000
        assert len(found) < 60
        last = found.calls[-1]
    assert len(tg.Trace.load(tmp_path / "calls.jsonl")) == 100
    read: LoggedCall = tg.Trace.load(tmp_path / "calls.jsonl").calls[-1]
    assert read.bucket == last.bucket


def test_what_a_process_knows_has_bounds() -> None:
    """What is not of a session: findings, names of dimensions, calls of PyTorch that may stand."""
    assert findings._remembered.most == findings.MOST_REMEMBERED
    for known in (aten.Script.of, aten.outline):
        assert known.cache_info().maxsize == aten.MOST_SCRIPTS
    for number in range(dims.MOST_NAMES + 10):
        dims._DIM_MAX[f"d{number}"] = number
    assert len(dims._DIM_MAX) == dims.MOST_NAMES
    assert dims.declared_max(f"d{dims.MOST_NAMES + 9}") == dims.MOST_NAMES + 9


def test_what_is_known_of_classes_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (experience, choosing):
        monkeypatch.setattr(module, "MOST_CLASSES", 3)
    made = session(making="measured")
    for values, want in edits(60):
        made.run(values, want)
    known = made.runner.chooser
    assert isinstance(known, choosing.Measured)
    assert len({one.bucket for one in made.trace.calls}) > 20
    assert 0 < len(known._experience._families) <= 3
    assert len(known._full) <= 3
    assert len(known._experience._unfit) <= 3


def test_what_is_planned_for_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class that was forgotten is planned for anew, and results are those of a full run."""
    monkeypatch.setattr(planning, "MOST_CLASSES", 3)
    monkeypatch.setattr(planning, "MOST_PLACES", 2)
    # as where a budget leaves no room for more than is planned for
    monkeypatch.setattr(planning.Planning, "provide", lambda self, bucket: None)
    made = session(making="always", memory="3.5KiB")
    known = made.planning
    for values, want in edits(60):
        found = made.run(values, want)
        assert max(map(len, (known.classes, known.places, known.calibrated, known.missed))) <= 3
        assert all(len(places) <= 2 for places in known.places.values())
    made.forget()
    for name, value in made.run(values, want).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    assert len(known.classes) == 3
    assert made.counters.planned > 3


def test_equal_graphs_share_no_calls_with_the_dead() -> None:
    """What follows from a call is kept with it, not under a key that outlives it."""
    first = weakref.ref(next(n.call for n in decoder().nodes if n.op == "attention"))
    gc.collect()
    assert first() is None
    assert isinstance(next(n.call for n in decoder().nodes if n.op == "attention"), Call)
