"""Convolutions of 3 × 3 by Winograd's minimal filtering, F(2 × 2, 3 × 3): the compiled half.

    4 × 4 points of x ─→ Bᵀ x B ─┐  16 products, each over all channels,
                                 ├─ of all tiles of a group with a panel ─→ Aᵀ · A ─→ 2 × 2 points
    3 × 3 weights ────→ G w Gᵀ ──┘  of weights (`blocks`)

Four points of the result take 16 multiplications a channel instead of 36. What is multiplied is
rounded once more on the way, and sums have a ninth as many terms: they are about as near as those
of the definition are. Of whole numbers they are exact, as weights are divided by 4 at the most.

Windows of an image are computed as a whole image is; what lies behind the last point that the
result needs counts as zero, and is not read.

Source: A. Lavin, S. Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from tgbench.base.machine import cache_bytes
from tgbench.kernels.numba import blocks
from tgbench.kernels.numba.blocks import (
    AHEAD,
    LANES,
    LINE,
    PANEL,
    SHARED,
    TALL,
    VECTOR,
    WORD,
    across_of,
    address_of_blocks,
    call_blocks,
    compute,
    float_of,
    number_of_thread,
    word_of,
    words_at,
)
from tgbench.kernels.numba.loops import F, U, kernel, long, native
from tgbench.kernels.numba.sums import bounded, looped
from tgbench.kernels.numba.windows import copy_image

SIDE, RESULT, WINDOW = 4, 2, 3  # of a tile, of what it gives, of weights
PLACES = SIDE * SIDE  # products of a tile
POINTS_OF = RESULT * RESULT  # of a tile's result
TABLE = PLACES + 2 * POINTS_OF  # words of a tile: where x, the result and what is added are
MOST_TILES = 9 * TALL  # of a group
TURNED_BYTES = cache_bytes(2) or 1 << 20  # of a group: they are read again for each panel
NONE = np.zeros(0, np.float32)

# Words: addresses; distances in bytes, from image to image, line to line, and point to point; sizes
(X, X_IMAGE, X_LINE, X_POINT, OUT, OUT_IMAGE, OUT_LINE, OUT_POINT,
 MORE, MORE_IMAGE, MORE_LINE, MORE_POINT, W, BIAS, ZERO_ROW, X_LINES, X_POINTS,
 IMAGES, LINES, POINTS, LOW_LINES, LOW_POINTS, DEPTH, COLUMNS, LEAST, MOST, GROUP,
 THREADS, ROOM, ROOM_BYTES, THREAD_NUMBER, BLOCKS, BY_PANELS, GAP_LINES,
 GAP_POINTS) = range(35)  # fmt: skip
JOB = 40  # whole lines of a cache


def laid_out(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights [columns, depth, 3, 3] as [panel, place, depth, column], flat: see `blocks`.

    >>> laid_out(np.ones((LANES, 2, 3, 3), np.float32)).reshape(-1, LANES)[:4, 0].tolist()
    [1.0, 1.0, 1.5, 1.5]
    """
    by_element = np.ascontiguousarray(weight.transpose(2, 3, 1, 0), np.float64)
    places = [one for line in _weighted(*by_element) for one in _weighted(*line)]
    turned = np.stack([place.astype(np.float32) for place in places])
    return blocks.laid_out(turned.transpose(2, 1, 0))


