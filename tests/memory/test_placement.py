"""The memory map of real sessions, looked at byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import GOLDEN
from session.test_session import causal, causal_values, share_of_examples
from session_cases import CheckedSession, smallest_budget
from strategies import Array, Maker, graphs

from tgbench import ops
from tgbench.base.errors import BudgetError, PlanError
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.memory.placement import ALIGNMENT, Placement, Retention, Slot
from tgbench.plans.checks import check_placement
from tgbench.plans.retention.workload import Workload
from tgbench.plans.search.judge import Judge
from tgbench.runs.propagate import rough_ns
from tgbench.runs.split import WHOLE
from tgbench.session.session import GraphSession

Case = tuple[Graph, Maker]


def bytes_of(placement: Placement, node: Node) -> range:
    slot = placement.slots[node]
    return range(slot.offset_bytes, slot.offset_bytes + placement.size_of(node))


def meet(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


def writes(session: GraphSession) -> Iterator[tuple[Node, set[Node], range | None]]:
    """For each executed node: the stored nodes that it reads, and its scratch memory."""
    base, frozen = session.scheduled.base, session.scheduled.frozen
    for step in session.last.program.steps:  # type: ignore[union-attr]
        for node in step.compute:
            reads = {base[parent] for parent in node.inputs if base[parent] not in frozen}
            room = session.placement.scratch.get(node)
            scratch = None
            if room is not None:
                scratch = range(room.offset_bytes, room.offset_bytes + room.size_bytes)
            yield node, reads, scratch


def check_last_run(session: GraphSession) -> None:
    """Nobody writes over what a later call of the same run reads, or what is retained."""
    placement = session.placement
    live: dict[Node, range] = {}
    run = list(writes(session))
    ends = [*session.graph.outputs.values(), *session.graph.updates.values()]
    handed_out = {session.scheduled.base[node] for node in ends}

    def is_read_from(other: Node, call: int) -> bool:
        """Whether a value is read from this call on, before a later piece makes it anew."""
        for node, reads, _ in run[call:]:
            if other in reads or node is other:
                return other in reads
        return other in handed_out

    for i, (node, reads, scratch) in enumerate(run):
        place = bytes_of(placement, node)
        for other, bytes_ in live.items():
            is_read_now = other in reads and placement.donors.get(node) is not other
            still = is_read_from(other, i + 1) or is_read_now
            assert not (other is not node and still and meet(place, bytes_)), (node, other)
            assert scratch is None or not (is_read_from(other, i) and meet(scratch, bytes_))
        assert scratch is None or not meet(scratch, place)
        for kept in placement.retained:
            assert kept is node or not meet(place, bytes_of(placement, kept)), (node, kept)
            assert scratch is None or not meet(scratch, bytes_of(placement, kept))
        live[node] = place


@share_of_examples(2)
@given(graphs(most_ops=8), st.floats(0, 1), st.booleans())
def test_nothing_that_is_live_is_written_over(case: Case, share: float, keep_all: bool) -> None:
    graph, make = case
    low = smallest_budget(graph, make(0))
    options: dict[str, Any] = {"memory": low + int(share * 1024)}
    if keep_all:
        options = {"retain": "all"}
    session = CheckedSession(graph, make(0), **options)
    session.run()
    check_last_run(session.session)
    session.run({name: make(1)[name] for name in graph.inputs})
    check_last_run(session.session)


@share_of_examples(2)
@given(graphs(most_ops=8), st.booleans())
def test_a_placement_keeps_its_own_rules(case: Case, keep_all: bool) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0), retain="all" if keep_all else "auto")
    session.run()
    placement, scheduled = session.session.placement, session.session.scheduled
    check_placement(placement, scheduled)
    assert placement.bound_bytes <= placement.size_bytes
    assert placement.kept_bytes <= placement.size_bytes
    assert sum(size for _, size in placement.bound_nodes) >= placement.bound_bytes - ALIGNMENT
    for node, slot in placement.slots.items():
        assert slot.offset_bytes % ALIGNMENT == 0
        assert node in scheduled.kept or scheduled.base[node] is node, "views have no bytes"
        assert all(0 < n <= size for n, size in zip(slot.extents, node.shape, strict=True))


@given(st.data(), graphs(most_ops=8))
def test_overlaps_name_everybody_who_may_write_there(data: st.DataObject, case: Case) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0))
    session.run()
    placement = partly_retained(session.session, data)
    computed = [node for node in placement.slots if not node.is_leaf]
    assert set(placement.overlaps) == set(computed)
    for node in computed:
        for other in computed:
            if other is not node and meet(bytes_of(placement, node), bytes_of(placement, other)):
                assert other in placement.overlaps[node]
        for other, room in placement.scratch.items():
            scratch = range(room.offset_bytes, room.offset_bytes + room.size_bytes)
            if other is not node and meet(bytes_of(placement, node), scratch):
                assert other in placement.overlaps[node]


def partly_retained(session: GraphSession, data: st.DataObject) -> Placement:
    """The session's map, laid out anew with random nodes kept after random turns."""
    planning = judge_of(session)
    turns = st.sets(st.integers(0, len(planning.workload.turns) - 1))
    after = {node: frozenset(data.draw(turns)) for node in session.scheduled.stored}
    shared = frozenset(node for node in after if after[node] and data.draw(st.booleans()))
    kept = {node: turns for node, turns in after.items() if turns}
    return laid_out(planning, Retention(kept, planning.workload.turns, shared))


