"""Products of many rows, and convolutions, out of blocks that registers hold: the compiled half.

    x rows   w panel                      A panel is 16 columns of weights, laid out once, so that
    ──────   │ │ │ │     6 rows times     what one step of the sum reads lies side by side. A block
    ──────   │ │ │ │     one panel: a     is as many rows times one panel: its sums stay in
    ──────   ↓ ↓ ↓ ↓     block of sums    registers from the first term to the last.

A convolution is the same: for each point of the result and each element of the window there is a
row of x, or a row of zeros where the window reaches over the border. Where these rows lie is
written down before (an indirection buffer; M. Dukhan, "The Indirect Convolution Algorithm", 2019),
so points need not be neighbours, an image may have gaps, and sizes, borders and places are
arguments: one compiled function takes them all.

The order of a sum is that of its terms, whatever stands beside it: a number has the same bits
whether it is computed alone or among others, and whoever's thread computes it.

Source of blocks and panels: K. Goto, R. van de Geijn, "Anatomy of High-Performance Matrix
Multiplication", 2008.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p, cast
from functools import cache
from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from tgbench.kernels.numba.loops import ACTIVATIONS as ACTIVATIONS
from tgbench.kernels.numba.loops import (
    GELU,
    GELU_TANH,
    RELU,
    SILU,
    F,
    U,
    activated,
    kernel,
    long,
    native,
)
from tgbench.kernels.waiting import runtime

_FEATURES = binding.get_host_cpu_features()
IS_WIDE = bool(_FEATURES.get("avx512f"))
LANES = 16 if IS_WIDE else 4 if _FEATURES.get("neon") else 8  # of a vector
VECTORS = 4 if IS_WIDE or _FEATURES.get("neon") else 2  # of a panel
PANEL = VECTORS * LANES  # columns
TALL = 6  # rows of a block: its sums are in 24 of 32 registers, or in 12 of 16
LINE = 16  # elements of a line of a cache
AHEAD = 2 * TALL  # rows: what a block some time later writes is asked for
STEPS_AHEAD = 16  # of a panel, that are asked for before they are read
UNROLLED = 4  # steps of a sum that are written out
MOST_ROWS = 32 * TALL  # of a group: they stay in a cache while all panels go by
SHARED = 1 << 19  # multiplications from which threads share them: some 10 µs
NO_ACTIVATION = -1

WORD, FLOAT, NUMBER = ir.IntType(64), ir.FloatType(), ir.IntType(32)
VECTOR, NOTHING = ir.VectorType(FLOAT, LANES), WORD(0)


def panels_of(columns: int) -> int:
    return -(-columns // PANEL)


def laid_out(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights [columns, depth, *window] as [panel, *window, depth, column], flat; zeros behind the
    last column.

    >>> laid_out(np.ones((20, 3), np.float32)).size == panels_of(20) * 3 * PANEL
    True
    """
    columns, depth, *window = weight.shape
    taps = int(np.prod(window, initial=1))
    count = panels_of(columns)
    found = np.zeros((count, taps, depth, PANEL), np.float32)
    last = weight.reshape(columns, depth, taps).transpose(2, 1, 0)
    for panel in range(count):
        part = last[:, :, panel * PANEL : (panel + 1) * PANEL]
        found[panel, :, :, : part.shape[-1]] = part
    return found.reshape(-1)


# --- a block -------------------------------------------------------------------------------------