def _weighted(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
    """G w, of a column: of many at once, as so small a product takes as long as a hundred sums."""
    return a, (a + c + b) / 2, (a + c - b) / 2, c


def group_of(tiles: int, depth: int) -> int:
    """How many tiles go by one panel after the other."""
    some = TURNED_BYTES // (4 * PLACES * depth)
    return max(1, min(tiles, MOST_TILES, max(some, TALL)))


def room_of(group: int, depth: int, columns: int) -> int:
    """Words of a thread: turned tiles, their products, a row for nobody, tables; some behind the
    last row of a table are read.
    """
    floats = group * PLACES * (depth + PANEL) + columns + columns % 2
    words = floats // 2 + group * (TABLE + 2) + 2 * (AHEAD + TALL)
    return words + -words % LINE  # whole lines of a cache


# --- tiles ---------------------------------------------------------------------------------------


def _plus(builder: Any, a: Any, b: Any) -> Any:
    return builder.fadd(a, b)


def _minus(builder: Any, a: Any, b: Any) -> Any:
    return builder.fsub(a, b)


def _turned(builder: Any, x: list[Any]) -> list[Any]:
    """Bᵀ x, of a column."""
    a, b, c, d = x
    return [
        _minus(builder, a, c), _plus(builder, b, c), _minus(builder, c, b), _minus(builder, b, d)
    ]  # fmt: skip


def _gathered(builder: Any, m: list[Any]) -> list[Any]:
    """Aᵀ m, of a column."""
    a, b, c, d = m
    both = _plus(builder, b, c), _minus(builder, b, c)
    return [_plus(builder, a, both[0]), _minus(builder, both[1], d)]


def _by_both(builder: Any, square: list[Any], column: Any) -> list[Any]:
    """A function of columns, of those of a square and then of the rows of what that gives; the
    square by rows, the result too.
    """
    columns = [column(builder, square[i::SIDE]) for i in range(SIDE)]
    rows = zip(*columns, strict=True)
    return [one for row in rows for one in column(builder, list(row))]


def _vector_at(builder: Any, address: Any, behind: Any) -> Any:
    return builder.inttoptr(builder.add(address, behind), VECTOR.as_pointer())


def _words(builder: Any, address: Any, count: int) -> list[Any]:
    at = builder.inttoptr(address, WORD.as_pointer())
    return [builder.load(builder.gep(at, [WORD(i)])) for i in range(count)]


@intrinsic
def _turn(context, table, to, apart, size):
    """Bᵀ x B of a tile, channel by channel: of x at 16 addresses, to 16 places so many bytes apart;
    `size` is in bytes.
    """

    def generate(context, builder, signature, arguments):
        table, to, apart, size = arguments
        sources = _words(builder, table, PLACES)
        targets = [builder.add(to, builder.mul(apart, WORD(i))) for i in range(PLACES)]

        def step(at: Any, nothing: list[Any]) -> list[Any]:
            square = [builder.load(_vector_at(builder, one, at), align=4) for one in sources]
            for one, target in zip(_by_both(builder, square, _turned), targets, strict=True):
                builder.store(one, _vector_at(builder, target, at), align=4)
            return []

        looped(builder, WORD(0), size, 4 * LANES, [], step)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def _finish(context, products, apart, table, bias, beside, size, least, most):
    """Aᵀ m A of a tile, and what is added, between `least` and `most`, column by column: of
    products at 16 places so many bytes apart, to four addresses; what is added lies at four others,
    and a bias: all so many bytes `beside` these. `size` is in bytes.
    """

    def generate(context, builder, signature, arguments):
        products, apart, table, bias, beside, size, least, most = arguments
        sources = [builder.add(products, builder.mul(apart, WORD(i))) for i in range(PLACES)]
        start = builder.add(bias, beside)
        places = _words(builder, table, 2 * POINTS_OF)

        def step(at: Any, nothing: list[Any]) -> list[Any]:
            square = [builder.load(_vector_at(builder, one, at), align=4) for one in sources]
            first = builder.load(_vector_at(builder, start, at), align=4)
            behind = builder.add(at, beside)
            there = [_vector_at(builder, one, behind) for one in places]
            outs, mores = there[:POINTS_OF], there[POINTS_OF:]
            for one, out, more in zip(
                _by_both(builder, square, _gathered), outs, mores, strict=True
            ):
                added = builder.fadd(first, builder.load(more, align=4))
                (found,) = bounded(builder, [builder.fadd(one, added)], least, most, LANES)
                builder.store(found, out, align=4)
            return []

        looped(builder, WORD(0), size, 4 * LANES, [], step)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 6, *[types.float32] * 2), generate


