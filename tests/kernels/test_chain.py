"""Chains: the bits of calls one by one, in parts, at other origins, by a team; what they raise."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tgbench as tg
from tgbench import ops
from tgbench.base.coords import Moving, origin_symbol
from tgbench.base.coords import at as number
from tgbench.base.errors import KernelError
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.kernels.registry import ARENA, Host, View
from tgbench.programs.places import moves

pytest.importorskip("numba")

from numba.core.registry import CPUDispatcher

from tgbench.kernels.numba import chain as chains
from tgbench.kernels.numba import entries, loops, rows
from tgbench.kernels.numba.chain import Loop, LoopChain, apart, is_part, loop

SIZE = 64
KINDS = "float32", "int"
COPY = loop(loops.copy, (*KINDS, "int", *KINDS, "int", "int", "int", "int"))
COMBINE = loop(loops.combine, (*KINDS, *KINDS, "int", *KINDS, "int", "int", "int"))
NORM = loop(loops.rms_norm, (*KINDS, "int", "float32", *KINDS, *("int",) * 4, "float"))
GATHER = loop(loops.gather, (*KINDS, "int64", *KINDS, "int", "int", "int"))
W = np.linspace(0.5, 2, SIZE, dtype=np.float32)


def at(offset: Any, size: int, dtype: str = "float32") -> Host:
    return Host(View(ARENA, dtype, (size,), (1,), offset))


def memory(seed: int = 0) -> dict[Any, torch.Tensor]:
    values = np.random.default_rng(seed).standard_normal(4 * SIZE).astype(np.float32)
    return {(ARENA, "float32"): torch.from_numpy(values)}


def copy(source: Any, target: Any, n: int) -> tuple[Loop, tuple[Any, ...]]:
    return COPY, (at(source, n), 0, 0, at(target, n), 0, 0, 1, 1, n)


def combine(a: Any, b: Any, out: Any, n: int, code: int) -> tuple[Loop, tuple[Any, ...]]:
    return COMBINE, (at(a, n), n, at(b, n), n, 0, at(out, n), n, 1, n, code)


def norm(a: Any, out: Any, n: int) -> tuple[Loop, tuple[Any, ...]]:
    return NORM, (at(a, n), 0, n, W, at(out, n), 0, n, 1, 1, n, 1e-6)


def bits(buffers: dict[Any, torch.Tensor]) -> bytes:
    return buffers[ARENA, "float32"].numpy().tobytes()


places = st.integers(0, 2 * SIZE)
sizes = st.integers(1, SIZE)
calls = st.one_of(
    st.builds(copy, places, places, sizes),
    st.builds(combine, places, places, places, sizes, st.integers(0, 3)),
    st.builds(norm, places, places, sizes),
)


def chained(made: Any, buffers: Any, origin: tuple[int, ...] = ()) -> LoopChain:
    found = LoopChain(origin)
    for function, arguments in made:
        found.add(function, arguments, buffers)
    found.close()
    return found


def alone(made: Any, buffers: Any, origin: tuple[int, ...] = ()) -> None:
    for function, arguments in made:
        function(*[plain(a, buffers, origin) for a in arguments])


def plain(argument: Any, buffers: Any, origin: tuple[int, ...]) -> Any:
    if not isinstance(argument, Host):
        return argument
    (size,), start = argument.view.shape, number(argument.view.offset, origin)
    return buffers[ARENA, "float32"].numpy()[start : start + number(size, origin)]


@given(st.lists(calls, min_size=1, max_size=6), st.integers(0, 3))
@settings(deadline=None)
def test_a_chain_has_the_bits_of_its_calls_one_by_one(made: Any, seed: int) -> None:
    ours, theirs = memory(seed), memory(seed)
    chained(made, ours).execute(0, len(made))
    alone(made, theirs)
    assert bits(ours) == bits(theirs)


@given(st.lists(calls, min_size=1, max_size=6), st.data())
@settings(deadline=None)
def test_parts_of_a_chain_are_the_chain(made: Any, data: Any) -> None:
    ours, theirs = memory(), memory()
    cut = data.draw(st.integers(0, len(made)))
    whole, parts = chained(made, theirs), chained(made, ours)
    whole.execute(0, len(made))
    parts.execute(0, cut)
    parts.execute(cut, len(made))
    assert bits(ours) == bits(theirs)


@given(st.integers(0, 20), st.integers(0, 20))
@settings(deadline=None)
def test_a_chain_moves_with_the_origin(first: int, then: int) -> None:
    u = origin_symbol(0)
    made = [
        copy(3 * u + 1, 2 * SIZE, 8),
        copy(Moving(0, ((0, 3),), 3), 2 * SIZE + 8, 4 + u),
        norm(u, 3 * SIZE, 9),
    ]
    ours = memory()
    moved = chained(made, ours, (first,))
    assert moved.moves
    for origin in ((first,), (then,)):
        moved.move_to(np.array(origin, np.int64))
        moved.execute(0, 3)
        theirs = {key: tensor.clone() for key, tensor in ours.items()}
        for function, arguments in made:
            function(*[plain(number(a, origin), theirs, origin) for a in arguments])
        assert torch.equal(ours[ARENA, "float32"], theirs[ARENA, "float32"])


def test_what_a_loop_raises_comes_out_of_a_chain() -> None:
    buffers, index = memory(), np.array([7])
    before = buffers[ARENA, "float32"].clone()
    wrong = GATHER, (at(0, 8), 4, index, at(SIZE, 4), 4, 1, 2, 4)
    made = [copy(0, 2 * SIZE, 4), wrong, copy(0, 3 * SIZE, 4)]
    with pytest.raises(IndexError, match="outside the table"):
        chained(made, buffers).execute(0, 3)
    after = buffers[ARENA, "float32"]
    assert torch.equal(after[2 * SIZE :][:4], before[:4]), "what comes before is done"
    assert torch.equal(after[3 * SIZE :], before[3 * SIZE :]), "what comes behind is not"


def test_a_loop_that_fails_in_a_chain_alone_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = chained([copy(0, SIZE, 4)], memory())
    monkeypatch.setattr(whole, "_go", lambda *_: 0)
    with pytest.raises(KernelError, match="copy failed in a chain, and does not alone"):
        whole.execute(0, 1)


def test_a_call_apart_is_a_part_of_a_chain_of_its_own() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    call = apart((COPY, (x, 0, 0, y, 0, 0, 1, 1, 4)))
    assert is_part(call)
    assert not is_part((COPY, ()))
    function, arguments = call
    function(*arguments)
    assert (y == x).all()
    assert apart((print, (1,))) == (print, (1,))


# --- in programs ----------------------------------------------------------------------------------


def weights_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    shapes = {name: node.shape for name, node in graph.parameters.items()}
    return {name: rng.standard_normal(size).astype("float32") for name, size in shapes.items()}


def normed(g: GraphBuilder, x: Node, i: int, n: int) -> Node:
    return ops.rms_norm(ops.linear(x, g.parameter(f"w{i}", (n, n))), g.parameter(f"n{i}", (n,)))


def small(with_erf: bool = False) -> tg.GraphSession:
    g = GraphBuilder()
    ids = g.input("ids", (6,), "int64")
    x = ops.embedding(g.parameter("table", (5, 32)), ids)
    for i in range(3):
        x = x + normed(g, x, i, 32)
        if with_erf:
            x = ops.erf(x)
    g.output("y", x)
    graph = g.build()
    weights = weights_of(graph)
    return tg.GraphSession(graph, weights, calibrate=False, making="always")


def ids(*values: int) -> dict[str, Any]:
    return {"ids": np.array(values)}


def test_loops_one_after_another_are_one_call() -> None:
    session = small()
    session.run(ids(0, 1, 2, 3, 4, 0))
    session.run(ids(0, 1, 2, 3, 4, 1))
    report = session.last
    assert report is not None
    assert report.instructions > 6
    assert report.calls == 1
    assert len(report.program.each) == report.instructions
    assert f"{report.instructions} instructions in 1 call" in str(report)


def test_what_is_no_loop_is_a_call_of_its_own() -> None:
    session = small(with_erf=True)
    session.run(ids(0, 1, 2, 3, 4, 0))
    report = session.last
    assert report is not None
    loops = [isinstance(made.function, Loop) for made in report.program.instructions]
    begun = sum(one and not before for one, before in zip(loops, [False, *loops], strict=False))
    assert 0 < begun < report.calls == begun + loops.count(False) < report.instructions


def test_a_chain_ends_where_signals_should_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MOST_BYTES", 5_000)
    session = small()
    session.run(ids(0, 1, 2, 3, 4, 0))
    assert session.last is not None
    assert 3 <= session.last.calls < session.last.instructions


def test_a_team_computes_a_chain_with_the_bits_of_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "gain", lambda threads: float(threads))
    g = GraphBuilder()
    x = g.input("x", (1, 512))
    for i in range(3):
        x = normed(g, x, i, 512)
    g.output("y", x)
    graph = g.build()
    weights = weights_of(graph)
    found, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            session = tg.GraphSession(graph, weights, calibrate=False, making="always")
            for turn in range(3):
                found.append(session.run({"x": np.full((1, 512), turn + 1, np.float32)})["y"])
            assert session.last is not None
            assert session.last.calls == 1
        kernels = {made.kernel for made in session.last.program.instructions}
    finally:
        torch.set_num_threads(threads)
    assert "linear_team_numba" in kernels
    assert all((one == two).all() for one, two in zip(found[:3], found[3:], strict=True))


def test_a_loop_within_another_function_follows_the_origin() -> None:
    """What bit-exact runs wrap is no link of a chain; its arrays are made anew when it moves."""
    g = GraphBuilder()
    g.output("y", g.input("x", (12, 12)) + 1.0)
    session = tg.GraphSession(g.build(), exact="bitwise", calibrate=False, making="always")
    value = np.random.default_rng(3).standard_normal((12, 12)).astype(np.float32)
    session.run({"x": value})
    followed = 0
    for row in (4, 7, 5, 9, 4, 10, 0, 11):
        value[row] += 1
        assert np.array_equal(session.run({"x": value})["y"], value + 1)
        assert session.last is not None
        followed += not session.last.specialised and any(
            not isinstance(one.function, Loop)
            and any(isinstance(a, Host) and moves(a.view) for a in one.arguments)
            for one in session.last.program.instructions
        )
    assert followed > 0


def test_arrays_that_numba_passes_in_another_way_are_refused() -> None:
    entries._check_passing(("int", "float"), ["i64 %a", "double %b"])
    with pytest.raises(KernelError, match=r"as \(i64, double\), not as \(double, i64\)"):
        entries._check_passing(("int", "float"), ["double %a", "i64 %b"])


def test_what_executes_a_chain_was_called_before_its_first_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its first call takes milliseconds, and a small program would be put aside for that."""
    made, called = LoopChain(()), list[Any]()
    made.add(*copy(0, SIZE, 8), memory())
    monkeypatch.setattr(chains, "_call_once", called.append)
    made.close()
    assert called == [made._go]
    monkeypatch.undo()
    chains._call_once.cache_clear()
    ran: list[tuple[int, int]] = []
    chains._call_once(lambda table, starts, first, stop, words, helpers: ran.append((first, stop)))
    assert ran == [(0, 0)], "of no loops"


