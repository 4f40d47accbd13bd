"""State variables: recurrent models, caches written in place, faults, plans, budgets."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from session_cases import CheckedSession, smallest_budget

import tgbench
import tgbench.graph.ops as ops
from tgbench.base.errors import BudgetError, GraphError, InputError, KernelError
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.plans.plan import Plan
from tgbench.session.memory import _neighbours
from tgbench.session.session import GraphSession
from tgbench.session.standing import Standing

Array = np.ndarray[Any, Any]

WIDTH, HIDDEN = 6, 10


# --- a recurrent model ----------------------------------------------------------------------------


def gru(batch: int = 2) -> Graph:
    """`torch.nn.GRU` of one layer, one step a run; the hidden state is in the graph."""
    g = GraphBuilder()
    x, h = g.input("x", (batch, WIDTH)), g.state("h", (batch, HIDDEN))
    into = ops.linear(x, g.parameter("weight_ih_l0", (3 * HIDDEN, WIDTH)))
    onto = ops.linear(h, g.parameter("weight_hh_l0", (3 * HIDDEN, HIDDEN)))
    into = into + g.parameter("bias_ih_l0", (3 * HIDDEN,))
    onto = onto + g.parameter("bias_hh_l0", (3 * HIDDEN,))
    (ir, iz, inew), (hr, hz, hnew) = (ops.split(n, [HIDDEN] * 3, 1) for n in (into, onto))
    reset, keep = ops.sigmoid(ir + hr), ops.sigmoid(iz + hz)
    new = ops.tanh(inew + reset * hnew)
    after = (1.0 - keep) * new + keep * h
    g.update(h, after)
    g.output("y", after)
    return g.build()


def torch_gru() -> tuple[torch.nn.GRU, dict[str, Array]]:
    torch.manual_seed(0)
    module = torch.nn.GRU(WIDTH, HIDDEN, batch_first=True)
    return module, {name: p.detach().numpy() for name, p in module.named_parameters()}


def test_a_gru_follows_torch_over_hundreds_of_runs() -> None:
    module, weights = torch_gru()
    session = GraphSession(gru(), weights=weights)
    x = np.random.default_rng(0).standard_normal((2, 300, WIDTH)).astype("float32")
    with torch.no_grad():
        right, last = module(torch.from_numpy(x))
    for step in range(300):
        found = session.run({"x": x[:, step]})["y"]
        np.testing.assert_allclose(found, right[:, step], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(session.state_value("h"), last[0], rtol=1e-5, atol=1e-6)
    assert session.counters.specialised < 40, "steady runs share one program"


# --- a cache of keys and values, written in place -------------------------------------------------

ROOM, HEADS, DIM = 24, 2, 4


def cached_attention(rows: int = 1) -> Graph:
    """`rows` tokens a run: their keys and values go to `position` of two preallocated states.

    What is there is read where it lies; the new rows stand beside it, so that nothing copies a
    cache. Scores of slots that hold nothing yet are masked by the position.
    """
    g = GraphBuilder()
    position = g.input("position", (1,), "int64")
    q, k, v = (g.input(name, (HEADS, rows, DIM)) for name in "qkv")
    keys, values = (g.state(name, (HEADS, ROOM, DIM)) for name in ("keys", "values"))
    g.update(keys, k, at=position, axis=1)
    g.update(values, v, at=position, axis=1)
    slots = g.constant(np.arange(ROOM))
    old = ops.where(slots < position, q @ keys.transpose(), -np.inf)
    lower = g.constant(np.tril(np.ones((rows, rows), bool)))
    new = ops.where(lower, q @ k.transpose(), -np.inf)
    weights = ops.softmax(ops.concat([old, new], 2))
    g.output("y", weights[:, :, :ROOM] @ values + weights[:, :, ROOM:] @ v)
    return g.build()


class History:
    """Every row so far, and attention over all of it."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Array]] = {"q": [], "k": [], "v": []}

    def step(self, rng: np.random.Generator, count: int) -> dict[str, Array]:
        position = np.array([len(self)])
        made = {n: rng.standard_normal((HEADS, count, DIM)).astype("float32") for n in "qkv"}
        for name, rows in made.items():
            self.rows[name].append(rows)
        return {"position": position, **made}

    def __len__(self) -> int:
        return sum(rows.shape[1] for rows in self.rows["k"])

    def expected(self, count: int) -> Array:
        q, k, v = (torch.from_numpy(np.concatenate(self.rows[n], 1)) for n in "qkv")
        found = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return found[:, -count:].numpy()