@kernel
def tiles_along(size, gap):
    """How many tiles there are along a dimension, whose points are so far apart: of each of the
    grids that these make as many.
    """
    return gap * ((size + RESULT * gap - 1) // (RESULT * gap))


@kernel
def _write_table(job, table, first, count, nobody):
    """Where the points of some tiles are: of x, of the result, and of what is added."""
    across, down = (
        tiles_along(job[POINTS], job[GAP_POINTS]),
        tiles_along(job[LINES], job[GAP_LINES]),
    )
    gap_y, gap_x = job[GAP_LINES], job[GAP_POINTS]
    for tile in range(first, first + count):
        row, column = divmod(tile, across)
        image, row = divmod(row, down)
        y = row // gap_y * RESULT * gap_y + row % gap_y
        x = column // gap_x * RESULT * gap_x + column % gap_x
        lines = (y < job[LINES]) + (y + gap_y < job[LINES])
        points = (x < job[POINTS]) + (x + gap_x < job[POINTS])
        at = TABLE * (tile - first)
        for i in range(SIDE):
            line = y + i * gap_y - job[LOW_LINES]
            is_line = 0 <= line < job[X_LINES] and i < lines + WINDOW - 1
            start = job[X] + image * job[X_IMAGE] + line * job[X_LINE]
            for j in range(SIDE):
                point = x + j * gap_x - job[LOW_POINTS]
                is_there = is_line and 0 <= point < job[X_POINTS] and j < points + WINDOW - 1
                table[at + SIDE * i + j] = (
                    start + point * job[X_POINT] if is_there else job[ZERO_ROW]
                )
        at += PLACES
        out = job[OUT] + image * job[OUT_IMAGE] + y * job[OUT_LINE] + x * job[OUT_POINT]
        more = job[MORE] + image * job[MORE_IMAGE] + y * job[MORE_LINE] + x * job[MORE_POINT]
        for i in range(RESULT):
            for j in range(RESULT):
                is_there = i < lines and j < points
                there = out + i * gap_y * job[OUT_LINE] + j * gap_x * job[OUT_POINT]
                table[at] = there if is_there else nobody
                is_more = is_there and job[MORE] != 0
                added = more + i * gap_y * job[MORE_LINE] + j * gap_x * job[MORE_POINT]
                table[at + POINTS_OF] = added if is_more else job[ZERO_ROW]
                at += 1


@kernel
def _part(job, own, first, last, first_panel, last_panel):
    """Tiles and panels of a result, by one thread; own: the address of its memory."""
    depth, group = job[DEPTH], job[GROUP]
    turned = own
    products = turned + 4 * PLACES * group * depth
    nobody = products + 4 * PLACES * group * PANEL
    table = nobody + 4 * (job[COLUMNS] + job[COLUMNS] % 2)
    xs = table + 8 * TABLE * group
    sums = xs + 8 * (group + AHEAD + TALL)
    least, most = float_of(job[LEAST]), float_of(job[MOST])
    groups = (last - first + group - 1) // group
    for g in range(groups):
        start = first + (last - first) * g // groups
        count = first + (last - first) * (g + 1) // groups - start
        _write_table(job, words_at(table), start, count, nobody)
        rows, targets = words_at(xs), words_at(sums)
        for r in range(count):
            rows[r] = turned + 4 * depth * r
            _turn(table + 8 * TABLE * r, rows[r], 4 * depth * count, 4 * depth)
        for panel in range(first_panel, last_panel):
            width = min(PANEL, job[COLUMNS] - PANEL * panel)
            wide = 4 * LANES * across_of(width)
            weights = job[W] + 4 * PANEL * PLACES * depth * panel
            for r in range(count + AHEAD):
                targets[r] = products + wide * min(r, count - 1)
            for place in range(PLACES):
                call_blocks(
                    job[BLOCKS], U(xs), U(4 * depth * count * place), U(sums), U(0),
                    U(wide * count * place), U(0), U(weights + wide * depth * place), U(count),
                    U(1), U(depth), U(job[ZERO_ROW]), U(across_of(width)), F(-np.inf),
                    F(np.inf),
                )  # fmt: skip
            for r in range(count):
                places = table + 8 * (TABLE * r + PLACES)
                _finish(
                    products + wide * r, wide * count, places, job[BIAS], 4 * PANEL * panel,
                    4 * width, least, most,
                )  # fmt: skip


@kernel
def _share(job, thread, threads):
    """What one of some threads computes: of tiles, or of panels."""
    down, across = (
        tiles_along(job[LINES], job[GAP_LINES]),
        tiles_along(job[POINTS], job[GAP_POINTS]),
    )
    last = job[IMAGES] * down * across
    last_panel = (job[COLUMNS] + PANEL - 1) // PANEL
    first = first_panel = 0
    if job[BY_PANELS]:
        first_panel = last_panel * thread // threads
        last_panel = last_panel * (thread + 1) // threads
    else:
        first, last = last * thread // threads, last * (thread + 1) // threads
    own = job[ROOM] + thread * job[ROOM_BYTES]
    _part(job, own, first, last, first_panel, last_panel)


def _thread(job):
    words = carray(job, JOB)
    threads = words[THREADS]
    _share(words, number_of_thread(words[THREAD_NUMBER]) if threads > 1 else 0, threads)


@cache
def computing() -> tuple[int, int]:
    """Addresses of what threads call, with a job, and of what computes blocks."""
    return int(native(types.CPointer(types.int64))(_thread).address), address_of_blocks()


@long
def convolve(
    words, x, copied, w, bias, out, more, zeros, x_image, x_line, x_point, x_channel, out_image,
    out_line, out_point, more_image, more_line, more_point, x_lines, x_points, images, lines,
    points, gap_lines, gap_points, low_lines, low_points, depth, columns, least, most, group,
    threads, room, fork, number, computing, blocks,
):  # fmt: skip
    """out = x ∗ w + bias + more, between `least` and `most`.

    Operands are those of `windows.multiply`, with windows of 3 × 3 that begin one point apart, and
    whose elements are gaps apart: as many grids lie in each other, each with tiles of its own. w is
    `laid_out`, depth and columns are multiples of a vector's.
    words: `JOB`, and `room_of(…)` for each thread.
    """
    job = words[:JOB]
    job[X], job[OUT], job[W] = x.ctypes.data, out.ctypes.data, w.ctypes.data
    job[X_IMAGE], job[X_LINE], job[X_POINT] = 4 * x_image, 4 * x_line, 4 * x_point
    if len(copied):
        sizes = images, x_lines, x_points, depth
        copy_image(x, (x_image, x_line, x_point, x_channel), copied, sizes)
        job[X], job[X_POINT] = copied.ctypes.data, 4 * depth
        job[X_LINE] = x_points * job[X_POINT]
        job[X_IMAGE] = x_lines * job[X_LINE]
    job[OUT_IMAGE], job[OUT_LINE], job[OUT_POINT] = 4 * out_image, 4 * out_line, 4 * out_point
    job[MORE] = more.ctypes.data if len(more) else 0
    job[MORE_IMAGE], job[MORE_LINE], job[MORE_POINT] = (
        4 * more_image, 4 * more_line, 4 * more_point
    )  # fmt: skip
    job[ZERO_ROW] = zeros.ctypes.data
    job[BIAS] = bias.ctypes.data if len(bias) else job[ZERO_ROW]
    job[X_LINES], job[X_POINTS] = x_lines, x_points
    job[IMAGES], job[LINES], job[POINTS] = images, lines, points
    job[GAP_LINES], job[GAP_POINTS] = gap_lines, gap_points
    job[LOW_LINES], job[LOW_POINTS], job[DEPTH], job[COLUMNS] = (
        low_lines, low_points, depth, columns
    )  # fmt: skip
    job[LEAST], job[MOST], job[GROUP] = word_of(least), word_of(most), group
    job[THREAD_NUMBER], job[BLOCKS] = number, blocks
    job[ROOM], job[ROOM_BYTES] = words.ctypes.data + 8 * JOB, 8 * room
    panels = (columns + PANEL - 1) // PANEL
    tiles = images * tiles_along(lines, gap_lines) * tiles_along(points, gap_points)
    job[THREADS] = threads if 4 * PLACES * tiles * depth * columns >= SHARED else 1
    is_large = 4 * PLACES * depth * columns > TURNED_BYTES
    job[BY_PANELS] = (is_large and panels % threads == 0) or tiles < TALL * threads
    compute(job, job[THREADS], fork, computing)
