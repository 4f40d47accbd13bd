"""Sessions that keep windows of nodes, which move along with what runs compute.

Every run is in poisoned memory and beside the references (`session_cases`): what a window is said
to hold is there, at the places where it lies by then.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_cases import Array, CheckedSession, smallest_budget

from tgbench import ops
from tgbench.base.errors import BudgetError, PlanError
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.memory import draft
from tgbench.memory.placement import Footprint
from tgbench.plans.attempts import Attempts
from tgbench.plans.plan import Plan
from tgbench.plans.scenarios import Runs
from tgbench.programs.sizing import Sizer
from tgbench.session.session import GraphSession

SIZE, WIDE, WORDS, WINDOW, LAYERS = 64, 16, 7, 5, 3
NODES = [f"x{i}" for i in range(LAYERS)]
SHORT = 14


@cache
def causal() -> Graph:
    """Layers whose rows see a few rows before their own."""
    g = GraphBuilder()
    x = ops.embedding(g.parameter("table", (WORDS, WIDE)), g.input("ids", (SIZE,), "int64"))
    seen = g.constant((np.tri(SIZE) - np.tri(SIZE, k=-WINDOW)).astype("float32"))
    for i in range(LAYERS):
        x = g.name(ops.relu(x @ g.parameter(f"w{i}", (WIDE, WIDE))), f"x{i}")
        x = ops.clamp(g.name(seen @ x, f"z{i}"), -3.0, 3.0)
    g.output("y", x)
    return g.build()


@cache
def values() -> dict[str, Array]:
    random = np.random.default_rng(0)
    weights = {
        name: random.integers(-1, 2, node.shape).astype(node.dtype)
        for name, node in causal().parameters.items()
    }
    return weights | {"ids": random.integers(WORDS, size=SIZE)}


@cache
def roomy_bytes() -> int:
    """What keeping everything takes."""
    session = CheckedSession(causal(), values())
    started(session)
    return session.session.placement.size_bytes


def started(session: CheckedSession, rows: int = SIZE // 2) -> CheckedSession:
    """It has computed the last of so many rows; the others are 0."""
    ids = values()["ids"].copy()
    ids[rows:] = 0
    session.run({"ids": ids}, {"y": np.s_[rows - 1]})
    return session


def tight(share: float = 0.3, **options: Any) -> CheckedSession:
    return CheckedSession(causal(), values(), memory=int(share * roomy_bytes()), **options)


def append(session: CheckedSession, row: int, count: int = 1) -> None:
    """New rows from here on, the last of which is looked at."""
    ids = session.values["ids"].copy()
    ids[row : row + count] = 1 + np.random.default_rng(row).integers(WORDS - 1, size=count)
    session.run({"ids": ids}, {"y": np.s_[row + count - 1]})


def slides(session: CheckedSession) -> list[str]:
    """The nodes whose windows the last run moved."""
    last = session.session.last
    assert last is not None
    return [one.node.name for one in last.program.instructions if one.kernel == "slide"]


def test_windows_take_less_and_an_appended_row_computes_one_row() -> None:
    session = started(tight())
    plan = session.session.plan
    assert {slot.node: slot.slides for slot in plan.slots if slot.retained} == {
        "ids": None, **dict.fromkeys(NODES, 0)
    }  # fmt: skip
    assert not plan.dropped
    rows = {slot.node: slot.extents[0] for slot in plan.slots}
    assert all(WINDOW <= rows[name] < SIZE / 2 for name in NODES)
    for row in range(SIZE // 2, SIZE):
        append(session, row)
        last = session.session.last
        assert last is not None
        for name in NODES:
            assert [box[0] for box in last.compute[name]] == [(row, row + 1)]
        assert slides(session) == NODES
    assert session.session.counters.planned == 1


def test_windows_take_no_more_programs_than_all_rows() -> None:
    """One program moves them wherever it is; with memory for all rows nothing moves."""
    made = {}
    for share in (0.3, 1.0):
        session = started(tight(share))
        for row in range(SIZE // 2, SIZE):
            append(session, row)
        made[bool(session.session.placement.sliding)] = session.session.counters.specialised
    assert made[True] == made[False] < SIZE / 4


def test_behind_a_prompt_windows_end_where_the_next_run_begins() -> None:
    """The prompt is another class of runs: counting on a number, the first program behind it would
    be right nowhere else.
    """
    session = started(tight())
    keeper = session.session.runner.keeper
    valid, prompt = keeper.standing.valid, keeper.standing.last
    append(session, SIZE // 2)
    assert prompt is not None
    assert keeper.standing.last is not None
    moved = keeper.states.moved(valid, prompt, keeper.standing.last)
    slots, further = session.session.placement.slots, (SIZE // 2 + 9,)
    held = keeper.states.patterns[moved].state
    assert [node.name for node in held if node in session.session.placement.sliding] == NODES
    for node in session.session.placement.sliding:
        assert held[node].start[0].at(further) == further[0] - slots[node].extents[0]
        assert held[node].start[1] == 0


def test_a_window_that_is_not_written_stays_where_it_is() -> None:
    session = started(tight())
    append(session, SIZE // 2)
    session.run(want={"y": np.s_[SIZE // 2]})  # nothing changed
    assert not slides(session)
    append(session, SIZE // 2 + 1)
    assert slides(session) == NODES


KINDS_OF_RUNS = ("append", "append", "block", "back", "edit", "look", "what if")


@pytest.mark.parametrize("share", [0.25, 0.3, 0.4, 0.5])
@given(st.data())
def test_any_history(share: float, data: st.DataObject) -> None:
    """Appending, in blocks, going back, editing what lies behind, looking elsewhere."""
    session = started(tight(share, making=data.draw(st.sampled_from(["measured", "always"]))))
    at = SIZE // 2
    for _ in range(data.draw(st.integers(3, 10))):
        what = data.draw(st.sampled_from(KINDS_OF_RUNS))
        if what == "back":
            at = max(at - data.draw(st.integers(1, 6)), 1)
        count = data.draw(st.integers(2, 6)) if what == "block" else 1
        if at + count > SIZE:
            at = SIZE // 4
        if what in ("append", "block", "back"):
            append(session, at, count)
            at += count
            continue
        ids = session.values["ids"].copy()
        row = data.draw(st.integers(0, at - 1))
        if what != "look":
            ids[row] = data.draw(st.integers(0, WORDS - 1))
        looked_at = row if what == "look" else at - 1
        session.run({"ids": ids}, {"y": np.s_[looked_at]}, keep=what != "what if")


def test_a_plan_with_windows_is_read_as_it_was_written(tmp_path: Path) -> None:
    session = started(tight(plan=tmp_path / "plan.json"))
    append(session, SIZE // 2)
    session.session.plan.save(tmp_path / "again.json")
    again = started(CheckedSession(causal(), values(), plan=tmp_path / "again.json"))
    assert again.session.plan.digest == session.session.plan.digest
    for row in range(SIZE // 2, SIZE):
        append(again, row)
        assert slides(again) == NODES
    assert again.session.counters.planned == 0


def test_programs_that_move_windows_survive(tmp_path: Path) -> None:
    session = started(tight(plan=tmp_path / "plan.json"))
    append(session, SIZE // 2)
    append(session, SIZE // 2 + 1)
    session.session.save_plan()
    session.session.save_programs()
    again = CheckedSession(causal(), values(), plan=tmp_path / "plan.json")
    assert again.session.load_programs() == 3
    started(again)
    for row in (SIZE // 2, SIZE // 2 + 1):
        append(again, row)
        assert slides(again) == NODES
    assert again.session.counters.specialised == 0


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"slides": 2}, "slides"),
        ({"slides": -1}, "slides"),
        ({"slides": "0"}, "slides"),
        ({"retained": False}, "slides"),
        ({"through": [0]}, "slides"),
        ({"offset_bytes": 1 << 20}, "slots"),
    ],
)
def test_a_damaged_window_is_refused(change: dict[str, Any], names: str, tmp_path: Path) -> None:
    plan = started(tight()).session.plan
    document = json.loads(plan.to_json())
    slot = next(slot for slot in document["slots"] if slot["node"] == NODES[0])
    slot |= change
    with pytest.raises(PlanError, match=names):
        Plan.from_json(json.dumps(document)).placement_for(causal(), "cpu")


def test_a_plan_says_where_windows_are() -> None:
    plan = started(tight()).session.plan
    assert "in windows that move along, 3 nodes: x0, x1, x2" in str(plan)
    rows = next(slot for slot in plan.slots if slot.node == NODES[0]).extents[0]
    assert f"a window of {rows} elements along dimension 0" in str(plan.explain(NODES[0]))
    assert "window" not in str(plan.explain("ids"))


def test_searches_keep_windows() -> None:
    session = started(tight())
    for row in range(SIZE // 2, SIZE // 2 + 8):
        append(session, row)
    session.session.optimize("search", seconds=None, steps=8)
    assert set(session.session.plan.retained) == set(NODES)
    for row in range(SIZE // 2 + 8, SIZE):
        append(session, row)
    assert isinstance(session.session, GraphSession)


def test_what_runs_read_on_both_sides_of_a_change_does_not_move() -> None:
    """Nobody says that such runs follow each other: a window that jumps finds nothing."""
    g = GraphBuilder()
    x = ops.embedding(g.parameter("table", (WORDS, WIDE)), g.input("ids", (SIZE,), "int64"))
    near = g.constant((np.tri(SIZE, k=2) - np.tri(SIZE, k=-3)).astype("float32"))
    for i in range(LAYERS):
        x = ops.clamp(near @ ops.relu(x @ g.parameter(f"w{i}", (WIDE, WIDE))), -3.0, 3.0)
    g.output("y", x)
    for share in (0.2, 0.3, 0.5):
        session = CheckedSession(g.build(), values(), memory=int(share * roomy_bytes()))
        session.run(want={"y": np.s_[20]})
        for row in (30, 12, 50, 13):
            ids = session.values["ids"].copy()
            ids[row] = (ids[row] + 1) % WORDS
            session.run({"ids": ids}, {"y": np.s_[row]})
        assert not session.session.placement.sliding


@st.composite
def rows_near_rows(draw: Any) -> Graph:
    """Layers of rows that see some rows before and after them, and earlier layers."""
    g = GraphBuilder()
    x = ops.embedding(g.parameter("table", (WORDS, 4)), g.input("ids", (SHORT,), "int64"))
    layers = [x]
    for i in range(draw(st.integers(1, 5))):
        what = draw(st.sampled_from(["near", "near", "product", "sum", "transposed"]))
        if what == "near":
            before, after = draw(st.integers(0, 4)), draw(st.sampled_from([0, 0, 1, 3]))
            near = np.tri(SHORT, k=after) - np.tri(SHORT, k=-before - 1)
            x = g.constant(near.astype("float32")) @ x
        elif what == "product":
            x = ops.relu(x @ g.parameter(f"w{i}", (4, 4)))
        elif what == "sum":
            x = x + draw(st.sampled_from(layers))
        else:
            x = ops.relu(x.permute(1, 0)).permute(1, 0)
        x = ops.clamp(x, -3.0, 3.0)
        layers.append(x)
    g.output("y", x)
    if draw(st.booleans()):
        g.output("early", draw(st.sampled_from(layers)))
    return g.build()


def given_values(graph: Graph) -> dict[str, Array]:
    random = np.random.default_rng(0)
    weights = {
        name: random.integers(-1, 2, node.shape).astype(node.dtype)
        for name, node in graph.parameters.items()
    }
    return weights | {"ids": random.integers(WORDS, size=SHORT)}


def test_any_map_with_windows_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all slides that can, also where no planner would let it: any rows, budgets, runs."""

    def whatever(nodes: Iterable[Node], uses: Footprint) -> Iterator[tuple[Node, int]]:
        for node in nodes:
            sides = zip(uses.extents[node], uses.hulls[node].extents, strict=True)
            axes = [axis for axis, (once, ever) in enumerate(sides) if once < ever]
            if len(axes) == 1:
                yield node, axes[0]

    def always_slides(self: Attempts, runs: Runs, sizer: Sizer, may_slide: bool = True) -> None:
        begin(self, runs, sizer, may_slide=True)

    begin, moved = Attempts.__init__, list[str]()
    monkeypatch.setattr(draft, "slide", whatever)
    monkeypatch.setattr(Attempts, "__init__", always_slides)

    @given(rows_near_rows(), st.data())
    def any_map(graph: Graph, data: st.DataObject) -> None:
        values = given_values(graph)
        low = smallest_budget(graph, values, dict.fromkeys(graph.outputs, np.s_[3]))
        budget = data.draw(st.sampled_from([None, None, low, low * 5 // 4, low * 2]))
        options = {"retain": "all"} if budget is None and data.draw(st.booleans()) else {}
        making = data.draw(st.sampled_from(["measured", "always"]))
        session = CheckedSession(graph, values, memory=budget, making=making, **options)
        at = 3
        for _ in range(data.draw(st.integers(2, 10))):
            ids = session.values["ids"].copy()
            edits = data.draw(st.lists(st.integers(0, SHORT - 1), max_size=2))
            ids[[at, *edits]] = data.draw(st.integers(0, WORDS - 1))
            names = data.draw(st.sampled_from([[*graph.outputs], ["y"]]))
            keep = data.draw(st.sampled_from([True, True, True, False]))
            with suppress(BudgetError):
                session.run({"ids": ids}, dict.fromkeys(names, np.s_[at]), keep=keep)
                moved.extend(slides(session))
            at = data.draw(st.sampled_from([(at + 1) % SHORT] * 3 + [*range(SHORT)]))

    any_map()
    assert moved
