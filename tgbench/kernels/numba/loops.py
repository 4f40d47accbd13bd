"""The loops behind the numba kernels, compiled once and kept on disk.

Every array is flat and contiguous, rows lie a stride apart, and indices are unsigned: then LLVM
vectorises the inner loops; those of products are vectors from the start (`sums`). Sums may be
reordered and products contracted (`reassoc`, `contract`), NaN and infinities keep their meaning.
A sum runs over its elements in one fixed order that does not depend on how many rows are asked
for, nor on where they stand, so a row has the same bits whether it is computed alone or among
others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.registry import cpu_target

from tgbench.kernels.numba.sources import remove_code_of_others
from tgbench.kernels.numba.sums import (
    COLUMNS,
    NARROW,
    TALL,
    dots_1,
    dots_2,
    dots_4,
    sums_narrow,
    sums_narrow_1,
    sums_wide,
    sums_wide_1,
)

if numba.config.DISABLE_JIT:  # loops in Python would be no kernels: as where numba is not there
    raise ImportError("numba compiles nothing, as NUMBA_DISABLE_JIT is set")

F, U = np.float32, np.uint64

SILU, GELU_TANH, GELU, RELU, TANH, SIGMOID, EXP, HARDSWISH, HARDSIGMOID = range(9)
ADD, SUB, MUL, SUB_FROM = range(4)
ACTIVATIONS = {
    "silu": SILU, "gelu_tanh": GELU_TANH, "gelu": GELU, "relu": RELU, "tanh": TANH,
    "sigmoid": SIGMOID, "exp": EXP, "hardswish": HARDSWISH, "hardsigmoid": HARDSIGMOID,
}  # fmt: skip
COMBINATIONS = {"add": ADD, "sub": SUB, "mul": MUL}


def jit(*flags: str, make: Any = numba.njit, **more: Any) -> Callable[[Any], Any]:
    """A function compiled when it is called, or loaded; products may be contracted with sums."""
    options = {"fastmath": {"contract", *flags}, "error_model": "numpy", **more}

    def decorate(function: Any) -> Any:
        try:
            return make(cache=True, **options)(function)
        except RuntimeError:  # no folder to keep the compiled code in
            return make(**options)(function)

    return decorate


kernel = jit("nsz", "reassoc")
plain = jit()  # and zeros keep their signs
_exact = jit("nsz")  # terms stay in the order they are written
long = jit("nsz", "reassoc", nogil=True)  # worth letting go of Python for


def native(*kinds: Any) -> Callable[[Any], Any]:
    """A function without a result that machine code calls by its address."""
    return jit("nsz", "reassoc", make=partial(numba.cfunc, types.void(*kinds)))


@cache
def load() -> None:
    """What the first of all loops needs: a third of a second, once a process."""
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


@cache
def compiled(function: Any, *kinds: str) -> Any:
    """A function, compiled or loaded for arguments of these kinds: dtypes of arrays, int, float."""
    plain = {"int": types.int64, "float": types.float64}
    signature = tuple(plain.get(kind) or types.Array(scalar(kind), 1, "C") for kind in kinds)
    function.compile(signature)
    return function


def folder() -> Path | None:
    """Where machine code is kept; None where none is."""
    path = linear.stats.cache_path
    return None if path is None else Path(path)


def scalar(dtype: str) -> Any:
    """The type of an element; of half floats, which numba lacks, that of their bits."""
    bits = {"bool": types.boolean, "bfloat16": types.uint16, "float16": types.int16}
    return bits.get(dtype) or getattr(types, dtype)


# --- scalars -------------------------------------------------------------------------------------


@_exact
def exp32(x):
    """exp of a float32, within 2 units in the last place, by LLVM's vectoriser.

    Rounding by a magic constant leaves the exponent in the low bits. Source: Cephes, expf.
    Results below 1.2e-38 are 0, above 2.4e38 infinite.
    """
    inside = min(max(x, F(-87.3)), F(89.0))
    shifted = inside * F(1.44269504088896341) + F(12582912.0)
    n = shifted - F(12582912.0)
    r = (inside - n * F(0.693359375)) - n * F(-2.12194440e-4)
    p = F(1.9875691500e-4)
    p = p * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    p = p * r * r + r + F(1.0)
    power = np.int32(np.int32(F(shifted).view(np.int32) << 23) + np.int32(0x3F800000))
    result = p * np.int32(power).view(np.float32)
    result = F(0.0) if x < F(-87.3) else result
    return result if x == x else x


@_exact
def erf32(x):
    """erf of a float32, within 2 units in the last place.

    Source: N. Juffa's erff; two polynomials, joined at 475/512.
    """
    t = min(abs(x), F(10.0))
    s = t * t
    r = F(-1.72853470e-5) * t + F(3.83197126e-4)
    u = F(-3.88396438e-3) * t + F(2.42546219e-2)
    r = (((r * s + u) * t + F(-1.06777877e-1)) * t + F(-6.34846687e-1)) * t + F(-1.28717512e-1)
    far = F(1.0) - exp32(r * t - t)
    r = F(-5.96761703e-4)
    r = (r * s + F(4.99119423e-3)) * s + F(-2.67681349e-2)
    r = ((r * s + F(1.12819925e-1)) * s + F(-3.76125336e-1)) * s + F(1.28379166e-1)
    near = r * t + t
    result = far if t > F(0.927734375) else near
    result = -result if x < F(0) else result
    return result if x == x else x


@plain
def tanh32(x):
    """tanh of a float32, within 2 units in the last place. Source: Cephes, tanhf."""
    s = x * x
    p = F(-5.70498872745e-3) * s + F(2.06390887954e-2)
    p = (p * s - F(5.37397155531e-2)) * s + F(1.33314422036e-1)
    near = (p * s - F(3.33332819422e-1)) * s * x + x if x != F(0) else x
    far = F(1) - F(2) / (exp32(F(2) * abs(x)) + F(1))
    far = -far if x < F(0) else far
    return near if abs(x) < F(0.625) else far


@_exact
def full_exp32(x):
    """exp of a float32 wherever it is one: far out as the square of what half of it gives."""
    is_far = abs(x) > F(87.0)
    found = exp32(x * F(0.5) if is_far else x)
    return found * found if is_far else found


@kernel
def _up_to_six(x):
    """x + 3 kept between 0 and 6; what is no number stays so."""
    found = x + F(3)
    found = F(0) if found < F(0) else found
    return F(6) if found > F(6) else found


@kernel
def activated(x, code):
    if code == EXP:
        return full_exp32(x)
    if code == GELU_TANH:
        return x / (F(1) + exp32(F(-1.5957691216057308) * (x + F(0.044715) * x * x * x)))
    if code == SILU:
        return x / (F(1) + exp32(-x))
    if code == GELU:
        return F(0.5) * x * (F(1) + erf32(x * F(0.7071067811865476)))
    if code == TANH:
        return tanh32(x)
    if code == SIGMOID:
        return F(1) / (F(1) + exp32(-x))
    if code == HARDSWISH:
        return x * _up_to_six(x) / F(6)
    if code == HARDSIGMOID:
        return _up_to_six(x) / F(6)
    return x if not x < F(0) else F(0)


# --- rows ----------------------------------------------------------------------------------------


@kernel
def copy_rows(x, xs, y, ys, rows, n):
    """y = x, row by row, unless they are the same memory."""
    if x.ctypes.data == y.ctypes.data:
        return
    for r in range(U(rows)):
        a, b = r * U(xs), r * U(ys)
        for i in range(U(n)):
            y[b + i] = x[a + i]


@kernel
def copy(x, x0, x1, y, y0, y1, outer, inner, depth):
    """y[a, b] = x[a, b]; two strides an array."""
    for a in range(U(outer)):
        for b in range(U(inner)):
            p, q = a * U(x0) + b * U(x1), a * U(y0) + b * U(y1)
            for i in range(U(depth)):
                y[q + i] = x[p + i]


@kernel
def activate(x, xs, y, ys, rows, n, code):
    copy_rows(x, xs, y, ys, rows, n)
    for r in range(U(rows)):
        b = r * U(ys)
        if code == GELU_TANH:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], GELU_TANH)
        elif code == SILU:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], SILU)
        elif code == RELU:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], RELU)
        elif code == TANH:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], TANH)
        elif code == SIGMOID:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], SIGMOID)
        elif code == EXP:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], EXP)
        elif code == HARDSWISH:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], HARDSWISH)
        elif code == HARDSIGMOID:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], HARDSIGMOID)
        else:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], GELU)


@kernel
def rms_norm(x, x0, x1, w, y, y0, y1, outer, inner, n, eps):
    """Of rows that lie in two dimensions."""
    if x.ctypes.data != y.ctypes.data:
        copy(x, x0, x1, y, y0, y1, outer, inner, n)
    for a in range(U(outer)):
        for r in range(U(inner)):
            b = a * U(y0) + r * U(y1)
            total = y.dtype.type(0)
            for i in range(U(n)):
                total += y[b + i] * y[b + i]
            scale = y.dtype.type(1) / np.sqrt(total / y.dtype.type(n) + y.dtype.type(eps))
            for i in range(U(n)):
                y[b + i] = y[b + i] * scale * w[i]


@kernel
def layer_norm(x, x0, x1, w, bias, y, y0, y1, outer, inner, n, eps):
    """Of rows that lie in two dimensions."""
    if x.ctypes.data != y.ctypes.data:
        copy(x, x0, x1, y, y0, y1, outer, inner, n)
    for a in range(U(outer)):
        for r in range(U(inner)):
            b = a * U(y0) + r * U(y1)
            total = y.dtype.type(0)
            for i in range(U(n)):
                total += y[b + i]
            mean = total / y.dtype.type(n)
            total = y.dtype.type(0)
            for i in range(U(n)):
                centred = y[b + i] - mean
                total += centred * centred
            scale = y.dtype.type(1) / np.sqrt(total / y.dtype.type(n) + y.dtype.type(eps))
            for i in range(U(n)):
                y[b + i] = (y[b + i] - mean) * scale * w[i] + bias[i]


@kernel
def softmax(x, xs, y, ys, rows, n):
    copy_rows(x, xs, y, ys, rows, n)
    for r in range(U(rows)):
        softmax_row(y, r * U(ys), U(n))


@_exact
def ordered(bits):
    """The bits of a float32 as an integer in the same order; its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & np.int32(0x7FFFFFFF)))


