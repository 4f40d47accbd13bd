"""Whether a plan fits a graph: every pair of live ranges looked at, every box and every cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tgbench.base.errors import GraphError, PlanError
from tgbench.base.regions import listed_region
from tgbench.base.words import shorten
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import OPS
from tgbench.graph.unfold import check_sequence, named
from tgbench.memory.check import clashes
from tgbench.memory.placement import ALIGNMENT, SPACE_BYTES, Placement, elsewhere
from tgbench.memory.storage import ScheduledGraph, is_look
from tgbench.plans.decisions import PlanBucket, PlanFields
from tgbench.runs.buckets import SIZED, BucketClass, Span, placed
from tgbench.runs.split import WHOLE


def scheduled_of(plan: PlanFields, graph: Graph) -> ScheduledGraph:
    """A graph in a plan's schedule; raises PlanError unless all of that is of this graph."""
    try:
        sequence = named(graph, plan.schedule)
        check_sequence(graph, sequence)
    except GraphError as error:
        raise PlanError(f"schedule: {error}; delete the plan to plan anew") from error
    scheduled = ScheduledGraph.of(graph, sequence, _copied(plan, graph))
    for node, name in zip(scheduled.schedule, plan.schedule, strict=True):
        if node.name != name:
            raise PlanError(
                f"schedule: {shorten(name)} is called {node.name} there; "
                "delete the plan to plan anew"
            )
    return scheduled


def _copied(plan: PlanFields, graph: Graph) -> frozenset[Node]:
    """The views that a plan gives bytes; raises PlanError for a name that is none's, or twice."""
    nodes = {node.name: node for node in graph.nodes}
    found = frozenset(node_of(nodes, name, "copied") for name in plan.copied)
    for node in found:
        if not is_look(node) or node in graph.frozen:
            name = shorten(node.name)
            raise PlanError(f"copied: {name} is not a view of a run; delete the plan to plan anew")
    if len(found) < len(plan.copied):
        raise PlanError("copied: a view is there twice; delete the plan to plan anew")
    return found


def node_of(nodes: Mapping[str, Node], name: str, where: str = "slots") -> Node:
    """The node of a name; raises PlanError, naming the field, if there is none."""
    if name not in nodes:
        raise PlanError(
            f"{where}: the graph has no node {shorten(name)}; delete the plan to plan anew"
        )
    return nodes[name]


def check_placement(placement: Placement, scheduled: ScheduledGraph) -> None:
    """Raise PlanError if a map is unsafe: the planner's own rules, checked the slow way."""
    if placement.size_bytes > placement.reach_bytes or placement.kept_bytes > placement.size_bytes:
        raise PlanError(f"size_bytes: {placement.size_bytes} is not what the slots reach up to")
    apart = elsewhere(scheduled)
    for node, scratch in placement.scratch.items():
        space = scratch.offset_bytes // SPACE_BYTES
        limit = (space + 1) * SPACE_BYTES if space else placement.size_bytes
        is_there = space == (scheduled.devices.index(node.type.device) + 1 if node in apart else 0)
        reaches = scratch.offset_bytes + scratch.size_bytes <= limit and is_there
        if not reaches or scratch.offset_bytes % ALIGNMENT or node not in scheduled.live:
            raise PlanError(f"slots.{node.name}.scratch_offset_bytes: no scratch can be there")
    for node, slot in apart.items():
        if placement.slots.get(node) != slot or node not in placement.retained:
            raise PlanError(f"slots.{node.name}: not where {node.type.device} has it")
    for node, slot in placement.slots.items():
        if node in apart:
            continue
        if node not in scheduled.live and node not in scheduled.kept:
            raise PlanError(f"slots.{node.name}: not a node with bytes")
        if slot.offset_bytes < 0 or slot.offset_bytes % node.type.itemsize:
            raise PlanError(f"slots.{node.name}.offset_bytes: {slot.offset_bytes} is not usable")
        if slot.offset_bytes + placement.size_of(node) > placement.size_bytes:
            raise PlanError(
                f"slots.{node.name}: reaches past the arena's {placement.size_bytes} bytes"
            )
        for axis, (first, extent, size) in enumerate(
            zip(slot.start, slot.extents, node.shape, strict=True)
        ):
            if extent < 1 or first < 0 or first + extent > size:
                raise PlanError(f"slots.{node.name}.extents[{axis}]: {extent} does not fit {size}")
        if node.is_leaf and slot.extents != node.shape:
            raise PlanError(f"slots.{node.name}.extents: inputs are kept whole")
        donor = placement.donors.get(node)
        if donor is not None:
            _check_donor(node, donor, placement, scheduled)
    for node in placement.sliding:
        ends = placement.slots[node].offset_bytes + placement.size_of(node)
        if node.is_leaf or ends > placement.kept_bytes:
            raise PlanError(f"slots.{node.name}.slides: others may write there")
    for leaf in scheduled.kept:
        if leaf not in placement.slots or leaf not in placement.retained:
            raise PlanError(f"slots.{leaf.name}: missing; inputs are always kept")
    for clash in clashes(placement, scheduled):
        raise PlanError(f"slots: {clash.a} and {clash.b} share bytes while both are live")


