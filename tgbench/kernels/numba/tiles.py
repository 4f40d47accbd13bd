"""Products cut into tiles that threads share: the compiled half of a `team`.

What threads share is one array of words (int64); what one thread writes often and another reads
lies on cache lines of its own:

    NUMBER    of the job; tiles are marked with it, so nothing is ever cleared
    TASK      the job: addresses and sizes
    TILES     a word a tile
    HELPERS   of each, the job that it is at, or 0

A tile's word is below 4 · NUMBER while nobody has it, then 4 · NUMBER + whose it is; it is changed
by compare-and-swap alone. Who comes late to a job finds no tile below that, and touches nothing.
NUMBER is 0 while TASK is written, so a helper that read a job and finds the number unchanged has
read one job.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array
from numpy.typing import NDArray

from tgbench.kernels.numba import loops
from tgbench.kernels.numba.loops import (
    ADD,
    MUL,
    U,
    activate,
    combine,
    gated_linear,
    kernel,
    linear,
    linear_columns,
    long,
    native,
    products,
)

# A team sets the first three: polls that a helper may take for a KiB of weights before its tile is
# taken back, polls without work after which a helper returns, bytes of a tile's weights.
PATIENCE, IDLE, LEAST, LAST, NUMBER, TASK, TILES = 0, 1, 2, 3, 16, 32, 64
JOB = 20  # words of a job
MOST_TILES = 256
HELPERS = TILES + MOST_TILES
LINE = 16  # words of two cache lines, which are fetched together
MINE, THEIRS, COPIED, READY = range(4)  # whose a tile is
TILE_BYTES = 1 << 18  # of a tile's outputs at most: what a helper has room for


def words_of(helpers: int) -> NDArray[np.int64]:
    """Words for so many helpers."""
    count = HELPERS + helpers * LINE
    words = np.zeros(count + LINE, np.int64)
    ahead = -(words.ctypes.data // 8) % LINE
    return words[ahead : ahead + count]


def memory_of_helper() -> NDArray[np.int32]:
    """What a helper computes into, and the job that it is at."""
    return np.empty((2 * TILE_BYTES + 8 * JOB) // 4, np.int32)


# --- words ----------------------------------------------------------------------------------------


def _place(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(make_array(array_type)(context, builder, array).data, [index])


@intrinsic
def _read(context, words, index):
    """words[index], and what its writer wrote before."""

    def generate(context, builder, signature, arguments):
        place = _place(context, builder, signature.args[0], *arguments)
        return builder.load_atomic(place, "acquire", 8)

    return types.int64(words, types.intp), generate


@intrinsic
def _write(context, words, index, value):
    """words[index] = value, behind all that was written before."""

    def generate(context, builder, signature, arguments):
        *place, value = arguments
        at = _place(context, builder, signature.args[0], *place)
        builder.store_atomic(value, at, "release", 8)
        return context.get_dummy_value()

    return types.void(words, types.intp, types.int64), generate


@intrinsic
def _swap(context, words, index, old, new):
    """words[index] = new if it is old; whether it was."""

    def generate(context, builder, signature, arguments):
        *place, old, new = arguments
        at = _place(context, builder, signature.args[0], *place)
        return builder.extract_value(builder.cmpxchg(at, old, new, "acq_rel", "acquire"), 1)

    return types.boolean(words, types.intp, types.int64, types.int64), generate


@intrinsic
def _pause(context):
    """Tell the processor that this thread waits: its twin on the same core goes faster."""
    is_x86 = binding.get_process_triple().startswith(("x86_64", "i686"))

    def generate(context, builder, signature, arguments):
        if is_x86:
            kind = ir.FunctionType(ir.VoidType(), [])
            name = "llvm.x86.sse2.pause"
            builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def _pointer(context, address, like):
    """An address as a pointer to what another one, or an array, is of."""
    kind = types.CPointer(like.dtype)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64, like), generate


@kernel
def _elements(address, like):
    """The elements at an address, as a flat array whose end nobody checks."""
    return numba.carray(_pointer(address, like), 1)


@intrinsic
def _call(context, address, words, index, start, stop, out, stride, spare):
    """Compute columns start to stop of the job at words[index] by the function at an address."""

    def generate(context, builder, signature, arguments):
        address, words, index, *rest = arguments
        job = _place(context, builder, signature.args[1], words, index)
        number = ir.IntType(64)
        kind = ir.FunctionType(ir.VoidType(), [number.as_pointer(), *[number] * 7])
        function = builder.inttoptr(address, kind.as_pointer())
        builder.call(function, [job, *rest, number(0), number(0)])
        return context.get_dummy_value()

    return types.void(types.int64, words, types.intp, *[types.int64] * 5), generate


# --- what a job is --------------------------------------------------------------------------------

# Words of every job, then those of a product: addresses, distances between rows in elements
COMPUTED_BY, COUNT, WIDE, OUT, OUT_STRIDE, ITEM, ROWS, SPARE, ALLOWED, POLLS = range(10)
X, X_STRIDE, W, W_STRIDE, DEPTH, BIAS, SECOND, SECOND_STRIDE, ACTIVATION, AHEAD = range(10, 20)


# What computes a tile is given the job's words; the first column and the one behind the last; where
# the first element of these goes, and how far rows are apart; memory for as much again; and two
# pointers that only say of which dtype x and weights are: then one source serves all.


@kernel
def _columns(task, x, w, w_stride, start, stop, y, stride):
    products(
        x, U(0), U(task[X_STRIDE]), w, U(0), U(w_stride), y, U(0) - U(start), U(stride),
        U(task[ROWS]), U(start), U(stop), U(task[DEPTH]), U(task[AHEAD]),
    )  # fmt: skip


def _linear_tile(job, start, stop, out, stride, spare, element, weight):
    task, y = numba.carray(job, JOB), _elements(out, element)
    x, w = _elements(task[X], element), _elements(task[W], weight)
    _columns(task, x, w, task[W_STRIDE], start, stop, y, stride)
    if task[BIAS]:
        bias = _elements(task[BIAS], element)
        for r in range(U(task[ROWS])):
            for i in range(U(stop - start)):
                y[r * U(stride) + i] += bias[U(start) + i]


def _gated_tile(job, start, stop, out, stride, spare, element, weight):
    task, y, up = numba.carray(job, JOB), _elements(out, element), _elements(spare, element)
    x, w = _elements(task[X], element), _elements(task[W], weight)
    rows, width = task[ROWS], stop - start
    _columns(task, x, w, task[W_STRIDE], start, stop, y, stride)
    _columns(
        task, x, _elements(task[SECOND], weight), task[SECOND_STRIDE], start, stop, up, width
    )  # fmt: skip
    activate(y, stride, y, stride, rows, width, task[ACTIVATION])
    combine(y, stride, up, width, 0, y, stride, rows, width, MUL)


def _partial_tile(job, start, stop, out, stride, spare, element, weight):
    """What a part of the rows of w adds to each column: a tile is as wide as w."""
    task, y = numba.carray(job, JOB), _elements(out, element)
    width, depth = task[WIDE], task[DEPTH]
    part, parts = start // width, task[COUNT] // width
    first, last = depth * part // parts, depth * (part + 1) // parts
    x = _elements(task[X] + first * task[ITEM], element)
    w = _elements(task[W] + first * task[W_STRIDE] * task[ITEM], weight)
    linear_columns(
        x, task[X_STRIDE], w, task[W_STRIDE], y, stride, task[ROWS], width, last - first
    )  # fmt: skip


TILES_OF = {"linear": _linear_tile, "gated": _gated_tile, "columns": _partial_tile}


@cache
def computing(kind: str, stored: str, product: str = "linear") -> int:
    """The address of the function that computes a tile of a product, of x and of weights of these
    dtypes.
    """
    element, weight = (types.CPointer(loops.scalar(dtype)) for dtype in (kind, stored))
    numbers = [types.int64] * 5
    compiled = native(types.CPointer(types.int64), *numbers, element, weight)(TILES_OF[product])
    found: int = compiled.address
    return found


# --- callers and helpers --------------------------------------------------------------------------


@kernel
def _take(words, tile, number, whose):
    """Have a tile that nobody has; whether nobody had it."""
    now = _read(words, TILES + tile)
    return now < 4 * number and _swap(words, TILES + tile, now, 4 * number + whose)


@kernel
def _compute(words, tile):
    """A tile of the caller's job, where its outputs belong."""
    start = tile * words[TASK + WIDE]
    stop = min(words[TASK + COUNT], start + words[TASK + WIDE])
    out = words[TASK + OUT] + start * words[TASK + ITEM]
    _call(
        words[TASK + COMPUTED_BY], words, TASK, start, stop, out, words[TASK + OUT_STRIDE],
        words[TASK + SPARE],
    )  # fmt: skip