@kernel
def softmax_row(y, b, n):
    """One row in place.

    The maximum is taken of integers in the order of the floats, which the vectoriser can do. A NaN
    is the largest of all, or the smallest, if negative; its own exponential is a NaN all the same.
    """
    key = np.int32(-0x80000000)
    for i in range(n):
        key = max(key, ordered(F(y[b + i]).view(np.int32)))
    top = np.int32(ordered(key)).view(np.float32)
    total = F(0)
    for i in range(n):
        weight = exp32(y[b + i] - top)
        y[b + i] = weight
        total += weight
    scale = F(1) / total
    for i in range(n):
        y[b + i] *= scale


@kernel
def combine(a, sa, b, sb, scalar, y, ys, rows, n, code):
    """y = a ∘ b, row by row; with `scalar`, b is one number."""
    copy_rows(a, sa, y, ys, rows, n)
    for r in range(U(rows)):
        p, q = r * U(ys), r * U(sb)
        if scalar:
            c = b[0]
            if code == ADD:
                for i in range(U(n)):
                    y[p + i] += c
            elif code == SUB:
                for i in range(U(n)):
                    y[p + i] -= c
            elif code == MUL:
                for i in range(U(n)):
                    y[p + i] *= c
            else:
                for i in range(U(n)):
                    y[p + i] = c - y[p + i]
        elif code == ADD:
            for i in range(U(n)):
                y[p + i] += b[q + i]
        elif code == SUB:
            for i in range(U(n)):
                y[p + i] -= b[q + i]
        elif code == MUL:
            for i in range(U(n)):
                y[p + i] *= b[q + i]
        else:
            for i in range(U(n)):
                y[p + i] = b[q + i] - y[p + i]


