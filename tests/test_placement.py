"""The memory map of real sessions, looked at byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session_cases import CheckedSession, smallest_budget
from strategies import Array, Maker, graphs
from test_session import causal, causal_values, share_of_examples

from tgbench import ops
from tgbench.graph import Graph, GraphBuilder, Node
from tgbench.placement import ALIGNMENT, Placement
from tgbench.plan import check_placement
from tgbench.session import GraphSession

GOLDEN = Path(__file__).parent / "golden"
Case = tuple[Graph, Maker]


def bytes_of(placement: Placement, node: Node) -> range:
    slot = placement.slots[node]
    return range(slot.offset_bytes, slot.offset_bytes + placement.size_of(node))


def meet(a: range, b: range) -> bool:
    return max(a.start, b.start) < min(a.stop, b.stop)


def writes(session: GraphSession) -> Iterator[tuple[Node, set[Node], range | None]]:
    """For each executed node: the stored nodes that it reads, and its scratch memory."""
    base, frozen = session.anatomy.base, session.anatomy.frozen
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
    last = {node: i for i, (_, reads, _) in enumerate(run) for node in reads}
    ends = [*session.graph.outputs.values(), *session.graph.updates.values()]
    for node in ends:
        last[session.anatomy.base[node]] = len(run)
    for i, (node, reads, scratch) in enumerate(run):
        place = bytes_of(placement, node)
        for other, bytes_ in live.items():
            is_read_now = other in reads and placement.donors.get(node) is not other
            still = last.get(other, -1) > i or is_read_now
            assert not (other is not node and still and meet(place, bytes_)), (node, other)
            assert scratch is None or not (last.get(other, -1) >= i and meet(scratch, bytes_))
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
    placement, anatomy = session.session.placement, session.session.anatomy
    check_placement(placement, anatomy)
    assert placement.bound_bytes <= placement.size_bytes
    assert placement.kept_bytes <= placement.size_bytes
    assert sum(size for _, size in placement.bound_nodes) >= placement.bound_bytes - ALIGNMENT
    for node, slot in placement.slots.items():
        assert slot.offset_bytes % ALIGNMENT == 0
        assert node in anatomy.kept or anatomy.base[node] is node, "views have no bytes"
        assert all(0 < n <= size for n, size in zip(slot.extents, node.shape, strict=True))


@given(graphs(most_ops=8))
def test_overlaps_name_everybody_who_may_write_there(case: Case) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0))
    session.run()
    placement = session.session.placement
    slices = [node for node in placement.slots if node not in placement.retained]
    assert set(placement.overlaps) == set(slices)
    for node in slices:
        for other in slices:
            if other is not node and meet(bytes_of(placement, node), bytes_of(placement, other)):
                assert other in placement.overlaps[node]
        for other, room in placement.scratch.items():
            scratch = range(room.offset_bytes, room.offset_bytes + room.size_bytes)
            if other is not node and meet(bytes_of(placement, node), scratch):
                assert other in placement.overlaps[node]


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
