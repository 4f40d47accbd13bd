"""Ops that move elements without changing them.

reshape, permute, slice and expand are views where memory allows it (`ViewMap`); concat and pad
copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tgbench.base.coords import Coord, same
from tgbench.base.errors import GraphError
from tgbench.base.known import MOST_KNOWN, Fact, pattern_fact
from tgbench.base.regions import EMPTY, Box, Interval, Region
from tgbench.base.sweeps import around, is_free
from tgbench.graph.dims import expanded
from tgbench.graph.graph import Node, axis_of
from tgbench.graph.op_table import (
    FLOATS,
    Array,
    Attrs,
    Call,
    Dim,
    Facts,
    OpDef,
    TensorType,
    ViewMap,
    first_input,
    last_decides,
    numpy_dtype,
    register,
    same_dtype,
)
from tgbench.graph.ops.broadcasting import down, up
from tgbench.graph.ops.masks import MASKED, Mask, aligned, mask_fact, mask_of

# A reshape that cuts a box into more runs than these is covered by its hull; in a sweep the windows
# of all channels between two that are shuffled are computed in one call.
MOST_RUNS, MOST_SWEPT = 64, 8


def _one_input(name: str) -> Callable[[Attrs, tuple[TensorType, ...]], None]:
    def check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        if len(types) != 1:
            raise GraphError(f"{name} takes one input, got {len(types)}")

    return check


# --- reshape ----------------------------------------------------------------------------------


def _reshape_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _one_input("reshape")(attrs, types)
    after: Any = 1
    for size in attrs["shape"]:
        after = after * size
    if expanded(types[0].elements - after) != 0:
        raise GraphError(
            f"cannot reshape {types[0]} ({types[0].elements} elements) to {list(attrs['shape'])} "
            f"({after}); the products must be equal"
        )


def groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Split two shapes of equal size into the shortest runs of axes with equal products.

    >>> groups((2, 6, 5), (2, 2, 3, 5))
    [([0], [0]), ([1], [1, 2]), ([2], [3])]
    """
    result: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) or j < len(after):
        left: list[int] = []
        right: list[int] = []
        size_left = size_right = 1
        while True:
            if i < len(before) and (not left or size_left < size_right):
                size_left *= before[i]
                left.append(i)
                i += 1
            elif j < len(after) and (not right or size_right < size_left):
                size_right *= after[j]
                right.append(j)
                j += 1
            else:
                break
        result.append((left, right))
    return result


