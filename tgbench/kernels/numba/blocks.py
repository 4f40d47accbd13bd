"""Blocks: sums of products that registers hold, and what threads need to share them.

    x rows   w panel                      A panel is 16 columns of weights, laid out once, so that
    ──────   │ │ │ │     6 rows times     what one step of the sum reads lies side by side. A block
    ──────   │ │ │ │     one panel: a     is as many rows times one panel: its sums stay in
    ──────   ↓ ↓ ↓ ↓     block of sums    registers from the first term to the last.

Where rows lie is written down, so they need not be neighbours. The order of a sum is that of its
terms, whatever stands beside it: a number has the same bits whether it is computed alone or among
others, and whoever's thread computes it.

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
from numba.extending import intrinsic
from numpy.typing import NDArray

from tgbench.base.machine import cache_bytes
from tgbench.kernels.numba.loops import F, U, kernel, native
from tgbench.kernels.numba.sums import bounded, fetch, fused, looped, spread, widened
from tgbench.kernels.openmp import runtime

_FEATURES = binding.get_host_cpu_features()
IS_WIDE = bool(_FEATURES.get("avx512f"))
LANES = 16 if IS_WIDE else 4 if _FEATURES.get("neon") else 8  # of a vector
VECTORS = 4 if IS_WIDE or _FEATURES.get("neon") else 2  # of a panel
PANEL = VECTORS * LANES  # columns
TALL = 6  # rows of a block: its sums are in 24 of 32 registers, or in 12 of 16
NARROW = 2  # vectors of a panel, where so many or fewer are computed alone
LINE = 16  # elements of a line of a cache
AHEAD = 2 * TALL  # rows: what a block some time later writes is asked for
STEPS_AHEAD = 16  # of a panel, that are asked for before they are read
# Of a panel, that all rows of a group are multiplied by before what is behind it: a cache holds
# that, what comes next, and these rows.
PART_BYTES = cache_bytes(2) // 4 or 1 << 18
UNROLLED = 4  # steps of a sum that are written out
SHARED = 1 << 19  # multiplications from which threads share them: some 10 µs
ZERO_COUNT = 1 << 14  # so deep is a row of zeros
ZEROS = np.zeros(ZERO_COUNT, np.float32)

WORD, FLOAT, NUMBER = ir.IntType(64), ir.FloatType(), ir.IntType(32)
VECTOR, NOTHING = ir.VectorType(FLOAT, LANES), WORD(0)


def sums_for(columns: int) -> int:
    """How many sums of a row are computed for so many columns."""
    whole, rest = divmod(columns, PANEL)
    return whole * PANEL + LANES * int(across_of(rest) if rest else 0)


@kernel
def across_of(width):
    """How many vectors of a panel are computed for its first columns: the fewest that hold them
    and that there are blocks for.
    """
    found = (width + LANES - 1) // LANES
    return found if found <= NARROW else VECTORS


def laid_out(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Weights [columns, depth, *window] as [panel, *window, depth, column], flat. The last panel
    is as wide as what is computed of it, with zeros behind the last column.

    >>> laid_out(np.ones((LANES + PANEL, 3), np.float32)).size == 3 * (LANES + PANEL)
    True
    """
    columns, depth, *window = weight.shape
    taps = int(np.prod(window, initial=1))
    found = np.zeros(taps * depth * sums_for(columns), np.float32)
    last = weight.reshape(columns, depth, taps).transpose(2, 1, 0)
    for first in range(0, columns, PANEL):
        width = min(PANEL, columns - first)
        panel = found[taps * depth * first :][: taps * depth * sums_for(width)]
        panel.reshape(taps, depth, -1)[:, :, :width] = last[:, :, first : first + width]
    return found


# --- a block -------------------------------------------------------------------------------------