@kernel
def select(c, c0, c1, ce, a, a0, a1, ae, b, b0, b1, be, y, y0, y1, outer, inner, n):
    """y = a where c, else b; three strides an operand, the last of them 1, or 0 for a number."""
    for i in range(U(outer)):
        for j in range(U(inner)):
            p, q = i * U(c0) + j * U(c1), i * U(a0) + j * U(a1)
            r, s = i * U(b0) + j * U(b1), i * U(y0) + j * U(y1)
            if ce and ae and be:
                for k in range(U(n)):
                    y[s + k] = a[q + k] if c[p + k] else b[r + k]
            elif ce and ae:
                other = b[r]
                for k in range(U(n)):
                    y[s + k] = a[q + k] if c[p + k] else other
            elif ce and be:
                one = a[q]
                for k in range(U(n)):
                    y[s + k] = one if c[p + k] else b[r + k]
            else:
                for k in range(U(n)):
                    one, other = a[q + k * U(ae)], b[r + k * U(be)]
                    y[s + k] = one if c[p + k * U(ce)] else other


@kernel
def prelu(x, x0, x1, w, w0, w1, we, y, y0, y1, outer, inner, n):
    """y = x where it is positive, else x · w; strides as above."""
    for i in range(U(outer)):
        for j in range(U(inner)):
            p, q, r = i * U(x0) + j * U(x1), i * U(y0) + j * U(y1), i * U(w0) + j * U(w1)
            if we:
                for k in range(U(n)):
                    value = x[p + k]
                    y[q + k] = value if value > 0 else value * w[r + k]
            else:
                slope = w[r]
                for k in range(U(n)):
                    value = x[p + k]
                    y[q + k] = value if value > 0 else value * slope