def written_bytes(session: GraphSession) -> int:
    """What the last run's calls write."""
    made = session.last.program.instructions  # type: ignore[union-attr]
    return sum(i.box.elements * i.node.type.itemsize for i in made)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_cache_equals_attention_over_the_whole_history(rows: int) -> None:
    session, history = GraphSession(cached_attention(rows)), History()
    rng = np.random.default_rng(1)
    for _ in range(ROOM // rows):
        inputs = history.step(rng, rows)
        found = session.run(inputs)["y"]
        np.testing.assert_allclose(found, history.expected(rows), rtol=2e-5, atol=1e-5)
        ran = {node for node, region in session.last.compute.items() if region.boxes}  # type: ignore[union-attr]
        assert "scatter" not in ran, "no run makes a whole cache"
        assert "scatter_1" not in ran
    kept = np.concatenate(history.rows["k"], 1)
    assert np.array_equal(session.state_value("keys"), kept)
    assert session.counters.specialised < 12, "positions share their programs"


def test_only_the_rows_that_are_appended_are_dirty_in_the_next_run() -> None:
    session, history = GraphSession(cached_attention()), History()
    rng = np.random.default_rng(2)
    for step in range(6):
        session.run(history.step(rng, 1))
        assert {n: str(r) for n, r in session.standing.pending.items()} == {
            "keys": f"{{[0:2, {step}:{step + 1}, 0:4]}}",
            "values": f"{{[0:2, {step}:{step + 1}, 0:4]}}",
        }


def test_a_cache_needs_room_for_one_copy_of_itself() -> None:
    graph = cached_attention()
    caches = sum(node.type.size_bytes for node in graph.states.values())
    history, rng = History(), np.random.default_rng(3)
    with pytest.raises(BudgetError) as error:
        GraphSession(graph, memory=0).run(history.step(rng, 1))
    assert error.value.needed_bytes < 2 * caches + 2048
    history = History()
    tight = GraphSession(graph, memory=error.value.needed_bytes)
    for _ in range(ROOM):
        found = tight.run(history.step(rng, 1))["y"]
        np.testing.assert_allclose(found, history.expected(1), rtol=2e-5, atol=1e-5)


def test_the_position_may_be_a_state_too_and_has_to_stay_inside() -> None:
    g = GraphBuilder()
    row, clock = g.input("row", (1, 3)), g.state("clock", (), "int64")
    log = g.state("log", (4, 3))
    g.update(log, row, at=clock)
    g.update(clock, clock + 1)
    g.output("sum", ops.sum_(log, (0,)) + row)
    session = GraphSession(g.build())
    rows = np.arange(12, dtype="float32").reshape(4, 3)
    for i, step in enumerate(rows):
        assert np.array_equal(session.run({"row": step[None]})["sum"][0], rows[: i + 1].sum(0))
    assert np.array_equal(session.state_value("log"), rows)
    with pytest.raises(KernelError, match=r"'log' has no slice 4 along dimension 0, it has 4"):
        session.run({"row": rows[:1]})
    assert session.state_value("clock") == 4, "all states advance, or none"
    session.reset_states()
    assert not session.state_value("log").any()
    assert np.array_equal(session.run({"row": rows[1:2]})["sum"][0], rows[1])


# --- writes in part, in general -------------------------------------------------------------------


@given(st.lists(st.integers(-7, 6), min_size=1, max_size=6))
def test_neighbouring_slices_are_one_block(indices: list[int]) -> None:
    found = np.full(7, -1)
    for start, source, count in _neighbours(indices, 7):
        found[start : start + count] = np.arange(source, source + count)
    right = np.full(7, -1)
    right[indices] = np.arange(len(indices))  # of equal indices the last wins, as in NumPy
    assert np.array_equal(found, right)


def parts() -> Graph:
    """Blocks at fixed and moving places, one after another, and a swap of two states."""
    g = GraphBuilder()
    x, at = g.input("x", (2, 3)), g.input("at", (2,), "int64")
    board, other = g.state("board", (5, 3)), g.state("other", (5, 3))
    g.update(board, ops.update(ops.scatter(board, at, x), other[0:1, 0:2], (2, 1)))
    g.update(other, other[4:5] + x[0:1], at=3)
    a, b = g.state("a", (5, 3)), g.state("b", (5, 3))
    g.update(a, b[1:3] + x, at=at[0:1])
    g.update(b, ops.scatter(b, at, a[0:2]))
    g.output("y", board + other)
    g.output("z", a - b)
    return g.build()


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(-2, 1), st.integers(0, 4)), max_size=7))
def test_writes_in_part_equal_whole_ones(runs: list[tuple[int, int, int]]) -> None:
    zeros = {"x": np.zeros((2, 3), "float32"), "at": np.array([0, 1])}
    session = CheckedSession(parts(), zeros)
    for seed, step, at in runs:
        x = np.random.default_rng(seed).integers(-3, 4, (2, 3)).astype("float32")
        session.run({"x": x, "at": np.array([at % 3 + (step < 0), (at + step) % 3])})
        for name, right in session.states.items():
            assert np.array_equal(session.session.state_value(name), right), name


