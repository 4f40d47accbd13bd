"""Values as linear functions of one that they follow from, element by element: a · h + b.

h + k · (x − h)      ─→  a = 1 + k · −1,  b = k · x
(h + x) / 2          ─→  a = 1 / 2,       b = x / 2
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from tgbench.graph.graph import Node

DEEP = 6  # nodes between a value and what it follows from
LINEAR = ("add", "sub", "mul", "div", "neg")
Number: TypeAlias = "Node | float | None"  # None is 0


class LinearTerm(NamedTuple):
    """`times` · h + `more`."""

    times: Number
    more: Node | None


def path_to(before: Node, node: Node) -> tuple[int, ...]:
    """The way from a node to one that it follows from, by number of the input; () for none."""
    ways: list[tuple[Node, tuple[int, ...]]] = [(node, ())]
    while ways:
        at, path = ways.pop()
        if at is before:
            return path
        if at.op in LINEAR and len(path) < DEEP:
            ways += [(operand, (*path, i)) for i, operand in enumerate(at.inputs)]
    return ()


def along(path: Sequence[int], node: Node, like: Node) -> Node | None:
    """What lies at the end of a way through the same ops as those of another node."""
    for i in path:
        if node.op != like.op:
            return None
        node, like = node.inputs[i], like.inputs[i]
    return node


def as_linear(node: Node, h: Node) -> LinearTerm | None:
    """A node over one that it follows from; None where it is no linear function of it."""
    if node is h:
        return LinearTerm(1.0, None)
    if not path_to(h, node):
        return LinearTerm(None, node)
    parts = [as_linear(operand, h) for operand in node.inputs]
    if None in parts:
        return None
    left, *right = (part for part in parts if part is not None)
    if node.op == "neg":
        return LinearTerm(_negative(left.times), _negative(left.more))
    [other] = right
    if node.op == "sub":
        other = LinearTerm(_negative(other.times), _negative(other.more))
    if node.op in ("add", "sub"):
        return LinearTerm(_sum(left.times, other.times), _sum(left.more, other.more))
    if node.op == "mul" and left.times is None:
        left, other = other, left
    if other.times is not None or other.more is None:
        return None  # h · h, and what is divided by h
    scaled = _product if node.op == "mul" else _ratio
    return LinearTerm(scaled(left.times, other.more), scaled(left.more, other.more))


def _negative(x: Number) -> Any:
    return None if x is None else -x


def _sum(a: Number, b: Number) -> Any:
    return a if b is None else b if a is None else a + b


def _product(a: Number, b: Node) -> Any:
    return None if a is None else b if a == 1.0 else a * b


def _ratio(a: Number, b: Node) -> Any:
    return None if a is None else a / b