def judge_of(session: GraphSession) -> Judge:
    buckets = [call.bucket for call in session.trace]
    workload = Workload.of(session.scheduled, session.rules, buckets)
    return Judge(session.scheduled, session.rules, workload, rough_ns)


def laid_out(planning: Judge, retention: Retention) -> Placement:
    """A map for a trace; nobody may share what has bytes of its own."""
    placement = planning.planner.lay_out(retention, planning.scenarios, WHOLE)
    check_placement(placement, planning.scheduled)
    for node in placement.retained:
        shared = node in retention.after and retention.is_partial(node)
        assert shared == (placement.slots[node].offset_bytes >= placement.kept_bytes)
        assert shared or not placement.overlaps.get(node)
        assert node.is_leaf or (node in placement.always) == (not placement.overlaps[node])
    return placement


# --- kept after some classes ---------------------------------------------------------------------


def asked_in_turn() -> GraphSession:
    """Two questions to one input: y = 2 x + 1, z = 3 x + 1."""
    g = GraphBuilder()
    x = g.input("x", (4, 16))
    for output, factor in (("y", 2.0), ("z", 3.0)):
        g.output(output, g.name(g.name(x * factor, f"{output}_in") + 1.0, f"{output}_out"))
    session = GraphSession(g.build())
    for name in ("y", "z"):
        session.run({"x": np.zeros((4, 16), "float32")}, {name: ...})
    return session


def apart(session: GraphSession) -> Placement:
    """Every node with bytes of its own; y_in is kept after some classes, so it lies on top."""
    nodes = sorted(session.scheduled.stored, key=lambda node: node.name == "y_in")
    slots = {node: Slot(256 * i, (4, 16), (0, 0)) for i, node in enumerate(nodes, 1)}
    leaf = session.graph.inputs["x"]
    keep = frozenset([leaf, session.graph.node("y_in")])
    slots[leaf] = Slot(0, (4, 16), (0, 0))
    return Placement(slots, keep, {}, {}, 1280, 256, 1024, 0, ())


def moved(placement: Placement, name: str, onto: str) -> Placement:
    nodes = {node.name: node for node in placement.slots}
    return replace(
        placement, slots={**placement.slots, nodes[name]: placement.slots[nodes[onto]]},
        size_bytes=1024,
    )  # fmt: skip


@pytest.mark.parametrize("onto", ["z_in", "z_out"])
def test_what_some_runs_keep_may_lie_where_others_have_slices(onto: str) -> None:
    session = asked_in_turn()
    shared = moved(apart(session), "y_in", onto)
    check_placement(shared, session.scheduled)
    node, other = session.graph.node("y_in"), session.graph.node(onto)
    assert shared.overlaps[node] == (other,)
    assert shared.overlaps[other] == (node,)
    assert node not in shared.always


@pytest.mark.parametrize("onto", ["x", "y_out"])
def test_what_some_runs_keep_may_not_lie_on_what_lives_with_it(onto: str) -> None:
    session = asked_in_turn()
    with pytest.raises(PlanError, match="share bytes while both are live"):
        check_placement(moved(apart(session), "y_in", onto), session.scheduled)


def test_what_every_run_keeps_lies_on_nothing() -> None:
    session = asked_in_turn()
    shared = replace(moved(apart(session), "y_in", "z_in"), kept_bytes=1024)
    with pytest.raises(PlanError, match="share bytes while both are live"):
        check_placement(shared, session.scheduled)


