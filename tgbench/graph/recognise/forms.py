"""What fused ops look like when they are written out: their decompositions, and other spellings.

A form is an op at one example of its types. Attributes that are numbers have a value in it that
nothing else has, so that the number in their place can be read off; others are tried out of few.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeAlias

import numpy as np

import tgbench.graph.ops as ops
from tgbench.base.errors import GraphError
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import OPS, Array, Attrs, TensorType
from tgbench.graph.ops.masks import MASKED
from tgbench.graph.recognise.atomic import Cell

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Free:
    """An attribute that is found out.

    Fields:
        example: its value in the form.
        choices: the values that input types allow; a number is read off instead.
    """

    example: Any
    choices: Callable[[Sequence[TensorType]], Iterable[Any]] | None = None


def _anything(attrs: Attrs, inputs: Sequence[Cell]) -> bool:
    return True


@dataclass(frozen=True, eq=False)
class Form:
    """A fused op in one spelling.

    Fields:
        shapes: of its inputs, as an example.
        attrs: fixed values, and `Free` ones.
        spelling: (attrs, *inputs) → what is looked for; the op itself, which is written out.
        make: (attrs, *inputs) → what is put in its place.
        accepts: (attrs, inputs) → whether it may be.
        fixed: inputs that have to depend on weights and constants alone.
        booleans: inputs of dtype bool.
    """

    op: str
    shapes: tuple[Shape, ...]
    spelling: Callable[..., Node]
    make: Callable[..., Node]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    accepts: Callable[[Attrs, Sequence[Cell]], bool] = _anything
    fixed: tuple[int, ...] = ()
    booleans: tuple[int, ...] = ()

    @property
    def example(self) -> Attrs:
        return {
            name: value.example if isinstance(value, Free) else value
            for name, value in self.attrs.items()
        }

    def written(self, attrs: Attrs, types: Sequence[TensorType]) -> tuple[Graph, tuple[Node, ...]]:
        """The spelling at given types, as a graph, and its inputs; GraphError if it cannot be."""
        builder = GraphBuilder()
        inputs = tuple(
            builder.input(f"in{i}", type_.shape, type_.dtype) for i, type_ in enumerate(types)
        )
        builder.output("y", self.spelling(attrs, *inputs))
        return builder.build(), inputs

    def types(self) -> tuple[TensorType, ...]:
        return tuple(
            TensorType(shape, "bool" if i in self.booleans else "float32")
            for i, shape in enumerate(self.shapes)
        )


def _form(op: str, *shapes: Shape, **options: Any) -> Form:
    def itself(attrs: Attrs, *inputs: Node) -> Node:
        return inputs[0].builder.apply(op, *inputs, **attrs)

    spelling = options.pop("spelling", itself)
    return Form(op, shapes, spelling, options.pop("make", itself), **options)


EPS, SCALE, LOW, HIGH = 0.0137931, 0.3712937, -0.2718281, 0.8414709
CLOSED = -3.1234567e37
X = (2, 6)


def _axes(types: Sequence[TensorType]) -> Iterable[int]:
    return range(types[0].rank)


def _divisors(types: Sequence[TensorType]) -> Iterable[int]:
    channels = types[0].shape[1] if types[0].rank > 1 else 1
    return [n for n in range(1, channels + 1) if channels % n == 0]


# --- norms ----------------------------------------------------------------------------------------


def _plain_rms(attrs: Attrs, x: Node) -> Node:
    return x * ops.rsqrt(ops.mean(x * x, -1, keepdims=True) + attrs["eps"])


def _plain_layer_norm(attrs: Attrs, x: Node) -> Node:
    centred = x - ops.mean(x, -1, keepdims=True)
    return centred * ops.rsqrt(ops.mean(centred * centred, -1, keepdims=True) + attrs["eps"])


def _layer_norm_without_bias(attrs: Attrs, x: Node, weight: Node) -> Node:
    return _plain_layer_norm(attrs, x) * weight


def _flat_group_norm(attrs: Attrs, x: Node, *weights: Node) -> Node:
    """Groups as lines of one dimension each."""
    lines = x.reshape(x.shape[0], attrs["groups"], -1)
    result = _plain_layer_norm(attrs, lines).reshape(*x.shape)
    return ops.channel_affine(result, *weights) if weights else result


def _norms() -> Iterable[Form]:
    eps, weight = {"eps": Free(EPS)}, (6,)
    yield _form("softmax", X, attrs={"axis": Free(1, _axes)})
    yield _form("rms_norm", X, weight, attrs=eps)
    yield _form(
        "rms_norm", X, attrs=eps, spelling=_plain_rms,
        make=lambda attrs, x: ops.rms_norm(
            x, ops.full(x.builder, (x.shape[-1],), 1.0, x.dtype), attrs["eps"]
        ),
    )  # fmt: skip
    yield _form("layer_norm", X, weight, weight, attrs=eps)
    yield _form(
        "layer_norm", X, weight, attrs=eps, spelling=_layer_norm_without_bias,
        make=lambda attrs, x, weight: ops.layer_norm(x, weight, None, attrs["eps"]),
    )  # fmt: skip
    yield _form(
        "layer_norm", X, attrs=eps, spelling=_plain_layer_norm,
        make=lambda attrs, x: ops.layer_norm(x, None, None, attrs["eps"]),
    )  # fmt: skip
    image, grouped = (2, 6, 4, 4), eps | {"groups": Free(2, _divisors)}
    for weights in ((), (weight, weight)):
        yield _form("group_norm", image, *weights, attrs=grouped)
        yield _form("group_norm", image, *weights, attrs=grouped, spelling=_flat_group_norm)
    yield _form("channel_affine", image, weight, weight, fixed=(1, 2))


# --- activations and linear layers ----------------------------------------------------------------


CUBIC, ROOT = 0.044715, (2 / np.pi) ** 0.5


def _gelu_of_powers(attrs: Attrs, x: Node) -> Node:
    return x * 0.5 * (ops.tanh(x * ROOT + x * x * x * (CUBIC * ROOT)) + 1.0)


def _gelu_of_a_factor(attrs: Attrs, x: Node) -> Node:
    return x * 0.5 * (ops.tanh(x * ROOT * (x * x * CUBIC + 1.0)) + 1.0)


def _activations() -> Iterable[Form]:
    for approximate in ("none", "tanh"):
        yield _form("gelu", X, attrs={"approximate": approximate})
    for spelling in (_gelu_of_powers, _gelu_of_a_factor):
        yield _form("gelu", X, attrs={"approximate": "tanh"}, spelling=spelling)
    for name in ("silu", "relu", "hardsigmoid", "hardswish", "mish"):
        yield _form(name, X)
    yield _form("clamp", X, attrs={"low": Free(LOW), "high": Free(HIGH)})
    yield _form("leaky_relu", X, attrs={"slope": Free(SCALE)})
    yield _form("prelu", X, (6,))
    yield _form("elu", X, attrs={"alpha": Free(SCALE)})
    yield _form("elu", X, attrs={"alpha": 1.0})  # nothing is left of the product
    yield _form("softplus", X, attrs={"beta": Free(SCALE), "threshold": Free(HIGH)})


def _linears() -> Iterable[Form]:
    weight = (5, 6)
    yield _form("linear", X, weight, fixed=(1,))
    yield _form("linear", X, weight, (5,), fixed=(1, 2))
    for activation in ("gelu_tanh", "gelu", "silu", "relu"):
        yield _form(
            "gated_linear", X, weight, weight, fixed=(1, 2), attrs={"activation": activation}
        )


# --- attention ------------------------------------------------------------------------------------


def _half_tables(attrs: Attrs, x: Node, cos: Node, sin: Node) -> Node:
    """Rotary positions half by half, with tables of half the width."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return ops.concat([first * cos - second * sin, second * cos + first * sin])


