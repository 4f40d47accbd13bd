"""Products of matrices: in which order, with which weights, how many at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tgbench.graph.graph import Node
from tgbench.graph.op_table import Attrs
from tgbench.graph.ops import concat, linear
from tgbench.graph.recognise.affine import folds_of, with_weights
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.pattern import PatternMatch
from tgbench.graph.rewrite.rule import AnyRule, Found, Rule, SearchRule


def _weights(match: PatternMatch) -> bool:
    """Whether what are weights of the new product never change."""
    return match.are_fixed(*({"w", "v", "b"} & match.nodes.keys()))


def _as_linear(x: Node, p: Attrs, w: Node) -> Node | None:
    return linear(x, w) if tuple(p["axes"]) == (1, 0) else None


def _side_by_side(x: Node, w: Node, y: Node, v: Node) -> Node | None:
    """x·wᵀ + y·vᵀ as one product of longer rows."""
    return linear(concat([x, y]), concat([w, v])) if x is not y and x.rank == y.rank else None


def _bias(x: Node, w: Node, b: Node) -> Node | None:
    return linear(x, w, b.reshape(-1)) if b.type.elements == w.shape[0] == b.shape[-1] else None


def _channels_as_rows(c: Attrs, x: Node, w: Node) -> Node | None:
    """A convolution of one tap mixes channels: a product of places by the weight."""
    is_padded = any(number for pair in c["padding"] for number in pair)
    if is_padded or c["groups"] != 1 or any(size != 1 for size in w.shape[2:]):
        return None
    places = x[(slice(None), slice(None), *(slice(None, None, step) for step in c["stride"]))]
    last = (0, *range(2, x.rank), 1)
    back = (0, x.rank - 1, *range(1, x.rank - 1))
    return linear(places.permute(*last), w.reshape(*w.shape[:2])).permute(*back)


def _together(egraph: EGraph, node: Node) -> Iterator[Found]:
    """Products of one input by several weights as one product by all of them, and its parts."""
    x = egraph.find(node.inputs[0])
    alike = [one for one in egraph.readers(x) if _is_alike(egraph, one, node)]
    classes = {egraph.find(one): one for one in reversed(alike)}
    siblings = sorted(classes.values(), key=lambda one: one.index)
    if len(siblings) < 2 or siblings[0] is not node:
        return
    weights = [egraph.inputs(one)[1:] for one in siblings]
    whole = linear(x, *(concat([*column], 0) for column in zip(*weights, strict=True)))
    start = 0
    for one in siblings:
        stop = start + one.shape[-1]
        yield one, whole[..., start:stop]
        start = stop


def _is_alike(egraph: EGraph, one: Node, node: Node) -> bool:
    """Whether two products are of one input, by weights that were not put together yet."""
    if one.op != node.op or one.attrs or len(one.inputs) != len(node.inputs):
        return False
    is_same = egraph.find(one.inputs[0]) is egraph.find(node.inputs[0])
    weights = egraph.inputs(one)[1:]
    are_plain = all(member.op == "parameter" for w in weights for member in egraph.members(w)[:1])
    return is_same and are_plain and egraph.find(one.inputs[0]) not in weights


def _into_weights(egraph: EGraph, node: Node) -> Iterator[Found]:
    """Scales and shifts of channels after a product, in its weights."""
    for fold in folds_of(node, egraph.members, egraph.is_fixed):
        yield node, with_weights(fold, _Itself())


class _Itself(Mapping[Node, Node]):
    """Every node for itself."""

    def __getitem__(self, node: Node) -> Node:
        return node

    def __iter__(self) -> Iterator[Node]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _scaled(x: Node, s: Node, w: Node) -> Node | None:
    """A scale of what goes in, in the weight: columns of it, or all."""
    is_of_columns = s.type.elements == s.shape[-1] if s.rank else True
    return linear(x, w * s.reshape(-1)) if is_of_columns else None


PRODUCTS: tuple[AnyRule, ...] = (
    Rule("left first", ("matmul", "a", ("matmul", "b", "c")), lambda a, b, c: (a @ b) @ c),
    Rule("right first", ("matmul", ("matmul", "a", "b"), "c"), lambda a, b, c: a @ (b @ c)),
    Rule("product as a layer", ("matmul", "x", ("permute:p", "w")), _as_linear, when=_weights),
    Rule("two layers as one", ("linear", ("linear", "x", "v"), "w"),
         lambda x, v, w: linear(x, w @ v), when=_weights),
    Rule("one layer as two", ("linear", "x", ("matmul", "w", "v")),
         lambda x, v, w: linear(linear(x, v), w), when=_weights),
    Rule("sum of weights", ("add", ("linear", "x", "w"), ("linear", "x", "v")),
         lambda x, w, v: linear(x, w + v), when=_weights),
    Rule("sum of inputs", ("add", ("linear", "x", "w"), ("linear", "y", "w")),
         lambda x, y, w: linear(x + y, w), when=_weights),
    Rule("layer of a sum", ("linear", ("add", "x", "y"), "w"),
         lambda x, y, w: linear(x, w) + linear(y, w), grows=True,
         when=lambda match: _weights(match) and match.are_moderate("x", "y")),
    Rule("side by side", ("add", ("linear", "x", "w"), ("linear", "y", "v")), _side_by_side,
         when=_weights),
    Rule("factor a left matrix", ("add", ("matmul", "a", "b"), ("matmul", "a", "c")),
         lambda a, b, c: a @ (b + c)),
    Rule("factor a right matrix", ("add", ("matmul", "a", "c"), ("matmul", "b", "c")),
         lambda a, b, c: (a + b) @ c),
    Rule("bias", ("add", ("linear", "x", "w"), "b"), _bias, when=_weights),
    Rule("scale before a layer", ("linear", ("mul", "x", "s"), "w"), _scaled,
         when=lambda match: match.are_fixed("s", "w") and match.are_near("s")),
    SearchRule("channels into weights", None, _into_weights),
    SearchRule("products together", "linear", _together),
    Rule("one tap as a layer", ("conv:c", "x", "w"), _channels_as_rows, when=_weights),
)  # fmt: skip
