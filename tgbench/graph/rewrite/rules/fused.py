"""Fused ops and what they stand for, both ways, and what simplifying finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import OPS
from tgbench.graph.recognise.cover import cover, replacement
from tgbench.graph.rewrite.egraph import GIVEN, EGraph
from tgbench.graph.rewrite.rule import AnyRule, Found, SearchRule
from tgbench.graph.simplify import simpler


def _written_out(multiplies: bool) -> Callable[[EGraph, Node], Iterator[Found]]:
    """A fused op as what it is made of, one level down."""

    def find(egraph: EGraph, node: Node) -> Iterator[Found]:
        op = None if node.is_leaf else OPS[node.op]
        if op is None or op.decompose is None or op.multiplies != multiplies:
            return
        if not {"arithmetic", "calls"} & node.attrs.keys():  # calls are of what is there already
            yield node, op.decompose(node.attrs, *egraph.inputs(node))

    return find


def _simpler(egraph: EGraph, node: Node) -> Iterator[Found]:
    """What the simplifier would put in a node's place, seen with each of its inputs' e-nodes."""
    if node.is_leaf:
        return
    if not node.inputs and (found := simpler(node)) is not None:
        yield node, found
    for place, parent in enumerate(node.inputs):
        for member in egraph.members(parent):
            inputs = [*egraph.inputs(node)]
            inputs[place] = member
            found = simpler(node.builder.apply(node.op, *inputs, **node.attrs))
            if found is not None:
                yield node, found


def _recognised(egraph: EGraph, node: Node) -> Iterator[Found]:
    """Fused ops in place of what equals their decompositions, in the graph as it was given.

    Looked for once, at the first of its ends, and for all of it: what is read twice decides.
    """
    if egraph.rules[node] != GIVEN or node is not next(iter(egraph.ends), None):
        return
    if RECOGNISED not in egraph.memo:
        egraph.memo[RECOGNISED] = tuple(_covered(egraph))
    yield from egraph.memo[RECOGNISED]


def _covered(egraph: EGraph) -> Iterator[Found]:
    ends = tuple(egraph.ends)
    while True:
        graph = Graph.of({f"end {i}": end for i, end in enumerate(ends)})
        taken = cover(graph)
        if not taken:
            return
        made: dict[Node, Node] = {}
        for node in graph.nodes:
            match = taken.get(node)
            if match is not None:
                made[node] = replacement(egraph.builder, match, made)
            elif node.is_leaf:
                made[node] = node
            else:
                inputs = [made[parent] for parent in node.inputs]
                made[node] = egraph.builder.apply(node.op, *inputs, **node.attrs)
        yield from ((node, new) for node, new in made.items() if new is not node)
        ends = tuple(made[end] for end in ends)


RECOGNISED = "recognised"
FUSED: tuple[AnyRule, ...] = (
    SearchRule("products written out", None, _written_out(multiplies=True)),
    SearchRule("elements written out", None, _written_out(multiplies=False), grows=True),
    SearchRule(RECOGNISED, None, _recognised),
    SearchRule("simpler", None, _simpler, rounds=False),
)
