"""Fused ops as short sequences of torch calls: activations, softmax, norms, rope, attention.

A Python number in a torch call becomes a tensor at every call unless it is an `alpha`, a `value`
or a fill; the sequences here are written so that it is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tgbench.base.coords import Coord, Moving, same, value_of
from tgbench.base.regions import Box
from tgbench.graph.ops.broadcasting import down
from tgbench.kernels.adapters import HALVES, widen
from tgbench.kernels.registry import Kernel, Scratch, Site, View, once_a_site, register
from tgbench.kernels.torch.elementwise import BYTES_PER_NS, CALL_NS, calls_cost, pointwise
from tgbench.kernels.torch.products import ACTIVATIONS, GEMM_FLOPS_PER_NS, GEMM_NS, gelu_
from tgbench.kernels.views import (
    Bound,
    inputs,
    is_complete,
    is_dense,
    is_matrix,
    is_one,
    is_single,
    line,
    part,
    reshaped,
    same_box,
    same_interval,
    split,
    whole_reads,
)

MINUS_INFINITY = float("-inf")


# --- activations -------------------------------------------------------------------------------


def _gelu(x: Tensor, approximate: str, out: Tensor) -> None:
    gelu_(x, approximate=approximate, out=out)


pointwise("gelu", _gelu, "approximate", calls=3)
pointwise("silu", ACTIVATIONS["silu"])
pointwise("relu", ACTIVATIONS["relu"])


# --- softmax -----------------------------------------------------------------------------------


def _has_lines(site: Site) -> bool:
    """Whether the input covers the output box; along the axis it may be longer, or shorter than
    the tensor where that is known to be −∞.
    """
    have, want, axis = site.in_boxes[0], site.out_box, site.call.attrs["axis"]
    if have is None or not have.contains(want):
        return False
    return all(same_interval(have[i], want[i]) for i in range(len(want)) if i != axis)


def _is_dense_softmax(site: Site) -> bool:
    """torch's own softmax writes rows as if they lay side by side."""
    axis = site.call.attrs["axis"]
    if axis != site.out.rank - 1 or not _has_lines(site):
        return False
    box = site.in_boxes[0]
    assert box is not None
    covers = same_interval(box[axis], site.out_box[axis])
    return covers and is_dense(site.out) and is_dense(site.operand(0))


def _softmax(x: Tensor, out: Tensor) -> None:
    torch._softmax(x, -1, False, out=out)


def _softmax_steps(x: Tensor, axis: int, line: Tensor, work: Tensor) -> None:
    torch.amax(x, (axis,), True, out=line)
    torch.sub(x, line, out=work)
    torch.exp(work, out=work)
    torch.sum(work, (axis,), True, out=line)
    torch.div(work, line, out=work)


def _softmax_part(
    x: Tensor, axis: int, line: Tensor, work: Tensor, inside: Tensor, out: Tensor
) -> None:
    _softmax_steps(x, axis, line, work)
    out.copy_(inside)


def _line_shape(view: View, axis: int) -> tuple[Coord, ...]:
    return (*view.shape[:axis], 1, *view.shape[axis + 1 :])


def _covers(site: Site) -> bool:
    axis, box = site.call.attrs["axis"], site.in_boxes[0]
    assert box is not None
    return same_interval(box[axis], site.out_box[axis])


def _softmax_scratch(site: Site) -> tuple[Scratch, ...]:
    x, axis = site.operand(0), site.call.attrs["axis"]
    line: Scratch = (_line_shape(x, axis), x.dtype)
    return (line,) if _covers(site) else (line, (x.shape, x.dtype))


def _bind_softmax(site: Site, scratch: tuple[View, ...]) -> Bound:
    return _softmax, (site.operand(0), site.out)


