"""What softmax and norms do not see, and weights of norms that the product behind them can have."""

from __future__ import annotations

from tgbench.graph.graph import Node
from tgbench.graph.op_table import Attrs
from tgbench.graph.ops import full, layer_norm, linear, rms_norm, softmax
from tgbench.graph.rewrite.pattern import PatternMatch, is_number
from tgbench.graph.rewrite.rule import AnyRule, Rule


def _is_level(x: Node, along: int, like: Node) -> bool:
    """Whether a term is one number along an axis of what it is added to."""
    if not like.rank:
        return False
    place = along % like.rank - (like.rank - x.rank)
    return place < 0 or x.shape[place] == 1


def _softmax(p: Attrs, x: Node, c: Node) -> Node | None:
    is_level = _is_level(c, p["axis"], x) and x.rank >= c.rank and x.shape != c.shape
    return softmax(x, p["axis"]) if is_level else None


def _centred(p: Attrs, x: Node, c: Node, w: Node, b: Node) -> Node | None:
    return layer_norm(x, w, b, p["eps"]) if _is_level(c, -1, x) and x.shape != c.shape else None


def _weights(match: PatternMatch) -> bool:
    """Weights of a norm that says more than 1, before a product by weights."""
    is_one = any(_is_one(node) for node in match.egraph.members(match.nodes["g"]))
    return not is_one and match.are_fixed("w", *({"g", "b"} & match.nodes.keys()))


def _is_one(node: Node) -> bool:
    return is_number(node, 1.0) or (node.op == "expand" and _is_one(node.inputs[0]))


def _ones(like: Node) -> Node:
    return full(like.builder, like.shape, 1.0, like.dtype)


def _rms(n: Attrs, x: Node, g: Node, w: Node) -> Node | None:
    """The weight of a norm as columns of the product's."""
    return linear(rms_norm(x, _ones(g), n["eps"]), w * g)


def _layer(n: Attrs, x: Node, g: Node, b: Node, w: Node) -> Node | None:
    plain = layer_norm(x, _ones(g), _ones(b) * 0.0, n["eps"])
    return linear(plain, w * g, linear(b, w))


NORMS: tuple[AnyRule, ...] = (
    Rule("softmax of a shift", ("softmax:p", ("add", "x", "c")), _softmax),
    Rule("softmax of a shift down", ("softmax:p", ("sub", "x", "c")), _softmax),
    Rule("norm of a shift", ("layer_norm:p", ("add", "x", "c"), "w", "b"), _centred),
    Rule("norm's weight into the product", ("linear", ("rms_norm:n", "x", "g"), "w"), _rms,
         when=_weights),
    Rule("norm's weights into the product", ("linear", ("layer_norm:n", "x", "g", "b"), "w"),
         _layer, when=_weights),
)  # fmt: skip