# --- threads --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lets_go", [True, False])
def test_a_long_chain_lets_other_threads_have_python(lets_go: bool) -> None:
    """A helper that is woken gets on at once, not when the chain is over; short ones are over soon.

    Nobody takes Python from who has it meanwhile: that happens after the switch interval only.
    """
    n = 1 << 16
    chain = LoopChain(())
    buffers = {(ARENA, "float32"): torch.ones(2 * n)}
    for _ in range(500):
        chain.add(*norm_of(n), buffers)
    chain.close()
    go = entries.run_long if lets_go else entries.run

    def execute(stop: int) -> None:
        go(chain._table, chain._begins, 0, stop, chains.NOBODY, 0)

    execute(1)
    tries = (_gets_on_during(lambda: execute(len(chain))) for _ in range(100 if lets_go else 5))
    assert any(tries) == lets_go  # a system that is busy may let it wait for one of them


def _gets_on_during(work: Callable[[], None]) -> bool:
    """Whether a thread that is woken is there before some work is over."""
    seen, bed, is_up = list[str](), threading.Lock(), threading.Event()
    bed.acquire()

    def sleeper() -> None:
        is_up.set()
        bed.acquire()
        seen.append("awake")

    thread = threading.Thread(target=sleeper, daemon=True)
    thread.start()
    is_up.wait()  # where others have the processors, it may take long to begin
    time.sleep(0.02)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100.0)
    try:
        bed.release()
        work()
        found = bool(seen)
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    return found


def norm_of(n: int) -> tuple[Loop, tuple[Any, ...]]:
    weights = np.ones(n, np.float32)
    return NORM, (at(0, n), 0, n, weights, at(n, n), 0, n, 1, 1, n, 1e-6)


def test_no_two_loops_are_one_for_who_keeps_machine_code() -> None:
    """Numba finds kept code by a function's file, name and line, whatever it is compiled for."""
    found = dict[tuple[str, str, int], Any]()
    folder = Path(loops.__file__).parent
    for file in folder.glob("*.py"):
        module = importlib.import_module(f"tgbench.kernels.numba.{file.stem}")
        for one in vars(module).values():
            if isinstance(one, CPUDispatcher):
                code = one.py_func.__code__
                place = code.co_filename, one.py_func.__qualname__, code.co_firstlineno
                assert found.setdefault(place, one) is one, place
    assert len(found) > 50
