"""Layout ops as copies, for where memory allows no view of the base.

Each binds to a list of (source, target) views of equal shape. What one strided view cannot
express is cut into several.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import memmove
from itertools import pairwise, product
from math import prod
from typing import Any

import torch
from torch import Tensor

from tgbench.base.coords import Coord, same_anywhere
from tgbench.base.regions import Box, Interval
from tgbench.graph.ops.layout import _unravel, groups
from tgbench.kernels.registry import Kernel, Scratch, Site, View, register
from tgbench.kernels.torch.elementwise import calls_cost, copy_
from tgbench.kernels.views import (
    Bound,
    inputs,
    is_complete,
    is_dense,
    part,
    reshaped,
    split,
    whole_reads,
)

Pairs = list[tuple[View, View]]  # (target, source)


def _copies(*pairs: Tensor) -> None:
    for target, source in zip(pairs[::2], pairs[1::2], strict=True):
        target.copy_(source)


def copies(pairs: Pairs) -> Bound:
    """Copy each source into its target."""
    if len(pairs) == 1:
        return copy_, pairs[0]
    return _copies, tuple(view for pair in pairs for view in pair)


def slide_(target: Tensor, source: Tensor) -> None:
    """Copy what may lie in part where it goes to: each element is read before it is written over.

    Both lie in the same bytes, as wide, and one is further along one dimension than the other.
    Stretches without a gap are moved one by one, those first that nothing else is to be put on.
    """
    size, first, goes_to = source.element_size(), source.data_ptr(), target.data_ptr()
    sides = sorted(zip(source.stride(), source.shape, strict=True))
    count = 1
    while sides and (sides[0][1] == 1 or sides[0][0] == count):
        count *= sides.pop(0)[1]
    steps = [range(0, stride * length * size, stride * size) for stride, length in sides[::-1]]
    begins = map(sum, product(*steps))
    for at in begins if goes_to < first else reversed([*begins]):
        memmove(goes_to + at, first + at, count * size)


def _shifted(box: Box, by: Sequence[Coord], sign: int) -> Box:
    return Box((a + sign * d, b + sign * d) for (a, b), d in zip(box, by, strict=True))


def _read(site: Site, i: int) -> Box:
    """The box of an input that is read, at a complete site."""
    box = whole_reads(site)[i]
    assert box is not None
    return box


# --- permute, expand, slice --------------------------------------------------------------------


def _bind_permute(site: Site, scratch: tuple[View, ...]) -> Bound:
    (x,) = inputs(site)
    return copy_, (site.out, x.permute(*site.call.attrs["axes"]))


def _bind_expand(site: Site, scratch: tuple[View, ...]) -> Bound:
    return copy_, (site.out, *inputs(site))


register(Kernel("permute", "permute", is_complete, calls_cost(1), _bind_permute))
register(Kernel("expand", "expand", is_complete, calls_cost(1), _bind_expand))


def _stepped(site: Site) -> tuple[View, tuple[int, ...]]:
    """The input as the output sees it, and the axes along which it still runs backwards."""
    (x,), box, attrs = inputs(site), _read(site, 0), site.call.attrs
    backwards = []
    for axis, (start, step) in enumerate(zip(attrs["starts"], attrs["steps"], strict=True)):
        low, high = site.out_box[axis]
        first = start + (low if step > 0 else high - 1) * step - box[axis][0]
        x = x.narrow(axis, first, high - low)
        strides = (*x.strides[:axis], x.strides[axis] * abs(step), *x.strides[axis + 1 :])
        x = View(x.buffer, x.dtype, x.shape, strides, x.offset)
        if step < 0:
            backwards.append(axis)
    return x, tuple(backwards)


def _goes_forward(site: Site) -> bool:
    return min(site.call.attrs["steps"], default=1) > 0 and is_complete(site)


def _bind_slice(site: Site, scratch: tuple[View, ...]) -> Bound:
    return copy_, (site.out, _stepped(site)[0])


def _flip(order: Tensor, last: int, axis: int, source: Tensor, target: Tensor) -> None:
    torch.arange(last, -1, -1, out=order)
    torch.index_select(source, axis, order, out=target)


def _flips(*arguments: Any) -> None:
    for i in range(0, len(arguments), 5):
        _flip(*arguments[i : i + 5])


def _flip_scratch(site: Site) -> tuple[Scratch, ...]:
    _, axes = _stepped(site)
    orders: list[Scratch] = [((site.out.shape[axis],), "int64") for axis in axes]
    return (*orders, *((site.out.shape, site.out.dtype) for _ in axes[1:]))


def _bind_flip(site: Site, scratch: tuple[View, ...]) -> Bound:
    """torch has no negative strides: pick the rows in reverse order, one axis after another."""
    source, axes = _stepped(site)
    targets = (*scratch[len(axes) :], site.out)
    arguments: list[Any] = []
    for axis, order, target in zip(axes, scratch, targets, strict=False):
        arguments += [order, source.shape[axis] - 1, axis, source, target]
        source = target
    return _flips, tuple(arguments)


register(Kernel("slice", "slice", _goes_forward, calls_cost(1), _bind_slice))
register(
    Kernel(
        "slice_backwards",
        "slice",
        lambda site: min(site.call.attrs["steps"], default=1) < 0 and is_complete(site),
        calls_cost(3),
        _bind_flip,
        _flip_scratch,
    )
)


# --- reshape -----------------------------------------------------------------------------------


def _common(before: Sequence[int], after: Sequence[int]) -> list[int] | None:
    """Sizes into which both shapes split: (6, 4), (24,) → 6, 4; None for (6, 4), (4, 6)."""
    ends = {prod(shape[axis:]) for shape in (before, after) for axis in range(len(shape) + 1)}
    ordered = sorted(ends, reverse=True)
    if any(outer % inner for outer, inner in pairwise(ordered)):
        return None
    return [outer // inner for outer, inner in pairwise(ordered)]


def _fine(sizes: Sequence[int], size: int) -> tuple[list[int], list[int]]:
    """Take from the front the sizes whose product is `size`."""
    taken: list[int] = []
    rest = list(sizes)
    while prod(taken) < size:
        taken.append(rest.pop(0))
    return taken, rest


def _at_zero(view: View, have: Box, shape: Sequence[int]) -> View:
    """A view of a box, moved to stand at the tensor's element 0."""
    for axis, (size, (start, _)) in enumerate(zip(shape, have, strict=True)):
        view = view.narrow(axis, -start, size)
    return view


