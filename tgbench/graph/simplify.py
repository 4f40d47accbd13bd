"""Rewrites that leave fewer nodes and the same values, bit for bit.

    constants        op(constants) → constant          (iota and full among them)
    merging          reshape∘reshape, permute∘permute, slice∘slice, cast∘cast (lossless)
    identities       reshape to the same shape, x + (−0), x · 1, x − 0, x / 1, x¹, −(−x), …
    where            with a condition that is constant throughout
    concat           of one

Each rule looks at one node whose inputs are simple already, asks the op's entry what holds of it,
and answers with a node or None. They are tried until none applies; then the next node is looked at.
A node is only replaced by one of the same type. What nothing reads any more is gone from the new
graph.

Floats keep the sign of a zero: (−0) + 0 is +0, so x + 0 stays; x + (−0) is x whatever x is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

import tgbench.graph.ops  # noqa: F401  (fills the op table)
from tgbench.base.errors import GraphError
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import FLOATS, Array

LARGEST_BYTES = 64 << 20  # of a constant that folding makes
MOST_BYTES = 256 << 20  # of all of them
Rule = Callable[[Node], "Node | None"]


def simplify(graph: Graph) -> Graph:
    """The graph with every rule applied as often as it applies.

    Outputs keep their names, and nodes that survive keep theirs.

    >>> g = GraphBuilder(); x = g.input("x", (2, 3))
    >>> g.output("y", (x.reshape(6).reshape(3, 2) * 1.0).permute(0, 1) * 2.0)
    >>> print(simplify(g.build()))
    x: float32[2, 3] = input()
    reshape_1: float32[3, 2] = reshape(x, shape=(3, 2))
    constant_1: float32[] = constant(data=2.0)
    mul_1: float32[3, 2] = mul(reshape_1, constant_1)
    output y = mul_1
    """
    return graph.rebuild(partial(_make, _Room(MOST_BYTES)))


@dataclass
class _Room:
    """What constants that folding makes may still take."""

    left_bytes: int


def _make(room: _Room, builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
    """The simplest node that equals `node` on inputs that are simple themselves."""
    made = copy_node(builder, node, inputs)
    while True:
        better = _better(made, room)
        if better is None:
            return made
        if better.type != made.type:
            raise GraphError(f"simplifying {made!r} gave {better!r}, of another type")
        if better.index == len(builder.nodes) - 1 and not better.is_leaf:
            builder.rename(better, node.name)
        made = better


def simpler(node: Node) -> Node | None:
    """What a node may be replaced by, of the same builder; None where no rule applies to it."""
    return _better(node, _Room(MOST_BYTES))


def _better(node: Node, room: _Room) -> Node | None:
    rules = _rules(node, room)
    return next((found for rule in rules if (found := rule(node)) is not None), None)


def _rules(node: Node, room: _Room) -> tuple[Rule, ...]:
    if node.is_leaf:
        return ()
    return _neutral, _same_input, _undone, _merged, partial(_folded, room)


# --- constants ------------------------------------------------------------------------------------


def _constant(node: Node) -> Array | None:
    data = node.attrs["data"].array if node.op == "constant" else None
    return data


def _folded(room: _Room, node: Node) -> Node | None:
    """A constant, where every input is one; there are none in bfloat16, or on other devices."""
    arrays = [_constant(parent) for parent in node.inputs]
    if node.dtype == "bfloat16" or node.type.device or any(array is None for array in arrays):
        return None
    largest = min(LARGEST_BYTES, room.left_bytes)
    if not isinstance(node.type.elements, int) or node.type.size_bytes > largest:
        return None
    room.left_bytes -= node.type.size_bytes
    with np.errstate(all="ignore"):
        result = node.call.op.reference(node.attrs, *arrays)
    return node.builder.constant(result, node.dtype)


def is_all(node: Node, value: float) -> bool:
    """Whether a node is a constant, or a cast of one, with one value throughout."""
    converted = not node.is_leaf and node.call.op.converts
    array = _constant(node.inputs[0] if converted else node)
    if array is None or not bool((array == value).all()):
        return False
    has_sign = node.dtype in FLOATS and value == 0
    return not has_sign or bool((np.signbit(array) == np.signbit(value)).all())


# --- what an op's entry says of it ----------------------------------------------------------------


def _same(node: Node, candidate: Node) -> Node | None:
    """The candidate, where it has the node's type (broadcasting may widen an operand)."""
    return candidate if candidate.type == node.type else None


def _neutral(node: Node) -> Node | None:
    """x + (−0), x · 1, x − 0, x / 1, x¹ are x; of integers x + 0 as well."""
    for place, value in node.call.op.neutral:
        found = _same(node, node.inputs[1 - place])
        if found is not None and is_all(node.inputs[place], value):
            return found
    return None


def _same_input(node: Node) -> Node | None:
    """A reshape to the shape that is there, a slice of everything, a decided `where`, …"""
    place = node.call.op.same_as(node.call, node.inputs)
    return None if place is None else _same(node, node.inputs[place])


def _inner(node: Node) -> Node | None:
    """The op of the same kind under this one."""
    return node.inputs[0] if node.inputs and node.inputs[0].op == node.op else None


def _undone(node: Node) -> Node | None:
    """−(−x) and ¬(¬x), the latter of booleans."""
    inner = _inner(node) if node.call.op.undoes_itself else None
    return None if inner is None else _same(node, inner.inputs[0])


def _merged(node: Node) -> Node | None:
    """reshape(reshape(x)), slice(slice(x)), abs(abs(x)), … as one op."""
    inner = _inner(node)
    attrs = None if inner is None else node.call.op.merges(inner.call, node.call)
    if inner is None or attrs is None:
        return None
    return node.builder.apply(node.op, inner.inputs[0], **attrs)
