"""Recurrent layers: all steps of one direction."""

from __future__ import annotations

import torch

from fuzz import bounded as b
from fuzz.bounded import Bounded
from fuzz.drawing import Drawing
from fuzz.ops.products import linear
from fuzz.table import op

Tensor = torch.Tensor
GATES, STATES = {"lstm": 4, "gru": 3, "rnn": 1}, {"lstm": 2, "gru": 1, "rnn": 1}


def _row(x: Bounded, at: int) -> Bounded:
    return b.moved(lambda v: v[at], x)


def _split(x: Bounded, count: int) -> list[Bounded]:
    width = x.shape[-1] // count
    return [
        b.moved(lambda v, i=i: v[..., i * width : (i + 1) * width], x)  # type: ignore[misc]
        for i in range(count)
    ]


def _tanh(x: Bounded) -> Bounded:
    return b.smooth(torch.tanh, x)


def _lstm(gates: Bounded, product: Bounded, states: list[Bounded]) -> list[Bounded]:
    enters, stays, new, leaves = _split(b.add(gates, product), 4)
    kept = b.mul(b.sigmoid(stays), states[1])
    c = b.add(kept, b.mul(b.sigmoid(enters), _tanh(new)))
    return [b.mul(b.sigmoid(leaves), _tanh(c)), c]


def _gru(gates: Bounded, product: Bounded, states: list[Bounded]) -> list[Bounded]:
    (h,), mine, theirs = states, _split(gates, 3), _split(product, 3)
    reset, stays = (b.sigmoid(b.add(mine[i], theirs[i])) for i in range(2))
    new = _tanh(b.add(mine[2], b.mul(reset, theirs[2])))
    return [b.add(new, b.mul(stays, b.sub(h, new)))]


def _layer(
    x: Bounded, state: Bounded, w: Bounded, u: Bounded, b_w: Bounded, b_u: Bounded, *, kind: str,
    reverse: bool,
) -> Bounded:  # fmt: skip
    gates, order = linear(x, w, b_w), list(range(x.shape[0]))
    states = _split(_row(state, 0), STATES[kind])
    if reverse:
        order = order[::-1]
    found: dict[int, Bounded] = {}
    for t in order:
        row, product = _row(gates, t), linear(states[0], u, b_u)
        if kind == "rnn":
            states = [_tanh(b.add(row, product))]
        else:
            states = (_lstm if kind == "lstm" else _gru)(row, product, states)
        found[t] = states[0]
    return b.moved(lambda *rows: torch.stack(rows), *(found[t] for t in sorted(found)))


def _draw(kind: str, d: Drawing) -> int:
    x, units = d.exactly([d.integer(1, 9), d.integer(1, 2), d.integer(1, 3)]), d.integer(1, 3)
    _, samples, features = d.sample[x].shape
    wide = GATES[kind] * units
    weights = [d.leaf([wide, features]), d.leaf([wide, units]), d.leaf([wide]), d.leaf([wide])]
    state = d.leaf([1, samples, STATES[kind] * units])
    return d.apply(kind, x, state, *weights, kind=kind, reverse=d.chance(0.4))


for _name in GATES:
    op(
        _name,
        "ops.recurrent({kind}, {0}, {1}, ({2}, {3}, {4}, {5}), reverse={reverse}"
        + (', activation="tanh")[0]' if _name == "rnn" else ")[0]"),
        _layer,
        lambda d, name=_name: _draw(name, d),  # type: ignore[misc]
        0.5,
    )


def _scan(decay: Bounded, added: Bounded, state: Bounded) -> Bounded:
    row, found = _row(state, 0), []
    for i in range(added.shape[0]):
        row = b.add(b.mul(_row(decay, i), row), _row(added, i))
        found.append(row)
    return b.moved(lambda *rows: torch.stack(rows), *found)


def _draw_scan(d: Drawing) -> int:
    shape = [d.integer(1, 9), *(d.integer(1, 3) for _ in range(d.integer(0, 3)))]
    x, decay = d.exactly(shape), d.exactly(shape)
    return d.apply("linear_recurrence", decay, x, d.leaf([1, *shape[1:]]))


op("linear_recurrence", "ops.linear_recurrence({0}, {1}, {2})", _scan, _draw_scan, 0.5)