@kernel
def rope(x, x0, x1, c, c0, c1, s, s0, s1, y, y0, y1, outer, inner, depth):
    """y[a, b] = x[a, b] · cos[a, b] + turned(x[a, b]) · sin[a, b]; two strides an array."""
    half = U(depth) // U(2)
    for a in range(U(outer)):
        for b in range(U(inner)):
            p, q = a * U(x0) + b * U(x1), a * U(y0) + b * U(y1)
            t, u = a * U(c0) + b * U(c1), a * U(s0) + b * U(s1)
            for i in range(half):
                left, right = x[p + i], x[p + half + i]
                y[q + i] = left * c[t + i] - right * s[u + i]
                y[q + half + i] = right * c[t + half + i] + left * s[u + half + i]


@kernel
def gather(table, ts, ids, y, ys, count, height, n):
    for r in range(U(count)):
        index = np.int64(ids[r])
        if index < 0:
            index += height
        if index < 0 or index >= height:
            raise IndexError("gather: an index is outside the table; check the input")
        a, b = U(index) * U(ts), r * U(ys)
        for i in range(U(n)):
            y[b + i] = table[a + i]


# --- products ------------------------------------------------------------------------------------


@kernel
def row_products(x, xo, w, wo, ws, y, yo, start, stop, k, ahead):
    """`products` of one row: it waits for memory alone, so nothing else is in its way."""
    quarter = (stop - start) // U(4)
    for o in range(start, start + quarter):
        o1, o2, o3 = o + quarter, o + U(2) * quarter, o + U(3) * quarter
        w0, w1, w2, w3 = wo + o * ws, wo + o1 * ws, wo + o2 * ws, wo + o3 * ws
        dots_1(x, xo, U(0), w, w0, w1, w2, w3, y, yo, U(0), o, o1, o2, o3, k, ahead)
    o = start + U(4) * quarter
    if o < stop:
        o1, o2 = min(o + U(1), stop - U(1)), stop - U(1)
        w0, w1, w2 = wo + o * ws, wo + o1 * ws, wo + o2 * ws
        dots_1(x, xo, U(0), w, w0, w1, w2, w2, y, yo, U(0), o, o1, o2, o2, k, ahead)


@kernel
def products(x, xo, xs, w, wo, ws, y, yo, ys, rows, start, stop, k, ahead):
    """y[r, o] = x[r] · w[o] for o in start..stop, a weight row of each quarter at a time.

        w   ├─o──→     ├─o1─→     ├─o2─→     ├─o3─→     four streams, each read from end to end

    So the processor sees four long streams; four rows side by side would each end after a row.
    Where there is no quarter's last row, the last one of all is computed again. What is `ahead`, in
    bytes, is asked for: see `ahead`, the module.
    """
    if rows == U(1):
        row_products(x, xo, w, wo, ws, y, yo, start, stop, k, ahead)
        return
    last, quarter = stop - U(1), (stop - start + U(3)) // U(4)
    for o in range(start, start + quarter):
        o1, o2 = min(o + quarter, last), min(o + U(2) * quarter, last)
        o3 = min(o + U(3) * quarter, last)
        w0, w1, w2, w3 = wo + o * ws, wo + o1 * ws, wo + o2 * ws, wo + o3 * ws
        r = U(0)
        while TALL == 4 and r + U(4) <= rows:
            p, q = xo + r * xs, yo + r * ys
            dots_4(x, p, xs, w, w0, w1, w2, w3, y, q, ys, o, o1, o2, o3, k, ahead)
            r += U(4)
        while r + U(2) <= rows:
            p, q = xo + r * xs, yo + r * ys
            dots_2(x, p, xs, w, w0, w1, w2, w3, y, q, ys, o, o1, o2, o3, k, ahead)
            r += U(2)
        if r < rows:
            p, q = xo + r * xs, yo + r * ys
            dots_1(x, p, xs, w, w0, w1, w2, w3, y, q, ys, o, o1, o2, o3, k, ahead)