@long
def share(words):
    """Do the job at TASK, with helpers that come; how many are still at one."""
    tiles = (words[TASK + COUNT] + words[TASK + WIDE] - 1) // words[TASK + WIDE]
    number = words[LAST] + 1
    words[LAST] = number
    _write(words, NUMBER, number)
    for tile in range(tiles):
        if _take(words, tile, number, MINE):
            _compute(words, tile)
            _write(words, TILES + tile, 4 * number + READY)
    for tile in range(tiles):
        waited, word = 0, TILES + tile
        while _read(words, word) != 4 * number + READY:
            waited += 1
            is_late = waited > words[TASK + POLLS]
            if is_late and _swap(words, word, 4 * number + THEIRS, 4 * number + MINE):
                _compute(words, tile)
                _write(words, word, 4 * number + READY)
            _pause()
    busy = 0
    for at in range(HELPERS, len(words), LINE):
        busy += _read(words, at) != 0
    return busy


@long
def serve(words, helper, memory):
    """Help with jobs until none comes for a while.

    memory: of a helper, for what is computed before it is copied.
    """
    at, waited, last = HELPERS + helper * LINE, 0, 0
    own = memory.ctypes.data
    task = numba.carray(_pointer(own + 2 * TILE_BYTES, words), JOB)
    while waited < words[IDLE]:
        number = _read(words, NUMBER)
        if number in (0, last):
            waited += 1
            _pause()
            continue
        _write(words, at, number)
        for i in range(JOB):
            task[i] = _read(words, TASK + i)
        if _read(words, NUMBER) == number:
            waited, last = 0, number
            if helper < task[ALLOWED]:
                first = (helper + 1) / (task[ALLOWED] + 1)
                _help(words, task, number, first, memory)
        _write(words, at, 0)