def test_keeping_after_fewer_turns_takes_no_more_memory() -> None:
    planning = judge_of(asked_in_turn())
    node, turns = planning.scheduled.graph.node("y_in"), planning.workload.turns
    always = laid_out(planning, Retention.always([node], turns))
    for k in range(len(turns)):
        once = laid_out(planning, Retention({node: frozenset([k])}, turns))
        assert once.size_bytes <= always.size_bytes


# --- what the map looks like ----------------------------------------------------------------------


def placed(graph: Graph, values: dict[str, Array], want: Any = None, **options: Any) -> Placement:
    session = CheckedSession(graph, values, **options)
    session.run(want=want)
    return session.session.placement


def test_a_slice_has_room_for_the_largest_run_alone() -> None:
    graph = causal(rows=32)
    placement = placed(graph, causal_values(graph, 0), {"y": np.s_[4]})
    slots = {node.name: slot for node, slot in placement.slots.items()}
    assert slots["out1"].extents == (1, 2), "one demanded row"
    assert slots["k0"].extents == (32, 2), "retained: absolute coordinates"
    assert slots["k0"].start == (0, 0)


def test_an_in_place_result_takes_the_bytes_of_an_operand_that_dies() -> None:
    g = GraphBuilder()
    x, w = g.input("x", (8, 8)), g.parameter("w", (8, 8))
    product = g.name(x @ w, "product")
    g.output("y", ops.relu(product + 1.0))
    graph = g.build()
    values = {"x": np.ones((8, 8), "float32"), "w": np.ones((8, 8), "float32")}
    placement = placed(graph, values, memory=smallest_budget(graph, values))
    assert placement.size_bytes == 2 * 8 * 8 * 4
    assert {node.name: donor.name for node, donor in placement.donors.items()} == {
        "add": "product",
        "relu": "add",
    }
    assert len({placement.slots[node] for pair in placement.donors.items() for node in pair}) == 1


def test_an_operand_that_is_read_again_keeps_its_bytes() -> None:
    g = GraphBuilder()
    x = g.input("x", (8, 8))
    once = g.name(x * 2.0, "once")
    g.output("y", (once + 1.0) * once)
    placement = placed(g.build(), {"x": np.ones((8, 8), "float32")})
    names = {node.name: placement.slots[node].offset_bytes for node in placement.slots}
    adds = [name for name in names if name.startswith("add")]
    assert adds
    assert all(names[name] != names["once"] for name in adds)


def test_views_have_no_bytes() -> None:
    g = GraphBuilder()
    x = g.input("x", (4, 6))
    doubled = g.name(x * 2.0, "doubled")
    g.output("y", doubled.reshape(2, 2, 6).permute(1, 0, 2)[:, :, 1:4])
    placement = placed(g.build(), {"x": np.ones((4, 6), "float32")})
    assert {node.name for node in placement.slots} == {"x", "doubled"}


@pytest.mark.parametrize("retain", ["auto", "all"])
def test_the_map_of_a_small_decoder(retain: str) -> None:
    """Offset, bytes, what is kept: the golden listing of two layers."""
    graph = causal(rows=8)
    placement = placed(graph, causal_values(graph, 0), {"y": np.s_[4]}, retain=retain)
    lines = [
        f"{slot.offset_bytes:5} {placement.size_of(node):5} "
        f"{'kept' if node in placement.retained else '    '} {node.name}{list(slot.extents)}"
        for node, slot in placement.slots.items()
    ]
    text = "\n".join([*lines, f"{placement.size_bytes} bytes, bound {placement.bound_bytes}"])
    assert text + "\n" == (GOLDEN / f"map_{retain}.txt").read_text()


def test_nodes_of_one_buffer_hold_all_that_one_run_writes_of_them() -> None:
    """The operand is written where it is not known, the result in its place also elsewhere."""
    g = GraphBuilder()
    x = ops.pad(g.input("x", (6, 1)), (0, 1), (1, 0), -np.inf)
    shifted = ops.exp(x - ops.max_(x, 0, keepdims=True))
    g.output("y", shifted / ops.sum_(shifted, 0, keepdims=True))
    graph, part = g.build(), np.s_[5:7, 1:2]
    value = np.arange(6, dtype=np.float32).reshape(6, 1)
    with pytest.raises(BudgetError) as refused:
        GraphSession(graph, memory=64).run({"x": value}, want={"y": part})
    session = GraphSession(graph, memory=refused.value.needed_bytes)
    found = session.run({"x": value}, want={"y": part})["y"]
    expected = np.exp(value[5] - 5) / np.exp(value - 5).sum()
    np.testing.assert_allclose(found[:, 0], [expected[0], 0.0], rtol=1e-6)
