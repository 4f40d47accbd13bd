"""Sums that registers hold while they are added up: LLVM code that loops of numba call.

    dots    products of some rows of x with four rows of w    a row alone, beside weights; scores
    sums    rows of v, each by its weight                     what attention hands out

Both have one order for every sum, whatever is computed beside it; a loop that LLVM's vectoriser
took would have another one for each number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

LANES = {types.float32: 16, types.float64: 8}  # terms that are added side by side
SPAN = 128  # elements of a row after which the lanes are added to their totals
_FEATURES = binding.get_host_cpu_features()
TALL = 4 if _FEATURES.get("avx512f") else 2  # rows that registers hold
CONVERTS_HALVES = any(map(_FEATURES.get, ("f16c", "avx512f", "neon", "fp-armv8")))


def looped(
    builder: Any, start: Any, stop: Any, by: int, init: list[Any], emit: Callable[..., list[Any]]
) -> list[Any]:
    """LLVM code for `emit(i, values)`, for i from start to stop; the last values."""
    before = builder.block
    head, body, done = (builder.append_basic_block(n) for n in ("head", "body", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    i, values = builder.phi(start.type), [builder.phi(value.type) for value in init]
    builder.cbranch(builder.icmp_unsigned("<", i, stop), body, done)
    builder.position_at_end(body)
    after = [builder.add(i, _number(i, by)), *emit(i, values)]
    for phi, first, then in zip([i, *values], [start, *init], after, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, builder.block)
    builder.branch(head)
    builder.position_at_end(done)
    return values


class Dots:
    """LLVM code for the products of some rows of x with four rows of w, each element read once.

        x rows   ────────┐  for each pair: 16 sums over 128 elements ─→ added to 16 totals
        w rows   ────────┘  at the end the elements that are left over, then the totals in halves

    The order of a sum depends on the length of the rows alone: not on how many rows are taken
    together, as it would if LLVM vectorised a loop over each number of them.

    Rows of w may be in less than float32, and are widened as they are read: bfloat16, whose bits
    (16 of them) are the upper half of a float32's, float16, whose bits have a sign for
    numba to tell them apart, or int8.

    Fields:
        is_half: whether 16 bits are a float16's.
        ahead: how many bytes of a row of w are asked for before they are read.
    """

    def __init__(
        self, builder: Any, scalar: Any, lanes: int, x: list[Any], w: list[Any], is_half: bool,
        ahead: Any,
    ) -> None:  # fmt: skip
        self.builder, self.lanes, self.is_half = builder, lanes, is_half
        self.ahead = ahead
        self.vector = ir.VectorType(scalar, lanes)
        self.x, self.w = x, w

    def emit(self, k: Any) -> list[Any]:
        """The sums over `k` elements, those of the first row of w first."""
        zeros = [ir.Constant(self.vector, [0.0] * self.lanes)] * (len(self.x) * len(self.w))
        end = self.builder.and_(k, _number(k, -self.lanes % 2**64))

        def span(first: Any, totals: list[Any]) -> list[Any]:
            stop = self.builder.add(first, _number(k, SPAN))
            is_last = self.builder.icmp_unsigned("<", end, stop)
            stop = self.builder.select(is_last, end, stop)
            sums = looped(self.builder, first, stop, self.lanes, zeros, self._whole)
            return [self.builder.fadd(t, s) for t, s in zip(totals, sums, strict=True)]

        def rest(first: Any, totals: list[Any]) -> list[Any]:
            is_in = _first_lanes(self.builder, self.builder.sub(k, first), self.lanes)
            return self._step(lambda row: self._read(row, first, is_in), totals)

        totals = looped(self.builder, _number(k, 0), end, SPAN, zeros, span)
        return [*map(self._added, looped(self.builder, end, k, self.lanes, totals, rest))]

    def _whole(self, i: Any, sums: list[Any]) -> list[Any]:
        """What elements from i on, one for each lane, add to the sums."""
        self._ask_ahead(i)
        return self._step(lambda row: self._read(row, i), sums)

    def _step(self, read: Callable[[Any], Any], sums: list[Any]) -> list[Any]:
        add = fused(self.builder, self.vector)
        x, w = [read(row) for row in self.x], [read(row) for row in self.w]
        pairs = [(b, a) for b in w for a in x]
        return [self.builder.call(add, [*p, s]) for p, s in zip(pairs, sums, strict=True)]

    def _ask_ahead(self, i: Any) -> None:
        """Have the cache fetch what of w comes soon: it starts anew at every page by itself."""
        for row in self.w:
            at = self.builder.bitcast(self.builder.gep(row, [i]), BYTE)
            fetch(self.builder, self.builder.gep(at, [self.ahead]))

    def _read(self, row: Any, i: Any, is_in: Any = None) -> Any:
        """The elements of a row from i on, one for each lane, as the sums are; of lanes that are
        not in, zeros.
        """
        builder, stored = self.builder, row.type.pointee
        kind = ir.VectorType(stored, self.lanes)
        at = builder.bitcast(builder.gep(row, [i]), kind.as_pointer())
        align = 8 if isinstance(stored, ir.DoubleType) else 4
        if isinstance(stored, ir.IntType):
            align = stored.width // 8
        found = _loaded(builder, at, align, is_in)
        if not isinstance(stored, ir.IntType):
            return found
        return widened(builder, found, self.vector, self.is_half)

    def _added(self, lanes: Any) -> Any:
        """The sum of a vector's lanes, half to half."""
        count = self.lanes
        while count > 1:
            count //= 2
            low, high = (
                ir.Constant(ir.VectorType(ir.IntType(32), count), [*range(at, at + count)])
                for at in (0, count)
            )
            none = ir.Constant(lanes.type, ir.Undefined)
            low, high = (self.builder.shuffle_vector(lanes, none, half) for half in (low, high))
            lanes = self.builder.fadd(low, high)
        return self.builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))


