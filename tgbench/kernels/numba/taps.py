"""Convolutions each of whose channels is made of one channel of x: the compiled half.

    points  ── ── ── ── ── ── ── ──    A strip is up to eight neighbours of a line, whose sums of
    a tap   ↓  ↓  ↓  ↓  ↓  ↓  ↓  ↓     some channels are in registers from the first tap to the
    sums    ▯  ▯  ▯  ▯  ▯  ▯  ▯  ▯     last: a weight is read once for all of them.

Taps beyond a border are left out. The order of a sum is that of its taps, whatever is computed
beside it, so a number has the same bits wherever a part of the result begins. Sizes, borders and
places are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from tgbench.kernels.numba.blocks import (
    FLOAT,
    LANES,
    SHARED,
    VECTORS,
    WORD,
    compute,
    float_of,
    number_of_thread,
    word_of,
)
from tgbench.kernels.numba.loops import kernel, long, native
from tgbench.kernels.numba.sums import bounded, fused, looped
from tgbench.kernels.numba.windows import NO_ACTIVATION, call_functions, copy_image

STRIP = 8  # points
ACROSS = max(1, VECTORS // 2)  # vectors of channels whose sums registers hold besides
SHARED_TAPS = 3  # of a line, that are computed from the same numbers
# Words: addresses; distances in bytes, from image to image, line to line, and point to point; sizes
(X, X_IMAGE, X_LINE, X_POINT, OUT, OUT_IMAGE, OUT_LINE, OUT_POINT, W, W_VECTOR, W_TAP, BIAS,
 X_LINES, X_POINTS, IMAGES, LINES, POINTS, TAP_LINES, TAP_POINTS, STEP_LINES, STEP_POINTS,
 GAP_LINES, GAP_POINTS, LOW_LINES, LOW_POINTS, CHANNELS, ACTIVATION, LEAST, MOST, THREADS,
 THREAD_NUMBER, FUNCTIONS) = range(32)  # fmt: skip
JOB = 32


@kernel
def lanes_for(channels):
    """How wide a vector is; of fewer channels they are one by one."""
    return LANES if channels >= LANES else 1


def elements_for(channels: int, taps: int) -> int:
    """Of weights that are laid out."""
    return taps * (channels + -channels % int(lanes_for(channels)))


def laid_out(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights [channels, 1, *window] as [vector of channels, *window, lane], flat: what a strip
    reads lies side by side. The last vector ends with the last channel.

    >>> laid_out(np.arange(6, dtype=np.float32).reshape(2, 1, 3)).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    """
    channels, lanes = len(weight), lanes_for(len(weight))
    taps = weight.reshape(channels, -1).T
    starts = (min(first, channels - lanes) for first in range(0, channels, lanes))
    return np.stack([taps[:, first : first + lanes] for first in starts]).reshape(-1)


