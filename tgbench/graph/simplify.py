"""Rewrites that leave fewer nodes and the same values, bit for bit.

    constants        op(constants) → constant          (iota and full among them)
    merging          reshape∘reshape, permute∘permute, slice∘slice, cast∘cast (lossless)
    identities       reshape to the same shape, x + 0, x · 1, x − 0, x / 1, x¹, −(−x), …
    where            with a condition that is constant throughout
    concat           of one

Each rule looks at one node whose inputs are simple already, and answers with a node or None. They
are tried until none applies; then the next node is looked at. A node is only replaced by one of
the same type. What nothing reads any more is gone from the new graph.

−0 counts as 0 here, so x + 0 is x although (−0) + 0 is +0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import tgbench.graph.ops  # noqa: F401  (fills the op table)
from tgbench.base.errors import GraphError
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import Array, numpy_dtype

LARGEST_BYTES = 64 << 20  # of a constant that folding makes
Rule = Callable[[Node], "Node | None"]


def simplify(graph: Graph) -> Graph:
    """The graph with every rule applied as often as it applies.

    Outputs keep their names, and nodes that survive keep theirs.

    >>> g = GraphBuilder(); x = g.input("x", (2, 3))
    >>> g.output("y", (x.reshape(6).reshape(3, 2) + 0.0).permute(0, 1) * 2.0)
    >>> print(simplify(g.build()))
    x: float32[2, 3] = input()
    reshape_1: float32[3, 2] = reshape(x, shape=(3, 2))
    constant_1: float32[] = constant(data=2.0)
    mul: float32[3, 2] = mul(reshape_1, constant_1)
    output y = mul
    """
    return graph.rebuild(_make)


def _make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
    """The simplest node that equals `node` on inputs that are simple themselves."""
    made = copy_node(builder, node, inputs)
    while True:
        better = next((found for rule in _rules(made) if (found := rule(made)) is not None), None)
        if better is None:
            return made
        if better.type != made.type:
            raise GraphError(f"simplifying {made!r} gave {better!r}, of another type")
        if better.index == len(builder.nodes) - 1 and not better.is_leaf:
            better.name = node.name
        made = better


def _rules(node: Node) -> tuple[Rule, ...]:
    return () if node.is_leaf else (*_RULES.get(node.op, ()), _folded)


# --- constants ------------------------------------------------------------------------------------


def _constant(node: Node) -> Array | None:
    data = node.attrs["data"].array if node.op == "constant" else None
    return data


def _folded(node: Node) -> Node | None:
    """A constant, where every input is one; bfloat16 constants do not exist."""
    arrays = [_constant(parent) for parent in node.inputs]
    if node.dtype == "bfloat16" or any(array is None for array in arrays):
        return None
    if not isinstance(node.type.elements, int) or node.type.size_bytes > LARGEST_BYTES:
        return None
    with np.errstate(all="ignore"):
        result = node.call.op.reference(node.attrs, *arrays)
    return node.builder.constant(result, node.dtype)


def _is_all(node: Node, value: float) -> bool:
    """Whether a node is a constant, or a cast of one, with one value throughout."""
    array = _constant(node.inputs[0] if node.op == "cast" else node)
    return array is not None and bool((array == value).all())


# --- identities -----------------------------------------------------------------------------------


def _same(node: Node, candidate: Node) -> Node | None:
    """The candidate, where it has the node's type (broadcasting may widen an operand)."""
    return candidate if candidate.type == node.type else None


def _neutral(value: float, *places: int) -> Rule:
    """x where the operand at one of these places is `value` throughout."""

    def rule(node: Node) -> Node | None:
        for place in places:
            if _is_all(node.inputs[place], value):
                found = _same(node, node.inputs[1 - place])
                if found is not None:
                    return found
        return None

    return rule


def _undone_by_itself(node: Node) -> Node | None:
    """−(−x) and ¬(¬x), the latter of booleans."""
    inner = node.inputs[0]
    return _same(node, inner.inputs[0]) if inner.op == node.op else None


def _idempotent(node: Node) -> Node | None:
    """abs(abs(x)), floor(floor(x)), relu(relu(x)), … are the inner one."""
    return node.inputs[0] if node.inputs[0].op == node.op else None


def _no_change_of_shape(node: Node) -> Node | None:
    """A reshape or expand to the shape that is there."""
    return _same(node, node.inputs[0])