@kernel
def _help(words, task, number, first, memory):
    """Take tiles of a job that nobody has, beginning at a share of them."""
    own, count, wide, stride = memory.ctypes.data, task[COUNT], task[WIDE], task[OUT_STRIDE]
    tiles, whole = (count + wide - 1) // wide, task[ITEM] // 4
    theirs = _elements(task[OUT], memory)
    for i in range(tiles):
        tile = (int(tiles * first) + i) % tiles
        if not _take(words, tile, number, THEIRS):
            continue
        start = tile * wide
        width = min(count, start + wide) - start
        _call(task[COMPUTED_BY], task, 0, start, start + width, own, width, own + TILE_BYTES)
        if _swap(words, TILES + tile, 4 * number + THEIRS, 4 * number + COPIED):
            for r in range(task[ROWS]):
                for c in range(width * whole):
                    theirs[(r * stride + start) * whole + c] = memory[r * width * whole + c]
            _write(words, TILES + tile, 4 * number + READY)


@long
def wait(words, polls):
    """Look at a word so many times, as who waits does."""
    for _ in range(polls):
        if _read(words, NUMBER) >= 0:  # it always is
            _pause()


def are_busy(words: NDArray[np.int64]) -> bool:
    """Whether a helper is still at a job."""
    return bool(words[HELPERS::LINE].any())


# --- products -------------------------------------------------------------------------------------