def _finely(view: View, first: int, shape: Sequence[int], fine: Sequence[int]) -> View:
    """Dimensions of these sizes, from one on, each split finely."""
    rest = list(fine)
    for size in shape:
        taken, rest = _fine(rest, size)
        view = split(view, first, taken)
        first += len(taken)
    return view


def _cells(box: Sequence[Interval], shape: Sequence[int], fine: Sequence[int]) -> list[Box]:
    """A box as boxes of the finer dimensions."""
    rest, choices = list(fine), []
    for size, (start, stop) in zip(shape, box, strict=True):
        taken, rest = _fine(rest, size)
        choices.append(_unravel(start, stop, taken))
    return [Box(interval for piece in pieces for interval in piece) for pieces in product(*choices)]


def _without_ones(view: View, shape: Sequence[int], box: Box) -> tuple[View, Box, list[int]]:
    """Drop dimensions of size 1, which say nothing about where elements lie."""
    kept = [axis for axis, size in enumerate(shape) if size != 1]
    for axis in reversed(range(view.rank)):
        if axis not in kept:
            view = view.select(axis, 0)
    return view, Box(box[axis] for axis in kept), [shape[axis] for axis in kept]


def _reshape_pairs(site: Site) -> Pairs:
    """Copies, as few as there may be: for each run of dimensions that is another one in the other
    shape, between views of both in their common refinement; where there is none, of one of them in
    the shape of the other, if its memory allows that; else of stretches that stay in one row of
    both.
    """
    (x,) = inputs(site)
    source, have, before = _without_ones(x, site.call.in_shapes[0], _read(site, 0))
    target, want, after = _without_ones(site.out, site.call.out.shape, site.out_box)
    source, target = _at_zero(source, have, before), _at_zero(target, want, after)
    choices: list[list[tuple[Box, Box]]] = []
    are_rows = False
    for left, right in reversed(groups(before, after)):  # so that axes before stay what they are
        sizes, wide = [before[axis] for axis in left], [after[axis] for axis in right]
        box, fine = Box([want[axis] for axis in right]), _common(sizes, wide)
        flat = other = None
        if fine is None and _is_all(box, wide):
            flat = target.flatten(right[0], right[-1] + 1)
            other = source.flatten(left[0], left[-1] + 1) if flat is None else None
        if fine is not None:
            source = _finely(source, left[0], sizes, fine)
            target = _finely(target, right[0], wide, fine)
            choices.append([(cell, cell) for cell in _cells(box, wide, fine)])
        elif flat is not None:
            target = split(flat, right[0], sizes)
            choices.append([(Box.full(sizes), Box.full(sizes))])
        elif other is not None:
            source = split(other, left[0], wide)
            choices.append([(Box.full(wide), Box.full(wide))])
        else:
            are_rows = True
            choices.append(_stretches(box, sizes, wide))
    to, come = Box.full(target.shape), Box.full(source.shape)
    pairs: Pairs = []
    for cells in product(*reversed(choices)):
        goes = part(target, to, Box(side for cell, _ in cells for side in cell))
        comes = part(source, come, Box(side for _, cell in cells for side in cell))
        pairs.append((_dropped(goes), _dropped(comes)) if are_rows else (goes, comes))
    return pairs