def _permute_in_order(node: Node) -> Node | None:
    axes = node.attrs["axes"]
    return node.inputs[0] if axes == tuple(range(len(axes))) else None


def _slice_of_everything(node: Node) -> Node | None:
    steps_are_one = all(step == 1 for step in node.attrs["steps"])
    return _same(node, node.inputs[0]) if steps_are_one else None


def _pad_by_nothing(node: Node) -> Node | None:
    return _same(node, node.inputs[0])


def _concat_of_one(node: Node) -> Node | None:
    return node.inputs[0] if len(node.inputs) == 1 else None


def _where_decided(node: Node) -> Node | None:
    condition = _constant(node.inputs[0])
    if condition is None:
        return None
    if condition.all():
        return _same(node, node.inputs[1])
    return None if condition.any() else _same(node, node.inputs[2])


def _where_of_one(node: Node) -> Node | None:
    """Both branches are the same node."""
    return _same(node, node.inputs[1]) if node.inputs[1] is node.inputs[2] else None


# --- merging --------------------------------------------------------------------------------------


def _inner(node: Node) -> Node | None:
    """The op of the same kind under this one."""
    return node.inputs[0] if node.inputs[0].op == node.op else None


def _reshape_merged(node: Node) -> Node | None:
    inner = _inner(node)
    return None if inner is None else inner.inputs[0].reshape(node.shape)


def _expand_merged(node: Node) -> Node | None:
    inner = _inner(node)
    return None if inner is None else inner.inputs[0].expand(*node.shape)


def _permute_merged(node: Node) -> Node | None:
    inner = _inner(node)
    if inner is None:
        return None
    return inner.inputs[0].permute(*(inner.attrs["axes"][axis] for axis in node.attrs["axes"]))


def _slice_merged(node: Node) -> Node | None:
    inner = _inner(node)
    if inner is None or not all(isinstance(size, int) for size in inner.inputs[0].shape):
        return None
    picked = [
        range(*part)[slice(first, stop if stop >= 0 else None, step)]
        for part, first, stop, step in zip(
            _parts(inner), *(node.attrs[key] for key in ("starts", "stops", "steps")), strict=True
        )
    ]
    return node.builder.apply(
        "slice",
        inner.inputs[0],
        starts=tuple(part.start for part in picked),
        stops=tuple(part.stop for part in picked),
        steps=tuple(part.step for part in picked),
    )


def _parts(node: Node) -> list[tuple[int, int, int]]:
    attrs = node.attrs
    return list(zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True))


def _cast_merged(node: Node) -> Node | None:
    """A cast of a cast that lost nothing; none at all where it comes back to where it was."""
    inner = _inner(node)
    if inner is None or not _is_lossless(inner.inputs[0].dtype, inner.dtype):
        return None
    return inner.inputs[0].cast(node.dtype)


def _is_lossless(source: str, target: str) -> bool:
    """Whether every value of one dtype is a value of the other."""
    if "bfloat16" in (source, target):
        return source == target or (source == "bfloat16" and target in ("float32", "float64"))
    if (source, target) == ("int64", "float64"):
        return False  # safe for NumPy, but integers above 2⁵³ are rounded
    return np.can_cast(numpy_dtype(source), numpy_dtype(target), casting="safe")


_RULES: dict[str, tuple[Rule, ...]] = {
    "add": (_neutral(0, 0, 1),),
    "sub": (_neutral(0, 1),),
    "mul": (_neutral(1, 0, 1),),
    "div": (_neutral(1, 1),),
    "pow": (_neutral(1, 1),),
    "neg": (_undone_by_itself,),
    "logical_not": (_undone_by_itself,),
    "abs": (_idempotent,),
    "floor": (_idempotent,),
    "ceil": (_idempotent,),
    "round": (_idempotent,),
    "relu": (_idempotent,),
    "reshape": (_no_change_of_shape, _reshape_merged),
    "expand": (_no_change_of_shape, _expand_merged),
    "permute": (_permute_in_order, _permute_merged),
    "slice": (_slice_of_everything, _slice_merged),
    "pad": (_pad_by_nothing,),
    "cast": (_no_change_of_shape, _cast_merged),
    "concat": (_concat_of_one,),
    "where": (_where_decided, _where_of_one),
}
