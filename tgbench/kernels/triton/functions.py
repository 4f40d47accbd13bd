"""What written kernels are made of: functions of float32 numbers, in Triton's language.

Those of `numba.loops` and `numba.scalars`, term by term, so that NaN, infinities and zeros mean the
same, and what is close to the reference there is close to it here. Triton's own exponential and
quotient are approximations that lose bits, or the infinities, of large numbers. Importing this
takes Triton.
"""

from __future__ import annotations

import triton
import triton.language as tl

LOWEST, NAN = tl.constexpr(-0x80000000), tl.constexpr(0x7FC00000)


@triton.jit
def negative(x):
    return x * -1.0


@triton.jit
def quotient(a, b):
    a, b = tl.broadcast(a, b)
    return tl.div_rn(a, b)


@triton.jit
def reciprocal(x):
    return tl.div_rn(tl.full(x.shape, 1.0, tl.float32), x)


@triton.jit
def larger(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def smaller(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def ordered(bits):
    """The bits of a float32 as an integer in the same order; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def place(x):
    """Where a float32 stands among all: an integer in their order, NaN above everything."""
    return tl.where(x == x, ordered(x.to(tl.int32, bitcast=True)), NAN)


@triton.jit
def number(place):
    return ordered(place).to(tl.float32, bitcast=True)


@triton.jit
def exp32(x):
    """Source: Cephes, expf. Results below 1.2e-38 are 0, above 2.4e38 infinite."""
    inside = tl.minimum(tl.maximum(x, -87.3), 89.0)
    n = tl.floor(inside * 1.44269504088896341 + 0.5)
    r = (inside - n * 0.693359375) - n * -2.12194440e-4
    p = 1.9875691500e-4 * r + 1.3981999507e-3
    p = p * r + 8.3334519073e-3
    p = p * r + 4.1665795894e-2
    p = p * r + 1.6666665459e-1
    p = p * r + 5.0000001201e-1
    p = p * r * r + r + 1.0
    power = (n.to(tl.int32) << 23) + 0x3F800000
    result = p * power.to(tl.float32, bitcast=True)
    result = tl.where(x < -87.3, 0.0, result)
    return tl.where(x == x, result, x)


@triton.jit
def full_exp32(x):
    """Wherever it is a float32: far out as the square of what half of it gives."""
    is_far = tl.abs(x) > 87.0
    found = exp32(tl.where(is_far, x * 0.5, x))
    return tl.where(is_far, found * found, found)


@triton.jit
def erf32(x):
    """Source: N. Juffa's erff; two polynomials, joined at 475/512."""
    t = tl.minimum(tl.abs(x), 10.0)
    s = t * t
    r = -1.72853470e-5 * t + 3.83197126e-4
    u = -3.88396438e-3 * t + 2.42546219e-2
    r = (((r * s + u) * t + -1.06777877e-1) * t + -6.34846687e-1) * t + -1.28717512e-1
    far = 1.0 - exp32(r * t - t)
    r = -5.96761703e-4 * s + 4.99119423e-3
    r = r * s + -2.67681349e-2
    r = ((r * s + 1.12819925e-1) * s + -3.76125336e-1) * s + 1.28379166e-1
    near = r * t + t
    result = tl.where(t > 0.927734375, far, near)
    result = tl.where(x < 0.0, negative(result), result)
    return tl.where((x == x) & (x != 0.0), result, x)


@triton.jit
def tanh32(x):
    """Source: Cephes, tanhf."""
    s = x * x
    p = -5.70498872745e-3 * s + 2.06390887954e-2
    p = (p * s - 5.37397155531e-2) * s + 1.33314422036e-1
    near = tl.where(x != 0.0, (p * s - 3.33332819422e-1) * s * x + x, x)
    far = 1.0 - quotient(tl.full(x.shape, 2.0, tl.float32), exp32(2.0 * tl.abs(x)) + 1.0)
    far = tl.where(x < 0.0, negative(far), far)
    return tl.where(tl.abs(x) < 0.625, near, far)


@triton.jit
def log32(x):
    """Source: Cephes, logf."""
    is_small = x < 1.17549435e-38
    bits = tl.where(is_small, x * 8388608.0, x).to(tl.int32, bitcast=True)
    power = ((bits >> 23) - 126).to(tl.float32) - tl.where(is_small, 23.0, 0.0)
    m = ((bits & 0x7FFFFF) | 0x3F000000).to(tl.float32, bitcast=True)
    is_low = m < 0.707106781186547524
    power = tl.where(is_low, power - 1.0, power)
    m = tl.where(is_low, m + m - 1.0, m - 1.0)
    s = m * m
    p = 7.0376836292e-2 * m - 1.1514610310e-1
    p = p * m + 1.1676998740e-1
    p = p * m - 1.2420140846e-1
    p = p * m + 1.4249322787e-1
    p = p * m - 1.6668057665e-1
    p = p * m + 2.0000714765e-1
    p = p * m - 2.4999993993e-1
    p = p * m + 3.3333331174e-1
    p = p * m * s - 2.12194440e-4 * power - 0.5 * s
    found = m + p + 0.693359375 * power
    found = tl.where(x == 0.0, float("-inf"), tl.where(x < 0.0, float("nan"), found))
    return tl.where(x < float("inf"), found, x + x)