def widened(builder: Any, found: Any, kind: Any, is_half: bool) -> Any:
    """A number in less than float32, or a vector of them, as one of this kind: see `Dots`."""
    lanes = found.type.count if isinstance(found.type, ir.VectorType) else 0

    def like(one: Any) -> Any:
        return ir.VectorType(one, lanes) if lanes else one

    whole = like(ir.IntType(32))
    if (found.type.element if lanes else found.type).width == 8:
        return builder.sitofp(builder.sext(found, whole), kind)
    if is_half:
        return builder.fpext(builder.bitcast(found, like(ir.HalfType())), kind)
    upper = ir.Constant(whole, [16] * lanes if lanes else 16)
    return builder.bitcast(builder.shl(builder.zext(found, whole), upper), kind)


BYTE = ir.IntType(8).as_pointer()


def fetch(builder: Any, at: Any, *, to_write: bool = False, is_near: bool = True) -> None:
    """Have caches fetch what is there; all of them, or those that are not so near."""
    bit = ir.IntType(32)
    taken = ir.FunctionType(ir.VoidType(), [BYTE, bit, bit, bit])
    called = cgutils.get_or_insert_function(builder.module, taken, "llvm.prefetch.p0i8")
    how_near, data = bit(3 if is_near else 2), bit(1)
    builder.call(called, [builder.bitcast(at, BYTE), bit(int(to_write)), how_near, data])


def spread(builder: Any, number: Any, lanes: int) -> Any:
    """A vector of one number."""
    none, index = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined), ir.IntType(32)
    zeros = ir.Constant(ir.VectorType(index, lanes), [0] * lanes)
    return builder.shuffle_vector(builder.insert_element(none, number, index(0)), none, zeros)


def bounded(builder: Any, found: list[Any], least: Any, most: Any, lanes: int) -> list[Any]:
    """Vectors whose numbers are no less than the one and no more than the other."""
    for sign, number in (("<", least), (">", most)):
        end = spread(builder, number, lanes)
        found = [builder.select(builder.fcmp_ordered(sign, f, end), end, f) for f in found]
    return found


def _first_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """Which lanes are among so many."""
    numbers = ir.Constant(ir.VectorType(count.type, lanes), [*range(lanes)])
    return builder.icmp_unsigned("<", numbers, spread(builder, count, lanes))


def fused(builder: Any, vector: Any) -> Any:
    """LLVM's function for a · b + c, of vectors."""
    name = f"llvm.fmuladd.v{vector.count}{vector.element.intrinsic_name}"
    taken = ir.FunctionType(vector, [vector] * 3)
    return cgutils.get_or_insert_function(builder.module, taken, name)


def _loaded(builder: Any, at: Any, align: int, is_in: Any) -> Any:
    """The vector there; with zeros in lanes that are not in, which are not read."""
    vector = at.type.pointee
    if is_in is None:
        return builder.load(at, align=align)
    name = f"llvm.masked.load.v{vector.count}{vector.element.intrinsic_name}.p0"
    taken = ir.FunctionType(vector, [at.type, ir.IntType(32), is_in.type, vector])
    load = cgutils.get_or_insert_function(builder.module, taken, name)
    return builder.call(load, [at, ir.IntType(32)(align), is_in, ir.Constant(vector, None)])


