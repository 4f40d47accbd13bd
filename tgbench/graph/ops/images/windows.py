"""Sliding windows along one dimension: what an output reads, which outputs an input reaches.

    output o reads inputs  o · stride − low + k · dilation,   k = 0 … kernel − 1

    stride 2, kernel 3, low 1, five inputs:      o = 0     # #             (a tap in the padding)
                                                 o = 1       # # #
                                                 o = 2           # #

Convolutions and pools read so; a transposed convolution is the same map turned round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

from tgbench.base.coords import Coord, larger, number, smaller
from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Interval
from tgbench.graph.op_table import Dim

MOST_SPANS = 16  # a box whose inputs lie in more intervals than this is covered by one
Pads: TypeAlias = "tuple[tuple[int, int], ...]"


def ceil_div(a: Coord, b: int) -> Coord:
    """⌈a / b⌉."""
    return -((-a) // b)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of one dimension.

    Fields:
        size, count: how many inputs, how many outputs.
        kernel, stride, dilation: taps of a window, inputs per output, inputs per tap.
        low: padding in front; what stands behind follows from `count`.
    """

    size: Dim
    count: Dim
    kernel: int
    stride: int
    dilation: int
    low: int

    @property
    def span(self) -> int:
        """Inputs from the first tap of a window to behind its last one."""
        return (self.kernel - 1) * self.dilation + 1

    def extent(self, outputs: Interval) -> Interval:
        """From the first tap of these outputs to behind the last one, padding included."""
        first, stop = outputs
        return first * self.stride - self.low, (stop - 1) * self.stride - self.low + self.span

    def read(self, outputs: Interval) -> list[Interval]:
        """The inputs that these outputs read; nothing where they see only padding."""
        return _inside(self._spans(outputs), self.size)

    def reached(self, inputs: Interval) -> list[Interval]:
        """The outputs that read any of these inputs."""
        first, stop = inputs
        spans = [
            (
                ceil_div(first + self.low - high + 1, self.stride),
                ceil_div(stop + self.low - low, self.stride),
            )
            for low, high in self._taps()
        ]
        return _inside(spans, self.count)

    def _taps(self) -> list[Interval]:
        """Unbroken runs of taps, counted from the first one."""
        if self.dilation == 1 or self.kernel > MOST_SPANS:
            return [(0, self.span)]
        return [(k * self.dilation, k * self.dilation + 1) for k in range(self.kernel)]

    def _spans(self, outputs: Interval) -> list[Interval]:
        if self.dilation == 1 and self.stride <= self.kernel:
            return [self.extent(outputs)]
        taps, alone = self._taps(), [outputs]
        if self.stride > 1:
            first, count = outputs[0], number(outputs[1] - outputs[0])
            if not isinstance(count, int):
                return [self.extent(outputs)]
            alone = [(first + i, first + i + 1) for i in range(count)]
        if len(alone) * len(taps) > MOST_SPANS:
            return [self.extent(outputs)]
        return [
            (a * self.stride - self.low + low, (b - 1) * self.stride - self.low + high)
            for (a, b), (low, high) in product(alone, taps)
        ]


def _inside(spans: Sequence[Interval], size: Dim) -> list[Interval]:
    """Of each span what lies inside the dimension, if anything does."""
    clipped = [(larger(start, 0), smaller(stop, size)) for start, stop in spans if start < stop]
    return [(start, stop) for start, stop in clipped if start < stop]


def overhangs(windows: Sequence[Windows], box: Box) -> tuple[Interval, ...]:
    """How far the windows of an output box [N, C, *S] reach over each side of the input."""
    extents = [window.extent(outputs) for window, outputs in zip(windows, box[2:], strict=True)]
    return tuple(
        (max(0, -first), max(0, stop - window.size))
        for window, (first, stop) in zip(windows, extents, strict=True)
    )


def combined(front: Sequence[Interval], choices: Sequence[Sequence[Interval]]) -> list[Box]:
    """One box per choice of an interval in every dimension; their hull where they are many."""
    total = 1
    for intervals in choices:
        total *= len(intervals)
    if total > MOST_SPANS:
        choices = [[_hull(intervals)] for intervals in choices]
    return [Box((*front, *pick)) for pick in product(*choices)]


def _hull(intervals: Sequence[Interval]) -> Interval:
    result = Box((intervals[0],))
    for interval in intervals[1:]:
        result = result.hull(Box((interval,)))
    return result[0]


def per_axis(value: int | Sequence[int], rank: int, what: str) -> tuple[int, ...]:
    """One number per spatial dimension; an integer stands for all of them."""
    numbers = (value,) * rank if isinstance(value, int) else tuple(int(n) for n in value)
    if len(numbers) != rank:
        raise GraphError(f"{what}={value!r} has {len(numbers)} entries for {rank} dimensions")
    return numbers


def pads_of(padding: int | Sequence[int | Sequence[int]], rank: int) -> Pads:
    """(in front, behind) per spatial dimension."""
    if isinstance(padding, int):
        return ((padding, padding),) * rank
    pairs = tuple((p, p) if isinstance(p, int) else (int(p[0]), int(p[1])) for p in padding)
    if len(pairs) != rank:
        raise GraphError(f"padding={padding!r} has {len(pairs)} entries for {rank} dimensions")
    return pairs
