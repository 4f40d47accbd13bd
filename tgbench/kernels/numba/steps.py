"""Recurrent steps as compiled loops: the products of `loops`, and the gates in passes of their own.

Arrays are flat. x [steps, batch, gates · n] is what inputs add to the gates, w [gates · n, n] the
weights of h, s [batch, states · n] what the first step begins with, y [steps, batch, states · n]
what each step leaves, made [batch, gates · n] what is worked with. xt and xb are strides of steps
and samples, and so on. By panels the products of many samples are of weights that were laid out
(see `blocks`); words are where rows begin.
"""

from __future__ import annotations

import numpy as np

from tgbench.kernels.numba.blocks import AHEAD, PANEL, TALL, across_of, call_blocks
from tgbench.kernels.numba.loops import (
    RELU,
    SIGMOID,
    TANH,
    F,
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
def _product(i, s, sb, y, yt, yb, w, ws, made, batch, width, n):
    """made = h before step i · wᵀ"""
    if i == 0:
        products(s, U(0), sb, w, U(0), ws, made, U(0), width, batch, U(0), width, n, U(0))
    else:
        products(y, U(i - 1) * yt, yb, w, U(0), ws, made, U(0), width, batch, U(0), width, n, U(0))


@kernel
def _begin(i, y, at, yt, s, first, n):
    """y[at:] = what is there before step i, to be made what is there behind it."""
    if i == 0:
        _copy(y, at, s, first, n)
    else:
        _copy(y, at, y, at - yt, n)


@kernel
def _lstm_row(i, s, first, y, yt, h, made, z, units):
    """A sample's row y[h:] of step i, whose gates are added up at made[z:]."""
    c = h + units
    _gate(made, z, U(2) * units, SIGMOID)
    _gate(made, z + U(2) * units, units, TANH)
    _gate(made, z + U(3) * units, units, SIGMOID)
    _begin(i, y, c, yt, s, first + units, units)
    for j in range(units):
        y[c + j] = made[z + units + j] * y[c + j] + made[z + j] * made[z + U(2) * units + j]
    _copy(y, h, y, c, units)
    _gate(y, h, units, TANH)
    for j in range(units):
        y[h + j] *= made[z + U(3) * units + j]


@kernel
def _gru_row(i, x, more, s, first, y, yt, h, made, z, units):
    """The same; what an input adds is at x[more:], and at made[z:] the rest."""
    new = z + U(2) * units
    _add(made, z, x, more, U(2) * units)
    _gate(made, z, U(2) * units, SIGMOID)
    for j in range(units):
        made[new + j] *= made[z + j]
    _add(made, new, x, more + U(2) * units, units)
    _gate(made, new, units, TANH)
    _begin(i, y, h, yt, s, first, units)
    for j in range(units):
        y[h + j] -= made[new + j]
    for j in range(units):
        y[h + j] *= made[z + units + j]
    _add(y, h, made, new, units)


@kernel
def _rnn_row(y, h, made, z, units, code):
    _copy(y, h, made, z, units)
    _gate(y, h, units, code)


@kernel
def lstm(x, xt, xb, w, ws, bias, s, sb, y, yt, yb, made, steps, batch, n):
    units, samples, width = U(n), U(batch), U(4 * n)
    for i in range(steps):
        _product(i, s, U(sb), y, U(yt), U(yb), w, U(ws), made, samples, width, units)
        for b in range(samples):
            z = b * width
            _add(made, z, bias, U(0), width)
            _add(made, z, x, U(i) * U(xt) + b * U(xb), width)
            _lstm_row(i, s, b * U(sb), y, U(yt), U(i) * U(yt) + b * U(yb), made, z, units)


@kernel
def gru(x, xt, xb, w, ws, bias, s, sb, y, yt, yb, made, steps, batch, n):
    units, samples, width = U(n), U(batch), U(3 * n)
    for i in range(steps):
        _product(i, s, U(sb), y, U(yt), U(yb), w, U(ws), made, samples, width, units)
        for b in range(samples):
            z, h, more = b * width, U(i) * U(yt) + b * U(yb), U(i) * U(xt) + b * U(xb)
            _add(made, z, bias, U(0), width)
            _gru_row(i, x, more, s, b * U(sb), y, U(yt), h, made, z, units)


@kernel
def rnn(x, xt, xb, w, ws, bias, s, sb, y, yt, yb, made, steps, batch, n, code):
    units, samples = U(n), U(batch)
    for i in range(steps):
        _product(i, s, U(sb), y, U(yt), U(yb), w, U(ws), made, samples, units, units)
        for b in range(samples):
            z = b * units
            _add(made, z, bias, U(0), units)
            _add(made, z, x, U(i) * U(xt) + b * U(xb), units)
            _rnn_row(y, U(i) * U(yt) + b * U(yb), made, z, units, code)


# --- by panels -----------------------------------------------------------------------------------


def room_of(batch: int) -> int:
    """Words: where rows of h, of what is worked with and of what inputs add are; some behind the
    last are read.
    """
    return 3 * batch + 2 * AHEAD + TALL


@kernel
def _rows(words, at, first, apart, count):
    """Where rows begin that are so many bytes apart; behind the last, the first ones' next panel:
    what is asked for with it.
    """
    for r in range(count):
        words[at + r] = first + apart * r
    for i in range(AHEAD):
        words[at + count + i] = first + apart * min(i, count - 1) + 4 * PANEL


@kernel
def _by_panels(
    i, words, x, xt, xb, has_more, w, bias, s, sb, y, yt, yb, made, batch, width, n, blocks
):  # fmt: skip
    """made = h before step i · wᵀ + bias, and what inputs add, if that `has_more`."""
    first, apart = s.ctypes.data, sb
    if i > 0:
        first, apart = y.ctypes.data + 4 * (i - 1) * yt, yb
    for r in range(batch):
        words[r] = first + 4 * apart * r
    if i == 0:
        _rows(words, batch, made.ctypes.data, 4 * width, batch)
    table, mores = words.ctypes.data, 0
    if has_more:
        _rows(words, 2 * batch + AHEAD, x.ctypes.data + 4 * i * xt, 4 * xb, batch)
        mores = table + 8 * (2 * batch + AHEAD)
    for column in range(0, width, PANEL):
        at, across = 4 * column, across_of(min(PANEL, width - column))
        call_blocks(
            blocks, U(table), U(0), U(table + 8 * batch), U(mores), U(at), U(at),
            U(w.ctypes.data + at * n), U(batch), U(1), U(n), U(bias.ctypes.data + at), U(across),
            F(-np.inf), F(np.inf),
        )  # fmt: skip


@kernel
def lstm_by_panels(x, xt, xb, w, bias, s, sb, y, yt, yb, made, words, steps, batch, n, blocks):
    for i in range(steps):
        _by_panels(
            i, words, x, xt, xb, True, w, bias, s, sb, y, yt, yb, made, batch, 4 * n, n, blocks
        )
        for b in range(U(batch)):
            h, z = U(i) * U(yt) + b * U(yb), b * U(4 * n)
            _lstm_row(i, s, b * U(sb), y, U(yt), h, made, z, U(n))


@kernel
def gru_by_panels(x, xt, xb, w, bias, s, sb, y, yt, yb, made, words, steps, batch, n, blocks):
    for i in range(steps):
        _by_panels(
            i, words, x, xt, xb, False, w, bias, s, sb, y, yt, yb, made, batch, 3 * n, n, blocks
        )
        for b in range(U(batch)):
            h, more, z = U(i) * U(yt) + b * U(yb), U(i) * U(xt) + b * U(xb), b * U(3 * n)
            _gru_row(i, x, more, s, b * U(sb), y, U(yt), h, made, z, U(n))


@kernel
def rnn_by_panels(
    x, xt, xb, w, bias, s, sb, y, yt, yb, made, words, steps, batch, n, blocks, code
):  # fmt: skip
    for i in range(steps):
        _by_panels(i, words, x, xt, xb, True, w, bias, s, sb, y, yt, yb, made, batch, n, n, blocks)
        for b in range(U(batch)):
            _rnn_row(y, U(i) * U(yt) + b * U(yb), made, b * U(n), U(n), code)


@kernel
def _scaled(y, at, a, first, step, before, start, b, more, n):
    """y[at:] = a · before + b; step is 0 where a is one number."""
    if step == 0:
        once = a[first]
        for i in range(n):
            y[at + i] = once * before[start + i] + b[more + i]
    else:
        for i in range(n):
            y[at + i] = a[first + i] * before[start + i] + b[more + i]


@kernel
def linear_recurrence(
    a, at, ao, am, step, b, bt, bo, bm, s, so, sm, y, yt, yo, ym, steps, outer, middle, n
):
    """y[t, i, j, :] = a[t, i, j, :] · y[t − 1, i, j, :] + b[t, i, j, :]; s is y[−1]."""
    n = U(n)
    for i in range(U(outer)):
        for j in range(U(middle)):
            first, more = i * U(ao) + j * U(am), i * U(bo) + j * U(bm)
            here = i * U(yo) + j * U(ym)
            _scaled(y, here, a, first, step, s, i * U(so) + j * U(sm), b, more, n)
            for t in range(U(1), U(steps)):
                to = here + t * U(yt)
                _scaled(y, to, a, first + t * U(at), step, y, to - U(yt), b, more + t * U(bt), n)
