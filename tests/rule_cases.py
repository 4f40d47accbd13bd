"""Examples of every rule, and e-graphs whose members are computed and compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tgbench.graph.ops as ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import numpy_dtype
from tgbench.graph.rewrite.egraph import EGraph

Array = np.ndarray[Any, Any]
Sizes = tuple[int, int, int]
Written = Callable[["Draw"], Node]


class Draw:
    """Inputs and weights of random sizes, in float64, where rounding is far below what is wrong."""

    def __init__(self, sizes: Sizes, dtype: str = "float64") -> None:
        self.g, self.dtype = GraphBuilder(), dtype
        self.m, self.k, self.n = sizes
        self.count = 0

    def x(self, *shape: int) -> Node:
        self.count += 1
        return self.g.input(f"x{self.count}", shape, self.dtype)

    def w(self, *shape: int) -> Node:
        self.count += 1
        return self.g.parameter(f"w{self.count}", shape, self.dtype)


def pair(d: Draw) -> tuple[Node, Node, Node]:
    return d.x(d.m, d.k), d.x(d.k), d.x(d.m, 1)


def _layers(d: Draw) -> tuple[Node, Node, Node]:
    return d.x(d.m, d.k), d.w(d.n, d.k), d.w(d.n, d.k)


def _of(make: Callable[..., Node], count: int) -> Written:
    return lambda d: make(*pair(d)[:count])


def _conv(d: Draw) -> Node:
    return ops.conv(d.x(1, d.k, 5, 4), d.w(d.n, d.k, 1, 1), stride=(2, 1))


def _sliced(make: Callable[[Draw], Node]) -> Written:
    def written(d: Draw) -> Node:
        y = make(d)
        return y[tuple(slice(size // 3, max(size - 1, size // 3 + 1)) for size in y.shape)]

    return written


def _square(d: Draw) -> Node:
    x = d.x(d.m, d.k)
    return x * x


def _shared(make: Callable[[Node, Node, Node], Node]) -> Written:
    """Of a product of one matrix that stands twice."""
    return lambda d: make(d.x(d.m, d.k), d.x(d.k, d.n), d.x(d.k, d.n))


def _right_shared(d: Draw) -> Node:
    a, b, c = d.x(d.m, d.k), d.x(d.m, d.k), d.x(d.k, d.n)
    return a @ c + b @ c


def _inputs_shared(d: Draw) -> Node:
    x, w, _ = _layers(d)
    return ops.linear(x, w) + ops.linear(d.x(d.m, d.k), w)


def _beside(d: Draw) -> Node:
    return ops.linear(d.x(d.m, d.k), d.w(d.n, d.k)) + ops.linear(d.x(d.m, d.n), d.w(d.n, d.n))


def _concat_of_slices(d: Draw) -> Node:
    x = d.x(d.m, d.k + 3)
    return ops.concat([x[:, 1:2], x[:, 2 : d.k + 2]])


EXAMPLES: dict[str, Written] = {
    "distribute": _of(lambda a, b, c: a * (b + c), 3),
    "distribute over less": _of(lambda a, b, c: a * (b - c), 3),
    "distribute quotient": _of(lambda a, b, c: (a + b) / c, 3),
    "factor": _of(lambda a, b, c: a * b + a * c, 3),
    "factor less": _of(lambda a, b, c: a * b - a * c, 3),
    "factor one": _of(lambda a, b: a + a * b, 2),
    "factor quotient": _of(lambda a, b, c: a / c + b / c, 3),
    "less is plus minus": _of(lambda a, b: a - b, 2),
    "plus minus is less": _of(lambda a, b: a + (-b), 2),
    "less minus is plus": _of(lambda a, b: a - (-b), 2),
    "sign of a product": _of(lambda a, b: (-a) * b, 2),
    "product of a sign": _of(lambda a, b: -(a * b), 2),
    "sign of a quotient": _of(lambda a, b: (-a) / b, 2),
    "by a number is times": lambda d: d.x(d.m, d.k) / d.w(d.k),
    "times one over is by": _of(lambda a, b: a * ops.reciprocal(b), 2),
    "quotients at once": _of(lambda a, b, c: a / b / c, 3),
    "quotient of a product": _of(lambda a, b, c: (a / c) * b, 3),
    "product of a quotient": _of(lambda a, b, c: (a * b) / c, 3),
    "by a root": _of(lambda a, b: a / ops.sqrt(b), 2),
    "one over a root": _of(lambda a: ops.reciprocal(ops.sqrt(a)), 1),
    "root of one over": _of(lambda a: ops.sqrt(ops.reciprocal(a)), 1),
    "product of powers": _of(lambda a, b: ops.exp(a) * ops.exp(b), 2),
    "square": _of(lambda a: a**2.0, 1),
    "cube": _of(lambda a: a**3.0, 1),
    "power of one half": _of(lambda a: a**0.5, 1),
    "power of minus one half": _of(lambda a: a**-0.5, 1),
    "power of minus one": _of(lambda a: a**-1.0, 1),
    "square as a power": _square,
    "one form of a sum": _of(lambda a, b, c: (a + b) + c, 3),
    "one form of a difference": _of(lambda a, b, c: (a + b) - (c - a), 3),
    "one form of a product": _of(lambda a, b, c: (a * b) * (c * a), 3),
    "permute inside": lambda d: (d.x(d.m, d.k) + d.x(d.m, d.k)).transpose(),
    "permute outside": lambda d: ops.exp(d.x(d.m, d.k).transpose()) * 2.0,
    "reshape inside": lambda d: (d.x(d.m, d.k) * 2.0).reshape(-1),
    "reshape outside": lambda d: ops.exp(d.x(d.m, d.k).reshape(-1)),
    "permute after rows": lambda d: ops.rms_norm(d.x(d.m, d.n, d.k).permute(1, 0, 2), d.w(d.k)),
    "permute before rows": lambda d: ops.rms_norm(d.x(d.m, d.n, d.k), d.w(d.k)).permute(1, 0, 2),
    "transposed product": lambda d: (d.x(d.m, d.k) @ d.x(d.k, d.n)).transpose(),
    "slice of elements": _sliced(lambda d: d.x(d.m, d.k) * d.x(d.k) + d.x(d.m, 1)),
    "slice of rows": lambda d: ops.softmax(d.x(d.m, d.k))[1:],
    "slice of a linear layer": _sliced(
        lambda d: ops.linear(d.x(d.m, d.k), d.w(d.n, d.k), d.w(d.n))
    ),
    "slice of a product": _sliced(lambda d: d.x(2, d.m, d.k) @ d.x(1, d.k, d.n)),
    "slice of a permute": _sliced(lambda d: d.x(d.m, d.n, d.k).permute(2, 0, 1)),
    "slice of a concat": lambda d: ops.concat([d.x(d.m, d.k), d.x(d.m, d.n)])[:, d.k :],
    "slice of an expand": _sliced(lambda d: d.x(d.m, 1).expand(d.n, d.m, d.k)),
    "concat of slices": _concat_of_slices,
    "concat of functions": lambda d: ops.concat([ops.exp(d.x(d.m, 2)), ops.exp(d.x(d.m, d.k))]),
    "left first": lambda d: d.x(d.m, d.k) @ (d.x(d.k, d.n) @ d.x(d.n, 2)),
    "right first": lambda d: (d.x(d.m, d.k) @ d.x(d.k, d.n)) @ d.x(d.n, 2),
    "product as a layer": lambda d: d.x(d.m, d.k) @ d.w(d.n, d.k).transpose(),
    "two layers as one": lambda d: ops.linear(ops.linear(d.x(d.m, d.k), d.w(2, d.k)), d.w(d.n, 2)),
    "one layer as two": lambda d: ops.linear(d.x(d.m, d.k), d.w(d.n, 2) @ d.w(2, d.k)),
    "sum of weights": lambda d: (lambda x, w, v: ops.linear(x, w) + ops.linear(x, v))(*_layers(d)),
    "sum of inputs": _inputs_shared,
    "layer of a sum": lambda d: ops.linear(d.x(d.m, d.k) + d.x(d.k), d.w(d.n, d.k)),
    "side by side": _beside,
    "factor a left matrix": _shared(lambda a, b, c: a @ b + a @ c),
    "factor a right matrix": _right_shared,
    "bias": lambda d: ops.linear(d.x(d.m, d.k), d.w(d.n, d.k)) + d.w(d.n),
    "scale before a layer": lambda d: ops.linear(d.x(d.m, d.k) * d.w(d.k), d.w(d.n, d.k)),
    "channels into weights": lambda d: ops.linear(d.x(d.m, d.k), d.w(d.n, d.k)) * d.w(d.n),
    "products together": lambda d: (
        lambda x, w, v: ops.concat([ops.exp(ops.linear(x, w)), ops.linear(x, v)])
    )(*_layers(d)),
    "one tap as a layer": _conv,
    "softmax of a shift": lambda d: ops.softmax(d.x(d.m, d.k) + d.x(d.m, 1)),
    "softmax of a shift down": lambda d: ops.softmax(d.x(d.m, d.k) - d.x(d.m, 1)),
    "norm of a shift": lambda d: ops.layer_norm(d.x(d.m, d.k) + d.x(d.m, 1), d.w(d.k), d.w(d.k)),
    "norm's weight into the product": lambda d: ops.linear(
        ops.rms_norm(d.x(d.m, d.k), d.w(d.k)), d.w(d.n, d.k)
    ),
    "norm's weights into the product": lambda d: ops.linear(
        ops.layer_norm(d.x(d.m, d.k), d.w(d.k), d.w(d.k)), d.w(d.n, d.k)
    ),
    "rows as one": lambda d: (lambda x: ops.exp(x - ops.max_(x, -1, keepdims=True)) * d.w(d.k))(
        d.x(d.m, d.k)
    ),
    "products written out": lambda d: ops.linear(d.x(d.m, d.k), d.w(d.n, d.k), d.w(d.n)),
    "recognised": lambda d: (lambda x: x / (1.0 + ops.exp(-x)))(d.x(d.m, d.k)),
    "elements written out": lambda d: ops.silu(d.x(d.m, d.k)),
    "simpler": lambda d: d.x(d.m, d.k).transpose().transpose(),
}  # fmt: skip


def example(name: str, sizes: Sizes, dtype: str = "float64") -> Graph:
    draw = Draw(sizes, dtype)
    draw.g.output("y", EXAMPLES[name](draw))
    return draw.g.build()


def leaf_values(graph: Graph, rng: np.random.Generator) -> dict[str, Array]:
    """Positive numbers around 1, where roots and quotients are sound; small whole ids."""
    found = {}
    for node in graph.nodes:
        if node.is_leaf and node.op != "constant":
            dtype = numpy_dtype(node.dtype)
            values = rng.uniform(0.5, 2.0, node.shape)
            found[node.name] = (
                values.astype(dtype) if dtype.kind == "f" else (values * 0).astype(dtype)
            )
    return found


def node_values(egraph: EGraph, leaves: dict[str, Array]) -> dict[Node, Array]:
    """The value of every e-node, computed from what it was made of."""
    found: dict[Node, Array] = {}
    wanted = set(egraph.nodes())
    stack = list(wanted)
    while stack:
        for parent in stack.pop().inputs:
            if parent not in wanted:
                wanted.add(parent)
                stack.append(parent)
    for node in sorted(wanted, key=lambda one: one.index):
        if node.op == "constant":
            found[node] = node.attrs["data"].array
        elif node.is_leaf:
            found[node] = leaves[node.name]
        else:
            inputs = [found[parent] for parent in node.inputs]
            with np.errstate(all="ignore"):
                found[node] = np.asarray(node.call.op.reference(node.attrs, *inputs))
    return found