class Sums:
    """LLVM code for a block of rows and one panel."""

    def __init__(self, builder: Any, rows: int) -> None:
        self.builder, self.rows = builder, rows
        taken = ir.FunctionType(VECTOR, [VECTOR] * 3)
        self._add = cgutils.get_or_insert_function(
            builder.module, taken, f"llvm.fmuladd.v{LANES}f32"
        )

    def addresses(self, words: Any, beside: Any = NOTHING) -> list[Any]:
        """Where rows are read or written: so many words, and bytes behind each."""
        builder = self.builder
        words = [builder.load(builder.gep(words, [WORD(r)])) for r in range(self.rows)]
        words = [builder.add(word, beside) for word in words]
        return [builder.inttoptr(word, FLOAT.as_pointer()) for word in words]

    def ask_ahead(self, words: Any, beside: Any, *, to_write: bool) -> None:
        """Have caches fetch what a block some rows later writes, or adds."""
        for row in self.addresses(self.builder.gep(words, [WORD(AHEAD)]), beside):
            self._fetch(row, to_write=to_write)

    def _fetch(self, row: Any, *, to_write: bool = False) -> None:
        """Have caches fetch as much as a panel is wide."""
        byte = ir.IntType(8).as_pointer()
        taken = ir.FunctionType(ir.VoidType(), [byte, NUMBER, NUMBER, NUMBER])
        fetch = cgutils.get_or_insert_function(self.builder.module, taken, "llvm.prefetch.p0i8")
        for v in range(0, PANEL, LINE):
            at = self.builder.bitcast(self.builder.gep(row, [WORD(v)]), byte)
            self.builder.call(fetch, [at, NUMBER(int(to_write)), NUMBER(3), NUMBER(1)])

    def vectors(self, row: Any) -> list[Any]:
        return [self.builder.load(at, align=4) for at in self._places(row)]

    def store(self, sums: list[Any], rows: list[Any]) -> None:
        places = [place for row in rows for place in self._places(row)]
        for found, place in zip(sums, places, strict=True):
            self.builder.store(found, place, align=4)

    def _places(self, row: Any) -> list[Any]:
        starts = (self.builder.gep(row, [WORD(v * LANES)]) for v in range(VECTORS))
        return [self.builder.bitcast(start, VECTOR.as_pointer()) for start in starts]

    def terms(self, rows: list[Any], panel: Any, depth: Any, sums: list[Any]) -> list[Any]:
        """The sums and, of each row and column, the products of so many elements."""

        def steps(count: int) -> Callable[[Any, list[Any]], list[Any]]:
            def emit(i: Any, sums: list[Any]) -> list[Any]:
                for step in range(count):
                    sums = self._step(rows, panel, self._plus(i, step), sums)
                return sums

            return emit

        whole = self.builder.and_(depth, WORD(-UNROLLED % 2**64))
        sums = self.loop(WORD(0), whole, UNROLLED, sums, steps(UNROLLED))
        return self.loop(whole, depth, 1, sums, steps(1))

    def _step(self, rows: list[Any], panel: Any, i: Any, sums: list[Any]) -> list[Any]:
        builder = self.builder
        behind = builder.mul(i, WORD(PANEL))
        w = self.vectors(builder.gep(panel, [behind]))
        self._fetch(builder.gep(panel, [builder.add(behind, WORD(STEPS_AHEAD * PANEL))]))
        x = [self.spread(builder.load(builder.gep(row, [i]), align=4)) for row in rows]
        pairs = [(a, b) for a in x for b in w]
        return [builder.call(self._add, [*p, s]) for p, s in zip(pairs, sums, strict=True)]

    def spread(self, number: Any) -> Any:
        """A vector of one number."""
        none = ir.Constant(VECTOR, ir.Undefined)
        first = self.builder.insert_element(none, number, NUMBER(0))
        lanes = ir.Constant(ir.VectorType(NUMBER, LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, none, lanes)

    def _plus(self, i: Any, more: int) -> Any:
        return self.builder.add(i, WORD(more)) if more else i

    def loop(self, start: Any, stop: Any, by: int, init: list[Any], emit: Any) -> list[Any]:
        """`emit(i, values)` for i from start to stop; the last values."""
        builder, before = self.builder, self.builder.block
        head, body, done = (builder.append_basic_block(n) for n in ("head", "body", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        i, values = builder.phi(WORD), [builder.phi(value.type) for value in init]
        builder.cbranch(builder.icmp_unsigned("<", i, stop), body, done)
        builder.position_at_end(body)
        after = [*emit(i, values), self._plus(i, by)]
        for phi, first, then in zip([*values, i], [*init, start], after, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(then, builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return values


def _block(rows: int) -> Any:
    """out[r] = bias + more[r] + Σ over taps and depth of x[tap][r] · panel, no less than `least`.

    All arguments but the last are addresses and numbers. At `xs`, `outs` and `mores` are words:
    where rows begin; those of x for the next tap lie `pitch` words behind. mores is 0 for nothing.
    The panel is `beside` bytes behind the first column of the result.
    """

    @intrinsic
    def block(context, xs, pitch, outs, mores, beside, panel, taps, depth, bias, least):
        def generate(context, builder, signature, arguments):
            xs, pitch, outs, mores, beside, panel, taps, depth, bias, least = arguments
            made, words = Sums(builder, rows), WORD.as_pointer()
            results = builder.inttoptr(outs, words)
            made.ask_ahead(results, beside, to_write=True)
            start = made.vectors(builder.inttoptr(bias, FLOAT.as_pointer())) * rows
            before = builder.block
            with builder.if_then(builder.icmp_unsigned("!=", mores, WORD(0))):
                added = builder.inttoptr(mores, words)
                made.ask_ahead(added, beside, to_write=False)
                more = made.addresses(added, beside)
                there = [one for row in more for one in made.vectors(row)]
                both = [builder.fadd(a, b) for a, b in zip(start, there, strict=True)]
                inside = builder.block
            sums = []
            for alone, more in zip(start, both, strict=True):
                phi = builder.phi(VECTOR)
                phi.add_incoming(alone, before)
                phi.add_incoming(more, inside)
                sums.append(phi)
            table = builder.inttoptr(xs, words)
            weights = builder.inttoptr(panel, FLOAT.as_pointer())

            def tap(i: Any, sums: list[Any]) -> list[Any]:
                row = made.addresses(builder.gep(table, [builder.mul(i, pitch)]))
                behind = builder.mul(builder.mul(i, depth), WORD(PANEL))
                found: list[Any] = made.terms(row, builder.gep(weights, [behind]), depth, sums)
                return found

            sums, floor = made.loop(WORD(0), taps, 1, sums, tap), made.spread(least)
            made.store(
                [builder.select(builder.fcmp_ordered("<", s, floor), floor, s) for s in sums],
                made.addresses(results, beside),
            )
            return context.get_dummy_value()

        return types.void(*[types.uint64] * 9, types.float32), generate

    return block


_B1, _B2, _B3, _B4, _B5, _B6 = map(_block, range(1, TALL + 1))


def _all_blocks(table, outs, mores, beside, panel, count, taps, depth, bias, least):
    """One panel of a group of rows, block after block: see `_block`."""
    blocks, row = (count + U(TALL - 1)) // U(TALL), U(0)
    for block in range(blocks):
        after = count * (block + U(1)) // blocks
        rows, xs, to = after - row, table + U(8) * row, outs + U(8) * row
        more = mores + U(8) * row if mores else U(0)
        if rows == U(6):
            _B6(xs, count, to, more, beside, panel, taps, depth, bias, least)
        elif rows == U(5):
            _B5(xs, count, to, more, beside, panel, taps, depth, bias, least)
        elif rows == U(4):
            _B4(xs, count, to, more, beside, panel, taps, depth, bias, least)
        elif rows == U(3):
            _B3(xs, count, to, more, beside, panel, taps, depth, bias, least)
        elif rows == U(2):
            _B2(xs, count, to, more, beside, panel, taps, depth, bias, least)
        else:
            _B1(xs, count, to, more, beside, panel, taps, depth, bias, least)
        row = after


# --- memory --------------------------------------------------------------------------------------


@intrinsic
def _words_at(context, address):
    kind = types.CPointer(types.int64)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64), generate


@intrinsic
def _floats_at(context, address):
    kind = types.CPointer(types.float32)

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(kind))

    return kind(types.int64), generate


@kernel
def _words(address):
    """The words at an address, whose end nobody checks."""
    return numba.carray(_words_at(address), 1)


@kernel
def _floats(address):
    return numba.carray(_floats_at(address), 1)


@intrinsic
def _number_of_thread(context, function):
    """Which thread of those that a call is shared by this is: `omp_get_thread_num`."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(NUMBER, [])
        found = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return builder.zext(found, WORD)

    return types.int64(types.int64), generate


@intrinsic
def _call_blocks(
    context, blocks, table, outs, mores, beside, panel, count, taps, depth, bias, least
):
    """Call `_all_blocks` by its address."""

    def generate(context, builder, signature, arguments):
        kinds = [WORD] * 9 + [FLOAT]
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, *[types.uint64] * 9, types.float32), generate


@intrinsic
def _call_functions(context, functions, address, count, code):
    """Call `_all_functions` by its address."""

    def generate(context, builder, signature, arguments):
        function = ir.FunctionType(ir.VoidType(), [WORD] * 3).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@intrinsic
def _call(context, computing, job):
    """Compute a job alone."""

    def generate(context, builder, signature, arguments):
        word = WORD.as_pointer()
        function = builder.inttoptr(
            arguments[0], ir.FunctionType(ir.VoidType(), [word]).as_pointer()
        )
        builder.call(function, [builder.inttoptr(arguments[1], word)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _fork(context, function, computing, job, threads):
    """Have so many threads compute a job, and wait for them: `GOMP_parallel`."""

    def generate(context, builder, signature, arguments):
        function, computing, job, threads = arguments
        byte = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, byte, NUMBER, NUMBER])
        called = builder.inttoptr(function, kind.as_pointer())
        given = (builder.inttoptr(one, byte) for one in (computing, job))
        builder.call(called, [*given, builder.trunc(threads, NUMBER), NUMBER(0)])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


# --- a job ---------------------------------------------------------------------------------------

# Words: addresses; distances in bytes, from image to image, line to line, and point to point; sizes
(X, X_IMAGE, X_LINE, X_POINT, OUT, OUT_IMAGE, OUT_LINE, OUT_POINT,
 MORE, MORE_IMAGE, MORE_LINE, MORE_POINT, W, GATE, BIAS, ZERO_ROW,
 X_LINES, X_POINTS, IMAGES, LINES, POINTS, TAP_LINES, TAP_POINTS, STEP_LINES, STEP_POINTS,
 GAP_LINES, GAP_POINTS, LOW_LINES, LOW_POINTS, DEPTH, COLUMNS, ACTIVATION,
 THREADS, GROUP, ROOM, ROOM_BYTES, THREAD_NUMBER, BLOCKS, FUNCTIONS) = range(39)  # fmt: skip
JOB = 40
ZERO_COUNT = 1 << 14  # so deep is a row of zeros
ZEROS = np.zeros(ZERO_COUNT, np.float32)
NONE = np.zeros(0, np.float32)

OWN_BIAS = PANEL // 2  # words of a thread's memory: a bias that is cut by the last column
OWN, GATES, OWN_MORE = range(3)  # what there is besides where results are not written at once


def room_of(group: int, taps: int, columns: int, function: int, is_gated: bool) -> int:
    """Words of a thread: a bias, where rows of a group are, rows of its own, where these are; some
    behind the last are read.
    """
    has_own = is_gated or columns % PANEL or function not in (NO_ACTIVATION, RELU)
    own = 3 * (1 + PANEL // 2) if has_own else 0
    return OWN_BIAS + group * (taps + 2 + own) + AHEAD + TALL


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
    mores = outs + U(count)
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


@kernel
def _copy(sources, beside, targets, behind, rows, width):
    """Elements of rows to others; their addresses, and bytes behind each."""
    for r in range(rows):
        source, target = _floats(sources[r] + beside), _floats(targets[r] + behind)
        for i in range(width):
            target[i] = source[i]


def _all_functions(address, count, code):
    """Apply an activation to so many numbers."""
    there = _floats(address)
    if code == GELU_TANH:
        for i in range(U(count)):
            there[i] = activated(there[i], GELU_TANH)
    elif code == SILU:
        for i in range(U(count)):
            there[i] = activated(there[i], SILU)
    elif code == GELU:
        for i in range(U(count)):
            there[i] = activated(there[i], GELU)
    else:
        for i in range(U(count)):
            there[i] = activated(there[i], RELU)


@kernel
def _panel(job, own, count, panel, least, code):
    """One panel of a group of rows, whose table is written; own: the address of memory.

    What is cut by the last column, or goes on from its sums, is first computed into memory of the
    thread's own, where rows lie one behind the other.
    """
    taps, depth, group = job[TAP_LINES] * job[TAP_POINTS], job[DEPTH], job[GROUP]
    behind, at = 4 * PANEL * taps * depth * panel, 4 * PANEL * panel
    width, bias = min(PANEL, job[COLUMNS] - PANEL * panel), job[ZERO_ROW]
    table = own + 8 * OWN_BIAS
    theirs = table + 8 * taps * count
    mores = theirs + 8 * count if job[MORE] else 0
    rows = table + 8 * (taps + 2) * group
    results = rows + 8 * 3 * group
    outs, beside, is_own = theirs, at, width < PANEL or code != NO_ACTIVATION
    if job[BIAS]:
        bias = job[BIAS] + at
    if is_own:
        outs, beside = rows + 8 * OWN * group, 0
        if mores:
            own_mores = rows + 8 * OWN_MORE * group
            _copy(_words(mores), at, _words(own_mores), 0, count, width)
            mores = own_mores
        if job[BIAS]:
            source, target = _floats(bias), _floats(own)
            for i in range(width):
                target[i] = source[i]
            bias = own
    _call_blocks(
        job[BLOCKS], U(table), U(outs), U(mores), U(beside), U(job[W] + behind), U(count), U(taps),
        U(depth), U(bias), least,
    )  # fmt: skip
    if job[GATE]:
        _call_blocks(
            job[BLOCKS], U(table), U(rows + 8 * GATES * group), U(0), U(0), U(job[GATE] + behind),
            U(count), U(taps), U(depth), U(job[ZERO_ROW]), F(-np.inf),
        )  # fmt: skip
        first, second = results, results + 4 * PANEL * GATES * group
        _call_functions(job[FUNCTIONS], second, PANEL * count, code)
        result, gate = _floats(first), _floats(second)
        for i in range(U(PANEL * count)):
            result[i] *= gate[i]
    elif code != NO_ACTIVATION:
        _call_functions(job[FUNCTIONS], results, PANEL * count, code)
    if is_own:
        _copy(_words(outs), 0, _words(theirs), at, count, width)


@kernel
def _part(job, own, first, last, first_panel, last_panel):
    """Points and panels of a result, by one thread; own: the address of its memory."""
    table = own + 8 * OWN_BIAS
    taps, group = job[TAP_LINES] * job[TAP_POINTS], job[GROUP]
    code, least = job[ACTIVATION], F(-np.inf)
    if code == RELU and not job[GATE]:
        code, least = NO_ACTIVATION, F(0)
    if code != NO_ACTIVATION or job[COLUMNS] % PANEL:
        rows = _words(table + 8 * (taps + 2) * job[GROUP])
        for r in range(3 * job[GROUP]):
            rows[r] = table + 8 * (taps + 5) * job[GROUP] + 4 * PANEL * r
    groups = (last - first + group - 1) // group
    for g in range(groups):
        start = first + (last - first) * g // groups
        count = first + (last - first) * (g + 1) // groups - start
        _write_table(job, _words(table), start, count)
        for panel in range(first_panel, last_panel):
            _panel(job, own, count, panel, least, code)


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
    words = numba.carray(job, JOB)
    threads = words[THREADS]
    _share(words, _number_of_thread(words[THREAD_NUMBER]) if threads > 1 else 0, threads)


@cache
def computing() -> tuple[int, int, int]:
    """Addresses of what threads call, with a job; of what computes blocks, and of activations.

    They are called by their addresses, as each is compiled once then, and not inside the others.
    """
    word, number = types.int64, types.uint64
    found = (
        native(types.CPointer(word))(_thread),
        native(*[number] * 9, types.float32)(_all_blocks),
        native(*[word] * 3)(_all_functions),
    )
    job, blocks, functions = (int(one.address) for one in found)
    return job, blocks, functions


@cache
def runtime_addresses() -> tuple[int, int]:
    """Where OpenMP forks, and says which thread this is; zeros where there is another one."""
    library = runtime()
    if library is None:
        return 0, 0
    fork, number = (
        cast(function, c_void_p).value or 0
        for function in (library.GOMP_parallel, library.omp_get_thread_num)
    )
    return fork, number


@kernel
def _copy_image(x, strides, copied, sizes):
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
    low_points, depth, columns, activation, group, threads, room, fork, number, computing, blocks,
    functions,
):  # fmt: skip
    """A convolution, or a product, which is one of a line of points and windows of one element.

        out = activation(x ∗ w + bias + more)     or, with gates,  activation(x · gate) · (x · w)

    x [images, x_lines, x_points, depth], out and more [images, lines, points, columns] have
    distances between their images, lines and points; their last dimension is contiguous, or that of
    x is when it is `copied`, to an array as large at least. w and gate are laid out; an empty array
    stands for no bias, gate or more. lows: how far the first window reaches over the border.
    words: `JOB`, and `room_of(…)` for each thread.
    """
    job = words[:JOB]
    job[X], job[X_IMAGE], job[X_LINE], job[X_POINT] = (
        x.ctypes.data, 4 * x_image, 4 * x_line, 4 * x_point
    )  # fmt: skip
    if len(copied):
        sizes = images, x_lines, x_points, depth
        _copy_image(x, (x_image, x_line, x_point, x_channel), copied, sizes)
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
    job[THREAD_NUMBER], job[BLOCKS], job[FUNCTIONS] = number, blocks, functions
    job[ROOM] = words.ctypes.data + 8 * JOB
    job[ROOM_BYTES] = 8 * room
    count = images * lines * points * tap_lines * tap_points * depth * columns
    job[THREADS] = threads if count >= SHARED else 1
    if job[THREADS] > 1:
        _fork(fork, computing, words.ctypes.data, threads)
    else:
        _call(computing, words.ctypes.data)
