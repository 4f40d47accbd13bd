"""Changes by hand: what they do to a plan, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgbench as tg
from tgbench.base.errors import PlanError
from tgbench.memory.check import clashes
from tgbench.memory.placement import aligned
from tgbench.session.session import GraphSession
from tgbench.session.what_if import Ground, WhatIf


@pytest.fixture(scope="module")
def session() -> GraphSession:
    """Four products in a row; one row of the input changes, and one of the output is asked for."""
    g = tg.GraphBuilder()
    h = g.input("x", (32, 16))
    for i in range(4):
        h = g.name(tg.ops.softmax(h @ g.parameter(f"w{i}", (16, 16))), f"h{i}")
    g.output("y", h)
    made = GraphSession(
        g.build(),
        weights={f"w{i}": np.eye(16, dtype=np.float32) for i in range(4)},
        memory="64KiB",
    )
    for row in range(4):
        value = np.zeros((32, 16), np.float32)
        value[row] = 1
        made.run({"x": value}, want={"y": np.s_[row]})
    return made


@pytest.fixture(scope="module")
def what(session: GraphSession) -> WhatIf:
    return WhatIf.of(session)


def test_no_change_is_the_plan_in_force(what: WhatIf, session: GraphSession) -> None:
    verdict = what.verdict()
    assert verdict.is_valid
    assert verdict.expected_ns == verdict.before_ns
    assert what.plan.slots == session.plan.slots


def test_a_buffer_moved_above_all_others_is_valid(what: WhatIf, session: GraphSession) -> None:
    top = session.placement.size_bytes
    moved = what.moved("h1", top)
    assert moved.verdict().is_valid
    assert moved.plan.size_bytes > top
    assert moved.code() == f"WhatIf.of(session).moved('h1', {top}).plan"


def test_a_clash_names_both_and_the_step(what: WhatIf) -> None:
    verdict = what.moved("h1", 0).verdict()
    assert not verdict.is_valid
    assert {clash.a for clash in verdict.clashes} == {"x"}
    assert "live at once on the same bytes: x and" in str(verdict)
    with pytest.raises(PlanError, match="live at once"):
        _ = what.moved("h1", 0).plan


def test_past_the_budget_is_said(what: WhatIf) -> None:
    verdict = what.moved("h1", 1 << 20).verdict()
    assert not verdict.is_valid
    assert "more than the budget" in verdict.message


def test_retaining_and_dropping_are_each_other_s_inverse(what: WhatIf) -> None:
    kept = what.retained("h2")
    assert "h2" in kept.plan.retained
    gone = kept.dropped("h2")
    assert "h2" not in gone.plan.retained
    assert gone.undone() == kept
    assert [str(change) for change in gone.changes] == [".retained('h2')", ".dropped('h2')"]


def test_a_changed_plan_can_be_put_in_force(session: GraphSession, what: WhatIf) -> None:
    before = session.plan
    session.adopt(what.retained("h3").plan)
    value = np.zeros((32, 16), np.float32)
    value[5] = 2
    found = session.run({"x": value}, want={"y": np.s_[5]})["y"]
    session.adopt(before)
    assert np.array_equal(found, session.run({"x": value}, want={"y": np.s_[5]})["y"])


@pytest.mark.parametrize(
    ("node", "offset", "words"),
    [("h9", 0, "no node 'h9'"), ("x", 0, "no bytes that can be given"), ("h1", 7, "nearest is 0")],
)
def test_what_cannot_be_changed_is_said(what: WhatIf, node: str, offset: int, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        what.moved(node, offset)


def test_a_plan_alone_is_judged_by_its_own_classes(session: GraphSession) -> None:
    what = WhatIf(Ground(session.plan, session.graph))
    assert what.verdict().is_valid
    assert what.verdict().expected_ns


def test_a_bit_exact_plan_needs_its_session(session: GraphSession) -> None:
    exact = WhatIf(Ground(replace(session.plan, exact="bitwise"), session.graph))
    with pytest.raises(PlanError, match=r"WhatIf\.of\(session\)"):
        exact.verdict()


@given(st.sampled_from(["h0", "h1", "h2"]), st.integers(0, 200))
def test_clashes_are_those_of_every_pair(session: GraphSession, name: str, block: int) -> None:
    """Against every byte and every step."""
    made = WhatIf.of(session).moved(name, 64 * block).decisions
    placement, scheduled = made.placement, made.scheduled
    end = len(scheduled.schedule) + 1
    taken = []
    for node, slot in placement.slots.items():
        live = scheduled.live.get(node)
        kept = live is None or slot.offset_bytes < placement.kept_bytes
        steps = range(end) if kept or live is None else range(live.start, live.stop)
        low = slot.offset_bytes // 64
        blocks = range(low, low + aligned(placement.size_of(node)) // 64)
        taken.append((node.name, {(b, s) for b in blocks for s in steps}, placement.group(node)))
    for node, room in placement.scratch.items():
        low, step = room.offset_bytes // 64, scheduled.position[node]
        blocks = range(low, low + -(-room.size_bytes // 64))
        taken.append((f"{node.name} (scratch)", {(b, step) for b in blocks}, None))
    right = {
        frozenset((a, b))
        for (a, mine, one), (b, theirs, other) in combinations(taken, 2)
        if mine & theirs and (one is None or one is not other)
    }
    found = {frozenset((c.a, c.b)) for c in clashes(placement, scheduled)}
    assert found == right
