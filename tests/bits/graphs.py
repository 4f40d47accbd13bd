"""Graphs for bit-exact mode: every op case, as it is and otherwise, and random ones.

whole(name)         an op case
larger(name)        the same with larger sizes
resized(name, rng)  an op case with other sizes and another dtype
chain(rng)          a random graph over the whole op table
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from op_cases import CASES

from tgbench import ops
from tgbench.base.errors import TgbenchError
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import FLOATS

Rng = np.random.Generator
MOST_ELEMENTS = 3000  # of a node


@dataclass(frozen=True)
class Made:
    """A graph, and the exclusive bounds of its index inputs."""

    graph: Graph
    below: Mapping[str, int]


class _Resized(GraphBuilder):
    """Inputs get other sizes, the same for the same; floats another dtype."""

    def __init__(self, sizes: Mapping[int, int], dtype: str) -> None:
        super().__init__()
        self._sizes, self._dtype = sizes, dtype

    def input(self, name: str, shape: Sequence[Any], dtype: str = "float32") -> Node:
        sizes = [self._sizes.get(size, size) for size in shape]
        return super().input(name, sizes, self._dtype if dtype == "float32" else dtype)


def not_numbers(dtype: str, shape: Sequence[int]) -> Any:
    """NaN of both signs and several payloads, as a constant holds them."""
    size = np.dtype(dtype).itemsize
    found = np.full(shape, np.nan, dtype)
    bits = found.view(f"u{size}")
    bits[...] |= np.arange(found.size, dtype=bits.dtype).reshape(shape) % 7
    bits[..., ::2] |= bits.dtype.type(1 << (8 * size - 1))
    return found


def whole(name: str) -> Made:
    """An op case."""
    case = CASES[name]
    return Made(case.graph, dict.fromkeys(case.graph.inputs, case.below) if case.below else {})


def larger(name: str) -> Made:
    """An op case with room for a change to be elsewhere, or as it is where it has one size."""
    for factor in (5, 3, 2):
        found = _sized(name, {size: factor * size for size in range(2, 10)}, "float32")
        if found is not None:
            return found
    return whole(name)


def resized(name: str, rng: Rng) -> Made:
    """An op case with other sizes and another dtype, or as it is where it takes no others."""
    dtypes = ("float32", "float32", "float64", "float16", "bfloat16")
    for _ in range(6):
        sizes = {size: int(rng.integers(1, 20)) for size in range(2, 10)}
        kept = {} if rng.random() < 0.4 or CASES[name].below else sizes
        dtype = str(rng.choice(dtypes))
        found = _sized(name, kept, "float32" if name.startswith("opaque") else dtype)
        if found is not None:
            return found
    return whole(name)


def _sized(name: str, sizes: Mapping[int, int], dtype: str) -> Made | None:
    """An op case with these sizes instead of others, if it takes them."""
    case, g = CASES[name], _Resized(sizes, dtype)
    try:
        g.output("out", case.make(g))
        graph = g.build()
    except (TgbenchError, ValueError, TypeError, IndexError):
        return None
    if max(n.type.elements for n in graph.nodes) > MOST_ELEMENTS:
        return None
    return Made(graph, dict.fromkeys(graph.inputs, case.below) if case.below else {})


class _Chain:
    """A graph that grows by ops drawn from all families."""

    def __init__(self, rng: Rng) -> None:
        self.rng, self.g = rng, GraphBuilder()
        self.dtype = str(rng.choice(["float32", "float32", "float32", "float64", "float16"]))
        self.below: dict[str, int] = {}
        self.leaves = 0
        self.nodes = [self.leaf(self.shape())]

    def shape(self) -> list[int]:
        most = int(self.rng.choice([4, 9, 20]))
        return [int(n) for n in self.rng.integers(1, most, self.rng.integers(1, 5))]

    def leaf(self, shape: Sequence[int], below: int = 0) -> Node:
        name, self.leaves = f"in{self.leaves}", self.leaves + 1
        if below:
            self.below[name] = below
            return self.g.input(name, shape, "int64")
        is_weight = self.leaves > 1 and self.rng.random() < 0.3
        make = self.g.parameter if is_weight else self.g.input
        return make(name, shape, self.dtype)

    def at(self, most: int) -> int:
        return int(self.rng.integers(0, most))

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.at(len(values))]

    def mask(self, shape: Sequence[int]) -> Node:
        found = self.rng.random([self.pick([1, n]) for n in shape]) < 0.6
        if len(shape) > 1 and self.rng.random() < 0.5:
            found = np.tri(shape[-2], shape[-1], self.at(3), dtype=bool)
        return self.g.constant(np.asarray(found))

    def open_mask(self, shape: Sequence[int]) -> Node:
        found = np.array(self.rng.random(shape) < 0.6)
        found[..., 0] = True
        return self.g.constant(found)

    def axis(self, x: Node) -> int:
        return self.at(x.rank)

    def axes(self, x: Node) -> list[int]:
        count = int(self.rng.integers(1, x.rank + 1))
        return sorted(int(n) for n in self.rng.permutation(x.rank)[:count])

    def partner(self, x: Node) -> Node:
        fits = [n for n in self.nodes if n.shape == x.shape and n.dtype == x.dtype]
        if self.rng.random() < 0.5:
            return self.pick(fits)
        return self.leaf([self.pick([1, n]) for n in x.shape[self.at(x.rank + 1) :]])

    def pair(self, x: Node) -> tuple[Node, Node]:
        other = self.partner(x)
        return (x, other) if self.at(2) else (other, x)

    def matrix(self, x: Node) -> Node:
        return self.leaf((x.shape[-1], self.at(20) + 1))

    def image(self, x: Node) -> Node:
        """As [batch, channels, …]."""
        while x.rank < 3:
            x = x.reshape(1, *x.shape)
        return x

    def window(self, x: Node) -> dict[str, Any]:
        return {
            "stride": self.at(2) + 1, "padding": self.at(4), "dilation": self.at(2) + 1,
        }  # fmt: skip

    def conv(self, x: Node, transposed: bool = False) -> Node:
        x = self.image(x)
        groups = self.pick([n for n in range(1, x.shape[1] + 1) if x.shape[1] % n == 0])
        outputs, taps = groups * (self.at(3) + 1), [self.at(3) + 1 for _ in x.shape[2:]]
        if transposed:
            weight = self.leaf((x.shape[1], outputs // groups, *taps))
            options = self.window(x) | {"padding": 0}
            return ops.conv_transpose(x, weight, groups=groups, **options)
        weight = self.leaf((outputs, x.shape[1] // groups, *taps))
        bias = [self.leaf((outputs,))] if self.at(2) else []
        return ops.conv(x, weight, *bias, groups=groups, **self.window(x))

    def pool(self, x: Node) -> Node:
        x, size = self.image(x), self.at(3) + 1
        options = {"stride": self.at(2) + 1, "padding": self.at(size // 2 + 1)}
        return self.pick([ops.max_pool, ops.avg_pool])(x, size, **options)

    def attention(self, x: Node) -> Node:
        while x.rank < 4:
            x = x.reshape(1, *x.shape)
        masks = [None, self.open_mask((x.shape[2], x.shape[2]))]
        return ops.attention(x, self.pick([x, self.leaf(x.shape)]), x, self.pick(masks))

    def grow(self) -> None:
        x = self.pick(self.nodes[-3:])
        makes = FAMILIES if x.dtype in FLOATS else {"cast": lambda c, n: n.cast(c.dtype)}
        try:
            made = makes[self.pick(list(makes))](self, x)
        except (TgbenchError, ValueError, TypeError, IndexError):
            return
        if 0 < made.type.elements <= MOST_ELEMENTS and 0 < made.rank <= 5:
            self.nodes.append(made)


UNARY = (
    "neg", "abs", "sign", "floor", "ceil", "round", "exp", "log", "sqrt", "rsqrt", "reciprocal",
    "sin", "cos", "tanh", "erf", "sigmoid", "tan", "sinh", "cosh", "arcsin", "arccos", "arctan",
    "log1p", "log2", "log10", "expm1", "exp2", "trunc", "isnan", "isinf",
)  # fmt: skip
BINARY = (
    "add", "sub", "mul", "div", "floordiv", "mod", "pow", "maximum", "minimum", "less", "equal",
    "arctan2",
)  # fmt: skip
ACTIVATIONS = (
    ops.gelu, ops.silu, ops.relu, ops.leaky_relu, ops.elu, ops.softplus, ops.hardsigmoid,
    ops.hardswish, ops.mish, lambda n: ops.gelu(n, "tanh"), lambda n: ops.clamp(n, -0.5, 1.0),
)  # fmt: skip


def _pow(c: _Chain, x: Node) -> Node:
    return x ** c.pick([0.5, 2.0, 3.0, -1.0, 1.5, -0.5])


def _slice(c: _Chain, x: Node) -> Node:
    parts = []
    for size in x.shape:
        start = c.at(size)
        parts.append(slice(start, c.at(size - start) + start + 1, c.at(2) + 1))
    return x[tuple(parts)]


def _gather(c: _Chain, x: Node) -> Node:
    axis = c.axis(x)
    return ops.gather(x, c.leaf([c.at(4) + 1], below=x.shape[axis]), axis)


def _scatter(c: _Chain, x: Node) -> Node:
    axis, count = c.axis(x), c.at(3) + 1
    value = c.leaf([*x.shape[:axis], count, *x.shape[axis + 1 :]])
    return ops.scatter(x, c.leaf([count], below=x.shape[axis]), value, axis)


def _update(c: _Chain, x: Node) -> Node:
    start = [c.at(size) for size in x.shape]
    sizes = [c.at(n - a) + 1 for n, a in zip(x.shape, start, strict=True)]
    return ops.update(x, c.leaf(sizes), start)


def _reshape(c: _Chain, x: Node) -> Node:
    size = x.type.elements
    first = c.pick([n for n in range(1, size + 1) if size % n == 0])
    return x.reshape(first, size // first)


def _pad(c: _Chain, x: Node) -> Node:
    low, high = [c.at(3) for _ in x.shape], [c.at(3) for _ in x.shape]
    return ops.pad(x, low, high, c.pick([0.0, -0.0, 2.0]))


def _gated(c: _Chain, x: Node) -> Node:
    width = c.at(20) + 1
    weights = [c.leaf((width, x.shape[-1])) for _ in range(2)]
    return ops.gated_linear(x, *weights, c.pick(["gelu_tanh", "gelu", "silu", "relu"]))


def _linear(c: _Chain, x: Node) -> Node:
    width = c.at(20) + 1
    bias = [c.leaf((width,))] if c.at(2) else []
    return ops.linear(x, c.leaf((width, x.shape[-1])), *bias)


FAMILIES: dict[str, Callable[[_Chain, Node], Node]] = {
    "unary": lambda c, x: c.g.apply(c.pick(UNARY), x),
    "binary": lambda c, x: c.g.apply(c.pick(BINARY), *c.pair(x)),
    "pow": _pow,
    "scaled": lambda c, x: x * c.pick([-2.0, 0.0, -0.0, 0.3]),
    "zeroed": lambda c, x: c.pick([
        ops.where(c.mask(x.shape), x, c.pick([0.0, -0.0])), x * c.mask(x.shape).cast(c.dtype)]),
    "divided": lambda c, x: x * c.mask(x.shape).cast(c.dtype) / c.partner(x),
    "where": lambda c, x: ops.where(x > c.partner(x), x, c.partner(x)),
    "no number": lambda c, x: ops.where(
        c.mask(x.shape), x, c.g.constant(not_numbers(c.dtype, x.shape[-1:]))),
    "masked": lambda c, x: ops.where(c.mask(x.shape), x, c.pick([-np.inf, 0.0, -1.0, 3.0])),
    "masked max": lambda c, x: ops.max_(ops.where(c.open_mask(x.shape), x, -np.inf), -1),
    "masked softmax": lambda c, x: ops.softmax(ops.where(c.open_mask(x.shape), x, -np.inf)),
    "scores": lambda c, x: ops.where(
        c.mask((x.shape[-2],) * 2), x @ x.transpose(), 0.0) @ x,
    "activation": lambda c, x: c.pick(ACTIVATIONS)(x),
    "reduce": lambda c, x: c.pick([ops.sum_, ops.mean, ops.max_, ops.min_, ops.prod])(
        x, c.axes(x), keepdims=bool(c.at(2))),
    "variance": lambda c, x: c.pick([ops.var, ops.std])(x, c.axis(x), keepdims=True),
    "matmul": lambda c, x: x @ c.matrix(x),
    "linear": _linear,
    "gated": _gated,
    "softmax": lambda c, x: ops.softmax(x, c.axis(x)),
    "log_softmax": lambda c, x: ops.log_softmax(x, c.axis(x)),
    "logsumexp": lambda c, x: ops.logsumexp(x, c.axis(x), True),
    "rms_norm": lambda c, x: ops.rms_norm(x, c.leaf(x.shape[-1:])),
    "layer_norm": lambda c, x: ops.layer_norm(x, c.leaf(x.shape[-1:]), c.leaf(x.shape[-1:])),
    "group_norm": lambda c, x: ops.group_norm(c.image(x), 1),
    "affine": lambda c, x: ops.channel_affine(
        x, c.leaf((x.shape[1],)), c.leaf((x.shape[1],))),
    "rope": lambda c, x: ops.rope(x, c.leaf(x.shape[-2:]), c.leaf(x.shape[-2:])),
    "attention": _Chain.attention,
    "conv": _Chain.conv,
    "conv_transpose": lambda c, x: c.conv(x, transposed=True),
    "pool": _Chain.pool,
    "upsample": lambda c, x: ops.upsample(
        c.image(x), scale=c.pick([2.0, 1.7, 0.6]), mode=c.pick(["nearest", "linear"])),
    "reshape": _reshape,
    "permute": lambda c, x: x.permute(*[int(n) for n in c.rng.permutation(x.rank)]),
    "slice": _slice,
    "flip": lambda c, x: ops.flip(x, c.axis(x)),
    "expand": lambda c, x: x.expand(2, *x.shape),
    "pad": _pad,
    "concat": lambda c, x: ops.concat([x, c.partner(x)], c.axis(x)),
    "gather": _gather,
    "scatter": _scatter,
    "update": _update,
    "cumsum": lambda c, x: ops.cumsum(x, c.axis(x)),
    "arg": lambda c, x: c.pick([ops.argmax, ops.argmin])(x, c.axis(x), True),
    "topk": lambda c, x: c.pick(ops.topk(x, c.at(x.shape[-1]) + 1, -1, bool(c.at(2)))),
    "sort": lambda c, x: ops.sort(x, c.axis(x), bool(c.at(2)))[0],
    "cast": lambda c, x: x.cast(c.pick(["int32", "bool", "float16", "float32"])),
}  # fmt: skip


def chain(rng: Rng) -> Made:
    """A random graph over the whole op table."""
    while True:
        grown = _Chain(rng)
        for _ in range(int(rng.integers(1, 9))):
            grown.grow()
        made = [node for node in grown.nodes if not node.is_leaf]
        if made:
            break
    grown.g.output("y0", made[-1])
    if len(made) > 1 and rng.random() < 0.5:
        grown.g.output("y1", made[int(rng.integers(len(made) - 1))])
    graph = grown.g.build()
    return Made(graph, {k: v for k, v in grown.below.items() if k in graph.inputs})