def _bind_softmax_steps(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, axis, box = site.operand(0), site.call.attrs["axis"], site.in_boxes[0]
    assert box is not None
    if _covers(site):
        return _softmax_steps, (x, axis, scratch[0], site.out)
    inside = part(scratch[1], box, site.out_box)
    return _softmax_part, (x, axis, *scratch, inside, site.out)


register(Kernel("softmax", "softmax", _is_dense_softmax, calls_cost(2), _bind_softmax))
register(
    Kernel(
        "softmax_steps",
        "softmax",
        _has_lines,
        calls_cost(6),
        _bind_softmax_steps,
        _softmax_scratch,
    )
)


# --- norms -------------------------------------------------------------------------------------


def _whole_lines(site: Site) -> tuple[View, View, int]:
    """x with its lines whole, the part of it at the output box, and the length of a line."""
    x, box = inputs(site)[0], whole_reads(site)[0]
    assert box is not None
    inside = part(x, box, Box((*box[:-1], site.out_box[-1])))
    length = int(site.call.in_shapes[0][-1])
    return x.expand(*site.out.shape[:-1], length), inside.expand(*site.out.shape), length


def _is_full_line(site: Site) -> bool:
    return same(site.out.shape[-1], int(site.call.in_shapes[0][-1]))


def _takes_one_line(site: Site) -> bool:
    vectors = all(len(shape) == 1 for shape in site.call.in_shapes[1:])
    return is_single(site.out) and vectors and is_complete(site)


def _per_line(site: Site) -> Scratch:
    return (*site.out.shape[:-1], 1), site.out.dtype


def _rms_line(
    x: Tensor,
    row: Tensor,
    inside: Tensor,
    weight: Tensor,
    eps: float,
    share: float,
    scale: Tensor,
    out: Tensor,
) -> None:
    scale.fill_(eps)
    scale.addmv_(row, x, alpha=share)
    scale.rsqrt_()
    torch.mul(inside, scale, out=out)
    out.mul_(weight)


def _bind_rms_line(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, inside, length = _whole_lines(site)
    whole, eps = line(x), site.call.attrs["eps"]
    operands = (whole, whole.insert(0), line(inside), inputs(site)[1])
    return _rms_line, (*operands, eps, 1 / length, scratch[0], line(site.out))


def _rms_lines(
    x: Tensor,
    inside: Tensor,
    weight: Tensor,
    eps: float,
    share: float,
    norm: Tensor,
    scale: Tensor,
    out: Tensor,
) -> None:
    torch.linalg.vector_norm(x, 2, -1, True, out=norm)
    scale.fill_(eps)
    scale.addcmul_(norm, norm, value=share)
    scale.rsqrt_()
    torch.mul(inside, scale, out=out)
    out.mul_(weight)


def _bind_rms_lines(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, inside, length = _whole_lines(site)
    weight, eps = inputs(site)[1], site.call.attrs["eps"]
    return _rms_lines, (x, inside, weight, eps, 1 / length, *scratch, site.out)


register(
    Kernel(
        "rms_norm_line",
        "rms_norm",
        _takes_one_line,
        calls_cost(4),
        _bind_rms_line,
        lambda site: (((1,), site.out.dtype),),
    )
)
register(
    Kernel(
        "rms_norm_lines",
        "rms_norm",
        is_complete,
        calls_cost(5),
        _bind_rms_lines,
        lambda site: (_per_line(site), _per_line(site)),
    )
)


def _layer_norm(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, share: float, mean: Tensor, norm: Tensor,
    scale: Tensor, centred: Tensor, inside: Tensor, out: Tensor,
) -> None:  # fmt: skip
    torch.sum(x, (-1,), True, out=mean)
    torch.sub(x, mean, alpha=share, out=centred)
    torch.linalg.vector_norm(centred, 2, -1, True, out=norm)
    scale.fill_(eps)
    scale.addcmul_(norm, norm, value=share)
    scale.rsqrt_()
    torch.mul(inside, scale, out=out)
    torch.addcmul(bias, out, weight, out=out)


def _layer_norm_scratch(site: Site) -> tuple[Scratch, ...]:
    lines = [_per_line(site)] * 3
    if not _is_full_line(site):
        lines.append((_whole_lines(site)[0].shape, site.out.dtype))
    return tuple(lines)


def _bind_layer_norm(site: Site, scratch: tuple[View, ...]) -> Bound:
    x, _, length = _whole_lines(site)
    mean, norm, scale, *work = scratch
    centred = work[0] if work else site.out
    start, stop = site.out_box[-1]
    inside = centred.narrow(-1, start, stop - start) if work else centred
    _, weight, bias = inputs(site)
    return _layer_norm, (
        x, weight, bias, site.call.attrs["eps"], 1 / length, mean, norm, scale, centred, inside,
        site.out,
    )  # fmt: skip


register(
    Kernel(
        "layer_norm",
        "layer_norm",
        is_complete,
        calls_cost(7),
        _bind_layer_norm,
        _layer_norm_scratch,
    )
)


# --- rope --------------------------------------------------------------------------------------


def _rope(
    x: Tensor, cos: Tensor, out: Tensor, left: Tensor, right: Tensor, left_sin: Tensor,
    right_sin: Tensor, x_right: Tensor, x_left: Tensor,
) -> None:  # fmt: skip
    torch.mul(x, cos, out=out)
    left.addcmul_(x_right, left_sin, value=-1)
    right.addcmul_(x_left, right_sin)


def _rope_half(x: Tensor, cos: Tensor, out: Tensor, turned: Tensor, sin: Tensor, sign: int) -> None:
    torch.mul(x, cos, out=out)
    out.addcmul_(turned, sin, value=sign)


def _columns(view: View, box: Box, start: Coord, stop: Coord, size: int) -> View:
    """Columns of the last dimension, unless the view repeats one for all of them."""
    if size == 1:
        return view
    return view.narrow(-1, start - box[-1][0], stop - start)


def _bind_rope(site: Site, scratch: tuple[View, ...]) -> Bound:
    """out = x · cos, then the left half less x's right half · sin, the right half plus x's left."""
    (x, cos, sin), out = inputs(site), site.out
    boxes = whole_reads(site)
    x_box, _, sin_box = (box for box in boxes if box is not None)
    # a sine of no dimensions is one for all columns
    wide, width = (int((1, *site.call.in_shapes[i])[-1]) for i in (0, 2))
    start, stop = site.out_box[-1]
    straight = _columns(x, x_box, start, stop, wide)
    operands: list[Any] = [straight, cos, out]
    halves = []
    middle = wide - wide // 2  # the columns before it take −x[wide // 2 :]
    for left, right, shift, sign in ((0, middle, wide // 2, -1), (middle, wide, -middle, 1)):
        low, high = (left if start <= left else start), (right if right <= stop else stop)
        if low < high:
            target = out.narrow(-1, low - start, high - low)
            turned = _columns(x, x_box, low + shift, high + shift, wide)
            halves.append((target, turned, _columns(sin, sin_box, low, high, width), sign))
    if len(halves) == 1:
        _, turned, sine, sign = halves[0]
        return _rope_half, (*operands, turned, sine, sign)
    (first, x_right, first_sin, _), (last, x_left, last_sin, _) = halves
    return _rope, (*operands, first, last, first_sin, last_sin, x_right, x_left)


register(Kernel("rope", "rope", is_complete, calls_cost(3), _bind_rope))


# --- attention ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heads:
    """softmax(q · kᵀ · scale, masked) · v over the rows of k and v that the mask opens.

    Fields:
        q [B, H, T, D], k [B, Hk, S, D], v [B, Hk, Sv, Dv], out [B, H, T, Dv]; H = Hk · group.
        first: where v's rows begin among k's.
        mask: broadcasts to [B, H, T, S]; None where all is open.
    """

    q: View
    k: View
    v: View
    out: View
    mask: View | None
    first: Coord
    group: int
    scale: float

    @property
    def score_shape(self) -> tuple[Coord, ...]:
        return (*self.q.shape[:3], self.k.shape[2])


@once_a_site
def heads_of(site: Site) -> Heads | None:
    q_box, k_box, v_box = site.in_boxes[:3]
    if q_box is None or k_box is None or v_box is None:
        return None
    batch, heads, rows, _ = site.out_box
    q_shape, k_shape = site.call.in_shapes[:2]
    shared, keys, values = (0, k_shape[1]), k_box[2], v_box[2]
    fits = (
        same_interval(heads, (0, q_shape[1]))
        and same_box(q_box, (batch, heads, rows, k_box[3]))
        and same_box(k_box[:2], (batch, shared))
        and same_box(v_box, (batch, shared, values, site.out_box[3]))
        and keys[0] <= values[0]
        and values[1] <= keys[1]
    )
    if not fits:
        return None
    mask = None
    if len(site.ins) > 3:
        have = site.in_boxes[3]
        want = down(Box((batch, heads, rows, keys)), site.call.in_shapes[3]).hull()
        if have is None or not have.contains(want):
            return None  # closed columns may be among those that are not read
        mask = None if site.is_all_open(3) else part(site.operand(3), have, want)
    q, k, v = site.operand(0), site.operand(1), site.operand(2)
    group = int(q_shape[1]) // int(k_shape[1])
    scale = float(site.call.attrs["scale"])
    return Heads(q, k, v, site.out, mask, values[0] - keys[0], group, scale)


def _heads(site: Site) -> Heads:
    found = heads_of(site)
    assert found is not None
    return found


def _moves_twice(h: Heads) -> bool:
    """Whether rows and columns of one batch's scores follow an origin: no form is their product."""
    moves = isinstance(h.q.shape[2], Moving) and isinstance(h.k.shape[2], Moving)
    return moves and is_one(h.q.shape[0])


def _attends(site: Site) -> bool:
    h = heads_of(site)
    return h is not None and not _moves_twice(h)


def _attends_anywhere(site: Site) -> bool:
    h = heads_of(site)
    return h is not None and _moves_twice(h)


def _grouped(view: View, group: int) -> View | None:
    """[B, H, 1, D] as [B · Hk, group, D]."""
    apart = split(view.select(2, 0), 1, (int(value_of(view.shape[1])) // group, group))
    return apart.flatten(0, 2)


def _one_row_parts(h: Heads) -> tuple[View, View, View, View] | None:
    """q, k, v and out with batch and heads as one dimension, where one row attends."""
    if not is_one(h.q.shape[2]):
        return None
    q, out = _grouped(h.q, h.group), _grouped(h.out, h.group)
    k, v = h.k.flatten(0, 2), h.v.flatten(0, 2)
    if q is None or out is None or k is None or v is None:
        return None
    return (q, k, v, out) if all(map(is_matrix, (q, k, v, out))) else None


def _attends_one_row(site: Site) -> bool:
    h = heads_of(site)
    return h is not None and _one_row_parts(h) is not None


def _attend_row(
    q: Tensor, k_t: Tensor, v: Tensor, scale: float, scores: Tensor, read: Tensor, out: Tensor
) -> None:
    torch.baddbmm(scores, q, k_t, beta=0, alpha=scale, out=scores)
    torch._softmax(scores, -1, False, out=scores)
    torch.bmm(read, v, out=out)


def _attend_row_masked(
    q: Tensor, k_t: Tensor, v: Tensor, scale: float, scores: Tensor, read: Tensor, out: Tensor,
    spread: Tensor, mask: Tensor, closed: Tensor | None,
) -> None:  # fmt: skip
    torch.baddbmm(scores, q, k_t, beta=0, alpha=scale, out=scores)
    if closed is None:
        spread.add_(mask)
    else:
        torch.logical_not(mask, out=closed)
        spread.masked_fill_(closed, MINUS_INFINITY)
    torch._softmax(scores, -1, False, out=scores)
    torch.bmm(read, v, out=out)


def _row_scratch(site: Site) -> tuple[Scratch, ...]:
    h = _heads(site)
    batch = h.k.shape[0] * h.k.shape[1]
    scores: Scratch = ((batch, h.group, h.k.shape[2]), site.out.dtype)
    if h.mask is None or h.mask.dtype != "bool":
        return (scores,)
    return scores, (h.mask.shape, "bool")


def _bind_row(site: Site, scratch: tuple[View, ...]) -> Bound:
    h, (scores, *closed) = _heads(site), scratch
    parts = _one_row_parts(h)
    assert parts is not None
    q, k, v, out = parts
    read = scores.narrow(-1, h.first, h.v.shape[2])
    operands = (q, k.transpose(), v, h.scale, scores, read, out)
    if h.mask is None:
        return _attend_row, operands
    spread = reshaped(scores, h.score_shape)
    return _attend_row_masked, (*operands, spread, h.mask, closed[0] if closed else None)


def _row_cost(site: Site) -> float:
    h = _heads(site)
    moved = h.k.size_bytes + h.v.size_bytes
    return (4 if h.mask is None else 6) * CALL_NS + moved / BYTES_PER_NS


def _attend(
    q: Tensor, scaled: Tensor, scale: float, number: Tensor, scores: Tensor, lines: Tensor,
    mask: Tensor | None, bias: Tensor | None, product: Tensor, out: Tensor, *parts: Tensor,
) -> None:  # fmt: skip
    number.fill_(scale)
    torch.mul(q, number, out=scaled)
    for i in range(0, len(parts), 6):
        torch.bmm(parts[i], parts[i + 1], out=parts[i + 2])
    if bias is not None and mask is not None:
        number.fill_(MINUS_INFINITY)
        bias.zero_()
        torch.where(mask, bias, number, out=bias)
        scores.add_(bias)
    elif mask is not None:
        scores.add_(mask)
    torch._softmax(lines, -1, False, out=lines)
    for i in range(3, len(parts), 6):
        torch.bmm(parts[i], parts[i + 1], out=parts[i + 2])
    out.copy_(product)


def _attend_scratch(site: Site) -> tuple[Scratch, ...]:
    h, dtype = _heads(site), site.out.dtype
    shapes = [h.q.shape, h.score_shape, h.out.shape, (1,)]
    if h.mask is not None and h.mask.dtype == "bool":
        shapes.append(h.mask.shape)
    return tuple((shape, dtype) for shape in shapes)


def _bind_attend(site: Site, scratch: tuple[View, ...]) -> Bound:
    """Every shared head meets the rows of all its query heads in one product."""
    h, (scaled, scores, product, number, *bias) = _heads(site), scratch
    batch, shared = h.k.shape[:2]
    rows: Coord = h.group * h.q.shape[2]

    def stacked(view: View, b: int) -> View:
        width = view.shape[3]
        return reshaped(view, (batch, shared, rows, width)).select(0, b)

    parts: list[View] = []
    for b in range(int(batch)):
        k, v, weights = h.k.select(0, b), h.v.select(0, b), stacked(scores, b)
        read = weights.narrow(-1, h.first, h.v.shape[2])
        parts += [stacked(scaled, b), k.transpose(), weights, read, v, stacked(product, b)]
    added = bias[0] if bias else None
    operands = (h.q, scaled, h.scale, number, scores, scores, h.mask, added, product, h.out)
    return _attend, (*operands, *parts)


def _anywhere_scratch(site: Site) -> tuple[Scratch, ...]:
    """Room for all columns that there are: a place has no more of them."""
    h, dtype, columns = _heads(site), site.out.dtype, site.call.in_shapes[1][2]
    shapes: list[tuple[Coord, ...]] = [h.q.shape, (*h.q.shape[:3], columns), h.out.shape, (1,)]
    if h.mask is not None and h.mask.dtype == "bool":
        shapes.append((*h.mask.shape[:-1], columns))
    return tuple((shape, dtype) for shape in shapes)


def _rows_outermost(view: View, columns: Coord) -> tuple[View, View]:
    """A buffer for [1, H, T, S], or the last of these, that lies as [T, H, S]; and as it lies.

    A row's stride is so many heads of columns, and no stride is a product of rows and columns.
    """
    heads, rows, _ = (1, 1, *view.shape)[-3:]
    lines = replace(view, shape=(rows, heads, columns), strides=(heads * columns, columns, 1))
    return lines.permute(1, 0, 2).insert(0), lines


def _bind_anywhere(site: Site, scratch: tuple[View, ...]) -> Bound:
    """As `attention_rows`, but each query head by itself, in scores that lie row by row."""
    h, (scaled, room, product, number, *more) = _heads(site), scratch
    columns, group = h.k.shape[2], h.group
    scores, lines = _rows_outermost(room, columns)
    added = _rows_outermost(more[0], columns)[0] if more else None

    def of_group(view: View, g: int) -> View:
        """[1, H, T, W] as [Hk, T, W]: one query head of each that shares keys."""
        return split(view.select(0, 0), 0, (int(h.k.shape[1]), group)).select(1, g)

    parts: list[View] = []
    k, v = h.k.select(0, 0), h.v.select(0, 0)
    for g in range(group):
        weights = of_group(scores, g)
        read = weights.narrow(-1, h.first, h.v.shape[2])
        parts += [of_group(scaled, g), k.transpose(), weights, read, v, of_group(product, g)]
    operands = (h.q, scaled, h.scale, number, scores, lines, h.mask, added, product, h.out)
    return _attend, (*operands, *parts)


def _attend_cost(site: Site) -> float:
    h = _heads(site)
    scores = h.q.elements // value_of(h.q.shape[3]) * value_of(h.k.shape[2])
    flops = 2.0 * scores * (value_of(h.q.shape[3]) + value_of(h.out.shape[3]))
    moved = h.q.size_bytes + h.out.size_bytes + 3 * 4 * scores
    return 8 * CALL_NS + 2 * GEMM_NS + flops / GEMM_FLOPS_PER_NS + moved / BYTES_PER_NS


register(Kernel("attention_row", "attention", _attends_one_row, _row_cost, _bind_row, _row_scratch))
register(
    Kernel("attention_rows", "attention", _attends, _attend_cost, _bind_attend, _attend_scratch)
)
register(
    Kernel(
        "attention_anywhere", "attention", _attends_anywhere, _attend_cost, _bind_anywhere,
        _anywhere_scratch,
    )
)  # fmt: skip
for _op in ("rms_norm", "layer_norm"):
    widen(_op, HALVES)  # torch squares in the narrow dtype