def _check_donor(node: Node, donor: Node, placement: Placement, scheduled: ScheduledGraph) -> None:
    legal = (
        donor in placement.slots
        and node not in placement.lasting
        and donor not in placement.lasting
        and donor.type == node.type
        and any(node.inputs[i] is donor for i in OPS[node.op].inplace)
        and scheduled.live[donor].stop == scheduled.position[node] + 1
        and placement.slots[donor] == placement.slots[node]
    )
    if not legal:
        raise PlanError(f"slots.{node.name}.donor: {donor.name} cannot give its bytes to it")


def check_cut(cut: tuple[str, int, int], graph: Graph) -> None:
    """Raise PlanError unless a cut divides an input that this graph has."""
    name, axis, parts = cut
    leaf = graph.inputs.get(name)
    fits = leaf is not None and axis < leaf.rank and 2 <= parts <= leaf.shape[axis]
    if not fits and cut != (WHOLE.input, WHOLE.axis, WHOLE.parts):
        raise PlanError(f"cut: {shorten(list(cut))} cuts no input of this graph")


def check_bucket(bucket: PlanBucket, graph: Graph, where: str) -> None:
    """Raise PlanError unless a class of runs is one that this graph can have."""
    if len(bucket.origin) != len(bucket.bounds):
        raise PlanError(f"{where}.origin: {len(bucket.origin)} numbers for {len(bucket.bounds)}")
    if any(at > bound for at, bound in zip(bucket.origin, bucket.bounds, strict=True)):
        raise PlanError(f"{where}.origin: {shorten(bucket.origin)} passes its bounds")
    kind = BucketClass(bucket.changed, bucket.demand, bucket.bounds)
    sides = (("changed", {**graph.inputs, **graph.states}), ("demand", dict(graph.outputs)))
    for key, nodes in sides:
        seen: set[str] = set()
        for name, boxes in getattr(bucket, key):
            node = nodes.get(name)
            if node is None or name in seen or not boxes:
                raise PlanError(f"{where}.{key}: {shorten(name)} is not one of {', '.join(nodes)}")
            seen.add(name)
            if not all(_is_inside(box, node, bucket.bounds) for box in boxes):
                raise PlanError(f"{where}.{key}: a box of {name} is not inside {node.type}")
            if kind.inside(bucket.origin) != tuple(bucket.origin):
                raise PlanError(f"{where}.origin: {shorten(bucket.origin)} passes its bounds")
            if listed_region([placed(box, bucket.origin) for box in boxes]) is None:
                raise PlanError(
                    f"{where}.{key}: boxes of {name} overlap, or are more than a run changes"
                )


def _fits(span: Span, size: int, bounds: Sequence[int]) -> bool:
    symbol, extent = span
    if symbol is None:
        return extent <= size
    if extent < 0:  # it goes on to the end
        return extent == -size and bounds[symbol] < size
    if extent == SIZED:
        return bounds[symbol] + 1 == bounds[symbol + 1] <= size
    return bounds[symbol] + extent <= size


def _is_inside(box: Sequence[Span], node: Node, bounds: Sequence[int]) -> bool:
    return len(box) == node.rank and all(
        _fits(span, size, bounds) for span, size in zip(box, node.shape, strict=True)
    )