def _doubled(attrs: Attrs, x: Node, cos: Node, sin: Node) -> Node:
    return ops.rope(x, ops.concat([cos, cos]), ops.concat([sin, sin]))


Placed: TypeAlias = "Callable[[Node, Node, float], Node]"  # q · kᵀ · scale
SCALES: tuple[Placed, ...] = (
    lambda q, k, scale: q @ k.transpose() * scale,
    lambda q, k, scale: (q * scale) @ k.transpose(),
    lambda q, k, scale: q @ (k * scale).transpose(),
    lambda q, k, scale: (q * scale**0.5) @ (k * scale**0.5).transpose(),
)
Masked: TypeAlias = "Callable[[Attrs, Node, Node], Node]"
MASKS: dict[str, Masked] = {
    "added": lambda attrs, scores, mask: scores + mask,
    "chosen": lambda attrs, scores, mask: ops.where(mask, scores, -np.inf),
    "closed": lambda attrs, scores, mask: ops.where(mask, scores, attrs["closed"]),
}


def _repeated(x: Node, times: int) -> Node:
    batch, heads, length, depth = x.shape
    spread = x.reshape(batch, heads, 1, length, depth).expand(batch, heads, times, length, depth)
    return spread.reshape(batch, heads * times, length, depth)


def _attention(place: Placed, masked: Masked | None, is_grouped: bool) -> Callable[..., Node]:
    def spelling(attrs: Attrs, q: Node, k: Node, v: Node, *mask: Node) -> Node:
        if is_grouped:
            times = q.shape[1] // k.shape[1]
            k, v = _repeated(k, times), _repeated(v, times)
        scores = place(q, k, attrs["scale"])
        if masked is not None:
            scores = masked(attrs, scores, mask[0])
        return ops.softmax(scores) @ v

    return spelling