def _stretches(box: Box, before: Sequence[int], after: Sequence[int]) -> list[tuple[Box, Box]]:
    """Stretches of a box that stay in one row of both shapes: where they are in each."""
    found = []
    sides = [(int(start), int(stop)) for start, stop in box]
    for outer in product(*(range(start, stop) for start, stop in sides[:-1])):
        at, last = sides[-1]
        while at < last:
            where, linear = [], _linear((*outer, at), after)
            for size in reversed(before):
                where.append(linear % size)
                linear //= size
            where.reverse()
            run = min(last - at, before[-1] - where[-1])
            goes = Box([*((i, i + 1) for i in outer), (at, at + run)])
            comes = Box([*((i, i + 1) for i in where[:-1]), (where[-1], where[-1] + run)])
            found.append((goes, comes))
            at += run
    return found


def _dropped(view: View) -> View:
    """A view without its dimensions of one element."""
    for axis in reversed(range(view.rank)):
        if same_anywhere(view.shape[axis], 1):
            view = view.select(axis, 0)
    return view


def _linear(index: Sequence[int], shape: Sequence[int]) -> int:
    total = 0
    for i, size in zip(index, shape, strict=True):
        total = total * size + i
    return total


def _is_all(box: Box, shape: Sequence[int]) -> bool:
    """Whether a box is everything of a shape, wherever one stands."""
    sides = zip(box, shape, strict=True)
    return all(same_anywhere(a, 0) and same_anywhere(b, size) for (a, b), size in sides)


def _bind_reshape(site: Site, scratch: tuple[View, ...]) -> Bound:
    (x,) = inputs(site)
    if _is_all(site.out_box, site.call.out.shape) and is_dense(site.out) and is_dense(x):
        return copy_, (site.out, reshaped(x, site.out.shape))
    return copies(_reshape_pairs(site))


register(Kernel("reshape", "reshape", is_complete, calls_cost(1), _bind_reshape))


# --- concat, pad, update -----------------------------------------------------------------------


def _bind_concat(site: Site, scratch: tuple[View, ...]) -> Bound:
    axis, offset = site.call.attrs["axis"], 0
    pairs: Pairs = []
    reads = whole_reads(site)
    for view, have, want, shape in zip(
        site.ins, site.in_boxes, reads, site.call.in_shapes, strict=True
    ):
        if want is not None:
            assert view is not None
            assert have is not None
            start, stop = want[axis]
            place = Box([*want[:axis], (start + offset, stop + offset), *want[axis + 1 :]])
            pairs.append((part(site.out, site.out_box, place), part(view, have, want)))
        offset += shape[axis]
    return copies(pairs)


register(Kernel("concat", "concat", is_complete, calls_cost(2), _bind_concat))


def _pad(value: float, target: Tensor | None, source: Tensor | None, *margins: Tensor) -> None:
    for margin in margins:
        margin.fill_(value)
    if target is not None and source is not None:
        target.copy_(source)


def _bind_pad(site: Site, scratch: tuple[View, ...]) -> Bound:
    want, low = whole_reads(site)[0], site.call.attrs["low"]
    target = source = None
    margins = [site.out_box]
    if want is not None:
        have, inside = site.in_boxes[0], _shifted(want, low, 1)
        assert have is not None
        source = part(site.operand(0), have, want)
        target = part(site.out, site.out_box, inside)
        margins = site.out_box.subtract(inside)
    views = [part(site.out, site.out_box, margin) for margin in margins]
    return _pad, (site.call.attrs["value"], target, source, *views)


register(Kernel("pad", "pad", is_complete, calls_cost(2), _bind_pad))


def _bind_update(site: Site, scratch: tuple[View, ...]) -> Bound:
    """What is kept, then the block over it. The hull of what is kept may hold a part of it."""
    pairs: Pairs = []
    places = ((0,) * site.out.rank, site.call.attrs["start"])
    reads = whole_reads(site)
    for view, have, want, at in zip(site.ins, site.in_boxes, reads, places, strict=True):
        if want is not None:
            assert view is not None
            assert have is not None
            target = part(site.out, site.out_box, _shifted(want, at, 1))
            pairs.append((target, part(view, have, want)))
    return copies(pairs)


register(Kernel("update", "update", is_complete, calls_cost(2), _bind_update))