class Sums:
    """LLVM code for a block of rows and the first vectors of one panel."""

    def __init__(self, builder: Any, rows: int, across: int) -> None:
        self.builder, self.rows, self.across = builder, rows, across
        self._add = fused(builder, VECTOR)

    def emit(
        self, xs: Any, inside: Any, pitch: Any, outs: Any, mores: Any, beside: Any, behind: Any,
        panel: Any, later: Any, taps: Any, depth: Any, bias: Any, least: Any, most: Any,
    ) -> None:  # fmt: skip
        """See `_block`."""
        builder, words = self.builder, WORD.as_pointer()
        results, added = builder.inttoptr(outs, words), builder.inttoptr(mores, words)
        self.ask_ahead(results, beside, to_write=True)
        is_more = builder.icmp_unsigned("!=", mores, WORD(0))
        with builder.if_then(is_more):
            self.ask_ahead(added, behind, to_write=False)
        table = builder.inttoptr(xs, words)
        weights, others = (builder.inttoptr(one, FLOAT.as_pointer()) for one in (panel, later))

        def tap(i: Any, sums: list[Any]) -> list[Any]:
            rows = self.addresses(builder.gep(table, [builder.mul(i, pitch)]), inside)
            first = builder.mul(i, depth)
            panel = builder.gep(weights, [builder.mul(first, WORD(self.across * LANES))])
            later = builder.gep(others, [builder.mul(first, WORD(LINE))])
            return self.terms(rows, panel, later, depth, sums)

        none = [ir.Constant(VECTOR, [0.0] * LANES)] * (self.rows * self.across)
        sums = looped(builder, WORD(0), taps, 1, none, tap)
        start = self.vectors(builder.inttoptr(bias, FLOAT.as_pointer())) * self.rows
        sums = [builder.fadd(a, b) for a, b in zip(sums, start, strict=True)]
        sums = self.with_more(sums, added, behind, is_more)
        self.store(bounded(builder, sums, least, most, LANES), self.addresses(results, beside))

    def with_more(self, sums: list[Any], added: Any, behind: Any, is_more: Any) -> list[Any]:
        """The sums and what is added, if it is. It may be far larger than all terms: sums that
        began with it would be rounded to its digits at every term.
        """
        builder, before, found = self.builder, self.builder.block, list[Any]()
        with builder.if_then(is_more):
            there = [one for row in self.addresses(added, behind) for one in self.vectors(row)]
            both = [builder.fadd(a, b) for a, b in zip(sums, there, strict=True)]
            adding = builder.block
        for alone, more in zip(sums, both, strict=True):
            phi = builder.phi(VECTOR)
            phi.add_incoming(alone, before)
            phi.add_incoming(more, adding)
            found.append(phi)
        return found

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
        """Have caches fetch as much as there is across."""
        for v in range(0, self.across * LANES, LINE):
            fetch(self.builder, self.builder.gep(row, [WORD(v)]), to_write=to_write)

    def vectors(self, row: Any) -> list[Any]:
        return [self.builder.load(at, align=4) for at in self._places(row)]

    def store(self, sums: list[Any], rows: list[Any]) -> None:
        places = [place for row in rows for place in self._places(row)]
        for found, place in zip(sums, places, strict=True):
            self.builder.store(found, place, align=4)

    def _places(self, row: Any) -> list[Any]:
        starts = (self.builder.gep(row, [WORD(v * LANES)]) for v in range(self.across))
        return [self.builder.bitcast(start, VECTOR.as_pointer()) for start in starts]

    def terms(
        self, rows: list[Any], panel: Any, later: Any, depth: Any, sums: list[Any]
    ) -> list[Any]:
        """The sums and, of each row and column, the products of so many elements; `later`: what
        is asked for besides, a line with each of these.
        """

        def steps(count: int) -> Callable[[Any, list[Any]], list[Any]]:
            def emit(i: Any, sums: list[Any]) -> list[Any]:
                for step in range(count):
                    sums = self._step(rows, panel, later, self._plus(i, step), sums)
                return sums

            return emit

        whole = self.builder.and_(depth, WORD(-UNROLLED % 2**64))
        sums = looped(self.builder, WORD(0), whole, UNROLLED, sums, steps(UNROLLED))
        return looped(self.builder, whole, depth, 1, sums, steps(1))

    def _step(self, rows: list[Any], panel: Any, later: Any, i: Any, sums: list[Any]) -> list[Any]:
        builder = self.builder
        wide = self.across * LANES
        behind = builder.mul(i, WORD(wide))
        w = self.vectors(builder.gep(panel, [behind]))
        self._fetch(builder.gep(panel, [builder.add(behind, WORD(STEPS_AHEAD * wide))]))
        fetch(builder, builder.gep(later, [builder.mul(i, WORD(LINE))]), is_near=False)
        numbers = [builder.load(builder.gep(row, [i]), align=4) for row in rows]
        x = [spread(builder, number, LANES) for number in numbers]
        pairs = [(a, b) for a in x for b in w]
        return [builder.call(self._add, [*p, s]) for p, s in zip(pairs, sums, strict=True)]

    def _plus(self, i: Any, more: int) -> Any:
        return self.builder.add(i, WORD(more)) if more else i


