"""Products: matrices, linear layers, Einstein sums, attention."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import torch

from fuzz import bounded as b
from fuzz.bounded import Bounded
from fuzz.drawing import Drawing
from fuzz.ops.elementwise import _gelu, relu, silu, soft
from fuzz.table import op, pattern


def _matmul(d: Drawing) -> int:
    a = d.floats(1, 4)
    shape = d.sample[a].shape
    depth = shape[-1]
    wide = [*_front(d, shape[:-2]), depth, d.integer(1, 4)] if d.chance(0.85) else [depth]
    if d.chance(0.3):  # the drawn one on the right
        depth = shape[-2] if len(shape) > 1 else shape[-1]
        left = [*_front(d, shape[:-2]), d.integer(1, 4), depth] if d.chance(0.85) else [depth]
        return d.apply("matmul", d.exactly(left), a)
    return d.apply("matmul", a, d.exactly(wide))


def _front(d: Drawing, batch: tuple[int, ...]) -> list[int]:
    """Batch dimensions that go with these."""
    return d.pick([[], [*batch], [1] * len(batch), d.smaller(batch)])


op("matmul", "ops.matmul({0}, {1})", b.matmul, _matmul, 3)


def _squared(d: Drawing) -> int:
    """x·xᵀ under a zero mask, times x: what attention does, without the exp."""
    x = d.floats(2, 3)
    length = d.sample[x].shape[-2]
    scores = d.apply("matmul", x, d.apply("transpose", x, a=-1, b=-2))
    mask = d.mask([length, length], "bool", False, True)
    return d.apply("matmul", d.apply("where_number", mask, scores, number=0.0), x)


op("transpose", "{0}.transpose({a}, {b})", b.transposed,
   lambda d: d.apply("transpose", x := d.anything(2), a=d.axis(x), b=d.axis(x)))  # fmt: skip
pattern("scores", _squared)


# --- linear layers --------------------------------------------------------------------------------


def linear(x: Bounded, weight: Bounded, *bias: Bounded) -> Bounded:
    product = b.matmul(x, b.transposed(weight))
    return b.add(product, bias[0]) if bias else product


def _linear(d: Drawing) -> int:
    x = d.floats(1, 4)
    outputs = d.integer(1, 5)
    weight = d.leaf([outputs, d.sample[x].shape[-1]], kind=d.pick(["parameter", "parameter", None]))
    bias = [d.exactly([outputs])] if d.chance(0.5) else []
    return d.apply("linear", x, weight, *bias)


op("linear", "ops.linear({all})", linear, _linear, 3)


def _by_index(x: Bounded, weight: Bounded, index: Bounded) -> Bounded:
    named = b.moved(lambda v: v[index.value], weight)
    column = b.moved(lambda v: v[..., None], x)
    return b.unknown(b.moved(lambda v: v[..., 0], b.matmul(named, column)), index)


def _draw_by_index(d: Drawing) -> int:
    x = d.floats(1, 3)
    count = d.integer(1, 4)
    *rows, depth = d.sample[x].shape
    dtype = d.sample[x].dtype
    weight = d.leaf([count, d.integer(1, 4), depth], dtype=dtype)
    return d.apply("gather_linear", x, weight, d.indices(rows, count))


op("gather_linear", "ops.gather_linear({0}, {1}, {2})", _by_index, _draw_by_index)


def _widening(d: Drawing) -> int:
    x = d.floats(1, 4, lambda found: found.dtype == "float32")
    shape = [d.integer(1, 5), d.sample[x].shape[-1]]
    weight = d.leaf(shape, d.pick(["bfloat16", "float16", "int8"]), "parameter")
    bias = [d.leaf(shape[:1], "float32")] if d.chance(0.5) else []
    return d.apply("widening_linear", x, weight, *bias)


op(
    "widening_linear",
    "ops.widening_linear({all})",
    lambda x, weight, *bias: linear(x, b.cast(weight, "float32"), *bias),
    _widening,
    0.7,
)

_ACTIVATIONS: dict[str, Callable[[Bounded], Bounded]] = {
    "silu": silu, "relu": relu, "gelu": lambda x: _gelu(x, "none"),
    "gelu_tanh": lambda x: _gelu(x, "tanh"),
}  # fmt: skip


def _gated(x: Bounded, gate: Bounded, up: Bounded, activation: str) -> Bounded:
    return b.mul(_ACTIVATIONS[activation](linear(x, gate)), linear(x, up))


def _gated_drawn(d: Drawing) -> int:
    x = d.floats(1, 3)
    shape = [d.integer(1, 5), d.sample[x].shape[-1]]
    gate, up = d.leaf(shape, kind="parameter"), d.leaf(shape, kind="parameter")
    return d.apply("gated_linear", x, gate, up, activation=d.pick(list(_ACTIVATIONS)))


op("gated_linear", "ops.gated_linear({0}, {1}, {2}, {activation})", _gated, _gated_drawn, 0.7)


# --- Einstein sums --------------------------------------------------------------------------------

_EQUATIONS = (
    ("ij,jk->ik", 2), ("ij,kj->ki", 2), ("i,j->ij", 1), ("i,i->", 1), ("bij,bjk->bik", 3),
    ("bij,bkj->bik", 3), ("ij->ji", 2), ("ij->j", 2), ("ij,j->i", 2), ("bhtd,bhsd->bhts", 4),
    ("...ij,jk->...ik", 3),
)  # fmt: skip


def _einsum(d: Drawing) -> int:
    equation, rank = d.pick(_EQUATIONS)
    x = d.floats(rank, rank)
    terms = equation.split("->")[0].replace("...", "b").split(",")
    sizes = dict(zip(terms[0], d.sample[x].shape, strict=True))
    others = [
        d.exactly([sizes.setdefault(label, d.integer(1, 4)) for label in term])
        for term in terms[1:]
    ]
    return d.apply("einsum", x, *others, equation=equation)


def _summed(*xs: Bounded, equation: str) -> Bounded:
    left, right = equation.split("->")
    sizes = {}
    for term, x in zip(left.replace("...", "0").split(","), xs, strict=True):
        sizes |= dict(zip(term, x.shape, strict=True))
    gone = prod(size for label, size in sizes.items() if label not in right and label != "0")
    return b.multilinear(lambda *vs: torch.einsum(equation, *vs), *xs, terms=gone + 1)


op("einsum", "ops.einsum({equation}, {all})", _summed, _einsum)


# --- attention ------------------------------------------------------------------------------------


def _attention(d: Drawing) -> int:
    batch, shared, length = d.integer(1, 2), d.integer(1, 2), d.integer(1, 5)
    past, depth, wide = d.pick([length, d.integer(1, 5)]), d.integer(1, 4), d.integer(1, 4)
    heads = shared * d.integer(1, 2)
    q = d.exactly([batch, heads, length, depth])
    k, v = d.exactly([batch, shared, past, depth]), d.exactly([batch, shared, past, wide])
    scale = d.pick([None, 1.0, 0.25])
    if d.chance(0.3):
        return d.apply("attention", q, k, v, scale=scale)
    shape = d.pick([[length, past], [1, 1, length, past], [1, past]])
    kind = ("bool", False, True) if d.chance(0.5) else (d.dtype, soft(d), 0.0)
    return d.apply("masked_attention", q, k, v, d.mask(shape, *kind), scale=scale)


def _attended(q: Bounded, k: Bounded, v: Bounded, *mask: Bounded, scale: float | None) -> Bounded:
    times = q.shape[1] // k.shape[1]
    k, v = (b.moved(lambda t: t.repeat_interleave(times, 1), x) for x in (k, v))
    size = q.shape[-1] ** -0.5 if scale is None else scale
    scores = b.mul_number(b.matmul(q, b.transposed(k)), size)
    if mask and mask[0].dtype == "bool":
        shape = torch.broadcast_shapes(mask[0].shape, scores.shape)
        is_open = b.moved(lambda t: t.expand(shape), mask[0])
        scores = b.where(is_open, scores, b.scalar(float("-inf"), scores))
    elif mask:
        scores = b.add(scores, mask[0])
    return b.matmul(b.softmax(scores, -1), v)


op("attention", "ops.attention({0}, {1}, {2}, scale={scale})", _attended, _attention, 1.5)
op("masked_attention", "ops.attention({0}, {1}, {2}, {3}, scale={scale})", _attended, _attention,
   1.5)  # fmt: skip


def _rope(d: Drawing) -> int:
    x = d.floats(1, 4, fits=lambda x: x.shape[-1] % 2 == 0)
    shape = d.smaller(d.sample[x].shape)
    return d.apply("rope", x, d.exactly(shape), d.exactly(shape))


def _turned(x: Bounded, cos: Bounded, sin: Bounded) -> Bounded:
    half = x.shape[-1] // 2
    turned = b.moved(lambda v: torch.cat([v[..., half:], v[..., :half]], -1), x)
    signs = torch.ones(x.shape[-1], dtype=torch.float64)
    signs[:half] = -1
    turned = Bounded(turned.value * signs, turned.error, x.dtype)
    return b.add(b.mul(x, cos), b.mul(turned, sin))


op("rope", "ops.rope({0}, {1}, {2})", _turned, _rope, 0.7)