def _store(builder: Any, found: Any, at: Any, align: int, is_in: Any) -> None:
    """Write a vector there; of it the lanes that are in."""
    if is_in is None:
        builder.store(found, at, align=align)
        return
    name = f"llvm.masked.store.v{found.type.count}{found.type.element.intrinsic_name}.p0"
    taken = ir.FunctionType(ir.VoidType(), [found.type, at.type, ir.IntType(32), is_in.type])
    store = cgutils.get_or_insert_function(builder.module, taken, name)
    builder.call(store, [found, at, ir.IntType(32)(align), is_in])


def _number(like: Any, value: int) -> Any:
    return ir.Constant(like.type, value)


def _dots(rows: int) -> Any:
    """y[q + r · ys + o] = x[p + r · xs] · w[o]: a number of rows, and four rows w at w0 to w3."""

    @intrinsic
    def dots(context, x, p, xs, w, w0, w1, w2, w3, y, q, ys, o0, o1, o2, o3, k, ahead):
        def generate(context, builder, signature, arguments):
            x, p, xs, w, w0, w1, w2, w3, y, q, ys, o0, o1, o2, o3, k, ahead = arguments
            places = dict(zip((0, 3, 8), (x, w, y), strict=True))
            x, w, y = (
                make_array(signature.args[i])(context, builder, array).data
                for i, array in places.items()
            )

            def row(data: Any, first: Any, stride: Any, number: int) -> Any:
                return builder.gep(
                    data, [builder.add(first, builder.mul(stride, _number(first, number)))]
                )

            made = Dots(
                builder, x.type.pointee, LANES[signature.args[0].dtype],
                [row(x, p, xs, r) for r in range(rows)],
                [builder.gep(w, [at]) for at in (w0, w1, w2, w3)],
                signature.args[3].dtype == types.int16, ahead,
            )  # fmt: skip
            sums = iter(made.emit(k))
            for column in (o0, o1, o2, o3):
                for r in range(rows):
                    builder.store(next(sums), builder.gep(row(y, q, ys, r), [column]))
            return context.get_dummy_value()

        n = types.uint64
        return types.void(x, n, n, w, *[n] * 4, y, *[n] * 8), generate

    return dots


dots_1, dots_2, dots_4 = map(_dots, (1, 2, 4))
NARROW = LANES[types.float32]
COLUMNS = TALL * NARROW  # of a sum that registers hold for as many heads


def _sums(heads: int, vectors: int) -> Any:
    """y[yo + g · yh + i] += Σ p[po + g · ps + t] · v[vo + t · vs + i] over t, one after the other:
    of some heads, and of so many vectors of columns, of which `left` are there.

    Sums stay in registers meanwhile. What has no weight adds nothing.
    """

    @intrinsic
    def sums(context, p, po, ps, v, vo, vs, y, yo, yh, count, left):
        def generate(context, builder, signature, arguments):
            p, po, ps, v, vo, vs, y, yo, yh, count, left = arguments
            p, v, y = (
                make_array(signature.args[i])(context, builder, array).data
                for i, array in ((0, p), (3, v), (6, y))
            )
            lanes = LANES[signature.args[0].dtype]
            vector = ir.VectorType(p.type.pointee, lanes)
            add = fused(builder, vector)
            is_in = None if vectors > 1 else _first_lanes(builder, left, lanes)

            def place(data: Any, first: Any, *more: Any) -> Any:
                return builder.gep(data, [reduce(builder.add, more, first)])

            def columns(data: Any, first: Any) -> list[Any]:
                starts = (place(data, first, _number(first, j * lanes)) for j in range(vectors))
                return [builder.bitcast(start, vector.as_pointer()) for start in starts]

            def step(t: Any, found: list[Any]) -> list[Any]:
                row = columns(v, builder.add(vo, builder.mul(t, vs)))
                values = [_loaded(builder, at, 4, is_in) for at in row]
                found_at = [place(p, po, builder.mul(ps, one), t) for one in numbers]
                weights = [spread(builder, builder.load(at), lanes) for at in found_at]
                pairs = [(weight, value) for weight in weights for value in values]
                return [
                    builder.call(add, [*pair, one]) for pair, one in zip(pairs, found, strict=True)
                ]

            numbers = [_number(po, g) for g in range(heads)]
            rows = [builder.add(yo, builder.mul(yh, one)) for one in numbers]
            outs = [at for row in rows for at in columns(y, row)]
            found = [_loaded(builder, at, 4, is_in) for at in outs]
            found = looped(builder, _number(count, 0), count, 1, found, step)
            for one, at in zip(found, outs, strict=True):
                _store(builder, one, at, 4, is_in)
            return context.get_dummy_value()

        n = types.uint64
        return types.void(p, n, n, v, n, n, y, *[n] * 4), generate

    return sums


sums_wide, sums_narrow = _sums(TALL, TALL), _sums(TALL, 1)
sums_wide_1, sums_narrow_1 = _sums(1, TALL), _sums(1, 1)