class Strip:
    """LLVM code for the sums of neighbouring points.

    Fields:
        is_shared: whether several taps go by what is read once: as far apart as points, what one
            reads the one before it read for the next point.
    """

    def __init__(
        self, builder: Any, points: int, lanes: int, is_shared: bool, given: Sequence[Any]
    ) -> None:
        self.builder, self.points, self.wide = builder, points, 4 * lanes
        self.is_shared = is_shared
        self.vector = ir.VectorType(FLOAT, lanes)
        self._add = fused(builder, self.vector)
        (self.x, self.x_step, self.x_line, self.x_point, self.out, self.out_step, self.w,
         self.w_vector, self.w_line, self.tap_lines, self.tap_points, self.bias, self.size,
         self.least, self.most) = given  # fmt: skip

    def emit(self) -> None:
        """All channels: as many vectors at a time as registers have room for, then one by one."""
        several, some = ACROSS * self.wide, WORD(0)
        if ACROSS > 1 and self.vector.count > 1:
            some = self._whole(self.size, several)
            looped(self.builder, WORD(0), some, several, [], partial(self._vectors, ACROSS))
        looped(self.builder, some, self.size, self.wide, [], partial(self._vectors, 1))

    def _vectors(self, count: int, at: Any, nothing: list[Any]) -> list[Any]:
        """So many vectors of channels, from this byte of a point on; one alone ends with the last
        channel.
        """
        builder = self.builder
        first = builder.udiv(at, WORD(self.wide))
        numbers = [builder.add(first, WORD(v)) for v in range(count)]
        weights = [self._far(self.w, number, self.w_vector) for number in numbers]
        places = [builder.mul(number, WORD(self.wide)) for number in numbers]
        if count == 1:
            last = builder.sub(self.size, WORD(self.wide))
            places = [builder.select(builder.icmp_signed("<", at, last), at, last)]
        starts = [self._loads(builder.add(self.bias, place), WORD(0), 1) for place in places]
        sums = [start for (start,) in starts for _ in range(self.points)]
        rows = [builder.add(self.x, place) for place in places]
        add = partial(self._line, rows, weights)
        sums = looped(builder, WORD(0), self.tap_lines, 1, sums, add)
        found = iter(bounded(builder, sums, self.least, self.most, self.vector.count))
        for place in places:
            to = builder.add(self.out, place)
            for p in range(self.points):
                there = self._place(self._far(to, WORD(p), self.out_step))
                builder.store(next(found), there, align=4)
        return []

    def _line(self, rows: list[Any], weights: list[Any], down: Any, sums: list[Any]) -> list[Any]:
        """The sums and what a line of taps adds to them."""
        builder, shared = self.builder, WORD(0)
        rows = [self._far(row, down, self.x_line) for row in rows]
        weights = [self._far(one, down, self.w_line) for one in weights]
        if self.is_shared:
            shared = self._whole(self.tap_points, SHARED_TAPS)
            add = partial(self._taps, SHARED_TAPS, rows, weights)
            sums = looped(builder, WORD(0), shared, SHARED_TAPS, sums, add)
        return looped(
            builder, shared, self.tap_points, 1, sums, partial(self._taps, 1, rows, weights)
        )

    def _taps(
        self, count: int, rows: list[Any], weights: list[Any], right: Any, sums: list[Any]
    ) -> list[Any]:
        """The same of so many neighbouring taps; several are as far apart as points."""
        found = list[Any]()
        for row, first in zip(rows, weights, strict=True):
            own = sums[len(found) : len(found) + self.points]
            seen = self._far(row, right, self.x_point)
            numbers = self._loads(seen, self.x_step, self.points + count - 1)
            by = self._loads(self._far(first, right, WORD(self.wide)), WORD(self.wide), count)
            for tap, weight in enumerate(by):
                pairs = zip(numbers[tap : tap + self.points], own, strict=True)
                own = [self.builder.call(self._add, [one, weight, s]) for one, s in pairs]
            found += own
        return found

    def _loads(self, address: Any, step: Any, count: int) -> list[Any]:
        """Vectors so far apart."""
        places = [self._place(self._far(address, WORD(i), step)) for i in range(count)]
        return [self.builder.load(place, align=4) for place in places]

    def _far(self, address: Any, count: Any, step: Any) -> Any:
        return self.builder.add(address, self.builder.mul(count, step))

    def _place(self, address: Any) -> Any:
        return self.builder.inttoptr(address, self.vector.as_pointer())

    def _whole(self, number: Any, step: int) -> Any:
        """The largest multiple of a step that is no more."""
        return self.builder.mul(self.builder.udiv(number, WORD(step)), WORD(step))


