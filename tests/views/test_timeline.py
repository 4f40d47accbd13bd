"""Payloads of the memory timeline and of fates, without a browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgbench as tg
from tgbench.base.errors import WidgetError
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession
from tgbench.views.values.regions import inspect_class
from tgbench.views.values.runs import ClassRun, classes_of, fates, kept_after, ripple, run_of
from tgbench.views.values.timeline import (
    MOST_PAIRS,
    Rectangle,
    Timeline,
    timeline_from_plan,
    timeline_of_plan,
)

ROOT = Path(tg.__file__).parents[1]


@pytest.fixture(scope="module")
def session() -> GraphSession:
    """A chain and a branch; one element of the input changes in every run."""
    g = tg.GraphBuilder()
    x, bias = g.input("x", (16, 8)), g.input("bias", (8,))
    h = g.name(tg.ops.exp(g.name(x @ g.parameter("w", (8, 8)), "up")), "h")
    g.output("y", g.name(tg.ops.softmax(h), "sum"))
    g.output("z", tg.ops.tanh(x * bias))
    made = GraphSession(g.build(), weights={"w": np.eye(8, dtype=np.float32)})
    value = np.zeros((16, 8), np.float32)
    for row in range(3):
        value = value.copy()
        value[row, 0] = 1
        made.run({"x": value, "bias": np.ones(8, np.float32)}, want={"y": np.s_[:]})
    return made


# --- the timeline --------------------------------------------------------------------------------


def test_columns_hold_every_rectangle(session: GraphSession) -> None:
    shown = timeline_of_plan(session.plan, session.graph)
    found = shown.columns()
    assert found["name"] == [r.label for r in shown.rectangles]
    assert found["size"].tolist() == [r.size_bytes for r in shown.rectangles]
    assert found["live"].tolist() == list(shown.live_bytes)
    assert found["schedule"] == [node.name for node in session.scheduled.schedule]
    assert len(found["read_first"]) == len(shown.rectangles) + 1
    assert shown.facts()["steps"] == shown.steps


def test_words_tell_what_is_there_and_nothing_else(session: GraphSession) -> None:
    words = str(timeline_of_plan(session.plan, session.graph))
    assert "retained" in words
    assert "partial" not in words, "nothing is kept after some runs alone"
    assert "0 B" not in words
    assert str(Timeline((), 1, 0, 0)).startswith("0 rectangles over 1 step in 0 B; most in use")
    one, two = (Rectangle("q", "slice", 0, 64, 3, stop, False, "q") for stop in (4, 6))
    assert [one.when, two.when] == ["step 3", "steps 3 to 5"]


def test_readers_are_steps_that_read_through_views_too(session: GraphSession) -> None:
    shown = {r.name: r for r in timeline_of_plan(session.plan, session.graph).rectangles}
    position = {node.name: step for step, node in enumerate(session.scheduled.schedule)}
    for node in session.scheduled.schedule:
        for parent in node.inputs:
            base = session.scheduled.base[parent].name
            if base in shown and session.scheduled.base[node] is node:
                assert position[node.name] in shown[base].reads


def test_a_plan_alone_shows_the_same_bytes(session: GraphSession) -> None:
    alone, known = timeline_from_plan(session.plan), timeline_of_plan(session.plan, session.graph)
    assert alone.is_bound
    right = {r.label: r for r in known.rectangles}
    assert {r.label for r in alone.rectangles} == set(right)
    for r in alone.rectangles:
        other = right[r.label]
        assert (r.kind, r.offset_bytes, r.size_bytes, r.start, r.group) == (
            other.kind, other.offset_bytes, other.size_bytes, other.start, other.group,
        )  # fmt: skip
        assert r.stop >= other.stop, "a slice ends where its bytes are used again, at the latest"


def test_slices_of_a_plan_alone_do_not_overlap() -> None:
    shown = timeline_from_plan(Plan.load(ROOT / "data" / "decode.plan.json"))
    slices = [r for r in shown.rectangles if r.kind == "slice"]
    for i, a in enumerate(slices):
        for b in slices[i + 1 :]:
            together = a.start < b.stop and b.start < a.stop and a.group != b.group
            meet = a.offset_bytes < b.offset_bytes + b.size_bytes and (
                b.offset_bytes < a.offset_bytes + a.size_bytes
            )
            assert not (together and meet), (a, b)
    assert shown.peak_bytes <= shown.size_bytes


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_bytes_in_use_may_be_counted_in_pieces(count: int, choose: object) -> None:
    """With so few pairs at once that the steps are halved again and again."""
    rows = []
    for i in range(count):
        start = choose.randrange(9)  # type: ignore[attr-defined]
        stop = choose.randrange(start, 10) + 1  # type: ignore[attr-defined]
        low = choose.randrange(20)  # type: ignore[attr-defined]
        size = choose.randrange(1, 9)  # type: ignore[attr-defined]
        rows.append(Rectangle(str(i), "slice", low, size, start, stop, False, str(i)))
    shown = Timeline(tuple(rows), 10, 28, 28)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tgbench.views.values.timeline.MOST_PAIRS", 7)
        in_pieces = Timeline(tuple(rows), 10, 28, 28).live_bytes
    assert in_pieces == shown.live_bytes


def test_a_long_schedule_is_counted_in_bounded_memory() -> None:
    """Half a million pairs of a rectangle and a step, more than a table could hold."""
    count = 50_000
    assert count * count > MOST_PAIRS
    rows = tuple(
        Rectangle(str(i), "slice", (i % 10) * 64, 64, i, i + 10, False, str(i))
        for i in range(count)
    )
    shown = Timeline(rows, count + 10, 640, 640)
    assert set(shown.live_bytes[9:count]) == {640}


# --- what a run does, and who shares bytes -------------------------------------------------------


def test_fates_of_a_class_agree_with_what_the_session_did(session: GraphSession) -> None:
    made = session.plan.placement_for(session.graph, "cpu")
    assert session.last is not None
    run = run_of(made, str(session.last.kind), session.trace.origins(session.graph))
    stored = {node.name for node in made.placement.slots}
    assert run.recomputed == set(session.last.compute) & stored
    assert run.changed == {"x"}
    assert run.fate("x") == "changed"
    assert all(run.elements[name] for name in run.recomputed)


def test_one_changed_input_reaches_what_depends_on_it(session: GraphSession) -> None:
    made = session.plan.placement_for(session.graph, "cpu")
    run = run_of(made, "only bias", {})
    assert run.changed == {"bias"}
    assert "up" not in run.recomputed | run.stale


def test_an_append_is_looked_at_where_it_ran_last_or_halfway() -> None:
    """The plan was made at row 0, where no earlier row can be used."""
    session = causal_session(rows=(0, 1, 5))
    assert session.last is not None
    kind = session.last.kind
    made = session.plan.placement_for(session.graph, "cpu")
    assert made.classes[kind][1] == (0,)
    last = run_of(made, str(kind), session.trace.origins(session.graph))
    halfway = run_of(made, str(kind), {})
    assert "keys" in last.reused
    assert not run_of(made, str(kind), {kind: (0,)}).reused
    assert last.reused == halfway.reused
    assert (last.place, halfway.place) == (
        "at u0 = 5, as it ran last", "at u0 = 3, halfway, as no run of it was seen",
    )  # fmt: skip
    assert inspect_class(session, kind).title.endswith("at u0 = 5, as it ran last")


def causal_session(rows: tuple[int, ...]) -> GraphSession:
    """Row i of the output reads rows 0 … i of `keys`; one row is new in every run."""
    g = tg.GraphBuilder()
    keys = g.name(tg.ops.tanh(g.input("x", (8, 1)) @ g.parameter("w", (1, 64))), "keys")
    g.output("y", tg.ops.cumsum(keys, 0))
    made = GraphSession(g.build(), weights={"w": np.ones((1, 64), np.float32)})
    value = np.zeros((8, 1), np.float32)
    for row in rows:
        value[row] += 1
        made.run({"x": value}, want={"y": np.s_[row]})
    return made


def test_an_unknown_class_is_named(session: GraphSession) -> None:
    made = session.plan.placement_for(session.graph, "cpu")
    with pytest.raises(WidgetError, match="only bias"):
        run_of(made, "another", {})


def test_a_plan_alone_says_what_is_kept_after_a_class() -> None:
    plan = Plan.load(ROOT / "data" / "decode.plan.json")
    names = {slot.node for slot in plan.slots if slot.retained}
    for kind in classes_of(plan, {}):
        found = kept_after(plan, kind)
        assert set(found) == names
        assert set(found.values()) <= {"reused", "destroyed"}
        kept = {slot.node for slot in plan.slots if slot.retained and slot.through is None}
        assert all(found[name] == "reused" for name in kept)


def test_a_run_is_told_in_numbers_and_names() -> None:
    run = ClassRun(
        "a → b", "at u0 = 3", frozenset("x"), frozenset("ab"), frozenset("bc"), frozenset("d"),
        {"e": ("a",)}, {"a": 3},
    )  # fmt: skip
    assert [run.fate(name) for name in "xabcdef"] == [
        "changed", "recomputed", "extended", "reused", "stale", "destroyed", "untouched",
    ]  # fmt: skip
    assert [name for name, fate in fates(run).items() if fate == "extended"] == ["b"]
    assert ripple(run) == (
        "a → b at u0 = 3: 1 changed, 1 recomputed, 1 extended, 1 reused, 1 stale, 1 destroyed"
    )