def _ravel(
    box: Sequence[Interval], sizes: Sequence[int], most: int
) -> Iterator[tuple[Coord, Coord]]:
    """The linear runs of a box inside a row-major block of these sizes; past so many, around it."""
    strides = [prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    inner = len(sizes)  # axes from here on are whole
    while inner and same(box[inner - 1][0], 0) and same(box[inner - 1][1], sizes[inner - 1]):
        inner -= 1
    if inner == 0:
        yield 0, prod(sizes)
        return
    outer, (start, stop) = box[: inner - 1], box[inner - 1]
    extents = [b - a for a, b in outer]
    counts = [extent.pin() if not isinstance(extent, int) else extent for extent in extents]
    if prod(counts) > most:
        first = sum(a * s for (a, _), s in zip(box, strides, strict=True))
        last = sum((b - 1) * s for (_, b), s in zip(box, strides, strict=True))
        yield first, last + 1
        return
    for offsets in product(*(range(count) for count in counts)):
        base: Coord = 0
        for (a, _), offset, stride in zip(outer, offsets, strides, strict=False):
            base = base + (a + offset) * stride
        yield base + start * strides[inner - 1], base + stop * strides[inner - 1]


def _unravel(start: Coord, stop: Coord, sizes: Sequence[int]) -> list[tuple[Interval, ...]]:
    """A linear run as boxes of a row-major block: a head, whole rows, a tail."""
    if not sizes:
        return [()]
    if len(sizes) == 1:
        return [((start, stop),)]
    if sizes[0] == 1:
        return [((0, 1), *rest) for rest in _unravel(start, stop, sizes[1:])]
    row = prod(sizes[1:])
    whole = tuple((0, size) for size in sizes[1:])
    first, skip = start // row, start % row
    last, rest = stop // row, stop % row
    if skip and same(first, last):
        return [((first, first + 1), *tail) for tail in _unravel(skip, rest, sizes[1:])]
    result: list[tuple[Interval, ...]] = []
    if skip:
        result += [((first, first + 1), *tail) for tail in _unravel(skip, row, sizes[1:])]
        first = first + 1
    if first < last:
        result.append(((first, last), *whole))
    if rest:
        result += [((last, last + 1), *tail) for tail in _unravel(0, rest, sizes[1:])]
    return result


def _remap(region: Region, before: tuple[int, ...], after: tuple[int, ...]) -> Region:
    """A region of one shape, in the row-major coordinates of another of equal size."""
    if region == Region.full(before):
        return Region.full(after)
    parts, most = groups(before, after), MOST_SWEPT if is_free(region) else MOST_RUNS
    boxes: list[Box] = []
    for box in region:
        choices = list[list[tuple[Interval, ...]]]()
        for left, right in parts:
            if len(left) == len(right) == 1:  # the same dimension: nothing is asked of where it is
                choices.append([(box[left[0]],)])
                continue
            sizes = [after[axis] for axis in right]
            runs = _ravel([box[axis] for axis in left], [before[axis] for axis in left], most)
            choices.append([piece for run in runs for piece in _unravel(*run, sizes)])
        boxes += [
            Box([interval for piece in pieces for interval in piece])
            for pieces in product(*choices)
        ]
    return around(*boxes)


def _reshape_known(call: Call, facts: Facts) -> Fact | None:
    fact = facts[0]
    if fact is None or fact.value is None:
        return None
    array = aligned(fact.open.array, len(call.in_shapes[0]))
    before, after = [1] * array.ndim, [1] * call.out.rank  # wide only where it varies
    for left, right in groups(call.in_shapes[0], call.out.shape):
        if any(array.shape[axis] > 1 for axis in left):
            before[left[0] : left[-1] + 1] = [call.in_shapes[0][axis] for axis in left]
            after[right[0] : right[-1] + 1] = [call.out.shape[axis] for axis in right]
    if prod(before) > MOST_KNOWN:
        return None
    return pattern_fact(fact.value, np.broadcast_to(array, before).reshape(after), hard=fact.hard)


def _reshape_view(call: Call) -> ViewMap | None:
    before, after = call.in_shapes[0], call.out.shape
    dims: list[tuple[int, int] | None] = [None] * len(after)
    dense: set[int] = set()
    for left, right in groups(before, after):
        wide = [axis for axis in left if before[axis] != 1]
        step = 1
        for axis in reversed(right):
            if after[axis] != 1:
                dims[axis] = (wide[-1], step)
            step *= after[axis]
        if len([axis for axis in right if after[axis] != 1]) and len(wide) > 1:
            dense.update(wide[1:])
    return ViewMap(tuple(dims), (0,) * len(before), frozenset(dense))


register(
    OpDef(
        "reshape",
        same_dtype,
        lambda attrs, x: x.reshape(attrs["shape"]),
        lambda call, regions: _remap(regions[0], call.in_shapes[0], call.attrs["shape"]),
        lambda call, box: (_remap(Region((box,)), call.out.shape, call.in_shapes[0]),),
        check=_reshape_check,
        known=_reshape_known,
        view=_reshape_view,
        same_as=first_input,
        merges=last_decides,
        moves=True,
        flops=lambda call, box: 0,
    )
)


# --- permute ----------------------------------------------------------------------------------


def _permute_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _one_input("permute")(attrs, types)
    if sorted(attrs["axes"]) != list(range(types[0].rank)):
        raise GraphError(
            f"permute axes {attrs['axes']} are not an order of {types[0].rank} dimensions"
        )


def _permute_needed(call: Call, box: Box) -> tuple[Region, ...]:
    axes = call.attrs["axes"]
    result: list[Interval] = [(0, 1)] * len(axes)
    for axis, interval in zip(axes, box, strict=True):
        result[axis] = interval
    return (Region((Box(result),)),)


def _permute_known(call: Call, facts: Facts) -> Fact | None:
    fact = facts[0]
    if fact is None or fact.value is None:
        return None
    return pattern_fact(fact.value, fact.open.array.transpose(call.attrs["axes"]), hard=fact.hard)


def _permute_same(call: Call, inputs: tuple[Node, ...]) -> int | None:
    return 0 if call.attrs["axes"] == tuple(range(call.out.rank)) else None


register(
    OpDef(
        "permute",
        same_dtype,
        lambda attrs, x: x.transpose(attrs["axes"]),
        lambda call, regions: around(
            *(Box(box[axis] for axis in call.attrs["axes"]) for box in regions[0])
        ),
        _permute_needed,
        check=_permute_check,
        known=_permute_known,
        view=lambda call: ViewMap(
            tuple((axis, 1) for axis in call.attrs["axes"]), (0,) * len(call.attrs["axes"])
        ),
        same_as=_permute_same,
        merges=lambda inner, call: {
            "axes": tuple(inner.attrs["axes"][axis] for axis in call.attrs["axes"])
        },
        moves=True,
        flops=lambda call, box: 0,
    )
)


# --- slice ------------------------------------------------------------------------------------


def _slice_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _one_input("slice")(attrs, types)
    if not len(attrs["starts"]) == len(attrs["stops"]) == len(attrs["steps"]) == types[0].rank:
        raise GraphError(f"a slice of {types[0]} needs {types[0].rank} starts, stops and steps")
    for axis, (start, stop, step, size) in enumerate(
        zip(attrs["starts"], attrs["stops"], attrs["steps"], types[0].shape, strict=True)
    ):
        picked = range(start, stop, step) if step and isinstance(size, int) else None
        if step == 0 or (picked is not None and not picked):
            raise GraphError(
                f"slice {start}:{stop}:{step} of dimension {axis} ({size}) selects nothing"
            )
        if picked and not 0 <= min(picked[0], picked[-1]) <= max(picked[0], picked[-1]) < size:
            raise GraphError(
                f"slice {start}:{stop}:{step} leaves dimension {axis} ({size}); "
                "index the node (`x[a:b]`), which clips as NumPy does"
            )


def _steps(call: Call) -> list[tuple[Dim, Dim, int, Dim]]:
    """Per axis: first index, number of indices, step, size of the input."""
    attrs = call.attrs
    return [
        (start, len(range(start, stop, step)) if isinstance(stop, int) else stop, step, size)
        for start, stop, step, size in zip(
            attrs["starts"], attrs["stops"], attrs["steps"], call.in_shapes[0], strict=True
        )
    ]


def _ceil(a: Coord, b: int) -> Coord:
    return -((-a) // b)


def _slice_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    boxes = []
    for box in regions[0]:
        hit: list[Interval] = []
        for (a, b), (first, count, step, size) in zip(box, _steps(call), strict=True):
            if (first, count, step) == (0, size, 1):
                hit.append((a, b))
                continue
            low = _ceil(a - first, step) if step > 0 else _ceil(first - (b - 1), -step)
            high = _ceil(b - first, step) if step > 0 else (first - a) // -step + 1
            low, high = (0 if low < 0 else low), (high if high <= count else count)
            if not low < high:
                break
            hit.append((low, high))
        else:
            boxes.append(Box(hit))
    return around(*boxes)


def _slice_needed(call: Call, box: Box) -> tuple[Region, ...]:
    choices: list[list[Interval]] = []
    for (a, b), (first, _, step, _size) in zip(box, _steps(call), strict=True):
        if step == 1:
            choices.append([(first + a, first + b)])
            continue
        if abs(step) > 1 and b - a <= MOST_RUNS:
            at = [first + (a + i) * step for i in range(int(b - a))]
            choices.append([(i, i + 1) for i in at])
        else:
            ends = (first + a * step, first + (b - 1) * step)
            choices.append([(ends[0], ends[1] + 1) if step > 0 else (ends[1], ends[0] + 1)])
    if prod(map(len, choices)) > MOST_RUNS:
        choices = [[(some[0][0], some[-1][1]) if some[0][0] <= some[-1][0]
                    else (some[-1][0], some[0][1])] for some in choices]  # fmt: skip
    return (around(*(Box(pick) for pick in product(*choices))),)


def _slice_known(call: Call, facts: Facts) -> Fact | None:
    fact = facts[0]
    if fact is None or fact.value is None:
        return None
    return pattern_fact(fact.value, _sliced(call.attrs, fact.open.array), hard=fact.hard)


def _sliced(attrs: Attrs, x: Array) -> Array:
    parts = []
    for start, stop, step, size in zip(
        attrs["starts"], attrs["stops"], attrs["steps"], x.shape, strict=True
    ):
        parts.append(slice(None) if size == 1 else slice(start, stop if stop >= 0 else None, step))
    return x[tuple(parts)]


def _slice_view(call: Call) -> ViewMap | None:
    if any(step < 0 for step in call.attrs["steps"]):
        return None  # torch has no negative strides
    dims = tuple((axis, step) for axis, step in enumerate(call.attrs["steps"]))
    return ViewMap(dims, tuple(call.attrs["starts"]))


def _parts(call: Call) -> list[tuple[int, int, int]]:
    attrs = call.attrs
    return list(zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True))


def _slices(inner: Call, call: Call) -> Attrs | None:
    """A slice of a slice; of a symbolic dimension, none."""
    if not all(isinstance(size, int) for size in inner.in_shapes[0]):
        return None
    picked = [
        range(*part)[slice(first, stop if stop >= 0 else None, step)]
        for part, (first, stop, step) in zip(_parts(inner), _parts(call), strict=True)
    ]
    return {
        "starts": tuple(part.start for part in picked),
        "stops": tuple(part.stop for part in picked),
        "steps": tuple(part.step for part in picked),
    }


register(
    OpDef(
        "slice",
        same_dtype,
        lambda attrs, x: _sliced(attrs, x),
        _slice_forward,
        _slice_needed,
        check=_slice_check,
        known=_slice_known,
        view=_slice_view,
        same_as=lambda call, ins: 0 if all(step == 1 for step in call.attrs["steps"]) else None,
        merges=_slices,
        moves=True,
        flops=lambda call, box: 0,
    )
)


def flip(x: Node, *axes: int) -> Node:
    """Reverse the order along these axes."""
    flipped = {axis_of(x, axis) for axis in axes}
    return x[tuple(slice(None, None, -1 if axis in flipped else 1) for axis in range(x.rank))]


def split(x: Node, sizes: Sequence[int], axis: int = -1) -> list[Node]:
    """Cut along an axis into pieces of these sizes."""
    axis %= x.rank
    pieces, start = [], 0
    for size in sizes:
        index = (slice(None),) * axis + (slice(start, start + size),)
        pieces.append(x[index])
        start += size
    if start != x.shape[axis]:
        raise GraphError(
            f"split sizes {list(sizes)} sum to {start}, dimension {axis} is {x.shape[axis]}"
        )
    return pieces


# --- expand -----------------------------------------------------------------------------------


def _expand_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _one_input("expand")(attrs, types)
    small, large = types[0].shape, attrs["shape"]
    tail = large[len(large) - len(small) :]
    if len(large) < len(small) or any(s not in (1, n) for s, n in zip(small, tail, strict=True)):
        raise GraphError(
            f"cannot expand {types[0]} to {list(large)}; only dimensions of size 1 grow"
        )


def _expand_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    return up(regions[0], call.in_shapes[0], call.attrs["shape"])


def _expand_needed(call: Call, box: Box) -> tuple[Region, ...]:
    return (down(box, call.in_shapes[0]),)


def _expand_known(call: Call, facts: Facts) -> Fact | None:
    fact = facts[0]
    if fact is None or fact.value is None:
        return None
    array = fact.open.array
    lead = (1,) * (len(call.out.shape) - array.ndim)
    return pattern_fact(fact.value, array.reshape(lead + array.shape), hard=fact.hard)


def _expand_view(call: Call) -> ViewMap | None:
    small, large = call.in_shapes[0], call.attrs["shape"]
    lead = len(large) - len(small)
    dims = [None] * lead + [None if size == 1 else (axis, 1) for axis, size in enumerate(small)]
    return ViewMap(tuple(dims), (0,) * len(small))


register(
    OpDef(
        "expand",
        same_dtype,
        lambda attrs, x: np.broadcast_to(x, attrs["shape"]),
        _expand_forward,
        _expand_needed,
        check=_expand_check,
        known=_expand_known,
        view=_expand_view,
        same_as=first_input,
        merges=last_decides,
        moves=True,
        flops=lambda call, box: 0,
    )
)


# --- concat -----------------------------------------------------------------------------------


def _concat_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    axis = attrs["axis"]
    if not types or not 0 <= axis < types[0].rank:
        raise GraphError(f"concat along axis {axis} of {len(types)} inputs makes no sense")
    for type_ in types[1:]:
        rest = [n for i, n in enumerate(type_.shape) if i != axis]
        if type_.rank != types[0].rank or rest != [
            n for i, n in enumerate(types[0].shape) if i != axis
        ]:
            raise GraphError(
                f"concat of {types[0]} and {type_} along {axis}: other dimensions differ"
            )


def _offsets(call: Call) -> list[Dim]:
    axis, total, result = call.attrs["axis"], 0, []
    for shape in call.in_shapes:
        result.append(total)
        total = total + shape[axis]
    return result


def _shifted(box: Box, axis: int, by: Coord) -> Box:
    start, stop = box[axis]
    return Box([*box[:axis], (start + by, stop + by), *box[axis + 1 :]])


def _concat_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    axis = call.attrs["axis"]
    joined: list[Box] = []
    for region, offset in zip(regions, _offsets(call), strict=True):
        for box in region:
            moved = _shifted(box, axis, offset)
            if joined and _goes_on(joined[-1], moved, axis):
                start, stop = joined.pop()[axis][0], moved[axis][1]
                moved = Box([*moved[:axis], (start, stop), *moved[axis + 1 :]])
            joined.append(moved)
    return around(*joined)


def _goes_on(before: Box, after: Box, axis: int) -> bool:
    """Whether a box begins where the one before ends, and is as wide: mostly all of both.

    Forms that are equal are so wherever one stands: no guard is needed.
    """
    return before[axis][1] == after[axis][0] and all(
        before[i] == after[i] for i in range(len(before)) if i != axis
    )


def _concat_needed(call: Call, box: Box) -> tuple[Region, ...]:
    axis = call.attrs["axis"]
    result = []
    for shape, offset in zip(call.in_shapes, _offsets(call), strict=True):
        inside = _shifted(box, axis, -offset).intersect(Box.full(shape))
        result.append(EMPTY if inside is None else Region((inside,)))
    return tuple(result)


def _concat_known(call: Call, facts: Facts) -> Fact | None:
    """Masked where a piece is; else known where one is, for the value of the first such piece."""
    rank, dtype = call.out.rank, call.out.dtype
    masks = [mask_of(fact, type_, rank) for fact, type_ in zip(facts, call.inputs, strict=True)]
    found = [mask for mask in masks if mask is not None]
    if found:
        closed = _joined(call, [None if mask is None else mask.closed for mask in masks])
        return mask_fact([Mask(closed, max(mask.value for mask in found))], dtype)
    known = [fact for fact in facts if fact is not None and fact.value is not None]
    if not known:
        return None
    value = known[0].value
    alike = [fact is not None and fact.closes_with(value) for fact in facts]
    closed = _joined(
        call, [~f.open.array if f and use else None for f, use in zip(facts, alike, strict=True)]
    )
    return pattern_fact(known[0].value or 0.0, ~closed)


def _joined(call: Call, pieces: Sequence[Array | None]) -> Array:
    """Flags of the pieces, False where a piece has none, side by side; False if they are many."""
    rank, axis = call.out.rank, call.attrs["axis"]
    flags = [
        np.zeros([1] * rank, bool) if piece is None else aligned(piece, rank) for piece in pieces
    ]
    sizes = [max(flag.shape[i] for flag in flags) for i in range(rank)]  # 1 where none varies
    sizes[axis] = call.out.shape[axis]
    if prod(sizes) > MOST_KNOWN:
        return np.zeros([1] * rank, bool)
    whole = [
        np.broadcast_to(flag, [*sizes[:axis], shape[axis], *sizes[axis + 1 :]])
        for flag, shape in zip(flags, call.in_shapes, strict=True)
    ]
    return np.concatenate(whole, axis=axis)


register(
    OpDef(
        "concat",
        same_dtype,
        lambda attrs, *xs: np.concatenate(xs, axis=attrs["axis"]),
        _concat_forward,
        _concat_needed,
        check=_concat_check,
        known=_concat_known,
        moves=True,
        keeps_axes=True,
        flops=lambda call, box: 0,
        same_as=lambda call, inputs: 0 if len(inputs) == 1 else None,
    )
)


def concat(nodes: Sequence[Node], axis: int = -1) -> Node:
    """Join any number of nodes along an axis."""
    if not nodes:
        raise GraphError("concat needs at least one node")
    if len(nodes) == 1:
        return nodes[0]
    return nodes[0].builder.apply("concat", *nodes, axis=axis % nodes[0].rank)


# --- pad --------------------------------------------------------------------------------------


def _pad_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _one_input("pad")(attrs, types)
    low, high, value = attrs["low"], attrs["high"], attrs["value"]
    if types[0].dtype not in FLOATS and value != _as_dtype(value, types[0].dtype):
        raise GraphError(f"{types[0].dtype} cannot hold the padding {value}; cast the input first")
    if len(low) != types[0].rank or len(high) != types[0].rank or min((*low, *high, 0)) < 0:
        raise GraphError(
            f"pad of {types[0]} needs {types[0].rank} widths ≥ 0 on each side; slice to crop"
        )


def _pad_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    attrs, shape = call.attrs, call.in_shapes[0]
    if regions[0] == Region.full(shape):
        sizes = zip(attrs["low"], shape, attrs["high"], strict=True)
        return Region.full(tuple(low + size + high for low, size, high in sizes))
    return around(
        *(
            Box((a + low, b + low) for (a, b), low in zip(box, attrs["low"], strict=True))
            for box in regions[0]
        )
    )


def _pad_needed(call: Call, box: Box) -> tuple[Region, ...]:
    moved = Box((a - low, b - low) for (a, b), low in zip(box, call.attrs["low"], strict=True))
    inside = moved.intersect(Box.full(call.in_shapes[0]))
    return (EMPTY if inside is None else Region((inside,)),)


def _pad_known(call: Call, facts: Facts) -> Fact | None:
    """The margin is known; so is the inside where it is known to hold the same value."""
    fact, dtype = facts[0], call.out.dtype
    value = _as_dtype(call.attrs["value"], dtype)
    if value == 0 and np.signbit(value):
        return None  # who knows of a 0 writes +0
    mask = mask_of(fact, call.inputs[0], call.out.rank)
    if mask is not None and value <= MASKED.get(dtype, -np.inf):
        closed = _margined(call, mask.closed, True)
        return None if closed is None else mask_fact([Mask(closed, max(mask.value, value))], dtype)
    inside = np.ones([1] * call.out.rank, bool)
    if fact is not None and fact.closes_with(value):
        inside = aligned(fact.open.array, call.out.rank)
    is_open = _margined(call, inside, False)
    return None if is_open is None else pattern_fact(value, is_open)


def _margined(call: Call, flags: Array, margin: bool) -> Array | None:
    """Flags with a margin, wide only where there is one; None if they were too many."""
    attrs = call.attrs
    widths = list(zip(attrs["low"], attrs["high"], strict=True))
    shape = [
        size if any(pair) else varies
        for pair, size, varies in zip(widths, call.in_shapes[0], flags.shape, strict=True)
    ]
    if prod(sum(pair) + size for pair, size in zip(widths, shape, strict=True)) > MOST_KNOWN:
        return None
    return _padded(attrs, np.broadcast_to(flags, shape), margin)


def _as_dtype(value: float, dtype: str) -> float:
    with np.errstate(all="ignore"):
        return float(np.asarray(value).astype(numpy_dtype(dtype)))


def _padded(attrs: Attrs, x: Array, value: float) -> Array:
    widths = tuple(zip(attrs["low"], attrs["high"], strict=True))
    return np.pad(x, widths, constant_values=value) if widths else x


register(
    OpDef(
        "pad",
        same_dtype,
        lambda attrs, x: _padded(attrs, x, attrs["value"]),
        _pad_forward,
        _pad_needed,
        check=_pad_check,
        known=_pad_known,
        moves=True,
        keeps_axes=True,
        flops=lambda call, box: 0,
        same_as=first_input,
    )
)


def pad(x: Node, low: Sequence[int], high: Sequence[int], value: float = 0.0) -> Node:
    """Put a margin of `value` around `x`: `low[i]` in front of axis i, `high[i]` behind it."""
    return x.builder.apply("pad", x, low=tuple(low), high=tuple(high), value=value)


# --- made of the above --------------------------------------------------------------------------


def _cut(x: Node, axis: int, start: int, stop: int) -> Node:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _margin(x: Node, axis: int, width: int, mode: str, *, front: bool) -> Node:
    """What `mode` puts in front of an axis, or behind it."""
    size = x.shape[axis]
    if mode == "replicate":
        edge = _cut(x, axis, 0, 1) if front else _cut(x, axis, size - 1, size)
        return edge.expand(*(width if i == axis else n for i, n in enumerate(x.shape)))
    if mode == "circular":
        return _cut(x, axis, size - width, size) if front else _cut(x, axis, 0, width)
    first = 1 if front else size - width - 1
    return flip(_cut(x, axis, first, first + width), axis)


def pad_with(x: Node, low: Sequence[int], high: Sequence[int], mode: str) -> Node:
    """A margin made of `x` itself: "reflect", "replicate" or "circular", as PyTorch's `pad`.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> pad_with(GraphBuilder().input("x", (2, 5)), (0, 2), (0, 1), "reflect").shape
    (2, 8)
    """
    if mode not in ("reflect", "replicate", "circular"):
        raise GraphError(f"pad mode {mode!r}; use reflect, replicate, circular, or `pad`")
    if len(low) != x.rank or len(high) != x.rank:
        raise GraphError(f"pad of {x.type} needs {x.rank} widths on each side")
    for axis, (front, back) in enumerate(zip(low, high, strict=True)):
        most = x.shape[axis] - (mode == "reflect") if mode != "replicate" else max(front, back)
        if not 0 <= min(front, back) <= max(front, back) <= most:
            raise GraphError(f"pad of {x.type}: widths {front}, {back} of dimension {axis}")
        pieces = [_margin(x, axis, front, mode, front=True)] if front else []
        pieces.append(x)
        pieces += [_margin(x, axis, back, mode, front=False)] if back else []
        x = concat(pieces, axis)
    return x


def roll(x: Node, shifts: int | Sequence[int], axes: int | Sequence[int]) -> Node:
    """Move elements by `shifts` along `axes`; what leaves at the end comes back at the start."""
    by = [shifts] if isinstance(shifts, int) else list(shifts)
    along = [axes] if isinstance(axes, int) else list(axes)
    if len(by) != len(along):
        raise GraphError(f"roll by {by} along {along}: one shift per axis")
    for shift, axis in zip(by, along, strict=True):
        place = axis_of(x, axis)
        size = x.shape[place]
        turn = shift % size
        if turn:
            pieces = [_cut(x, place, size - turn, size), _cut(x, place, 0, size - turn)]
            x = concat(pieces, place)
    return x


def stack(nodes: Sequence[Node], axis: int = 0) -> Node:
    """Join nodes of one shape along a new axis."""
    if not nodes:
        raise GraphError("stack needs at least one node")
    place = axis % (nodes[0].rank + 1)
    index = (slice(None),) * place + (None,)
    return concat([node[index] for node in nodes], place)


def _repeated(x: Node, axis: int, times: int, *, inner: bool) -> Node:
    """`times` copies of every element side by side (inner), or of the whole axis."""
    if times == 1:
        return x
    place = axis + 1 if inner else axis
    shape = [*x.shape]
    wide = x.reshape(*shape[:place], 1, *shape[place:])
    wide = wide.expand(*shape[:place], times, *shape[place:])
    return wide.reshape(*shape[:axis], shape[axis] * times, *shape[axis + 1 :])


def repeat(x: Node, *times: int) -> Node:
    """The whole of `x`, so many times along each axis; further counts make axes in front."""
    if len(times) < x.rank or min(times, default=1) < 1:
        raise GraphError(f"repeat of {x.type} needs a count ≥ 1 for each dimension, got {times}")
    x = x.reshape(*([1] * (len(times) - x.rank)), *x.shape)
    for axis, count in enumerate(times):
        x = _repeated(x, axis, count, inner=False)
    return x


def repeat_interleave(x: Node, times: int, axis: int) -> Node:
    """Every element along an axis `times` in a row."""
    return _repeated(x, axis_of(x, axis), times, inner=True)
