"""Softmax and norms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzz import bounded as b
from fuzz.bounded import Bounded
from fuzz.drawing import Drawing
from fuzz.ops.elementwise import soft
from fuzz.table import op, pattern

Tensor = torch.Tensor


def _softmax(d: Drawing) -> int:
    x = d.floats(1)
    return d.apply("softmax", x, axis=d.axis(x))


def _masked_softmax(d: Drawing) -> int:
    """Of scores that a constant mask closes, hard or soft."""
    x = d.floats(2)
    shape = d.sample[x].shape[-2:] if d.chance(0.7) else d.sample[x].shape
    if d.chance(0.5):
        mask = d.mask(shape, "bool", False, True)
        closed = d.apply("where_number", mask, x, number=float("-inf"))
    else:
        closed = d.apply("add", x, d.mask(shape, d.dtype, soft(d), 0.0))
    return d.apply("softmax", closed, axis=d.pick([-1, -1, -1, -2]))


op("softmax", "ops.softmax({0}, {axis})", b.softmax, _softmax, 2)
pattern("masked softmax", _masked_softmax, 2)


def _log_softmax(x: Bounded, axis: int) -> Bounded:
    centred = b.sub(x, b.largest(x, (axis,), True))
    return b.sub(centred, b.log(b.total(b.exp(centred), (axis,), True)))


op("log_softmax", "ops.log_softmax({0}, {axis})", _log_softmax,
   lambda d: d.apply("log_softmax", x := d.floats(1), axis=d.axis(x)), 0.7)  # fmt: skip


# --- norms over the last dimensions ---------------------------------------------------------------


def _rms(x: Bounded, weight: Bounded, eps: float) -> Bounded:
    square = b.mean(b.mul(x, x), (-1,), True)
    return b.mul(b.mul(x, b.rsqrt(b.add_number(square, eps))), weight)


op("rms_norm", "ops.rms_norm({0}, {1}, {eps})", _rms,
   lambda d: d.apply("rms_norm", x := d.floats(1), d.exactly(d.sample[x].shape[-1:]),
                     eps=d.pick([1e-6, 0.5])))  # fmt: skip


def normed(x: Bounded, axes: Sequence[int], eps: float) -> Bounded:
    """Mean 0, variance 1."""
    centred = b.sub(x, b.mean(x, axes, True))
    variance = b.mean(b.mul(centred, centred), axes, True)
    return b.mul(centred, b.rsqrt(b.add_number(variance, eps)))


def _layer(x: Bounded, *weights: Bounded, eps: float, dims: int) -> Bounded:
    result = normed(x, range(x.rank - dims, x.rank), eps)
    if weights:
        result = b.mul(result, weights[0])
    return b.add(result, weights[1]) if len(weights) > 1 else result


def _layer_norm(d: Drawing) -> int:
    x = d.floats(1)
    dims = d.integer(1, min(2, d.sample[x].rank))
    shape = d.sample[x].shape[-dims:]
    weights = [d.exactly(shape) for _ in range(d.integer(0, 2))]
    return d.apply("layer_norm", x, *weights, eps=d.pick([1e-5, 0.5]), dims=dims)


op("layer_norm", "ops.layer_norm({all}, eps={eps}, dims={dims})", _layer, _layer_norm, 1.5)


# --- norms over channels --------------------------------------------------------------------------


def of_channels(vector: Bounded, x: Bounded) -> Bounded:
    return b.moved(lambda v: v.reshape(-1, *([1] * (x.rank - 2))), vector)


def _affine(x: Bounded, scale: Bounded, shift: Bounded) -> Bounded:
    return b.add(b.mul(x, of_channels(scale, x)), of_channels(shift, x))


def _vectors(d: Drawing, x: int, count: int) -> list[int]:
    return [d.exactly([d.sample[x].shape[1]]) for _ in range(count)]


op("channel_affine", "ops.channel_affine({0}, {1}, {2})", _affine,
   lambda d: d.apply("channel_affine", x := d.floats(2, 5), *_vectors(d, x, 2)))  # fmt: skip


def _batch(x: Bounded, mean: Bounded, var: Bounded, *weights: Bounded, eps: float) -> Bounded:
    """By scale and shift, or one after the other: the wider bound of the two."""
    scale = b.rsqrt(b.add_number(var, eps))
    if weights:
        scale = b.mul(scale, weights[0])
    shift = b.neg(b.mul(mean, scale))
    if len(weights) > 1:
        shift = b.add(shift, weights[1])
    return _affine(x, scale, shift)


def _batch_norm(d: Drawing) -> int:
    x = d.floats(2, 5)
    channels = [d.sample[x].shape[1]]
    var = d.leaf(channels, fill={"kind": "positive"})
    weights = _vectors(d, x, d.pick([0, 2]))
    return d.apply("batch_norm", x, d.exactly(channels), var, *weights, eps=1e-5)


op("batch_norm", "ops.batch_norm({all}, eps={eps})", _batch, _batch_norm, 0.7)


def _group(x: Bounded, *weights: Bounded, groups: int, eps: float) -> Bounded:
    split = b.moved(lambda v: v.reshape(v.shape[0], groups, -1), x)
    result = b.moved(lambda v: v.reshape(x.shape), normed(split, (2,), eps))
    return _affine(result, *weights) if weights else result


def _group_norm(d: Drawing) -> int:
    x = d.floats(3, 4)
    channels = d.sample[x].shape[1]
    groups = d.pick([n for n in range(1, channels + 1) if channels % n == 0])
    weights = _vectors(d, x, d.pick([0, 2]))
    return d.apply("group_norm", x, *weights, groups=groups, eps=d.pick([1e-5, 0.5]))


op("group_norm", "ops.group_norm({0}, {groups}, *[{all}][1:], eps={eps})", _group, _group_norm)