@kernel
def _job(words, helpers, address, x, xs, w, ws, y, ys, rows, n, k, ahead, weight_bytes):
    """A product as the job at TASK, if there are tiles to share; weight_bytes: of a column."""
    least = max(words[LEAST] // weight_bytes, (n + MOST_TILES - 1) // MOST_TILES)
    wide = (least + 3) // 4 * 4
    if wide >= n or wide * rows * x.itemsize > TILE_BYTES:
        return False
    _write(words, NUMBER, 0)
    polls = words[PATIENCE] * (wide * weight_bytes // 1024 + 1) * (1 + rows // 4)
    _write(words, TASK + POLLS, polls)
    _write(words, TASK + ALLOWED, helpers)
    _write(words, TASK + COMPUTED_BY, address)
    _write(words, TASK + COUNT, n)
    _write(words, TASK + WIDE, wide)
    _write(words, TASK + OUT, y.ctypes.data)
    _write(words, TASK + OUT_STRIDE, ys)
    _write(words, TASK + ITEM, x.itemsize)
    _write(words, TASK + ROWS, rows)
    _write(words, TASK + X, x.ctypes.data)
    _write(words, TASK + X_STRIDE, xs)
    _write(words, TASK + W, w.ctypes.data)
    _write(words, TASK + W_STRIDE, ws)
    _write(words, TASK + DEPTH, k)
    _write(words, TASK + AHEAD, ahead)
    return True


@long
def shared_linear(words, helpers, address, x, xs, w, ws, bias, y, ys, rows, n, k, ahead):
    """y = x · wᵀ + bias by several threads; bias [n], or [0] for none."""
    weight_bytes = k * w.itemsize
    if helpers and _job(
        words, helpers, address, x, xs, w, ws, y, ys, rows, n, k, ahead, weight_bytes
    ):
        _write(words, TASK + BIAS, bias.ctypes.data if len(bias) == n else 0)
        return share(words)
    linear(x, xs, w, ws, y, ys, rows, n, k, ahead)
    if len(bias) == n:
        combine(y, ys, bias, 0, 0, y, ys, rows, n, ADD)
    return 0


@long
def shared_columns(
    words, helpers, address, x, xs, w, ws, bias, y, ys, spare, parts, rows, n, k
):  # fmt: skip
    """y = x · w + bias by several threads, w [k, n]; bias [n], or [0] for none.

    A tile is a part of the rows of w, which lie one behind the other; spare [rows, parts · n] takes
    what each adds. Pieces of rows would be read at half the speed. Who computes alone cuts the sum
    in the same places.
    """
    all_parts, weight_bytes = parts * n, max(k * w.itemsize // parts, 1)
    is_shared = helpers and n * rows * x.itemsize <= TILE_BYTES
    busy = 0
    if is_shared and _job(
        words, helpers, address, x, xs, w, ws, spare, all_parts, rows, all_parts, k, 0, weight_bytes
    ):
        _write(words, TASK + WIDE, n)
        busy = share(words)
    else:
        for part in range(parts):
            first, last = k * part // parts, k * (part + 1) // parts
            linear_columns(
                x[first:], xs, w[first * ws :], ws, spare[part * n :], all_parts, rows, n,
                last - first,
            )  # fmt: skip
    for r in range(U(rows)):
        q, first = r * U(ys), r * U(all_parts)
        for i in range(U(n)):
            y[q + i] = bias[i] if len(bias) == n else y.dtype.type(0)
        for part in range(U(parts)):
            at = first + part * U(n)
            for i in range(U(n)):
                y[q + i] += spare[at + i]
    return busy


@long
def shared_gated_linear(
    words, helpers, address, x, xs, gate, gs, up, us, y, ys, spare, rows, n, k, code, ahead
):  # fmt: skip
    """y = activation(x · gateᵀ) · (x · upᵀ) by several threads; spare: rows · n elements."""
    weight_bytes = 2 * k * gate.itemsize
    if helpers and _job(
        words, helpers, address, x, xs, gate, gs, y, ys, rows, n, k, ahead, weight_bytes
    ):
        _write(words, TASK + SECOND, up.ctypes.data)
        _write(words, TASK + SECOND_STRIDE, us)
        _write(words, TASK + SPARE, spare.ctypes.data)
        _write(words, TASK + ACTIVATION, code)
        return share(words)
    gated_linear(x, xs, gate, gs, up, us, y, ys, spare, rows, n, k, code, ahead)
    return 0
