"""Permutes and reshapes moved through what does not mind: elements, rows, products."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS, Attrs
from tgbench.graph.recognise.layout import turned_back
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rule import AnyRule, Found, Rule, SearchRule


def is_elementwise(node: Node) -> bool:
    """Whether every element of the result follows from the elements above it alone."""
    if node.is_leaf or not node.inputs:
        return False
    op = OPS[node.op]
    covers = op.aligned == tuple(range(len(node.inputs)))
    return covers and op.view is None and op.index is None and not op.whole(node.call)


def of_rows(node: Node) -> bool:
    """Whether an op treats every line of the last dimension of its first input alike."""
    if node.is_leaf or not node.inputs or node.shape != node.inputs[0].shape:
        return False
    whole = OPS[node.op].whole(node.call)
    return bool(whole) and all(axis % node.rank == node.rank - 1 for axis in whole)


def _through(node: Node, turn: Callable[[Node], Node]) -> Node | None:
    """An element-wise op of turned operands, where each has the result's shape or one element."""
    inputs = []
    for parent in node.inputs:
        if parent.shape == node.shape:
            inputs.append(turn(parent))
        elif parent.type.elements == 1:
            inputs.append(parent.reshape() if parent.rank else parent)
        else:
            return None
    return node.builder.apply(node.op, *inputs, **node.attrs)


def _into(op: str, attr: str) -> Callable[[EGraph, Node], Iterator[Found]]:
    """view(f(x, y)) is f(view(x), view(y))."""

    def find(egraph: EGraph, node: Node) -> Iterator[Found]:
        for inner in egraph.members(node.inputs[0]):
            if not is_elementwise(inner):
                continue
            made = _through(inner, lambda x: x.builder.apply(op, x, **{attr: node.attrs[attr]}))
            if made is not None:
                yield node, made

    return find


def _out_of(op: str) -> Callable[[EGraph, Node], Iterator[Found]]:
    """f(view(x), view(y)) is view(f(x, y)), where both are seen in one way."""

    def find(egraph: EGraph, node: Node) -> Iterator[Found]:
        if not is_elementwise(node):
            return
        whole = [parent for parent in egraph.inputs(node) if parent.shape == node.shape]
        for view in egraph.members(whole[0]) if whole else ():
            if view.op == op:
                made = _behind(egraph, node, view)
                if made is not None:
                    yield node, made

    return find


def _behind(egraph: EGraph, node: Node, view: Node) -> Node | None:
    inner = view.inputs[0]
    inputs = []
    for parent in egraph.inputs(node):
        if parent.shape != node.shape:
            if parent.type.elements != 1:
                return None
            inputs.append(parent.reshape() if parent.rank else parent)
            continue
        same = next((one for one in egraph.members(parent) if _is_alike(one, view)), None)
        if same is None:
            return None
        inputs.append(egraph.find(same.inputs[0]))
    made = node.builder.apply(node.op, *inputs, **node.attrs)
    attrs: Attrs = view.attrs
    return node.builder.apply(view.op, made, **attrs) if made.shape == inner.shape else None


def _is_alike(one: Node, view: Node) -> bool:
    is_same_view = one.op == view.op and one.attrs == view.attrs
    return is_same_view and one.inputs[0].shape == view.inputs[0].shape


def _rows_first(egraph: EGraph, node: Node) -> Iterator[Found]:
    """norm(permute(x)) is permute(norm(x)), where rows stay rows."""
    if not of_rows(node):
        return
    for view in egraph.members(node.inputs[0]):
        axes = view.attrs["axes"] if view.op == "permute" else ()
        if not axes or axes[-1] != view.rank - 1:
            continue
        others = [turned_back(other, axes) for other in egraph.inputs(node)[1:]]
        inner = node.builder.apply(node.op, egraph.find(view.inputs[0]), *others, **node.attrs)
        yield node, inner.permute(*axes)


def _rows_last(egraph: EGraph, node: Node) -> Iterator[Found]:
    """permute(norm(x)) is norm(permute(x)), where rows stay rows."""
    axes = node.attrs["axes"]
    if not axes or axes[-1] != node.rank - 1:
        return
    for inner in egraph.members(node.inputs[0]):
        if of_rows(inner) and all(other.rank <= 1 for other in inner.inputs[1:]):
            x, *others = egraph.inputs(inner)
            yield node, node.builder.apply(inner.op, x.permute(*axes), *others, **inner.attrs)


def _swapped(p: Attrs, a: Node, b: Node) -> Node | None:
    """(a · b)ᵀ is bᵀ · aᵀ."""
    rank = max(a.rank, b.rank)
    is_swap = tuple(p["axes"]) == (*range(rank - 2), rank - 1, rank - 2)
    return b.transpose() @ a.transpose() if is_swap else None


MOTION: tuple[AnyRule, ...] = (
    SearchRule("permute inside", "permute", _into("permute", "axes"), rounds=False),
    SearchRule("permute outside", None, _out_of("permute"), rounds=False),
    SearchRule("reshape inside", "reshape", _into("reshape", "shape"), rounds=False),
    SearchRule("reshape outside", None, _out_of("reshape"), rounds=False),
    SearchRule("permute after rows", None, _rows_first, rounds=False),
    SearchRule("permute before rows", "permute", _rows_last, rounds=False),
    Rule("transposed product", ("permute:p", ("matmul", "a", "b")), _swapped),
)
