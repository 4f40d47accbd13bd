"""Ops along one axis whose result depends on an order: cumulative sums, arg max, top k, sort.

Ties go to the lower index, so that results do not depend on how a run was cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Interval, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node, axis_of
from tgbench.graph.op_table import Array, Attrs, Call, OpDef, TensorType, register, same_dtype


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 1 or not 0 <= attrs["axis"] < types[0].rank or types[0].dtype == "bool":
        raise GraphError(
            f"an order along axis {attrs['axis']} needs one tensor of numbers: {types}"
        )
    size = types[0].shape[attrs["axis"]]
    if "k" in attrs and not 1 <= attrs["k"] <= size:
        raise GraphError(f"top {attrs['k']} of dimension {attrs['axis']} of {types[0]} ({size})")


def _along(box: Box, axis: int, interval: Interval) -> Box:
    return Box((*box[:axis], interval, *box[axis + 1 :]))


def _indices(attrs: Attrs, dtypes: tuple[str, ...]) -> str:
    return "int64"


# --- cumsum --------------------------------------------------------------------------------------


def _cumsum_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    axis, size = call.attrs["axis"], call.in_shapes[0][call.attrs["axis"]]
    return around(*(_along(box, axis, (box[axis][0], size)) for box in regions[0]))


def _cumsum_needed(call: Call, box: Box) -> tuple[Region, ...]:
    axis = call.attrs["axis"]
    return (Region((_along(box, axis, (0, box[axis][1])),)),)


register(
    OpDef(
        "cumsum",
        same_dtype,
        lambda attrs, x: np.cumsum(x, axis=attrs["axis"], dtype=x.dtype),
        _cumsum_forward,
        _cumsum_needed,
        check=_check,
        flops=lambda call, box: _cumsum_needed(call, box)[0].elements,
    )
)


def cumsum(x: Node, axis: int = -1) -> Node:
    """The sum of everything up to an element, itself included, along an axis."""
    return x.builder.apply("cumsum", x, axis=axis_of(x, axis))


# --- arg max, arg min, top k ---------------------------------------------------------------------


def _kept(call: Call) -> int:
    k: int = call.attrs.get("k", 1)
    return k


def _lines_forward(call: Call, regions: tuple[Region, ...]) -> Region:
    axis = call.attrs["axis"]
    return around(*(_along(box, axis, (0, _kept(call))) for box in regions[0]))


def _lines_needed(call: Call, box: Box) -> tuple[Region, ...]:
    axis = call.attrs["axis"]
    return (Region((_along(box, axis, (0, call.in_shapes[0][axis])),)),)


def _line_flops(call: Call, box: Box) -> int:
    return _lines_needed(call, box)[0].elements


def _ranked(attrs: Attrs, x: Array) -> Array:
    """The indices of the k first in order, ties in order of index."""
    axis = attrs["axis"]
    if attrs["largest"]:  # the stable order of the flipped line, read backwards
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(backwards, axis)
    else:
        order = np.argsort(x, axis=axis, kind="stable")
    return np.take(order, range(attrs["k"]), axis=axis)


def _top_values(attrs: Attrs, x: Array) -> Array:
    return np.take_along_axis(x, _ranked(attrs, x), attrs["axis"])


def _arg(function: Any) -> Any:
    return lambda attrs, x: np.asarray(function(x, axis=attrs["axis"], keepdims=True))


_ENTRIES = {
    "arg_max": (_indices, _arg(np.argmax)),
    "arg_min": (_indices, _arg(np.argmin)),
    "top_values": (same_dtype, _top_values),
    "top_indices": (_indices, _ranked),
}
for _name, (_dtype, _reference) in _ENTRIES.items():
    register(
        OpDef(
            _name,
            _dtype,
            _reference,
            _lines_forward,
            _lines_needed,
            check=_check,
            whole=lambda call: (call.attrs["axis"],),
            flops=_line_flops,
        )
    )


def _index_of(name: str, x: Node, axis: int | None, keepdims: bool) -> Node:
    if axis is None:
        x, axis = x.reshape(-1), 0
    place = axis_of(x, axis)
    found = x.builder.apply(name, x, axis=place)
    if keepdims:
        return found
    return found.reshape(*(n for i, n in enumerate(x.shape) if i != place))


def argmax(x: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """Where the largest element along an axis stands, the first one of equals."""
    return _index_of("arg_max", x, axis, keepdims)


def argmin(x: Node, axis: int | None = None, keepdims: bool = False) -> Node:
    """Where the smallest element along an axis stands, the first one of equals."""
    return _index_of("arg_min", x, axis, keepdims)


def topk(x: Node, k: int, axis: int = -1, largest: bool = True) -> tuple[Node, Node]:
    """The k largest (or smallest) along an axis in order, and where they stand."""
    attrs: dict[str, Any] = {"k": k, "axis": axis_of(x, axis), "largest": largest}
    return x.builder.apply("top_values", x, **attrs), x.builder.apply("top_indices", x, **attrs)


def sort(x: Node, axis: int = -1, descending: bool = False) -> tuple[Node, Node]:
    """The elements along an axis in order, and where they stood; the order is stable."""
    return topk(x, x.shape[axis_of(x, axis)], axis, descending)