def _attend(attrs: Attrs, q: Node, k: Node, v: Node, mask: Node | None = None) -> Node:
    """Attention; a constant mask of 0 and huge negative numbers says which elements are open.

    What has no dimension of heads has one head.
    """
    is_open = None if mask is None else _opened(mask)
    if is_open is not None and is_open.rank == 3 and q.rank == 3:
        is_open = _with_heads(is_open)
    q4, k4, v4 = map(_with_heads, (q, k, v))
    result = ops.attention(q4, k4, v4, is_open, attrs["scale"])
    return result if q.rank == 4 else result.reshape(*q.shape[:-1], v.shape[-1])


def _with_heads(x: Node) -> Node:
    """[batch, 1, length, depth] of two or three dimensions."""
    missing = {2: (1, 1), 3: (x.shape[0], 1)}.get(x.rank)
    return x if missing is None else x.reshape(*missing, *x.shape[-2:])


def _opened(mask: Node) -> Node:
    """A mask that adds nothing or closes, as booleans; constant ones without leading ones."""
    if mask.op != "constant":
        return mask
    array = mask.attrs["data"].array
    while array.ndim > 2 and array.shape[0] == 1:
        array = array[0]
    if mask.dtype in MASKED:
        is_open, closed = array == 0, array <= MASKED[mask.dtype]
        array = is_open if (is_open | closed).all() and is_open.any(-1).all() else array
    return mask.builder.constant(array)


def _leaves_a_key(attrs: Attrs, inputs: Sequence[Cell]) -> bool:
    """Whether closing with a huge number is closing with −∞: every row has an open element."""
    array, dtype = _elements(inputs[3]), inputs[0].type.dtype
    is_huge = attrs["closed"] <= MASKED.get(dtype, -np.inf)
    return is_huge and array is not None and bool(array.any(-1).all())


def _elements(mask: Cell) -> Array | None:
    """The elements of a constant, or of a negated one."""
    if mask.op == "logical_not":
        array = _elements(mask.inputs[0])
        return None if array is None else ~array
    array = mask.attrs["data"].array if mask.op == "constant" else None
    return array


def _attentions() -> Iterable[Form]:
    q, plane = (2, 4, 3, 8), (3, 5)
    for shared, (kind, masked), place in itertools.product(
        (2, 4), [("", None), *MASKS.items()], SCALES
    ):
        k = (2, shared, 5, 8)
        yield _form(
            "attention", q, k, k, *([plane] if masked else []),
            spelling=_attention(place, masked, shared < 4), make=_attend,
            attrs={"scale": Free(SCALE)} | ({"closed": Free(CLOSED)} if kind == "closed" else {}),
            accepts=_leaves_a_key if kind == "closed" else _anything,
            booleans=(3,) if kind in ("chosen", "closed") else (),
        )  # fmt: skip


def _ropes() -> Iterable[Form]:
    yield _form("rope", (3, 2, 8), (3, 1, 8), (3, 1, 8))
    yield _form(
        "rope", (3, 2, 8), (3, 1, 4), (3, 1, 4), spelling=_half_tables, make=_doubled, fixed=(1, 2)
    )


@cache
def _written_down() -> tuple[Form, ...]:
    return (*_norms(), *_activations(), *_linears(), *_ropes(), *_attentions())


def forms() -> tuple[Form, ...]:
    """All forms: those of this module, and every other fused op of one input and no attributes."""
    known = {form.op for form in _written_down()}
    others = [
        _form(name, X)
        for name, op in OPS.items()
        if op.is_fused and name not in known and _is_simple(name)
    ]
    return (*_written_down(), *others)


def _is_simple(name: str) -> bool:
    builder = GraphBuilder()
    try:
        builder.apply(name, builder.input("x", X))
    except (GraphError, KeyError, IndexError):
        return False
    return True