def _block(rows: int) -> Any:
    """out[r] = Σ over taps and depth of x[tap][r] · panel + bias + more[r], between
    `least` and `most`.

    All arguments but these two are addresses and numbers. At `xs`, `outs` and `mores` are words:
    where rows begin; those of x for the next tap lie `pitch` words behind, and are read from
    `inside` bytes on. mores is 0 for nothing. The panel is `beside` bytes behind where rows of the
    result begin, and `behind` those that are added. Of its vectors the first ones are computed, as
    many as there are `across`. `later`: what is asked for besides, a line with each term.
    """

    @intrinsic
    def block(
        context, xs, inside, pitch, outs, mores, beside, behind, panel, later, taps, depth, bias,
        across, least, most,
    ):  # fmt: skip
        def generate(context, builder, signature, arguments):
            *arguments, across, least, most = arguments
            for count in sorted({1, NARROW, VECTORS}):
                with builder.if_then(builder.icmp_unsigned("==", across, WORD(count))):
                    Sums(builder, rows, count).emit(*arguments, least, most)
            return context.get_dummy_value()

        return types.void(*[types.uint64] * 13, *[types.float32] * 2), generate

    return block


_B1, _B2, _B3, _B4, _B5, _B6 = map(_block, range(1, TALL + 1))


