"""Scales and shifts of channels, moved into the weights of the product that they follow.

    x ─→ conv(W, b) ─→ · s + t ─→      before: batch norm in evaluation, layer scale, a late bias
    x ─→ conv(W · s, b · s + t) ─→     after

W · s and b · s + t depend on weights alone, so a session computes them once. This changes rounding
(Jacob et al. 2018, section 3.2, fold batch norm in this way), and takes memory: a scaled weight is
a copy. Weights of less than 32 bits are left alone, because scaling rounds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tgbench.base.known import ConstantData
from tgbench.base.memo import once_each
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import OPS, Dim
from tgbench.graph.simplify import simplify

DTYPES = ("float32", "float64")
LARGE = 1024.0  # of a number: what is added to it loses digits that somebody may count on losing
FAR = 2.0**20  # of a factor, or of one over it: a few of them together leave what floats can hold


@dataclass(frozen=True)
class Product:
    """An op of x, a weight and maybe a bias that is linear in the latter two.

    Fields:
        axis: of the output, along which its channels lie.
        column: (node, scale [channels]) → a tensor that scales the channels of its weight.
        takes_bias: whether it has a bias [channels] as a third input.
    """

    axis: int
    column: Callable[[Node, Node], Node]
    takes_bias: bool = True


@dataclass(frozen=True)
class Fold:
    """A node that can be taken into the product before it.

    Fields:
        of: what it changes, which nothing else reads: the product, or a permute of it.
        scale, shift: frozen, for each channel or for all of them; None where there is none.
        sign: of the shift.
    """

    of: Node
    scale: Node | None = None
    shift: Node | None = None
    sign: int = 1

    @property
    def product(self) -> Node:
        return self.of.inputs[0] if self.of.op == "permute" else self.of

    @property
    def axis(self) -> int:
        """Along which the channels lie in what is changed."""
        axis = PRODUCTS[self.product.op].axis % self.of.rank
        return self.of.attrs["axes"].index(axis) if self.of.op == "permute" else axis


def into_weights(graph: Graph) -> Graph:
    """The graph with scales and shifts of channels in weights; itself where there are none.

    Left alone: products that are read elsewhere too, weights that another product reads as they
    are (a copy would come on top), float16 and bfloat16.

    >>> import tgbench.graph.ops as ops
    >>> g = GraphBuilder(); x, w = g.input("x", (2, 8)), g.parameter("w", (4, 8))
    >>> g.output("y", ops.linear(x, w) * g.parameter("s", (4,)))
    >>> print(into_weights(g.build()))
    x: float32[2, 8] = input()
    w: float32[4, 8] = parameter()
    s: float32[4] = parameter()
    linear.reshape: float32[4, 1] = reshape(s, shape=(4, 1))
    linear.mul: float32[4, 8] = mul(w, linear.reshape)
    mul: float32[2, 4] = linear(x, linear.mul)
    output y = mul
    """
    while folds := _worthwhile(graph, _folds(graph)):
        graph = simplify(_folded(graph, folds))
    return graph


# --- the products ---------------------------------------------------------------------------------


def _rows(node: Node, scale: Node) -> Node:
    """For a weight [O, …]."""
    return scale.reshape(scale.shape[0], *(1,) * (node.inputs[1].rank - 1))


def _columns_in_groups(node: Node, scale: Node) -> Node:
    """For a weight [C, O / groups, …]: each group has rows of its own."""
    rows, columns, *taps = node.inputs[1].shape
    groups = node.attrs["groups"]
    parts = scale.reshape(groups, 1, columns).expand(groups, rows // groups, columns)
    return parts.reshape(rows, columns, *(1,) * len(taps))


PRODUCTS: Mapping[str, Product] = {
    "conv": Product(1, _rows),
    "conv_transpose": Product(1, _columns_in_groups),
    "linear": Product(-1, _rows),
    "matmul": Product(-1, lambda node, scale: scale, takes_bias=False),  # weight […, K, O]
}


def folds_of(
    node: Node, shown: Callable[[Node], Sequence[Node]], is_fixed: Callable[[Node], bool]
) -> Iterator[Fold]:
    """What a node does to a product, whatever else reads that, where weights can do it.

    Args:
        shown: the nodes that have the value of an operand.
        is_fixed: whether a node follows from weights alone.
    """
    for place, operand in enumerate(node.inputs if node.op in _AFFINE else ()):
        fold = _AFFINE[node.op](node, place)
        if fold is None:
            continue
        for product in shown(operand):
            if product.op not in PRODUCTS or product.attrs.get("arithmetic"):
                continue
            one = replace(fold, of=product)
            given = [n for n in (one.scale, one.shift) if n is not None]
            takes = one.shift is None or PRODUCTS[product.op].takes_bias
            is_like = product.type == node.type and node.dtype in DTYPES
            are_fixed = all(map(is_fixed, [*product.inputs[1:], *given]))
            if takes and is_like and are_fixed and _are_of_channels(given, node, one):
                yield one


def with_weights(fold: Fold, new: Mapping[Node, Node]) -> Node:
    """The product of other weights that a fold stands for; `new` has what replaces nodes."""
    product = new[fold.product]
    x, *_ = product.inputs
    return product.builder.apply(product.op, x, *_weights(fold, new), **product.attrs)


# --- what can be folded ---------------------------------------------------------------------------


def _channel_affine(node: Node, place: int) -> Fold | None:
    x, scale, shift = node.inputs
    return Fold(x, scale, shift) if place == 0 else None


def _mul(node: Node, place: int) -> Fold | None:
    scale = node.inputs[1 - place]
    return None if is_far(scale) else Fold(node.inputs[place], scale=scale)


def _add(node: Node, place: int) -> Fold | None:
    shift = node.inputs[1 - place]
    return None if is_large(shift) else Fold(node.inputs[place], shift=shift)


def _sub(node: Node, place: int) -> Fold | None:
    x, shift = node.inputs
    return Fold(x, shift=shift, sign=-1) if place == 0 and not is_large(shift) else None


def is_large(node: Node) -> bool:
    """Whether a constant holds such large numbers that sums are not taken in another order with
    them: adding 1.5 · 2²³ and taking it away again rounds to integers, and scores below −1e9 close
    a mask.
    """
    return _magnitude(node) > LARGE


def is_far(node: Node) -> bool:
    """Whether a constant holds numbers so far from 1 that products are not taken in another order
    with them: the least float32, which closes a mask, is infinite times 2, and that times 0 is no
    number.
    """
    magnitude = _magnitude(node)
    return magnitude > FAR or 0 < magnitude < 1 / FAR


def _magnitude(node: Node) -> float:
    """The largest of a constant; 0 where it is none."""
    while not node.is_leaf and OPS[node.op].view is not None:
        node = node.inputs[0]
    data, value = node.attrs.get("data"), node.attrs.get("value", 0.0)
    return abs(value) if data is None else _most(data)


@once_each
def _most(data: ConstantData) -> float:
    """The largest magnitude; 0 of flags."""
    return 0.0 if data.array.dtype == bool else float(np.abs(data.array).max(initial=0))


_AFFINE: Mapping[str, Callable[[Node, int], Fold | None]] = {
    "channel_affine": _channel_affine,
    "mul": _mul,
    "add": _add,
    "sub": _sub,
}


def _folds(graph: Graph) -> dict[Node, Fold]:
    """What can be folded, by the node that goes."""
    frozen = graph.frozen
    found = {}
    for node in graph.nodes:
        for place in range(len(node.inputs) if node.op in _AFFINE else 0):
            fold = _AFFINE[node.op](node, place)
            if fold is not None and _is_possible(graph, node, fold, frozen):
                found[node] = fold
    return found


def _is_possible(graph: Graph, node: Node, fold: Fold, frozen: frozenset[Node]) -> bool:
    product = fold.product
    if product.op not in PRODUCTS or fold.of.type != node.type or node.dtype not in DTYPES:
        return False
    if not (_is_read_once(graph, product) and _is_read_once(graph, fold.of)):
        return False
    if fold.shift is not None and not PRODUCTS[product.op].takes_bias:
        return False
    given = [n for n in (fold.scale, fold.shift) if n is not None]
    are_frozen = frozen.issuperset([*product.inputs[1:], *given])
    return are_frozen and product not in frozen and _are_of_channels(given, node, fold)


def _is_read_once(graph: Graph, node: Node) -> bool:
    return len(graph.consumers[node]) == 1 and node not in graph.ends


def _are_of_channels(given: Sequence[Node], node: Node, fold: Fold) -> bool:
    """Whether operands differ from channel to channel at most."""
    if node.op == "channel_affine":
        return fold.axis == 1
    others = [size for n in given for size in _without(n.shape, fold.axis - node.rank)]
    return all(size == 1 for size in others)


def _without(shape: Sequence[Dim], axis: int) -> list[Dim]:
    """A shape less one dimension, counted from behind, where it has that."""
    return [size for i, size in enumerate(shape, -len(shape)) if i != axis]


def _worthwhile(graph: Graph, folds: Mapping[Node, Fold]) -> dict[Node, Fold]:
    """Those after which no run reads a weight both as it was and scaled, or scaled in two ways."""
    alike: dict[tuple[Node | None, Node, str], set[Node]] = {}
    for fold in folds.values():
        alike.setdefault(_scaling(fold), set()).add(fold.product)

    def pays(fold: Fold, scale: Node) -> bool:
        weight = fold.product.inputs[1]
        are_alike = alike[_scaling(fold)].issuperset(graph.consumers[weight])
        return are_alike and _is_replaced(graph, weight) and _keeps_zeros(weight, scale)

    return {node: f for node, f in folds.items() if f.scale is None or pays(f, f.scale)}


def _is_replaced(graph: Graph, weight: Node) -> bool:
    """Whether nothing else shows the weight, and it is as large as its copy would be."""
    _, *behind = shown = [*_shown(weight)]
    is_small = all(node.op != "expand" for node in shown)
    return is_small and weight not in graph.ends and all(_is_read_once(graph, n) for n in behind)


def _keeps_zeros(weight: Node, scale: Node) -> bool:
    """Whether zeros that are known of a constant (a band, a filter) still are when it is scaled."""
    return weight.op != "constant" or scale.op == "constant"


def _scaling(fold: Fold) -> tuple[Node | None, Node, str]:
    """Equal where the same scaled weight comes out."""
    return fold.scale, fold.product.inputs[1], fold.product.op


def _shown(node: Node) -> Iterator[Node]:
    """A node, and where it is a view what it shows."""
    yield node
    if not node.is_leaf and OPS[node.op].view is not None:
        yield from _shown(node.inputs[0])


# --- the new graph --------------------------------------------------------------------------------


def _folded(graph: Graph, folds: Mapping[Node, Fold]) -> Graph:
    """The graph with products in place of what was folded; they have the names of that."""
    new: dict[Node, Node] = {}

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        fold = folds.get(node)
        if fold is None:
            new[node] = copy_node(builder, node, inputs)
        else:
            new[node] = _with_weights(builder, node, fold, new)
        return new[node]

    return graph.rebuild(make)


def _with_weights(builder: GraphBuilder, node: Node, fold: Fold, new: Mapping[Node, Node]) -> Node:
    """The product of other weights, which stand in its scope, where what is gone stood."""
    with builder.scope(fold.product.name):
        weights = _weights(fold, new)
    product, count = new[fold.product], len(builder.nodes)
    with builder.scope(node.name):
        made = builder.apply(product.op, product.inputs[0], *weights, **product.attrs)
        made = made.permute(*fold.of.attrs["axes"]) if fold.of.op == "permute" else made
    return builder.rename_new(made, node.name, since=count)


def _weights(fold: Fold, new: Mapping[Node, Node]) -> list[Node]:
    """The new weight, and the new bias if there is one."""
    product = new[fold.product]
    _, weight, *biases = product.inputs
    channels = product.shape[PRODUCTS[product.op].axis]
    bias = biases[0] if biases else None
    if fold.scale is not None:
        scale = _vector(new[fold.scale], channels)
        weight = weight * PRODUCTS[product.op].column(product, scale)
        bias = bias * scale if bias is not None else None
    if fold.shift is not None:
        shift = _vector(new[fold.shift], channels)
        shift = shift if fold.sign > 0 else -shift
        bias = shift if bias is None else bias + shift
    return [weight] if bias is None else [weight, bias]


def _vector(operand: Node, channels: Dim) -> Node:
    """[channels] of an operand that has one element, or one for each."""
    flat = operand if operand.rank == 1 else operand.reshape(-1)
    return flat if flat.shape == (channels,) else flat.expand(channels)