def _strips(neighbours: int, lanes: int) -> Any:
    """Sums of up to so many neighbours: bias + Σ over taps of x · w, between `least` and `most`.

    What is given are addresses, distances in bytes, and numbers of taps. The last vector of
    channels ends with the last one, so some may be computed twice.
    """

    @intrinsic
    def strips(
        context, count, x, x_step, x_line, x_point, out, out_step, w, w_vector, w_line, tap_lines,
        tap_points, bias, size, least, most,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            count, *given = arguments
            _, x_step, _, x_point, *_ = given
            is_even = builder.icmp_signed("==", x_step, x_point)
            is_wide = builder.icmp_signed(">=", given[10], WORD(2 * SHARED_TAPS))
            is_shared = builder.and_(is_even, is_wide)
            for points in range(1, neighbours + 1):
                is_so = builder.icmp_signed("==", count, WORD(points))
                with builder.if_then(is_so), builder.if_else(is_shared) as (shared, apart):
                    with shared:
                        Strip(builder, points, lanes, True, given).emit()
                    with apart:
                        Strip(builder, points, lanes, False, given).emit()
            return context.get_dummy_value()

        return types.void(*[types.int64] * 14, *[types.float32] * 2), generate

    return strips


_strip, _channel = _strips(STRIP, LANES), _strips(1, 1)


@kernel
def _taps(first, gap, count, size):
    """Of taps from a place on, so far apart, which lie inside of a dimension: the first, and how
    many.
    """
    start = 0 if first >= 0 else (gap - 1 - first) // gap
    stop = min(count, max(0, size - first + gap - 1) // gap)
    return start, max(0, stop - start)


@kernel
def _points(job, x, w, lines, image, y, first, count, start, taps):
    """A strip of neighbours that have the same taps; x: where those of the first line begin."""
    out = job[OUT] + image * job[OUT_IMAGE] + y * job[OUT_LINE] + first * job[OUT_POINT]
    begin = first * job[STEP_POINTS] - job[LOW_POINTS] + start * job[GAP_POINTS]
    size, step = 4 * job[CHANNELS], job[STEP_POINTS] * job[X_POINT]
    x, w = x + begin * job[X_POINT], w + start * job[W_TAP]
    given = (
        job[OUT_POINT], w, job[W_VECTOR], job[TAP_POINTS] * job[W_TAP], lines, taps, job[BIAS],
        size, float_of(job[LEAST]), float_of(job[MOST]),
    )  # fmt: skip
    line, point = job[GAP_LINES] * job[X_LINE], job[GAP_POINTS] * job[X_POINT]
    if job[W_TAP] == 4 * LANES:
        _strip(count, x, step, line, point, out, *given)
    else:
        for i in range(count):
            _channel(1, x + i * step, step, line, point, out + i * job[OUT_POINT], *given)
    if job[ACTIVATION] != NO_ACTIVATION:
        for i in range(count):
            call_functions(job[FUNCTIONS], out + i * job[OUT_POINT], job[CHANNELS], job[ACTIVATION])


@kernel
def _line(job, image, y):
    """One line of the result: strips where whole windows lie inside, and points one by one."""
    step, low, gap = job[STEP_POINTS], job[LOW_POINTS], job[GAP_POINTS]
    first = y * job[STEP_LINES] - job[LOW_LINES]
    top, lines = _taps(first, job[GAP_LINES], job[TAP_LINES], job[X_LINES])
    x = job[X] + image * job[X_IMAGE] + (first + top * job[GAP_LINES]) * job[X_LINE]
    w, points = job[W] + top * job[TAP_POINTS] * job[W_TAP], job[POINTS]
    inside = job[X_POINTS] - (job[TAP_POINTS] - 1) * gap + low - 1
    begin = min(points, max(0, (low + step - 1) // step))
    end = min(points, max(begin, inside // step + 1))
    for some in range(2):
        for p in range(end if some else 0, points if some else begin):
            start, taps = _taps(p * step - low, gap, job[TAP_POINTS], job[X_POINTS])
            _points(job, x, w, lines, image, y, p, 1, start, taps)
    strips = (end - begin + STRIP - 1) // STRIP
    for k in range(strips):
        p = begin + (end - begin) * k // strips
        count = begin + (end - begin) * (k + 1) // strips - p
        _points(job, x, w, lines, image, y, p, count, 0, job[TAP_POINTS])


def _thread(job):
    words = carray(job, JOB)
    threads = words[THREADS]
    thread = number_of_thread(words[THREAD_NUMBER]) if threads > 1 else 0
    rows = words[IMAGES] * words[LINES]
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        _line(words, row // words[LINES], row % words[LINES])


@cache
def computing() -> int:
    """The address of what threads call, with a job."""
    return int(native(types.CPointer(types.int64))(_thread).address)


@long
def convolve(
    words, x, copied, w, bias, out, zeros, x_image, x_line, x_point, x_channel, out_image, out_line,
    out_point, x_lines, x_points, images, lines, points, tap_lines, tap_points, step_lines,
    step_points, gap_lines, gap_points, low_lines, low_points, channels, activation, least, most,
    threads, fork, number, computing, functions,
):  # fmt: skip
    """out = activation(x ∗ w + bias), or between `least` and `most`, channel by channel.

    x [images, x_lines, x_points, channels] and out have distances between their images, lines and
    points; channels are side by side, or those of x are when it is `copied`, to an array as large
    at least. w is `laid_out`, an empty array stands for no bias. lows: how far the first window
    reaches over the border. words: `JOB`.
    """
    job = words[:JOB]
    job[X], job[X_IMAGE], job[X_LINE], job[X_POINT] = (
        x.ctypes.data, 4 * x_image, 4 * x_line, 4 * x_point
    )  # fmt: skip
    if len(copied):
        sizes = images, x_lines, x_points, channels
        copy_image(x, (x_image, x_line, x_point, x_channel), copied, sizes)
        job[X], job[X_POINT] = copied.ctypes.data, 4 * channels
        job[X_LINE] = x_points * job[X_POINT]
        job[X_IMAGE] = x_lines * job[X_LINE]
    job[OUT], job[OUT_IMAGE], job[OUT_LINE], job[OUT_POINT] = (
        out.ctypes.data, 4 * out_image, 4 * out_line, 4 * out_point
    )  # fmt: skip
    job[W], job[W_TAP] = w.ctypes.data, 4 * lanes_for(channels)
    job[W_VECTOR] = tap_lines * tap_points * job[W_TAP]
    job[BIAS] = bias.ctypes.data if len(bias) else zeros.ctypes.data
    job[X_LINES], job[X_POINTS] = x_lines, x_points
    job[IMAGES], job[LINES], job[POINTS] = images, lines, points
    job[TAP_LINES], job[TAP_POINTS] = tap_lines, tap_points
    job[STEP_LINES], job[STEP_POINTS] = step_lines, step_points
    job[GAP_LINES], job[GAP_POINTS] = gap_lines, gap_points
    job[LOW_LINES], job[LOW_POINTS] = low_lines, low_points
    job[CHANNELS], job[ACTIVATION] = channels, activation
    job[LEAST], job[MOST] = word_of(least), word_of(most)
    job[THREAD_NUMBER], job[FUNCTIONS] = number, functions
    count = images * lines * points * tap_lines * tap_points * channels
    job[THREADS] = threads if count >= SHARED else 1
    compute(job, job[THREADS], fork, computing)
