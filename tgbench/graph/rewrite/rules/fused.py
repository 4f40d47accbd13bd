"""Fused ops and what they stand for, both ways, and what simplifying finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rule import AnyRule, Found, SearchRule
from tgbench.graph.simplify import simpler


def _written_out(multiplies: bool) -> Callable[[EGraph, Node], Iterator[Found]]:
    """A fused op as what it is made of, one level down."""

    def find(egraph: EGraph, node: Node) -> Iterator[Found]:
        op = None if node.is_leaf else OPS[node.op]
        if op is None or op.decompose is None or op.multiplies != multiplies:
            return
        if "arithmetic" not in node.attrs:
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


FUSED: tuple[AnyRule, ...] = (
    SearchRule("products written out", None, _written_out(multiplies=True)),
    SearchRule("elements written out", None, _written_out(multiplies=False), grows=True),
    SearchRule("simpler", None, _simpler, rounds=False),
)
