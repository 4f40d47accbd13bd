"""The loops behind the numba kernels, compiled once and kept on disk.

Every array is flat and contiguous, rows lie a stride apart, and indices are unsigned: then LLVM
vectorises the inner loops. Sums may be reordered and products contracted (`reassoc`, `contract`),
NaN and infinities keep their meaning. A sum runs over its elements in one fixed order that does
not depend on how many rows are asked for, nor on where they stand, so a row has the same bits
whether it is computed alone or among others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

F, U = np.float32, np.uint64

SILU, GELU_TANH, GELU, RELU = range(4)
ADD, SUB, MUL, SUB_FROM = range(4)
ACTIVATIONS = {"silu": SILU, "gelu_tanh": GELU_TANH, "gelu": GELU, "relu": RELU}
COMBINATIONS = {"add": ADD, "sub": SUB, "mul": MUL}


def _jit(*flags: str, nogil: bool = False) -> Callable[[Any], Any]:
    options = {"fastmath": {"contract", "nsz", *flags}, "nogil": nogil, "error_model": "numpy"}

    njit: Any = numba.njit

    def decorate(function: Any) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no folder to keep the compiled code in
            return njit(**options)(function)

    return decorate


_kernel = _jit("reassoc")
_exact = _jit()  # terms stay in the order they are written
_long = _jit("reassoc", nogil=True)  # worth letting go of Python for


@cache
def compiled(function: Any, *kinds: str) -> Any:
    """A function, compiled or loaded for arguments of these kinds: dtypes of arrays, int, float."""
    plain = {"int": types.int64, "float": types.float64}
    signature = tuple(plain.get(kind) or types.Array(_scalar(kind), 1, "C") for kind in kinds)
    function.compile(signature)
    return function


def _scalar(dtype: str) -> Any:
    return types.boolean if dtype == "bool" else getattr(types, dtype)


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


@_kernel
def activated(x, code):
    if code == GELU_TANH:
        return x / (F(1) + exp32(F(-1.5957691216057308) * (x + F(0.044715) * x * x * x)))
    if code == SILU:
        return x / (F(1) + exp32(-x))
    if code == GELU:
        return F(0.5) * x * (F(1) + erf32(x * F(0.7071067811865476)))
    return x if not x < F(0) else F(0)


# --- rows ----------------------------------------------------------------------------------------


@_kernel
def copy_rows(x, xs, y, ys, rows, n):
    """y = x, row by row, unless they are the same memory."""
    if x.ctypes.data == y.ctypes.data:
        return
    for r in range(U(rows)):
        a, b = r * U(xs), r * U(ys)
        for i in range(U(n)):
            y[b + i] = x[a + i]


@_kernel
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
        else:
            for i in range(U(n)):
                y[b + i] = activated(y[b + i], GELU)


@_kernel
def rms_norm(x, xs, w, y, ys, rows, n, eps):
    copy_rows(x, xs, y, ys, rows, n)
    for r in range(U(rows)):
        b = r * U(ys)
        total = y.dtype.type(0)
        for i in range(U(n)):
            total += y[b + i] * y[b + i]
        scale = y.dtype.type(1) / np.sqrt(total / y.dtype.type(n) + y.dtype.type(eps))
        for i in range(U(n)):
            y[b + i] = y[b + i] * scale * w[i]


@_kernel
def layer_norm(x, xs, w, bias, y, ys, rows, n, eps):
    copy_rows(x, xs, y, ys, rows, n)
    for r in range(U(rows)):
        b = r * U(ys)
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


@_kernel
def softmax(x, xs, y, ys, rows, n):
    copy_rows(x, xs, y, ys, rows, n)
    for r in range(U(rows)):
        _softmax_row(y, r * U(ys), U(n))


@_exact
def _ordered(bits):
    """The bits of a float32 as an integer in the same order; its own inverse."""
    return np.int32(bits ^ np.int32(np.int32(bits >> 31) & np.int32(0x7FFFFFFF)))


@_kernel
def _softmax_row(y, b, n):
    """One row in place.

    The maximum is taken of integers in the order of the floats, which the vectoriser can do. A NaN
    is the largest of all, or the smallest, if negative; its own exponential is a NaN all the same.
    """
    key = np.int32(-0x80000000)
    for i in range(n):
        key = max(key, _ordered(F(y[b + i]).view(np.int32)))
    top = np.int32(_ordered(key)).view(np.float32)
    total = F(0)
    for i in range(n):
        weight = exp32(y[b + i] - top)
        y[b + i] = weight
        total += weight
    scale = F(1) / total
    for i in range(n):
        y[b + i] *= scale


@_kernel
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


@_kernel
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


@_kernel
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


# --- counting between threads ---------------------------------------------------------------------


@intrinsic
def _add(context, array, index, value):
    """array[index] += value as one step that no other thread can divide; the old number."""

    def generate(context, builder, signature, arguments):
        data = make_array(signature.args[0])(context, builder, arguments[0]).data
        place = builder.gep(data, [arguments[1]])
        return builder.atomic_rmw("add", place, arguments[2], "acq_rel")

    return types.int64(array, types.intp, types.int64), generate


# --- products ------------------------------------------------------------------------------------


@_kernel
def _products(x, xo, xs, w, wo, ws, y, yo, ys, rows, start, stop, k):
    """y[r, o] = x[r] · w[o] for o in start..stop, four weight rows at a time.

    Every product is taken by the one inner loop: the last four weight rows step back over some
    that are done, fewer than four are repeated.
    """
    last = stop - U(1)
    for block in range((stop - start + U(3)) // U(4)):
        o = start + U(4) * block
        if o + U(4) > stop and stop >= start + U(4):
            o = stop - U(4)
        o1, o2, o3 = min(o + U(1), last), min(o + U(2), last), min(o + U(3), last)
        w0, w1, w2, w3 = wo + o * ws, wo + o1 * ws, wo + o2 * ws, wo + o3 * ws
        for r in range(rows):
            p, q = xo + r * xs, yo + r * ys
            t0 = t1 = t2 = t3 = x.dtype.type(0)
            for i in range(k):
                v = x[p + i]
                t0 += w[w0 + i] * v
                t1 += w[w1 + i] * v
                t2 += w[w2 + i] * v
                t3 += w[w3 + i] * v
            y[q + o], y[q + o1], y[q + o2], y[q + o3] = t0, t1, t2, t3


@_kernel
def linear(x, xs, w, ws, y, ys, rows, n, k):
    """y = x · wᵀ: x [rows, k], w [n, k], y [rows, n]."""
    _products(x, U(0), U(xs), w, U(0), U(ws), y, U(0), U(ys), U(rows), U(0), U(n), U(k))


@_long
def linear_turns(turn, x, xs, w, ws, y, ys, rows, n, k, chunk):
    """`linear`, by as many threads as call this: each takes the next `chunk` columns of y.

    turn[0] counts chunks that are taken, turn[1] those that are done. Returns how many there are.
    """
    chunks = (n + chunk - 1) // chunk
    while True:
        mine = _add(turn, 0, 1)
        if mine >= chunks:
            return chunks
        start, stop = mine * chunk, min(n, mine * chunk + chunk)
        _products(
            x, U(0), U(xs), w, U(0), U(ws), y, U(0), U(ys), U(rows), U(start), U(stop), U(k)
        )  # fmt: skip
        _add(turn, 1, 1)


@_kernel
def linear_bias(x, xs, w, ws, bias, y, ys, rows, n, k):
    linear(x, xs, w, ws, y, ys, rows, n, k)
    combine(y, ys, bias, 0, 0, y, ys, rows, n, ADD)


@_kernel
def gated_linear(x, xs, gate, gs, up, us, y, ys, spare, rows, n, k, code):
    """y = activation(x · gateᵀ) · (x · upᵀ); spare [rows, n] takes the second product."""
    linear(x, xs, gate, gs, y, ys, rows, n, k)
    linear(x, xs, up, us, spare, n, rows, n, k)
    activate(y, ys, y, ys, rows, n, code)
    combine(y, ys, spare, n, 0, y, ys, rows, n, MUL)


NO_MASK = np.ones(1, np.bool_)
PAD = 64  # keys stand in a row of scores at their number modulo this, so that sums keep their order


@_kernel
def attention(q, qb, qh, qt, k, kb, kh, kt, v, vb, vh, vt, mask, mb, mh, mt, ms, y, yb, yh, yt,
              score, batch, heads, shared, rows, start, count, depth, wide, scale):  # fmt: skip
    """Attention of every query row, the heads that share keys one after another.

    Strides: b batch, h head, t row; ms of the mask's columns, or −1 for no mask. start: the number
    of the first key. score: (heads / shared) · (count + 2 · PAD) elements.
    """
    group = U(heads) // U(shared)
    lead, keys = U(start) % U(PAD), U(count)
    width = (lead + keys + U(PAD - 1)) // U(PAD) * U(PAD)
    for b in range(U(batch)):
        for h in range(U(shared)):
            for t in range(U(rows)):
                first = h * group
                ko, vo = b * U(kb) + h * U(kh), b * U(vb) + h * U(vh)
                qo = b * U(qb) + first * U(qh) + t * U(qt)
                _products(
                    q, qo, U(qh), k, ko, U(kt), score, lead, width, group, U(0), keys, U(depth)
                )
                for g in range(group):
                    s = g * width
                    for i in range(lead):
                        score[s + i] = F(-np.inf)
                    for i in range(lead, lead + keys):
                        score[s + i] *= F(scale)
                    for i in range(lead + keys, width):
                        score[s + i] = F(-np.inf)
                    if ms >= 0:
                        m = b * U(mb) + (first + g) * U(mh) + t * U(mt)
                        for i in range(keys):
                            if not mask[m + i * U(ms)]:
                                score[s + lead + i] = F(-np.inf)
                    _softmax_row(score, s, width)
                    yo = b * U(yb) + (first + g) * U(yh) + t * U(yt)
                    _weighted_sum(score, s, lead, v, vo, U(vt), y, yo, keys, U(wide))


@_kernel
def _weighted_sum(p, po, lead, v, vo, vs, y, yo, count, wide):
    """y = Σ p[lead + t] · v[t], four rows at a time; weights before and behind them are 0."""
    for i in range(wide):
        y[yo + i] = F(0)
    for block in range(lead // U(4), (lead + count + U(3)) // U(4)):
        t = U(4) * block
        v0, v1 = vo + _row(t, lead, count) * vs, vo + _row(t + U(1), lead, count) * vs
        v2, v3 = vo + _row(t + U(2), lead, count) * vs, vo + _row(t + U(3), lead, count) * vs
        p0, p1, p2, p3 = p[po + t], p[po + t + U(1)], p[po + t + U(2)], p[po + t + U(3)]
        for i in range(wide):
            y[yo + i] += p0 * v[v0 + i] + p1 * v[v1 + i] + p2 * v[v2 + i] + p3 * v[v3 + i]


@_kernel
def _row(t, lead, count):
    return min(max(t, lead) - lead, count - U(1))
