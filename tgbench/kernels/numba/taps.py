"""Convolutions each of whose channels is made of one channel of x: the compiled half.

    points  ── ── ── ── ── ── ── ──    A strip is up to eight neighbours of a line, whose sums of
    a tap   ↓  ↓  ↓  ↓  ↓  ↓  ↓  ↓     some channels are in registers from the first tap to the
    sums    ▯  ▯  ▯  ▯  ▯  ▯  ▯  ▯     last: a weight is read once for all of them.

Taps beyond a border are left out. The order of a sum is that of its taps, whatever is computed
beside it, so a number has the same bits wherever a part of the result begins. Sizes, borders and
places are arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
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
    """LLVM code for the sums of neighbouring points; addresses and distances are in bytes.

    Fields:
        is_shared: whether several taps go by what is read once: as far apart as points, what one
            reads the one before it read for the next point.
    """

    def __init__(self, builder: Any, points: int, lanes: int, is_shared: bool) -> None:
        self.builder, self.points, self.lanes = builder, points, lanes
        self.is_shared = is_shared
        self.vector = ir.VectorType(FLOAT, lanes)
        self._add = fused(builder, self.vector)

    def emit(
        self, x: Any, x_step: Any, x_line: Any, x_point: Any, out: Any, out_step: Any, w: Any,
        w_vector: Any, w_line: Any, tap_lines: Any, tap_points: Any, bias: Any, size: Any,
        least: Any, most: Any,
    ) -> None:  # fmt: skip
        """See `_strip`."""
        builder, wide = self.builder, 4 * self.lanes
        last = builder.sub(size, WORD(wide))
        shared = self._whole(tap_points, SHARED_TAPS) if self.is_shared else WORD(0)

        def vectors(count: int) -> Callable[[Any, list[Any]], list[Any]]:
            """So many vectors of channels; one alone ends with the last channel."""

            def emit(i: Any, nothing: list[Any]) -> list[Any]:
                numbers = [builder.add(builder.udiv(i, WORD(wide)), WORD(v)) for v in range(count)]
                by = [self._far(w, number, w_vector) for number in numbers]
                places = [builder.mul(number, WORD(wide)) for number in numbers]
                if count == 1:
                    places = [builder.select(builder.icmp_signed("<", i, last), i, last)]

                def line(down: Any, sums: list[Any]) -> list[Any]:
                    row, below = self._far(x, down, x_line), builder.mul(down, w_line)

                    def taps(count: int) -> Callable[[Any, list[Any]], list[Any]]:
                        def emit(right: Any, sums: list[Any]) -> list[Any]:
                            seen = self._far(row, right, x_point)
                            behind = self._far(below, right, WORD(wide))
                            found = list[Any]()
                            for place, first in zip(places, by, strict=True):
                                own = sums[len(found) : len(found) + self.points]
                                at = builder.add(first, behind)
                                weights = self._loads(at, WORD(wide), count)
                                found += self._taps(builder.add(seen, place), x_step, weights, own)
                            return found

                        return emit

                    if self.is_shared:
                        sums = looped(
                            builder, WORD(0), shared, SHARED_TAPS, sums, taps(SHARED_TAPS)
                        )
                    return looped(builder, shared, tap_points, 1, sums, taps(1))

                starts = [self._loads(builder.add(bias, one), WORD(0), 1) for one in places]
                sums = [start for (start,) in starts for _ in range(self.points)]
                sums = looped(builder, WORD(0), tap_lines, 1, sums, line)
                found = iter(bounded(builder, sums, least, most, self.lanes))
                for place in places:
                    for p in range(self.points):
                        to = self._far(builder.add(out, place), WORD(p), out_step)
                        builder.store(next(found), self._place(to), align=4)
                return []

            return emit

        some = WORD(0)
        if ACROSS > 1 and self.lanes > 1:
            some = self._whole(size, ACROSS * wide)
            looped(builder, WORD(0), some, ACROSS * wide, [], vectors(ACROSS))
        looped(builder, some, size, wide, [], vectors(1))

    def _taps(self, x: Any, x_step: Any, weights: list[Any], sums: list[Any]) -> list[Any]:
        """The sums and the products of taps that are as far apart as points."""
        numbers = self._loads(x, x_step, self.points + len(weights) - 1)
        for first, weight in enumerate(weights):
            pairs = zip(numbers[first:], sums, strict=False)
            sums = [self.builder.call(self._add, [one, weight, s]) for one, s in pairs]
        return sums

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


def _strip(points: int, lanes: int) -> Any:
    """Sums of neighbouring points: bias + Σ over taps of x · w, between `least` and `most`.

    All arguments but these two are addresses and distances in bytes, and numbers of taps. The last
    vector of channels ends with the last one, so some may be computed twice.
    """

    @intrinsic
    def strip(
        context, x, x_step, x_line, x_point, out, out_step, w, w_vector, w_line, tap_lines,
        tap_points, bias, size, least, most,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            is_even = builder.icmp_signed("==", arguments[1], arguments[3])
            is_wide = builder.icmp_signed(">=", arguments[10], WORD(2 * SHARED_TAPS))
            is_shared = builder.and_(is_even, is_wide)
            with builder.if_else(is_shared) as (shared, apart):
                with shared:
                    Strip(builder, points, lanes, True).emit(*arguments)
                with apart:
                    Strip(builder, points, lanes, False).emit(*arguments)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 13, *[types.float32] * 2), generate

    return strip


_S1, _S2, _S3, _S4, _S5, _S6, _S7, _S8 = (_strip(points, LANES) for points in range(1, STRIP + 1))
_channel = _strip(1, 1)


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
        x, step, job[GAP_LINES] * job[X_LINE], job[GAP_POINTS] * job[X_POINT], out, job[OUT_POINT],
        w, job[W_VECTOR], job[TAP_POINTS] * job[W_TAP], lines, taps, job[BIAS], size,
        float_of(job[LEAST]), float_of(job[MOST]),
    )  # fmt: skip
    if job[W_TAP] < 4 * LANES:
        for i in range(count):
            _channel(x + i * step, given[1], given[2], given[3], out + i * given[5], *given[5:])
    elif count == 8:
        _S8(*given)
    elif count == 7:
        _S7(*given)
    elif count == 6:
        _S6(*given)
    elif count == 5:
        _S5(*given)
    elif count == 4:
        _S4(*given)
    elif count == 3:
        _S3(*given)
    elif count == 2:
        _S2(*given)
    else:
        _S1(*given)
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
