"""Recurrent steps as compiled loops: the products of `loops`, and the gates in passes of their own.

Arrays are flat. x [steps, batch, gates · n] is what inputs add to the gates, w [gates · n, n] the
weights of h, s the states to begin with, y the result as `graph.ops.recurrent` has it, made
[batch, gates · n] what is worked with. xt and xb are strides of steps and samples, and so on.
"""

from __future__ import annotations

from tgbench.kernels.numba.loops import (
    RELU,
    SIGMOID,
    TANH,
    U,
    activated,
    kernel,
    products,
)


@kernel
def _gate(z, at, n, code):
    """A gate's numbers in place."""
    if code == SIGMOID:
        for i in range(n):
            z[at + i] = activated(z[at + i], SIGMOID)
    elif code == TANH:
        for i in range(n):
            z[at + i] = activated(z[at + i], TANH)
    else:
        for i in range(n):
            z[at + i] = activated(z[at + i], RELU)


@kernel
def _add(z, at, x, first, n):
    for i in range(n):
        z[at + i] += x[first + i]


@kernel
def _copy(z, at, x, first, n):
    for i in range(n):
        z[at + i] = x[first + i]


@kernel
def _product(i, before, s, so, sb, y, yb, w, ws, made, batch, width, n):
    """made = h before step i · wᵀ: h of the first one is among the states."""
    if i == 0:
        products(s, so, sb, w, U(0), ws, made, U(0), width, batch, U(0), width, n)
    else:
        products(y, before, yb, w, U(0), ws, made, U(0), width, batch, U(0), width, n)


@kernel
def lstm(x, xt, xb, w, ws, bias, s, st, sb, y, yt, yb, made, steps, batch, n, reverse):
    units, samples, width = U(n), U(batch), U(4 * n)
    cells = U(0) if reverse else U(steps) * U(yt)  # where y has the cell state
    lead = U(yt) if reverse else U(0)  # where h of step 0 is
    first_c, first_h = (U(0), U(st)) if reverse else (U(st), U(0))
    for b in range(samples):
        _copy(y, cells + b * U(yb), s, first_c + b * U(sb), units)
    before = U(0)
    for i in range(steps):
        t = U(steps - 1 - i) if reverse else U(i)
        _product(i, before, s, first_h, U(sb), y, U(yb), w, U(ws), made, samples, width, units)
        for b in range(samples):
            z, c, h = b * width, cells + b * U(yb), lead + t * U(yt) + b * U(yb)
            _add(made, z, bias, U(0), width)
            _add(made, z, x, t * U(xt) + b * U(xb), width)
            _gate(made, z, U(2) * units, SIGMOID)
            _gate(made, z + U(2) * units, units, TANH)
            _gate(made, z + U(3) * units, units, SIGMOID)
            for j in range(units):
                y[c + j] = made[z + units + j] * y[c + j] + made[z + j] * made[z + U(2) * units + j]
            _copy(y, h, y, c, units)
            _gate(y, h, units, TANH)
            for j in range(units):
                y[h + j] *= made[z + U(3) * units + j]
        before = lead + t * U(yt)


@kernel
def gru(x, xt, xb, w, ws, bias, s, st, sb, y, yt, yb, made, steps, batch, n, reverse):
    units, samples, width, before = U(n), U(batch), U(3 * n), U(0)
    for i in range(steps):
        t = U(steps - 1 - i) if reverse else U(i)
        _product(i, before, s, U(0), U(sb), y, U(yb), w, U(ws), made, samples, width, units)
        for b in range(samples):
            z, h, more = b * width, t * U(yt) + b * U(yb), t * U(xt) + b * U(xb)
            new = z + U(2) * units
            _add(made, z, bias, U(0), width)
            _add(made, z, x, more, U(2) * units)
            _gate(made, z, U(2) * units, SIGMOID)
            for j in range(units):
                made[new + j] *= made[z + j]
            _add(made, new, x, more + U(2) * units, units)
            _gate(made, new, units, TANH)
            if i == 0:
                _copy(y, h, s, b * U(sb), units)
            else:
                _copy(y, h, y, before + b * U(yb), units)
            for j in range(units):
                y[h + j] -= made[new + j]
            for j in range(units):
                y[h + j] *= made[z + units + j]
            _add(y, h, made, new, units)
        before = t * U(yt)


@kernel
def rnn(x, xt, xb, w, ws, bias, s, st, sb, y, yt, yb, made, steps, batch, n, reverse, code):
    units, samples, before = U(n), U(batch), U(0)
    for i in range(steps):
        t = U(steps - 1 - i) if reverse else U(i)
        _product(i, before, s, U(0), U(sb), y, U(yb), w, U(ws), made, samples, units, units)
        for b in range(samples):
            z, h = b * units, t * U(yt) + b * U(yb)
            _add(made, z, bias, U(0), units)
            _add(made, z, x, t * U(xt) + b * U(xb), units)
            _copy(y, h, made, z, units)
            _gate(y, h, units, code)
        before = t * U(yt)
