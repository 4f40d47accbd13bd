"""Ops whose reads or writes depend on index values: gather, scatter; and update at a fixed place.

Index values that a run may change are not looked at: a dirty table row may be read by any index, a
dirty index may read any row, and what is exact is the other axes. Constant indices are looked up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tgbench.base.coords import Table, lookup
from tgbench.base.errors import GraphError
from tgbench.base.known import ConstantData, SparsityPattern, intervals_of
from tgbench.base.memo import once_each
from tgbench.base.regions import EMPTY, Box, Interval, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node, axis_of, fact_of
from tgbench.graph.op_table import Array, Attrs, Call, OpDef, TensorType, register
from tgbench.graph.ops.elementwise import where

INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


def _index_check(name: str, attrs: Attrs, types: tuple[TensorType, ...], count: int) -> None:
    if len(types) != count:
        raise GraphError(f"{name} takes {count} inputs, got {len(types)}")
    if types[1].dtype not in INTEGERS:
        raise GraphError(f"{name} indices must be integers, got {types[1].dtype}; cast them first")
    if not 0 <= attrs["axis"] < types[0].rank:
        raise GraphError(f"{name} axis {attrs['axis']} does not exist in {types[0]}")


# --- gather: out[a…, i…, b…] = x[a…, indices[i…], b…] -------------------------------------------


MOST_RUNS = 16  # rows that lie in more runs than this are covered by one interval


@dataclass(frozen=True, eq=False)
class _Picks:
    """Constant indices along one axis of so many rows, all counted from the front.

    Fields:
        rows: which row each index picks.
        rising: rows never decrease: then `pick` and `begin` answer for moving coordinates.
        pick: index position → row; begin: row → the first position that picks it or a later one.
    """

    rows: Array
    rising: bool
    pick: Table
    begin: Table

    @staticmethod
    @once_each
    def of(data: ConstantData, size: int) -> _Picks:
        rows = data.array.astype(np.int64)
        begin = np.searchsorted(rows, np.arange(size + 1))
        return _Picks(rows, bool((np.diff(rows) >= 0).all()), Table(rows), Table(begin))

    def read(self, positions: Interval) -> list[Interval]:
        """The rows that these positions pick."""
        first, stop = positions
        if self.rising and (self.rows.size == 1 or np.diff(self.rows).max() <= 1):
            return [(lookup(self.pick, first), lookup(self.pick, stop - 1) + 1)]
        picked = np.unique(self.rows[int(first) : int(stop)])
        flags = np.zeros(int(picked[-1] - picked[0]) + 1, dtype=bool)
        flags[picked - picked[0]] = True
        return _few(intervals_of(flags, int(picked[0])))

    def reached(self, rows: Interval) -> list[Interval]:
        """The positions that pick one of these rows."""
        first, stop = rows
        if self.rising:
            span = (lookup(self.begin, first), lookup(self.begin, stop))
            return [span] if span[0] < span[1] else []
        inside = (self.rows >= int(first)) & (self.rows < int(stop))
        return _few(intervals_of(inside, 0))


def _few(intervals: list[Interval]) -> list[Interval]:
    if len(intervals) <= MOST_RUNS:
        return intervals
    return [(intervals[0][0], intervals[-1][1])]


def _picks(call: Call) -> _Picks | None:
    """The constant indices of a gather along one axis; None where a run may change them."""
    fact = call.facts[1] if call.facts else None
    if fact is None or fact.constant is None or len(call.in_shapes[1]) != 1:
        return None
    size = call.in_shapes[0][call.attrs["axis"]]
    inside = fact.constant.array.min() >= 0 and fact.constant.array.max() < size
    return _Picks.of(fact.constant, size) if inside else None


def _gather_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    shape, indices, axis = call.in_shapes[0], call.in_shapes[1], call.attrs["axis"]
    picks = _picks(call)
    if picks is not None:
        return around(
            *(
                Box([*box[:axis], interval, *box[axis + 1 :]])
                for box in regions[0]
                for interval in picks.reached(box[axis])
            )
        )
    whole = Box.full(indices)
    boxes = [Box([*box[:axis], *whole, *box[axis + 1 :]]) for box in regions[0]]
    front, back = Box.full(shape[:axis]), Box.full(shape[axis + 1 :])
    boxes += [Box([*front, *box, *back]) for box in regions[1]]
    return around(*boxes)


def _gather_needed(call: Call, box: Box) -> tuple[Region, ...]:
    shape, axis, rank = call.in_shapes[0], call.attrs["axis"], len(call.in_shapes[1])
    picks = _picks(call)
    if picks is not None:
        rows = [Box([*box[:axis], part, *box[axis + 1 :]]) for part in picks.read(box[axis])]
        return around(*rows), Region((Box((box[axis],)),))
    table = Box([*box[:axis], (0, shape[axis]), *box[axis + rank :]])
    return Region((table,)), Region((Box(box[axis : axis + rank]),))


def _gather_in_less(attrs: Attrs, scales: Mapping[int, Node], table: Node, indices: Node) -> Node:
    rows = gather(table, indices).cast("float32")
    if 0 not in scales:
        return rows
    return rows * gather(scales[0], indices).reshape(*indices.shape, 1)


register(
    OpDef(
        "gather",
        lambda attrs, dtypes: dtypes[0],
        lambda attrs, x, indices: np.asarray(np.take(x, indices, axis=attrs["axis"])),
        _gather_forward,
        _gather_needed,
        check=lambda attrs, types: _index_check("gather", attrs, types, 2),
        moves=True,
        flops=lambda call, box: 0,
        index=1,
        picks=(0,),
        widens=lambda call: (0,) if call.attrs["axis"] == 0 else (),
        in_less=_gather_in_less,
    )
)


def gather(x: Node, indices: Node, axis: int = 0) -> Node:
    """Pick slices of `x` along `axis`; out[i…] = x[indices[i…]] for axis 0."""
    return x.builder.apply("gather", x, indices, axis=axis_of(x, axis))


def embedding(table: Node, ids: Node) -> Node:
    """Rows of a table: [rows, width] and ids[…] give [..., width]."""
    return gather(table, ids, axis=0)


# --- scatter: a copy of x with out[…, indices[i], …] = value[…, i, …], the last i winning --------


def _scatter_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    _index_check("scatter", attrs, types, 3)
    x, indices, value = types
    axis = attrs["axis"]
    expected = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
    if indices.rank != 1 or value.shape != expected or value.dtype != x.dtype:
        raise GraphError(
            f"scatter into {x} at {indices} needs a value {list(expected)}, got {value}"
        )


def _scatter_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    shape, axis = call.in_shapes[0], call.attrs["axis"]
    if not regions[1].is_empty:
        return Region.full(shape)
    written = [Box([*box[:axis], (0, shape[axis]), *box[axis + 1 :]]) for box in regions[2]]
    return regions[0].union(around(*written))


def _scatter_needed(call: Call, box: Box) -> tuple[Region, ...]:
    count, axis = call.in_shapes[1][0], call.attrs["axis"]
    value = Box([*box[:axis], (0, count), *box[axis + 1 :]])
    return Region((box,)), Region((Box(((0, count),)),)), Region((value,))


def _scatter_reference(attrs: Attrs, x: Array, indices: Array, value: Array) -> Array:
    result = x.copy()
    moved, source = np.moveaxis(result, attrs["axis"], 0), np.moveaxis(value, attrs["axis"], 0)
    for row, index in enumerate(indices):
        moved[index] = source[row]
    return result


register(
    OpDef(
        "scatter",
        lambda attrs, dtypes: dtypes[0],
        _scatter_reference,
        _scatter_forward,
        _scatter_needed,
        check=_scatter_check,
        moves=True,
        flops=lambda call, box: 0,
        index=1,
        writes=2,
    )
)


def _constant_of(node: Node) -> Array | None:
    fact = fact_of(node)
    return None if fact is None or fact.constant is None else fact.constant.array


def scatter(x: Node, indices: Node, value: Node, axis: int = 0) -> Node:
    """A copy of `x` whose slices at `indices` along `axis` are those of `value`.

    With constant indices it is a choice between `x` and rows of `value`, tight in both.
    """
    axis, fixed = axis_of(x, axis), _constant_of(indices)
    is_state = x.op in ("state", "scatter", "update")  # then it is written in place
    if fixed is not None and fixed.ndim == 1 and isinstance(x.shape[axis], int) and not is_state:
        size, source = x.shape[axis], np.full(x.shape[axis], -1)
        source[fixed] = np.arange(fixed.size)
        lines = [size if i == axis else 1 for i in range(x.rank)]
        written = x.builder.constant((source >= 0).reshape(lines))
        rows = gather(value, x.builder.constant(np.maximum(source, 0)), axis)
        return where(written, rows, x)
    return x.builder.apply("scatter", x, indices, value, axis=axis_of(x, axis))


# --- update: a copy of x with a block replaced, at a place fixed in the graph --------------------


def _update_check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 2 or not len(attrs["start"]) == types[0].rank == types[1].rank:
        raise GraphError(
            f"update takes x, a value of the same rank and that many starts, got "
            f"{', '.join(map(str, types))} and start={attrs['start']}"
        )
    x, value = types
    stops = [start + size for start, size in zip(attrs["start"], value.shape, strict=True)]
    if x.dtype != value.dtype or any(
        not 0 <= start <= stop <= size
        for start, stop, size in zip(attrs["start"], stops, x.shape, strict=True)
    ):
        raise GraphError(f"{value} at {attrs['start']} does not lie inside {x}")


def _window(call: Call) -> Box:
    starts, sizes = call.attrs["start"], call.in_shapes[1]
    return Box((start, start + size) for start, size in zip(starts, sizes, strict=True))


def _moved(box: Box, starts: Sequence[int], sign: int) -> Box:
    return Box((a + sign * s, b + sign * s) for (a, b), s in zip(box, starts, strict=True))


def _update_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    kept = regions[0].subtract(Region((_window(call),)))
    return kept.union(around(*(_moved(box, call.attrs["start"], 1) for box in regions[1])))


def _update_needed(call: Call, box: Box) -> tuple[Region, ...]:
    window = _window(call)
    inside = box.intersect(window)
    kept = Region((box,)).subtract(Region((window,)))
    if inside is None:
        return kept, EMPTY
    return kept, Region((_moved(inside, call.attrs["start"], -1),))


def _update_reference(attrs: Attrs, x: Array, value: Array) -> Array:
    result = x.copy()
    place = tuple(slice(a, a + n) for a, n in zip(attrs["start"], value.shape, strict=True))
    result[place] = value
    return result


register(
    OpDef(
        "update",
        lambda attrs, dtypes: dtypes[0],
        _update_reference,
        _update_forward,
        _update_needed,
        check=_update_check,
        moves=True,
        flops=lambda call, box: 0,
        writes=1,
    )
)


def update(x: Node, value: Node, start: Sequence[int]) -> Node:
    """A copy of `x` with the block that begins at `start` replaced by `value`."""
    return x.builder.apply("update", x, value, start=tuple(start))


# --- elements: out[i, j] = x[index[i, j], j] for axis 0, and the same backwards -------------------


def _elements_check(name: str, attrs: Attrs, types: tuple[TensorType, ...], count: int) -> None:
    _index_check(name, attrs, types, count)
    x, index = types[:2]
    if index.rank != x.rank or any(
        axis != attrs["axis"] and small > size
        for axis, (small, size) in enumerate(zip(index.shape, x.shape, strict=True))
    ):
        raise GraphError(f"{name} along {attrs['axis']}: {index} does not lie inside {x}")
    for value in types[2:]:
        if value.shape != index.shape or value.dtype != x.dtype:
            raise GraphError(f"{name} into {x} needs a value {list(index.shape)}, got {value}")


def _line(box: Box, axis: int, size: int) -> Box:
    return Box((*box[:axis], (0, size), *box[axis + 1 :]))


def _within(box: Box, shape: Sequence[int], axis: int) -> Box | None:
    """The part of a box of x, or of its index, whose other coordinates both of them have."""
    return box.intersect(Box(box[i] if i == axis else (0, size) for i, size in enumerate(shape)))


@once_each
def _rows_between(
    data: ConstantData, size: int, axis: int, first: int, stop: int
) -> SparsityPattern:
    rows = np.where(data.array < 0, data.array + size, data.array)
    return SparsityPattern.of((rows >= first) & (rows < stop))


def _gather_elements_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    (x, index), axis = call.in_shapes[:2], call.attrs["axis"]
    if regions[1] == Region.full(index):
        return regions[1]
    result, data = regions[1], _constant_index(call)
    for box in regions[0]:
        inside = _within(_line(box, axis, index[axis]), index, axis)
        if inside is None:
            continue
        hit = Region((inside,))
        if data is not None:
            first, stop = int(box[axis][0]), int(box[axis][1])
            hit = _rows_between(data, x[axis], axis, first, stop).trim(hit)
        result = result.union(hit)
    return result


def _constant_index(call: Call) -> ConstantData | None:
    fact = call.facts[1] if call.facts else None
    return None if fact is None else fact.constant


def _gather_elements_needed(call: Call, box: Box) -> tuple[Region, ...]:
    (x, _), axis, data = call.in_shapes[:2], call.attrs["axis"], _constant_index(call)
    lines = _line(box, axis, x[axis])
    if data is not None:
        plain = Box((int(start), int(stop)) for start, stop in box)
        found = data.array[plain.slices()]
        rows = np.where(found < 0, found + x[axis], found)
        lines = Box((*box[:axis], (int(rows.min()), int(rows.max()) + 1), *box[axis + 1 :]))
    return Region((lines,)), Region((box,))


register(
    OpDef(
        "gather_elements",
        lambda attrs, dtypes: dtypes[0],
        lambda attrs, x, index: np.take_along_axis(
            x[tuple(slice(None) if i == attrs["axis"] else slice(n)
                    for i, n in enumerate(index.shape))],
            index, attrs["axis"],
        ),
        _gather_elements_forward,
        _gather_elements_needed,
        check=lambda attrs, types: _elements_check("gather_elements", attrs, types, 2),
        moves=True,
        flops=lambda call, box: 0,
        picks=(0,),
    )
)  # fmt: skip


def gather_elements(x: Node, index: Node, axis: int) -> Node:
    """Elements of `x` picked along `axis`: out[i, j] = x[index[i, j], j] for axis 0."""
    return x.builder.apply("gather_elements", x, index, axis=axis_of(x, axis))


def _scatter_elements_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    x, axis = call.in_shapes[0], call.attrs["axis"]
    written = [_line(box, axis, x[axis]) for region in regions[1:] for box in region]
    return regions[0].union(around(*written))


def _scatter_elements_needed(call: Call, box: Box) -> tuple[Region, ...]:
    index, axis = call.in_shapes[1], call.attrs["axis"]
    lines = _within(_line(box, axis, index[axis]), index, axis)
    read = EMPTY if lines is None else Region((lines,))
    return Region((box,)), read, read


def _scatter_elements(attrs: Attrs, x: Array, index: Array, value: Array) -> Array:
    result = x.copy()
    place = list(np.indices(index.shape))
    place[attrs["axis"]] = index
    if attrs["add"]:
        np.add.at(result, tuple(place), value)
    else:
        result[tuple(place)] = value
    return result


register(
    OpDef(
        "scatter_elements",
        lambda attrs, dtypes: dtypes[0],
        _scatter_elements,
        _scatter_elements_forward,
        _scatter_elements_needed,
        check=lambda attrs, types: _elements_check("scatter_elements", attrs, types, 3),
        flops=lambda call, box: 0,
    )
)


def scatter_elements(x: Node, index: Node, value: Node, axis: int) -> Node:
    """A copy of `x` with out[index[i, j], j] = value[i, j] for axis 0; no index twice in a line."""
    return x.builder.apply("scatter_elements", x, index, value, axis=axis_of(x, axis), add=False)


def scatter_add(x: Node, index: Node, value: Node, axis: int) -> Node:
    """A copy of `x` with value[i, j] added to out[index[i, j], j] for axis 0."""
    return x.builder.apply("scatter_elements", x, index, value, axis=axis_of(x, axis), add=True)


def index_select(x: Node, axis: int, indices: Node) -> Node:
    """Slices of `x` along `axis`: `gather` under PyTorch's name."""
    return gather(x, indices, axis)
