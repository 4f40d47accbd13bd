"""Products in less than their dtype: values change by more than rounding, by how much is measured.

For whoever allows an error. What rounds a weight follows from weights alone: it is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS
from tgbench.graph.ops import max_, maximum, round_
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rule import AnyRule, Found, SearchRule

WIDE = "float32"
STEPS = 127.0  # of an int8, on either side of 0
LEAST = 1e-30  # a scale of rows that are 0


def _rounded_factors(egraph: EGraph, node: Node) -> Iterator[Found]:
    can = not node.is_leaf and OPS[node.op].rounds and node.dtype == WIDE
    if can and "arithmetic" not in node.attrs:
        inputs = egraph.inputs(node)
        yield node, node.builder.apply(node.op, *inputs, **node.attrs, arithmetic="bfloat16")


def _narrow(dtype: str) -> Callable[[EGraph, Node], Iterator[Found]]:
    def find(egraph: EGraph, node: Node) -> Iterator[Found]:
        op = None if node.is_leaf else OPS[node.op]
        if op is None or op.in_less is None or not op.multiplies or "arithmetic" in node.attrs:
            return
        inputs, scales = [*egraph.inputs(node)], {}
        for i in op.widens(node.call):
            weight = inputs[i]
            if not egraph.is_fixed(weight) or weight.dtype != WIDE or weight.rank != 2:
                return
            if dtype == "int8":
                peak = max_(maximum(weight, -weight), 1, keepdims=True)
                scale = maximum(peak / STEPS, LEAST)
                scales[i] = scale.reshape(-1)
                inputs[i] = round_(weight / scale).cast(dtype)
            else:
                inputs[i] = weight.cast(dtype)
        yield node, op.in_less(node.attrs, scales, *inputs)

    return find


LESS: tuple[AnyRule, ...] = (
    SearchRule("factors rounded to bfloat16", None, _rounded_factors),
    SearchRule("weights in bfloat16", None, _narrow("bfloat16")),
    SearchRule("weights in float16", None, _narrow("float16")),
    SearchRule("weights in int8", None, _narrow("int8")),
)
