"""NumPy broadcasting, for shapes, regions and boxes."""

from __future__ import annotations

from collections.abc import Sequence

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.base.sweeps import around
from tgbench.graph.op_table import Dim


def broadcast_shape(shapes: Sequence[tuple[Dim, ...]]) -> tuple[Dim, ...]:
    """The common shape; raises GraphError naming the dimension that disagrees."""
    rank = max((len(shape) for shape in shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, start=rank - len(shape)):
            if size == 1:
                continue
            if result[axis] != 1 and result[axis] != size:
                raise GraphError(
                    f"shapes {' and '.join(str(list(s)) for s in shapes)} do not broadcast: "
                    f"dimension {axis} is {result[axis]} and {size}; reshape or expand one of them"
                )
            result[axis] = size
    return tuple(result)


def up(region: Region, shape: tuple[Dim, ...], out_shape: tuple[Dim, ...]) -> Region:
    """Where a region of an input lands in the broadcast output."""
    lead = len(out_shape) - len(shape)
    if not lead and shape == out_shape:
        return region
    repeated = [
        small == 1 and size != 1 for small, size in zip(shape, out_shape[lead:], strict=True)
    ]
    front = tuple((0, size) for size in out_shape[:lead])
    boxes = [
        Box(
            front
            + tuple(
                (0, size) if repeat else interval
                for interval, repeat, size in zip(box, repeated, out_shape[lead:], strict=True)
            )
        )
        for box in region
    ]
    return around(*boxes)


def down(box: Box, shape: tuple[Dim, ...]) -> Region:
    """What an output box reads of an input."""
    lead = len(box) - len(shape)
    if not lead and 1 not in shape:
        return Region((box,))
    return Region(
        (
            Box(
                (0, 1) if size == 1 else interval
                for interval, size in zip(box[lead:], shape, strict=True)
            ),
        )
    )