def all_blocks(
    table, inside, outs, mores, beside, behind, panel, count, taps, depth, bias, across, least, most
):  # fmt: skip
    """One panel of a group of rows, block after block: see `_block`."""
    blocks, row = (count + U(TALL - 1)) // U(TALL), U(0)
    parts, lines = max(across * U(LANES) // U(LINE), U(1)), taps * depth * U(4 * LINE)
    for block in range(blocks):
        after = count * (block + U(1)) // blocks
        later, part = panel, block * parts // blocks
        if part < (block + U(1)) * parts // blocks:
            later += lines * (parts + part)
        rows, xs, to = after - row, table + U(8) * row, outs + U(8) * row
        more = mores + U(8) * row if mores else U(0)
        if rows == U(6):
            _B6(
                xs, inside, count, to, more, beside, behind, panel, later, taps, depth, bias,
                across, least, most,
            )  # fmt: skip
        elif rows == U(5):
            _B5(
                xs, inside, count, to, more, beside, behind, panel, later, taps, depth, bias,
                across, least, most,
            )  # fmt: skip
        elif rows == U(4):
            _B4(
                xs, inside, count, to, more, beside, behind, panel, later, taps, depth, bias,
                across, least, most,
            )  # fmt: skip
        elif rows == U(3):
            _B3(
                xs, inside, count, to, more, beside, behind, panel, later, taps, depth, bias,
                across, least, most,
            )  # fmt: skip
        elif rows == U(2):
            _B2(
                xs, inside, count, to, more, beside, behind, panel, later, taps, depth, bias,
                across, least, most,
            )  # fmt: skip
        else:
            _B1(
                xs, inside, count, to, more, beside, behind, panel, later, taps, depth, bias,
                across, least, most,
            )  # fmt: skip
        row = after


# --- memory --------------------------------------------------------------------------------------


def _pointer(kind: Any) -> Any:
    @intrinsic
    def pointer(context, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(types.CPointer(kind)))

        return types.CPointer(kind)(types.int64), generate

    return pointer


_to_words, _to_floats, _to_bytes = map(_pointer, (types.int64, types.float32, types.uint8))


@kernel
def words_at(address):
    """The words at an address, whose end nobody checks."""
    return numba.carray(_to_words(address), 1)


@kernel
def floats_at(address):
    return numba.carray(_to_floats(address), 1)


@kernel
def bytes_at(address):
    return numba.carray(_to_bytes(address), 1)


@kernel
def word_of(number):
    """A word of a job that holds the bits of a float32."""
    return np.int64(F(number).view(np.int32))


@kernel
def float_of(word):
    return np.int32(word).view(np.float32)


# --- weights in less -----------------------------------------------------------------------------

LAID_OUT, BFLOAT16, FLOAT16, INT8, FLOAT32 = range(5)  # how weights are held: in panels, or by rows
HELD_AS = {"bfloat16": BFLOAT16, "float16": FLOAT16, "int8": INT8}
WIDTHS = {BFLOAT16: 16, FLOAT16: 16, INT8: 8, FLOAT32: 32}  # in bits
SIDE = 8  # of a square of weights that is widened and turned in registers
UNPACKED = ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])  # of two rows of it
PAIRED = ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
HALVED = ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """The columns of a square."""

    def mixed(a: Any, b: Any, masks: tuple[list[int], list[int]]) -> list[Any]:
        kind = ir.VectorType(NUMBER, SIDE)
        return [builder.shuffle_vector(a, b, ir.Constant(kind, mask)) for mask in masks]

    ones = [one for i in range(0, SIDE, 2) for one in mixed(rows[i], rows[i + 1], UNPACKED)]
    twos = [
        one
        for i in range(0, SIDE, 4)
        for j in range(2)
        for one in mixed(ones[i + j], ones[i + j + 2], PAIRED)
    ]
    halves = [mixed(twos[i], twos[i + SIDE // 2], HALVED) for i in range(SIDE // 2)]
    return [low for low, _ in halves] + [high for _, high in halves]


def _widening(side: int) -> Any:
    """Elements of rows `apart` bytes apart as float32, one below the other in a panel, whose rows
    are `wide` bytes apart.
    """

    @intrinsic
    def widen(context, held, rows, apart, to, wide):
        def generate(context, builder, signature, arguments):
            held, rows, apart, to, wide = arguments
            for held_as, bits in WIDTHS.items():
                number = FLOAT if held_as == FLOAT32 else ir.IntType(bits)
                stored, kind = (
                    ir.VectorType(one, side) if side > 1 else one for one in (number, FLOAT)
                )
                with builder.if_then(builder.icmp_signed("==", held, WORD(held_as))):
                    found = []
                    for r in range(side):
                        at = builder.add(rows, builder.mul(apart, WORD(r)))
                        at = builder.inttoptr(at, stored.as_pointer())
                        one = builder.load(at, align=bits // 8)
                        if held_as != FLOAT32:
                            one = widened(builder, one, kind, held_as == FLOAT16)
                        found.append(one)
                    for r, one in enumerate(_turned(builder, found) if side > 1 else found):
                        at = builder.add(to, builder.mul(wide, WORD(r)))
                        builder.store(one, builder.inttoptr(at, kind.as_pointer()), align=4)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 5), generate

    return widen


_widen_square, _widen_one = _widening(SIDE), _widening(1)


@kernel
def lay_out_rows(held, first, line, depth, width, to):
    """Rows of weights, `line` bytes apart, as a panel of float32; by addresses."""
    item = 4 if held == FLOAT32 else 1 if held == INT8 else 2
    wide, squares, rows = 4 * LANES * across_of(width), depth // SIDE * SIDE, width // SIDE * SIDE
    for i in range(0, squares, SIDE):
        for c in range(0, rows, SIDE):
            _widen_square(held, first + c * line + i * item, line, to + i * wide + 4 * c, wide)
    for c in range(width):
        for i in range(squares if c < rows else 0, depth):
            _widen_one(held, first + c * line + i * item, line, to + i * wide + 4 * c, wide)


# --- threads -------------------------------------------------------------------------------------


@intrinsic
def number_of_thread(context, function):
    """Which thread of those that a call is shared by this is: `omp_get_thread_num`."""

    def generate(context, builder, signature, arguments):
        kind = ir.FunctionType(NUMBER, [])
        found = builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [])
        return builder.zext(found, WORD)

    return types.int64(types.int64), generate


@intrinsic
def call_blocks(
    context, blocks, table, inside, outs, mores, beside, behind, panel, count, taps, depth, bias,
    across, least, most,
):  # fmt: skip
    """Call `all_blocks` by its address."""

    def generate(context, builder, signature, arguments):
        kinds = [WORD] * 12 + [FLOAT] * 2
        function = ir.FunctionType(ir.VoidType(), kinds).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.void(types.int64, *[types.uint64] * 12, *[types.float32] * 2), generate


@intrinsic
def call_alone(context, computing, job):
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
def by_threads(context, function, computing, job, threads):
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


@kernel
def compute(job, threads, fork, computing):
    """Have so many threads compute a job, or the caller's alone."""
    if threads > 1:
        by_threads(fork, computing, job.ctypes.data, threads)
    else:
        call_alone(computing, job.ctypes.data)


@cache
def address_of_blocks() -> int:
    """Where `all_blocks` begins. It is called by that, as it is compiled once then, and not inside
    of all who call it.
    """
    return int(native(*[types.uint64] * 12, *[types.float32] * 2)(all_blocks).address)


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
