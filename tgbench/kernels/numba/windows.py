"""Products of any number of rows, and convolutions, out of blocks: the compiled half.

For each point of the result and each element of the window there is a row of x, or a row of zeros
where the window reaches over the border. Where these rows lie is written down before (an
indirection buffer; M. Dukhan, "The Indirect Convolution Algorithm", 2019), so an image may have
gaps, and sizes, borders and places are arguments: one compiled function takes them all. A product
is a line of points, and windows of one element.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

from tgbench.kernels.numba.blocks import (
    AHEAD,
    IS_WIDE,
    LAID_OUT,
    LANES,
    PANEL,
    PART_BYTES,
    SHARED,
    TALL,
    WORD,
    across_of,
    address_of_blocks,
    call_blocks,
    compute,
    float_of,
    floats_at,
    lay_out_rows,
    number_of_thread,
    word_of,
    words_at,
)
from tgbench.kernels.numba.loops import ACTIVATIONS as ACTIVATIONS
from tgbench.kernels.numba.loops import (
    GELU,
    GELU_TANH,
    HARDSIGMOID,
    HARDSWISH,
    RELU,
    SILU,
    F,
    U,
    activated,
    kernel,
    long,
    native,
)

# Of a group: they stay in a cache while all panels go by. A thread's own memory is as large where
# panels are four times as wide; 7 × 7 points are one group.
MOST_ROWS = (9 if IS_WIDE else 32) * TALL
NO_ACTIVATION = -1
NONE = np.zeros(0, np.float32)


@intrinsic
def call_functions(context, functions, address, count, code):
    """Call `_all_functions` by its address."""

    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(ir.VoidType(), [WORD] * 3).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def _call_widening(context, widening, held, first, line, depth, width, to):
    """Call `_widen` by its address."""

    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(ir.VoidType(), [WORD] * 6).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 7), generate


# --- a job ---------------------------------------------------------------------------------------

# Words: addresses; distances in bytes, from image to image, line to line, and point to point; sizes
(X, X_IMAGE, X_LINE, X_POINT, OUT, OUT_IMAGE, OUT_LINE, OUT_POINT,
 MORE, MORE_IMAGE, MORE_LINE, MORE_POINT, W, GATE, BIAS, ZERO_ROW,
 X_LINES, X_POINTS, IMAGES, LINES, POINTS, TAP_LINES, TAP_POINTS, STEP_LINES, STEP_POINTS,
 GAP_LINES, GAP_POINTS, LOW_LINES, LOW_POINTS, DEPTH, COLUMNS, ACTIVATION, THREADS, GROUP,
 ROOM, ROOM_BYTES, THREAD_NUMBER, BLOCKS, FUNCTIONS, OWN_AREAS, HELD,
 W_LINE, WIDENING, LEAST, MOST) = range(45)  # fmt: skip
JOB = 45

OWN_BIAS = PANEL // 2  # words of a thread's memory: a bias that is cut by the last column
OWN, GATES, OWN_MORE = range(3)  # what there is besides where results are not written at once


def room_of(group: int, taps: int, columns: int, is_gated: bool, widened: int = 0) -> int:
    """Words of a thread: a bias, where rows of a group are, rows of its own, where these are; some
    behind the last are read. As many with an activation as without: calls are put together later.

    Args:
        widened: as many elements of a row of weights have room as a panel of float32.
    """
    own = 3 if is_gated or columns % PANEL else 1
    rows = group * (taps + 2 + own * (1 + PANEL // 2))
    return OWN_BIAS + rows + 3 * AHEAD + TALL + widened * (PANEL // 2)


@kernel
def _write_table(job, table, first, count):
    """Where the rows of some points are: of x for each tap, of the result, and of what is added."""
    for tap in range(job[TAP_LINES] * job[TAP_POINTS]):
        down = tap // job[TAP_POINTS] * job[GAP_LINES] - job[LOW_LINES]
        right = tap % job[TAP_POINTS] * job[GAP_POINTS] - job[LOW_POINTS]
        at, done = U(tap) * U(count), 0
        row, column = divmod(first, job[POINTS])
        while done < count:
            image, y = divmod(row, job[LINES])
            y = y * job[STEP_LINES] + down
            some = min(job[POINTS] - column, count - done)
            start = job[X] + image * job[X_IMAGE] + y * job[X_LINE] + right * job[X_POINT]
            inside = 0 <= y < job[X_LINES]
            for i in range(some):
                x = (column + i) * job[STEP_POINTS]
                is_there = inside and 0 <= x + right < job[X_POINTS]
                table[at + U(done + i)] = start + x * job[X_POINT] if is_there else job[ZERO_ROW]
            done, row, column = done + some, row + 1, 0
    outs = U(job[TAP_LINES] * job[TAP_POINTS] * count)
    mores = outs + U(count + AHEAD)
    done, row, column = 0, first // job[POINTS], first % job[POINTS]
    while done < count:
        image, y = divmod(row, job[LINES])
        some = min(job[POINTS] - column, count - done)
        out = job[OUT] + image * job[OUT_IMAGE] + y * job[OUT_LINE]
        more = job[MORE] + image * job[MORE_IMAGE] + y * job[MORE_LINE]
        for i in range(some):
            table[outs + U(done + i)] = out + (column + i) * job[OUT_POINT]
            table[mores + U(done + i)] = more + (column + i) * job[MORE_POINT]
        done, row, column = done + some, row + 1, 0
    for i in range(AHEAD):  # asked for with the last ones: the first ones' next panel
        ahead = U(min(i, count - 1))
        table[outs + U(count + i)] = table[outs + ahead] + 4 * PANEL
        table[mores + U(count + i)] = table[mores + ahead] + 4 * PANEL


@kernel
def _copy(sources, beside, targets, behind, rows, width):
    """Elements of rows to others; their addresses, and bytes behind each."""
    for r in range(rows):
        source, target = floats_at(sources[r] + beside), floats_at(targets[r] + behind)
        for i in range(width):
            target[i] = source[i]


def _widen(held, first, line, depth, width, to):
    """`lay_out_rows`, as it is called by its address."""
    lay_out_rows(held, first, line, depth, width, to)


@cache
def widening() -> int:
    """Where `_widen` begins."""
    return int(native(*[types.int64] * 6)(_widen).address)


def _all_functions(address, count, code):
    """Apply an activation to so many numbers."""
    there = floats_at(address)
    if code == GELU_TANH:
        for i in range(U(count)):
            there[i] = activated(there[i], GELU_TANH)
    elif code == SILU:
        for i in range(U(count)):
            there[i] = activated(there[i], SILU)
    elif code == GELU:
        for i in range(U(count)):
            there[i] = activated(there[i], GELU)
    elif code == HARDSWISH:
        for i in range(U(count)):
            there[i] = activated(there[i], HARDSWISH)
    elif code == HARDSIGMOID:
        for i in range(U(count)):
            there[i] = activated(there[i], HARDSIGMOID)
    else:
        for i in range(U(count)):
            there[i] = activated(there[i], RELU)


@kernel
def _in_parts(job, table, outs, mores, beside, behind, panel, count, bias, across, least, most):
    """Sums over all terms: over those of some taps, or over some of one tap, after the others."""
    taps, depth = job[TAP_LINES] * job[TAP_POINTS], job[DEPTH]
    wide = 4 * LANES * across
    terms = PART_BYTES // wide
    cuts = (depth + terms - 1) // terms
    some, deep = max(1, terms // depth), (depth + cuts - 1) // cuts
    for tap in range(0, taps, some):
        for first in range(0, depth, deep):
            width, steps = min(some, taps - tap), min(deep, depth - first)
            is_last = tap + width == taps and first + steps == depth
            call_blocks(
                job[BLOCKS], U(table + 8 * count * tap), U(4 * first), U(outs), U(mores),
                U(beside), U(behind), U(panel + wide * (depth * tap + first)), U(count),
                U(width), U(steps), U(bias), U(across), least if is_last else F(-np.inf),
                most if is_last else F(np.inf),
            )  # fmt: skip
            mores, behind, bias = outs, beside, job[ZERO_ROW]


@kernel
def _panel(job, own, count, panel):
    """One panel of a group of rows, whose table is written; own: the address of memory.

    What is cut by the last column, or goes on from its sums, is first computed into memory of the
    thread's own, where rows lie one behind the other.
    """
    taps, depth, group = job[TAP_LINES] * job[TAP_POINTS], job[DEPTH], job[GROUP]
    code, least, most = job[ACTIVATION], float_of(job[LEAST]), float_of(job[MOST])
    laid_out, at = 4 * PANEL * taps * depth * panel, 4 * PANEL * panel
    width, bias = min(PANEL, job[COLUMNS] - PANEL * panel), job[ZERO_ROW]
    across = across_of(width)
    weights = job[W] + laid_out
    if job[HELD] != LAID_OUT:
        weights = own + job[ROOM_BYTES] - 4 * PANEL * depth
        rows = job[W] + PANEL * panel * job[W_LINE]
        _call_widening(job[WIDENING], job[HELD], rows, job[W_LINE], depth, width, weights)
    table = own + 8 * OWN_BIAS
    theirs = table + 8 * taps * count
    mores = theirs + 8 * (count + AHEAD) if job[MORE] else 0
    rows = table + 8 * ((taps + 2) * group + 2 * AHEAD)
    results = rows + 8 * job[OWN_AREAS] * group
    outs, beside, behind = theirs, at, at
    is_cut = width < LANES * across
    is_own = is_cut or code != NO_ACTIVATION
    if job[BIAS]:
        bias = job[BIAS] + at
    if is_own:
        outs, beside = rows + 8 * OWN * group, 0
    if is_cut:
        if mores:
            own_mores = rows + 8 * OWN_MORE * group
            _copy(words_at(mores), at, words_at(own_mores), 0, count, width)
            mores, behind = own_mores, 0
        if job[BIAS]:
            source, target = floats_at(bias), floats_at(own)
            for i in range(width):
                target[i] = source[i]
            bias = own
    _in_parts(job, table, outs, mores, beside, behind, weights, count, bias, across, least, most)
    if job[GATE]:
        _in_parts(
            job, table, rows + 8 * GATES * group, 0, 0, 0, job[GATE] + laid_out, count,
            job[ZERO_ROW], across, least, most,
        )  # fmt: skip
        first, second = results, results + 4 * PANEL * GATES * group
        call_functions(job[FUNCTIONS], second, PANEL * count, code)
        result, gate = floats_at(first), floats_at(second)
        for i in range(U(PANEL * count)):
            result[i] *= gate[i]
    elif code != NO_ACTIVATION:
        call_functions(job[FUNCTIONS], results, PANEL * count, code)
    if is_own:
        _copy(words_at(outs), 0, words_at(theirs), at, count, width)


@kernel
def _part(job, own, first, last, first_panel, last_panel):
    """Points and panels of a result, by one thread; own: the address of its memory."""
    table = own + 8 * OWN_BIAS
    taps, group = job[TAP_LINES] * job[TAP_POINTS], job[GROUP]
    if job[ACTIVATION] != NO_ACTIVATION or job[COLUMNS] % PANEL:
        rows, count = table + 8 * ((taps + 2) * group + 2 * AHEAD), job[OWN_AREAS] * group
        addresses = words_at(rows)
        for r in range(count):
            addresses[r] = rows + 8 * count + 4 * PANEL * r
    groups = (last - first + group - 1) // group
    for g in range(groups):
        start = first + (last - first) * g // groups
        count = first + (last - first) * (g + 1) // groups - start
        _write_table(job, words_at(table), start, count)
        for panel in range(first_panel, last_panel):
            _panel(job, own, count, panel)


@kernel
def _share(job, thread, threads):
    """What one of some threads computes: of points or of panels, of which there are more."""
    last = job[IMAGES] * job[LINES] * job[POINTS]
    last_panel = (job[COLUMNS] + PANEL - 1) // PANEL
    first = first_panel = 0
    if last // TALL > last_panel:
        first, last = last * thread // threads, last * (thread + 1) // threads
    else:
        first_panel = last_panel * thread // threads
        last_panel = last_panel * (thread + 1) // threads
    own = job[ROOM] + thread * job[ROOM_BYTES]
    _part(job, own, first, last, first_panel, last_panel)


def _thread(job):
    words = carray(job, JOB)
    threads = words[THREADS]
    _share(words, number_of_thread(words[THREAD_NUMBER]) if threads > 1 else 0, threads)


@cache
def computing() -> tuple[int, int, int]:
    """Addresses of what threads call, with a job; of what computes blocks, and of activations."""
    job = native(types.CPointer(types.int64))(_thread).address
    functions = native(*[types.int64] * 3)(_all_functions).address
    return int(job), address_of_blocks(), int(functions)


@kernel
def copy_image(x, strides, copied, sizes):
    """An image without gaps, its channels side by side."""
    images, lines, points, depth = sizes
    to = 0
    for image in range(images):
        for line in range(lines):
            at = image * strides[0] + line * strides[1]
            for c in range(depth):
                for i in range(points):
                    copied[to + i * depth + c] = x[at + i * strides[2] + c * strides[3]]
            to += points * depth


@long
def multiply(
    words, x, copied, w, gate, bias, out, more, zeros, x_image, x_line, x_point, x_channel,
    out_image, out_line, out_point, more_image, more_line, more_point, x_lines, x_points, images,
    lines, points, tap_lines, tap_points, step_lines, step_points, gap_lines, gap_points, low_lines,
    low_points, depth, columns, activation, least, most, held, w_line, widening, group, threads,
    room, fork, number, computing, blocks, functions,
):  # fmt: skip
    """A convolution, or a product, which is one of a line of points and windows of one element.

        out = activation(x ∗ w + bias + more)     or, with gates,  activation(x · gate) · (x · w)

    A result without an activation is between `least` and `most`.

    x [images, x_lines, x_points, depth], out and more [images, lines, points, columns] have
    distances between their images, lines and points; their last dimension is contiguous, or that of
    x is when it is `copied`, to an array as large at least. w and gate are laid out, or w is `held`
    otherwise, its rows so many bytes apart; an empty array stands for no bias, gate or more. lows:
    how far the first window reaches over the border.
    words: `JOB`, and `room_of(…)` for each thread.
    """
    job = words[:JOB]
    job[X], job[X_IMAGE], job[X_LINE], job[X_POINT] = (
        x.ctypes.data, 4 * x_image, 4 * x_line, 4 * x_point
    )  # fmt: skip
    if len(copied):
        sizes = images, x_lines, x_points, depth
        copy_image(x, (x_image, x_line, x_point, x_channel), copied, sizes)
        job[X], job[X_POINT] = copied.ctypes.data, 4 * depth
        job[X_LINE] = x_points * job[X_POINT]
        job[X_IMAGE] = x_lines * job[X_LINE]
    job[OUT], job[W], job[ZERO_ROW] = out.ctypes.data, w.ctypes.data, zeros.ctypes.data
    job[MORE] = more.ctypes.data if len(more) else 0
    job[GATE] = gate.ctypes.data if len(gate) else 0
    job[BIAS] = bias.ctypes.data if len(bias) else 0
    job[OUT_IMAGE], job[OUT_LINE], job[OUT_POINT] = 4 * out_image, 4 * out_line, 4 * out_point
    job[MORE_IMAGE], job[MORE_LINE], job[MORE_POINT] = (
        4 * more_image, 4 * more_line, 4 * more_point
    )  # fmt: skip
    job[X_LINES], job[X_POINTS] = x_lines, x_points
    job[IMAGES], job[LINES], job[POINTS] = images, lines, points
    job[TAP_LINES], job[TAP_POINTS] = tap_lines, tap_points
    job[STEP_LINES], job[STEP_POINTS] = step_lines, step_points
    job[GAP_LINES], job[GAP_POINTS] = gap_lines, gap_points
    job[LOW_LINES], job[LOW_POINTS] = low_lines, low_points
    job[DEPTH], job[COLUMNS], job[ACTIVATION], job[GROUP] = depth, columns, activation, group
    job[HELD], job[W_LINE], job[WIDENING] = held, w_line, widening
    job[LEAST], job[MOST] = word_of(least), word_of(most)
    job[THREAD_NUMBER], job[BLOCKS], job[FUNCTIONS] = number, blocks, functions
    job[ROOM] = words.ctypes.data + 8 * JOB
    job[ROOM_BYTES] = 8 * room
    job[OWN_AREAS] = 3 if len(gate) or columns % PANEL else 1
    count = images * lines * points * tap_lines * tap_points * depth * columns
    job[THREADS] = threads if count >= SHARED else 1
    compute(job, job[THREADS], fork, computing)