@kernel
def vector_products(x, x0, x1, w, w0, w1, ws, y, y0, y1, outer, inner, n, k, ahead):
    """y[i, j] = w[i, j] · x[i, j]: x [outer, inner, k], w [outer, inner, n, k], y without k."""
    for i in range(U(outer)):
        for j in range(U(inner)):
            xo, wo, yo = i * U(x0) + j * U(x1), i * U(w0) + j * U(w1), i * U(y0) + j * U(y1)
            products(x, xo, U(0), w, wo, U(ws), y, yo, U(0), U(1), U(0), U(n), U(k), U(ahead))


@kernel
def linear(x, xs, w, ws, y, ys, rows, n, k, ahead):
    """y = x · wᵀ: x [rows, k], w [n, k], y [rows, n]."""
    products(x, U(0), U(xs), w, U(0), U(ws), y, U(0), U(ys), U(rows), U(0), U(n), U(k), U(ahead))


@kernel
def linear_bias(x, xs, w, ws, bias, y, ys, rows, n, k, ahead):
    linear(x, xs, w, ws, y, ys, rows, n, k, ahead)
    combine(y, ys, bias, 0, 0, y, ys, rows, n, ADD)


@kernel
def linear_columns(x, xs, w, ws, y, ys, rows, n, k):
    """y = x · w: x [rows, k], w [k, n], y [rows, n]; a row of each quarter of w at a time.

    Numbers of y that are added to at a time stay in the first cache.
    """
    quarter, wide = U(k) // U(4), max(U(512), U(4096) // U(rows))
    for block in range((U(n) + wide - U(1)) // wide):
        start, stop = block * wide, min(block * wide + wide, U(n))
        for r in range(U(rows)):
            for i in range(start, stop):
                y[r * U(ys) + i] = y.dtype.type(0)
        for t in range(quarter):
            t1, t2, t3 = t + quarter, t + U(2) * quarter, t + U(3) * quarter
            w0, w1, w2, w3 = t * U(ws), t1 * U(ws), t2 * U(ws), t3 * U(ws)
            for r in range(U(rows)):
                p, q = r * U(xs), r * U(ys)
                x0, x1, x2, x3 = x[p + t], x[p + t1], x[p + t2], x[p + t3]
                for i in range(start, stop):
                    y[q + i] += x0 * w[w0 + i] + x1 * w[w1 + i] + x2 * w[w2 + i] + x3 * w[w3 + i]
        for t in range(U(4) * quarter, U(k)):
            for r in range(U(rows)):
                q, one = r * U(ys), x[r * U(xs) + t]
                for i in range(start, stop):
                    y[q + i] += one * w[t * U(ws) + i]


@kernel
def linear_columns_bias(x, xs, w, ws, bias, y, ys, rows, n, k):
    linear_columns(x, xs, w, ws, y, ys, rows, n, k)
    combine(y, ys, bias, 0, 0, y, ys, rows, n, ADD)


@kernel
def gated_linear(x, xs, gate, gs, up, us, y, ys, spare, rows, n, k, code, ahead):
    """y = activation(x · gateᵀ) · (x · upᵀ); spare [rows, n] takes the second product."""
    linear(x, xs, gate, gs, y, ys, rows, n, k, ahead)
    linear(x, xs, up, us, spare, n, rows, n, k, ahead)
    activate(y, ys, y, ys, rows, n, code)
    combine(y, ys, spare, n, 0, y, ys, rows, n, MUL)


@kernel
def _named(ids, r, count):
    index = np.int64(ids[r])
    if index < 0:
        index += count
    return index


@kernel
def gather_linear(x, xs, w, we, ws, ids, y, ys, rows, count, n, k, ahead):
    """y[r] = x[r] · w[ids[r]]ᵀ: x [rows, k], w [count, n, k], y [rows, n].

    One matrix after the other, which is read from near memory then, two of its rows at a time.
    """
    for r in range(U(rows)):
        if _named(ids, r, count) < 0 or _named(ids, r, count) >= count:
            raise IndexError("gather_linear: an index names no matrix; check the input")
    for e in range(count):
        wo, r = U(e) * U(we), U(0)
        while r < U(rows):
            if _named(ids, r, count) == e:
                other = r + U(1)
                while other < U(rows) and _named(ids, other, count) != e:
                    other += U(1)
                both = U(2) if other < U(rows) else U(1)
                products(
                    x, r * U(xs), (other - r) * U(xs), w, wo, U(ws), y, r * U(ys),
                    (other - r) * U(ys), both, U(0), U(n), U(k), U(ahead),
                )  # fmt: skip
                r = other
            r += U(1)


@kernel
def few_windows(
    x, xb, xc, xl, xp, w, ws, bias, y, yb, yc, yl, yp, rows, made, batch, channels, x_lines,
    x_points, lines, points, columns, tall, wide, line_step, point_step, line_gap, point_gap, above,
    before,
):  # fmt: skip
    """y[b, o, u, v] = the window of x[b] at line u and point v times w[o], and the bias.

    `rows` takes a window a row, in the order of w, with 0 where it reaches over x: `above` its
    first line so far, and `before` its first point. `made` takes the products.
    """
    depth, count, at = U(channels) * U(tall) * U(wide), U(columns), U(0)
    for b in range(U(batch)):
        for u in range(lines):
            for v in range(points):
                top, left = u * line_step - above, v * point_step - before
                for c in range(U(channels)):
                    for i in range(tall):
                        line = top + i * line_gap
                        first = b * U(xb) + c * U(xc) + U(max(line, 0)) * U(xl)
                        for j in range(wide):
                            point, value = left + j * point_gap, x.dtype.type(0)
                            if 0 <= line < x_lines and 0 <= point < x_points:
                                value = x[first + U(point) * U(xp)]
                            rows[at] = value
                            at += U(1)
    windows = U(batch) * U(lines) * U(points)
    products(
        rows, U(0), depth, w, U(0), U(ws), made, U(0), count, windows, U(0), count, depth, U(0)
    )
    at = U(0)
    for b in range(U(batch)):
        for u in range(U(lines)):
            for v in range(U(points)):
                first = b * U(yb) + u * U(yl) + v * U(yp)
                for o in range(count):
                    more = bias[o] if len(bias) else y.dtype.type(0)
                    y[first + o * U(yc)] = made[at + o] + more
                at += count


NO_MASK = np.ones(1, np.bool_)
NO_BIAS = {dtype: np.zeros(0, dtype) for dtype in ("float32", "float64")}
PAD = 64  # keys stand in a row of scores at their number modulo this: sums keep their order
KEYS = 64  # whose values are read at a time, for all heads


@kernel
def attention(q, qb, qh, qt, k, kb, kh, kt, v, vb, vh, vt, mask, mb, mh, mt, ms, y, yb, yh, yt,
              score, batch, heads, shared, rows, start, count, depth, wide, ahead, together,
              scale):  # fmt: skip
    """Attention of every query row, the heads that share keys one after another, or all `together`:
    where all that a row has for its heads lies side by side, it is read from end to end once.

    Strides: b batch, h head, t row; ms of the mask's columns, or −1 for no mask. start: the number
    of the first key. score: (heads at a time) · (count + 2 · PAD) elements.
    """
    group = U(heads) // U(shared)
    lead, keys = U(start) % U(PAD), U(count)
    width = (lead + keys + U(PAD - 1)) // U(PAD) * U(PAD)
    for b in range(U(batch)):
        for t in range(U(rows) if together else U(0)):
            ko, vo, m = b * U(kb), b * U(vb), b * U(mb) + t * U(mt)
            qo, yo = b * U(qb) + t * U(qt), b * U(yb) + t * U(yt)
            _scores_together(
                q, qo, U(qh), k, ko, U(kh), U(kt), score, lead, width, U(shared), group, keys,
                U(depth), U(ahead),
            )  # fmt: skip
            for g in range(U(heads)):
                _weights(score, g * width, lead, keys, width, mask, m + g * U(mh), ms, F(scale))
            _weighted_sums(
                score, width, lead, v, vo, U(vh), U(vt), y, yo, U(yh), U(shared), group, keys,
                U(wide),
            )  # fmt: skip
        for h in range(U(0) if together else U(shared)):
            for t in range(U(rows)):
                first = h * group
                ko, vo = b * U(kb) + h * U(kh), b * U(vb) + h * U(vh)
                qo = b * U(qb) + first * U(qh) + t * U(qt)
                products(
                    q, qo, U(qh), k, ko, U(kt), score, lead, width, group, U(0), keys, U(depth),
                    U(ahead),
                )  # fmt: skip
                for g in range(group):
                    m = b * U(mb) + (first + g) * U(mh) + t * U(mt)
                    _weights(score, g * width, lead, keys, width, mask, m, ms, F(scale))
                yo = b * U(yb) + first * U(yh) + t * U(yt)
                _weighted_sums(
                    score, width, lead, v, vo, U(0), U(vt), y, yo, U(yh), U(1), group, keys,
                    U(wide),
                )  # fmt: skip


@kernel
def _weights(score, s, lead, keys, width, mask, m, ms, scale):
    """A row of scores as weights: scaled, 0 where a key is masked and before and behind them."""
    for i in range(lead):
        score[s + i] = F(-np.inf)
    for i in range(lead, lead + keys):
        score[s + i] *= scale
    for i in range(lead + keys, width):
        score[s + i] = F(-np.inf)
    if ms >= 0:
        for i in range(keys):
            if not mask[m + i * U(ms)]:
                score[s + lead + i] = F(-np.inf)
    softmax_row(score, s, width)


@kernel
def _add_weighted(p, po, width, v, vo, vs, y, yo, yh, group, keys, wide):
    """y[g] += Σ p[g, t] · v[t] for the heads that share v."""
    g = U(0)
    while g < group:
        few = g + U(TALL) > group
        at, to, c = po + g * width, yo + g * yh, U(0)
        while c < wide:
            left = wide - c
            if left < U(COLUMNS) and few:
                sums_narrow_1(p, at, width, v, vo + c, vs, y, to + c, yh, keys, left)
            elif left < U(COLUMNS):
                sums_narrow(p, at, width, v, vo + c, vs, y, to + c, yh, keys, left)
            elif few:
                sums_wide_1(p, at, width, v, vo + c, vs, y, to + c, yh, keys, left)
            else:
                sums_wide(p, at, width, v, vo + c, vs, y, to + c, yh, keys, left)
            c += U(COLUMNS) if left >= U(COLUMNS) else U(NARROW)
        g += U(1) if few else U(TALL)


@kernel
def _weighted_sums(p, width, lead, v, vo, vh, vs, y, yo, yh, shared, group, keys, wide):
    """y = Σ p[lead + t] · v[t] of all heads: of some rows of v, which a near cache holds, before
    the next ones.
    """
    for g in range(shared * group):
        for i in range(wide):
            y[yo + g * yh + i] = F(0)
    for first in range(U(0), keys, U(KEYS)):
        count = min(keys - first, U(KEYS))
        for h in range(shared):
            at, to = h * group * width + lead + first, yo + h * group * yh
            rows = vo + h * vh + first * vs
            _add_weighted(p, at, width, v, rows, vs, y, to, yh, group, count, wide)


@kernel
def _scores_together(q, qo, qh, k, ko, kh, kt, score, lead, width, shared, group, keys, depth,
                     ahead):  # fmt: skip
    """Queries times keys as `products` does, by four keys: of all heads before the next four."""
    last, quarter = keys - U(1), (keys + U(3)) // U(4)
    for o in range(quarter):
        o1, o2 = min(o + quarter, last), min(o + U(2) * quarter, last)
        o3 = min(o + U(3) * quarter, last)
        for g in range(shared * group):
            first, p = ko + g // group * kh, qo + g * qh
            w0, w1, w2, w3 = first + o * kt, first + o1 * kt, first + o2 * kt, first + o3 * kt
            to = g * width + lead
            dots_1(q, p, qh, k, w0, w1, w2, w3, score, to, width, o, o1, o2, o3, depth, ahead)


# --- what is kept --------------------------------------------------------------------------------

if kept := folder():
    remove_code_of_others(kept)