def test_the_wrong_state_value_or_place_is_named() -> None:
    g = GraphBuilder()
    x, s = g.input("x", (2, 3)), g.state("s", (4, 3))
    with pytest.raises(GraphError, match="cannot update"):
        g.update(x, x, at=0)
    with pytest.raises(GraphError, match="does not lie inside"):
        g.update(s, x, at=3)
    with pytest.raises(GraphError, match="indices must be integers"):
        g.update(s, x, at=g.input("f", (1,)))
    with pytest.raises(GraphError, match="needs a value"):
        g.update(s, x, at=g.input("i", (3,), "int64"))
    with pytest.raises(GraphError, match="types must be equal"):
        g.update(s, x)


# --- reading, setting, setting back ---------------------------------------------------------------


def counting() -> Graph:
    g = GraphBuilder()
    x, total = g.input("x", (3,)), g.state("total", (3,))
    g.update(total, total + x)
    g.output("y", total * 2.0)
    return g.build()


@pytest.mark.parametrize("ran", [False, True], ids=["before a run", "between runs"])
def test_states_are_read_and_set(ran: bool) -> None:
    session, x = GraphSession(counting()), np.array([1, 2, 3], "float32")
    assert session.state_value("total").tolist() == [0, 0, 0]
    if ran:
        session.run({"x": x})
        assert session.state_value("total").tolist() == [1, 2, 3]
    session.set_state("total", torch.tensor([5.0, 2.0, 0.0]))
    assert session.state_value("total").tolist() == [5, 2, 0]
    assert session.run({"x": x})["y"].tolist() == [10, 4, 0]
    session.state_value("total")[:] = 99
    assert session.state_value("total").tolist() == [6, 4, 3]
    session.reset_states()
    assert session.run({"x": x})["y"].tolist() == [0, 0, 0]
    assert session.run({})["y"].tolist() == [2, 4, 6]


def test_what_a_state_cannot_hold_is_refused() -> None:
    session = GraphSession(counting())
    with pytest.raises(InputError, match="unknown state 'x'; this graph has total"):
        session.state_value("x")
    with pytest.raises(InputError, match="has shape"):
        session.set_state("total", np.zeros(4, "float32"))
    with pytest.raises(InputError, match="convert it"):
        session.set_state("total", np.zeros(3))
    with pytest.raises(InputError, match="cannot hold NaN"):
        session.set_state("total", np.array([0, np.nan, 0], "float32"))
    session.release()
    assert session.state_value("total").tolist() == [0, 0, 0]


# --- runs that keep nothing -----------------------------------------------------------------------


def adding() -> Graph:
    g = GraphBuilder()
    x, t = g.input("x", (2,)), g.state("t", (2,))
    y = t + x
    g.update(t, y)
    g.output("y", y)
    return g.build()


