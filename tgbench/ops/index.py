"""Ops whose reads or writes depend on index values: gather, scatter; and update at a fixed place.

Regions do not look at index values: a dirty table row may be read by any index, a dirty index may
read any row. What is exact is the other axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tgbench.errors import GraphError
from tgbench.graph import Node
from tgbench.optable import Array, Attrs, Call, OpDef, TensorType, register
from tgbench.regions import EMPTY, Box, Region

INTEGERS = ("int64", "int32", "int16", "int8", "uint8")


def _index_check(name: str, attrs: Attrs, types: tuple[TensorType, ...], count: int) -> None:
    if len(types) != count:
        raise GraphError(f"{name} takes {count} inputs, got {len(types)}")
    if types[1].dtype not in INTEGERS:
        raise GraphError(f"{name} indices must be integers, got {types[1].dtype}; cast them first")
    if not 0 <= attrs["axis"] < types[0].rank:
        raise GraphError(f"{name} axis {attrs['axis']} does not exist in {types[0]}")


# --- gather: out[a…, i…, b…] = x[a…, indices[i…], b…] -------------------------------------------


def _gather_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    shape, indices, axis = call.in_shapes[0], call.in_shapes[1], call.attrs["axis"]
    whole = Box.full(indices)
    boxes = [Box([*box[:axis], *whole, *box[axis + 1 :]]) for box in regions[0]]
    front, back = Box.full(shape[:axis]), Box.full(shape[axis + 1 :])
    boxes += [Box([*front, *box, *back]) for box in regions[1]]
    return Region.of(*boxes)


def _gather_needed(call: Call, box: Box) -> tuple[Region, ...]:
    shape, axis, rank = call.in_shapes[0], call.attrs["axis"], len(call.in_shapes[1])
    table = Box([*box[:axis], (0, shape[axis]), *box[axis + rank :]])
    return Region((table,)), Region((Box(box[axis : axis + rank]),))


register(
    OpDef(
        "gather",
        lambda attrs, dtypes: dtypes[0],
        lambda attrs, x, indices: np.asarray(np.take(x, indices, axis=attrs["axis"])),
        _gather_forward,
        _gather_needed,
        check=lambda attrs, types: _index_check("gather", attrs, types, 2),
        flops=lambda call, box: 0,
    )
)


def gather(x: Node, indices: Node, axis: int = 0) -> Node:
    """Pick slices of `x` along `axis`; out[i…] = x[indices[i…]] for axis 0."""
    return x.builder.apply("gather", x, indices, axis=axis % x.rank)


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
    return regions[0].union(Region.of(*written))


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
        flops=lambda call, box: 0,
    )
)


def scatter(x: Node, indices: Node, value: Node, axis: int = 0) -> Node:
    """A copy of `x` whose slices at `indices` along `axis` are those of `value`."""
    return x.builder.apply("scatter", x, indices, value, axis=axis % x.rank)


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
    return kept.union(Region.of(*(_moved(box, call.attrs["start"], 1) for box in regions[1])))


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
        flops=lambda call, box: 0,
    )
)


def update(x: Node, value: Node, start: Sequence[int]) -> Node:
    """A copy of `x` with the block that begins at `start` replaced by `value`."""
    return x.builder.apply("update", x, value, start=tuple(start))
