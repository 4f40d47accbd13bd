"""Clusters of element-wise ops and reductions of rows as one op, for which a kernel is written.

    x ─→ max ─┐                      rowwise
    └──→ sub ─┴→ exp ─→ …     ═══    x ─→ …      what is in the middle is nowhere in memory

A cluster is as large as it can be: whatever only its members read is one. Whether one kernel is
quicker than those of its members is for measured costs to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from tgbench.graph.graph import Graph, Node, outline_of
from tgbench.graph.op_table import FLOATS
from tgbench.graph.ops.rowwise import (
    ELEMENTWISE,
    MOST_INPUTS,
    MOST_STEPS,
    NUMBER,
    REDUCTIONS,
    Step,
    rowwise,
)
from tgbench.graph.rewrite.egraph import GIVEN, EGraph
from tgbench.graph.rewrite.rule import AnyRule, Found, SearchRule

LEAST = 4  # members: fewer are one call by folding, and each cluster makes choosing a path longer


def _clusters(egraph: EGraph, node: Node) -> Iterator[Found]:
    """All clusters of the graph as it was given; looked for once, at the first of its ends."""
    if egraph.rules[node] != GIVEN or node is not next(iter(egraph.ends), None):
        return
    if CLUSTERS not in egraph.memo:
        egraph.memo[CLUSTERS] = tuple(_found(egraph))
    yield from egraph.memo[CLUSTERS]


def _found(egraph: EGraph) -> Iterator[Found]:
    graph = Graph.of({f"end {i}": end for i, end in enumerate(egraph.ends)})
    for end, members in clusters(graph).items():
        made = StepWriter(end, members).node()
        if made is not None:
            yield end, made


def clusters(graph: Graph) -> Mapping[Node, Set[Node]]:
    """The members of every cluster, by its end: the only one that others read.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> from tgbench.graph.ops import max_
    >>> g = GraphBuilder(); x = g.input("x", (2, 3)); y = -x
    >>> g.output("y", (y - max_(y, -1, keepdims=True)) * y)
    >>> [(end.op, len(members)) for end, members in clusters(g.build()).items()]
    [('mul', 4)]
    """
    readers: dict[Node, set[Node]] = {}
    for node in graph.nodes:
        for parent in node.inputs:
            readers.setdefault(parent, set()).add(node)
    ends, of = {*graph.outputs.values(), *graph.updates.values()}, dict[Node, Node]()
    for node in reversed(graph.nodes):
        if node.is_leaf or node in graph.frozen or not _is_written(node):
            continue
        above = {of.get(reader) for reader in readers.get(node, ())} if node not in ends else {None}
        end = next(iter(above)) if len(above) == 1 else None
        if end is not None and _fits(node, end):
            of[node] = end
        elif node.dtype in FLOATS and node.rank and node.shape[-1] != 1:
            of[node] = node
    found: dict[Node, set[Node]] = {}
    for node, end in of.items():
        found.setdefault(end, set()).add(node)
    return {end: members for end, members in found.items() if len(members) >= LEAST}


def _is_written(node: Node) -> bool:
    """Whether a node is steps; of what is known of some elements, kernels of its own know more."""
    if node.call.fact is not None:
        return False
    if not node.call.op.is_fused:
        return _is_step(node)
    inner = outline_of(node.call).nodes
    steps = (one for one in inner if not one.is_leaf)
    return all(_is_step(one) and _fits(one, node) for one in steps)


def _is_step(node: Node) -> bool:
    if node.op in REDUCTIONS:
        return bool(node.attrs["axes"] == (node.rank - 1,) and node.attrs["keepdims"])
    return node.op in ELEMENTWISE


def _fits(node: Node, end: Node) -> bool:
    """Whether a node has as many rows as the end, of numbers like it."""
    is_alike = node.dtype in (end.dtype, "bool")
    return is_alike and node.shape in (end.shape, (*end.shape[:-1], 1))


@dataclass
class StepWriter:
    """The steps of a cluster, each once."""

    end: Node
    members: Set[Node]
    numbers: dict[Node, float] = field(default_factory=dict)
    steps: dict[Step, int] = field(default_factory=dict)

    def node(self) -> Node | None:
        """The cluster as one op; None where it is too much for one."""
        inputs = self._inputs()
        if not inputs or len(inputs) > MOST_INPUTS or not _fits(inputs[0], self.end):
            return None
        values = {node: i for i, node in enumerate(inputs)}
        self._first = len(inputs)
        for node in sorted(self.members, key=lambda one: one.index):
            values[node] = self._value(node, [self._operand(one, values) for one in node.inputs])
        if len(self.steps) > MOST_STEPS or values[self.end] != self._first + len(self.steps) - 1:
            return None
        return rowwise(tuple(self.steps), *inputs)

    def _inputs(self) -> list[Node]:
        """What members read and is none; first what is like the end."""
        read = dict.fromkeys(parent for node in self.members for parent in node.inputs)
        outer = [one for one in read if one not in self.members and _number(one) is None]
        return sorted(outer, key=lambda one: (one.type != self.end.type, one.index))

    def _operand(self, node: Node, values: Mapping[Node, int]) -> int:
        number = _number(node)
        if number is None:
            return values[node]
        if repr(number) == "-0.0":
            return self._step(("neg", self._step((NUMBER, 0.0))))
        return self._step((NUMBER, number))

    def _value(self, node: Node, operands: list[int]) -> int:
        if not node.call.op.is_fused:
            return self._step((node.op, *operands))
        outline = outline_of(node.call)
        values = dict(zip(outline.inputs, operands, strict=True))
        for one in outline.nodes:
            if not one.is_leaf:
                inner = [self._operand(parent, values) for parent in one.inputs]
                values[one] = self._step((one.op, *inner))
        return values[outline.result]

    def _step(self, step: Step) -> int:
        return self.steps.setdefault(step, self._first + len(self.steps))


def _number(node: Node) -> float | None:
    """The number that a constant is throughout."""
    if node.op != "constant" or node.dtype not in FLOATS or node.type.elements != 1:
        return None
    return float(node.attrs["data"].array.reshape(-1)[0])


CLUSTERS = "rows as one"
ROWWISE: tuple[AnyRule, ...] = (SearchRule(CLUSTERS, None, _clusters),)