def stopped(session: GraphSession) -> None:
    failing_at(session, 0)
    with pytest.raises(KeyboardInterrupt):
        session.run({"x": np.full(2, 7, "float32")})


BEFORE: dict[str, Callable[[GraphSession], Any]] = {
    "nothing": lambda session: None,
    "forget": GraphSession.forget,
    "optimize": lambda session: session.optimize("greedy", steps=1),
    "a plan for others": lambda session: session.plan_for([({"x": np.s_[:1]}, None)]),
    "a plan put in force": lambda session: session.adopt(session.plan),
    "an interrupt": stopped,
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_run_that_is_not_kept_leaves_everything_whatever_went_before(before: str) -> None:
    session, one = GraphSession(adding()), np.ones(2, "float32")
    session.run({"x": one})
    BEFORE[before](session)
    assert session.run({"x": one}, keep=False)["y"].tolist() == [2, 2]
    assert session.state_value("t").tolist() == [1, 1]
    assert session.run({"x": 2 * one}, keep=False)["y"].tolist() == [3, 3]
    assert session.run({})["y"].tolist() == [2, 2], "inputs are what they were"
    assert session.state_value("t").tolist() == [2, 2]


def test_a_first_run_that_is_not_kept_leaves_nothing() -> None:
    session, one = GraphSession(adding()), np.ones(2, "float32")
    session.set_state("t", 4 * one)
    assert session.run({"x": one}, keep=False)["y"].tolist() == [5, 5]
    with pytest.raises(InputError, match=r"'x'.*has no value yet"):
        session.run({})
    assert session.run({"x": one}, keep=False)["y"].tolist() == [5, 5]
    assert session.run({"x": one})["y"].tolist() == [5, 5]


def test_what_ifs_after_a_new_plan_start_from_one_run_of_what_was_held() -> None:
    session, one = GraphSession(adding()), np.ones(2, "float32")
    session.run({"x": one})
    session.forget()
    for runs in (3, 4, 5):
        session.run({"x": one * np.float32([1, runs])}, keep=False)
        assert session.counters.runs == runs
    assert session.last.kind.bucket(session.last.origin).changed[0][1].elements == 1  # type: ignore[union-attr]


def test_what_stands_between_two_runs_is_one_value() -> None:
    session, x = GraphSession(counting()), np.array([1, 2, 3], "float32")
    assert session.standing == Standing()
    session.run({"x": x})
    session.run({"x": x})
    after = session.standing
    assert after.is_fresh
    assert after.last == (session.last.kind, session.last.origin)
    session.run({"x": 2 * x}, keep=False)
    assert session.standing._replace(valid=after.valid) == after, "a what-if leaves no trace"
    session.forget()
    assert session.standing == Standing(after.memory, after.held, after.states)
    assert not session.standing.is_fresh
    session.release()
    assert session.standing == Standing()


def test_an_interrupted_run_leaves_what_stood_and_nothing_computed() -> None:
    session, x = GraphSession(counting()), np.array([1, 2, 3], "float32")
    session.run({"x": x})
    before = session.standing
    failing_at(session, 0)
    with pytest.raises(KeyboardInterrupt):
        session.run({"x": 2 * x})
    assert session.standing == Standing(before.memory, before.held, before.states)
    assert (session.run({})["y"] == 2 * x).all()
    assert (session.state_value("total") == 2 * x).all()


# --- faults, plans, budgets -----------------------------------------------------------------------


def failing_at(
    session: GraphSession, call: int, error: type[BaseException] = KeyboardInterrupt
) -> None:
    """Make one instruction of the next run raise."""
    execute = session.runner.execute

    def fail() -> None:
        raise error

    def executed(run: Any, turn: Any = None) -> Any:
        session.runner.execute = execute  # type: ignore[method-assign]
        program = run.served.program
        kept, program.calls = program.calls, program.each
        program.calls[call] = fail, ()
        try:
            return execute(run, turn)
        finally:
            program.calls = kept

    session.runner.execute = executed  # type: ignore[method-assign]


@pytest.mark.parametrize("call", [0, 3, -1])
def test_a_run_that_is_interrupted_leaves_the_states(call: int) -> None:
    module, weights = torch_gru()
    session = GraphSession(gru(), weights=weights)
    rng, h = np.random.default_rng(4), torch.zeros(1, 2, HIDDEN)
    for step in range(8):
        x = rng.standard_normal((2, WIDTH)).astype("float32")
        if step in (3, 5):
            failing_at(session, call)
            before = session.state_value("h")
            with pytest.raises(KeyboardInterrupt):
                session.run({"x": -x})
            assert np.array_equal(session.state_value("h"), before)
        with torch.no_grad():
            right, h = module(torch.from_numpy(x[:, None]), h)
        np.testing.assert_allclose(session.run({"x": x})["y"], right[:, 0], rtol=1e-5, atol=1e-6)


def lines(call: Callable[[], Any], stop: int | None = None) -> int:
    """Run something line by line; at line `stop` of tgbench an interrupt. Returns the lines run."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if SOURCES not in frame.f_code.co_filename:
            return None
        if event == "line":
            if count == stop:
                sys.settrace(None)
                raise KeyboardInterrupt
            count += 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


SOURCES = str(Path(tgbench.__file__).parent)


def advanced(checked: CheckedSession, inputs: Mapping[str, Array]) -> bool:
    """Whether an interrupted run was over already. Either way all states are those of one run."""
    values = checked.values | dict(inputs)
    after = checked.states_after(values | checked.states)
    found = {name: checked.session.state_value(name) for name in checked.states}
    if same(found, checked.states):
        return False
    assert same(found, after)
    checked.states, checked.values = after, values
    return True


def same(found: Mapping[str, Array], right: Mapping[str, Array]) -> bool:
    return all(np.array_equal(found[name], right[name]) for name in right)


def board_values(step: int) -> dict[str, Array]:
    x = np.random.default_rng(step).integers(1, 4, (2, 3)).astype("float32")
    return {"x": x, "at": np.array([step % 3, (step + 1) % 3])}


@pytest.mark.parametrize("keep", [True, False], ids=["kept", "not kept"])
def test_an_interrupt_at_any_line_of_a_run_leaves_all_states_or_none(keep: bool) -> None:
    checked = CheckedSession(parts(), board_values(0))
    over = 0
    for stop in itertools.count(0, STRIDE):
        for step in range(3):
            checked.run(board_values(stop + step))
        inputs = board_values(stop + 3)
        run = partial(checked.session.run, inputs, keep=keep)
        try:
            lines(run, stop)
        except KeyboardInterrupt:
            over += advanced(checked, inputs)
            checked.run({})  # the inputs are those of the last run that was over
        else:
            break
    assert stop > 200
    assert over <= 1 if keep else not over


STRIDE = 29  # of all lines; each is an interrupt and four runs that are checked


def test_an_interrupt_at_any_line_of_the_first_run_leaves_the_session_usable() -> None:
    x = np.array([1, 2, 3], "float32")
    GraphSession(counting()).run({"x": x})  # what is remembered of ops is remembered now
    total = lines(partial(GraphSession(counting()).run, {"x": x}))
    for stop in (total * i // 40 for i in range(40)):  # the last lines may be fewer than before
        session = GraphSession(counting())
        with pytest.raises(KeyboardInterrupt):
            lines(partial(session.run, {"x": x}), stop)
        begun = session.state_value("total")[0]
        assert [session.run({"x": x})["y"][0] for _ in range(3)] == [
            2 * begun,
            2 * begun + 2,
            2 * begun + 4,
        ]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_fault_in_any_kernel_leaves_inputs_and_states(error: type[BaseException]) -> None:
    checked = CheckedSession(parts(), board_values(0))
    checked.run()
    checked.session.forget()
    checked.run()
    calls = checked.session.last.instructions  # type: ignore[union-attr]
    assert calls > 4
    for call in range(calls):
        checked.run(board_values(call))
        checked.session.forget()  # so that the next run calls every kernel
        failing_at(checked.session, call, error)
        inputs = board_values(call + 1)
        with pytest.raises(KernelError if error is RuntimeError else error):
            checked.session.run(inputs)
        assert not advanced(checked, inputs)
        checked.run({})


def test_all_states_advance_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second state's copy fails after the first one's is done."""
    session = CheckedSession(parts(), {"x": np.ones((2, 3), "float32"), "at": np.array([0, 1])})
    session.run()
    before = {name: session.session.state_value(name) for name in session.states}
    copies = []

    def copy_(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        copies.append(other)
        if len(copies) == 3:
            raise RuntimeError("no more")
        return real(self, other)

    real = torch.Tensor.copy_
    place = session.session.memory.update_states

    def update_states(program: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "copy_", copy_)
            return place(program)

    monkeypatch.setattr(session.session.memory, "update_states", update_states)
    with pytest.raises(KernelError, match="no more"):
        session.session.run({"x": np.full((2, 3), 2, "float32")})
    for name, value in before.items():
        assert np.array_equal(session.session.state_value(name), value), name
    monkeypatch.undo()
    session.run({"x": np.full((2, 3), 3, "float32")})


def test_states_outlive_plans_and_begin_anew_with_a_plan_file(tmp_path: Path) -> None:
    history, rng = History(), np.random.default_rng(5)
    session = GraphSession(cached_attention())

    def step(of: GraphSession) -> None:
        found = of.run(history.step(rng, 1))["y"]
        np.testing.assert_allclose(found, history.expected(1), rtol=2e-5, atol=1e-5)

    for _ in range(4):
        step(session)
    session.optimize("greedy", steps=1)
    for _ in range(3):
        step(session)
    plan = Plan.load(session.save_plan(tmp_path / "plan.json"))
    session.adopt(plan)
    for _ in range(3):
        step(session)
    other = GraphSession(cached_attention(), plan=tmp_path / "plan.json")
    for name in ("keys", "values"):
        other.set_state(name, session.state_value(name))
    for _ in range(3):
        step(other)
    assert not other.counters.planned


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_states_at_budgets_down_to_the_smallest(share: float) -> None:
    values = {"x": np.ones((2, 3), "float32"), "at": np.array([0, 1])}
    least = smallest_budget(parts(), values)
    session = CheckedSession(parts(), values, memory=least + int(share * 2048))
    for i in range(12):
        x = np.full((2, 3), i % 4, "float32")
        session.run({"x": x, "at": np.array([i % 4, (i + 2) % 5])})


def test_a_state_that_changes_here_and_there_has_few_classes() -> None:
    """Which elements a ReLU leaves at 0 is in the numbers; the graph knows nothing of it."""
    g = GraphBuilder()
    x, h = g.input("x", (2, 5)), g.state("h", (2, 32))
    after = ops.relu(x @ g.parameter("a", (5, 32)) + 0.1 * h)
    g.update(h, after)
    g.output("y", after)
    rng = np.random.default_rng(6)
    a = rng.standard_normal((5, 32)).astype("float32")
    session, right = GraphSession(g.build(), weights={"a": a}), np.zeros((2, 32), "float32")
    for _ in range(60):
        x_ = rng.standard_normal((2, 5)).astype("float32")
        right = np.maximum(x_ @ a + np.float32(0.1) * right, 0)
        np.testing.assert_allclose(session.run({"x": x_})["y"], right, rtol=1e-5, atol=1e-6)
    assert session.counters.specialised < 10
    full = GraphSession(session.graph, weights={"a": a}, buckets={"h": "full"})
    for _ in range(3):
        full.run({"x": rng.standard_normal((2, 5)).astype("float32")})
        assert [str(region) for region in full.standing.pending.values()] == ["{[0:2, 0:32]}"]


def test_a_zero_that_changes_its_sign_is_a_change() -> None:
    g = GraphBuilder()
    x, h = g.input("x", (2,)), g.state("h", (2,))
    g.update(h, x * 1.0)
    g.output("y", 1.0 / h)
    session = GraphSession(g.build())
    with np.errstate(divide="ignore"):
        for sign in (1, -1, -1, 1):
            session.run({"x": np.array([sign * 0.0, 1], "float32")})
            assert session.run({})["y"][0] == sign * np.inf
