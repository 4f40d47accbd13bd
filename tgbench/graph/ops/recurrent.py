"""Recurrent layers: all steps of one direction are one op, which goes on from what is there.

    x ── linear ──→ what each step adds to its gates
                    lstm │ · · · · · · · ·      a row: h behind a step, and an LSTM's cell state
                         └───────┬────────
                                 a change in step 4: from row 3, which is there, steps 4 to the end

Who changes the input of a step changes all that follow, and nothing before. A row is what the steps
behind it begin with, in place of the state that the first one does (`OpDef.continues`): rows that
are kept are not computed again. What an input adds to the gates follows from that input alone, and
is an ordinary `linear`.

Sources: long short-term memory (Hochreiter, Schmidhuber 1997; with a forget gate: Gers,
Schmidhuber, Cummins 2000), gated recurrent units (Cho et al. 2014) in the form that PyTorch
computes, with the gates in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.base.sweeps import around
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Array, Attrs, Call, OpDef, TensorType, register, same_dtype
from tgbench.graph.ops.elementwise import _sigmoid
from tgbench.graph.ops.layout import flip
from tgbench.graph.ops.nn import linear

GATES, WEIGHT, BIAS, STATE = range(4)  # inputs: [steps, samples, gates · units] and so on
TIME, BATCH, UNIT = range(3)  # dimensions of a result


class CellKind(NamedTuple):
    """A kind of recurrent layer.

    Fields:
        gates: how many numbers a unit computes in a step.
        states: how many it hands on.
        attrs: of its ops, where nothing else is said.
    """

    gates: int
    states: int
    attrs: Mapping[str, Any] = MappingProxyType({})


CELLS = {
    "lstm": CellKind(4, 2),
    "gru": CellKind(3, 1),
    "rnn": CellKind(1, 1, MappingProxyType({"activation": "tanh"})),
}
ACTIVATIONS = ("tanh", "relu")  # of a plain cell


def _check(name: str) -> Callable[[Attrs, tuple[TensorType, ...]], None]:
    cell = CELLS[name]

    def check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        if len(types) != 4 or types[GATES].rank != 3:
            raise GraphError(f"{name} takes gates, weight, bias and state, got {types}")
        steps, batch, width = types[GATES].shape
        units = width // cell.gates
        shapes = (
            (steps, batch, cell.gates * units), (cell.gates * units, units),
            (cell.gates * units,), (1, batch, cell.states * units),
        )  # fmt: skip
        found = tuple(type_.shape for type_ in types)
        if found != shapes:
            raise GraphError(f"{name} of {units} units takes {shapes}, got {found}")
        if types[GATES].dtype not in ("float64", "float32", "float16", "bfloat16"):
            raise GraphError(f"{name} computes floats, not {types[GATES].dtype}")
        if name == "rnn" and attrs["activation"] not in ACTIVATIONS:
            raise GraphError(f"{attrs['activation']!r} is none of {', '.join(ACTIVATIONS)}")

    return check


# --- regions -------------------------------------------------------------------------------------


def _width(call: Call) -> int:
    """Of a row of the result."""
    return int(call.in_shapes[STATE][UNIT])


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    """All that follows the first changed step, of the samples that changed."""
    (steps, batch, _), row = call.in_shapes[GATES], (0, _width(call))
    if regions[WEIGHT].boxes or regions[BIAS].boxes:
        return Region.full((steps, batch, _width(call)))
    found = [Box(((0, steps), samples, row)) for _, samples, _ in regions[STATE].boxes]
    for (start, _), samples, _ in regions[GATES].boxes:
        found.append(Box(((start, steps), samples, row)))
    return around(*found)


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    """The steps of these rows, and the row before them."""
    gates, weight, bias, state = call.in_shapes
    rows, samples, _ = box
    return (
        Region((Box((rows, samples, (0, gates[UNIT]))),)),
        Region.full(weight),
        Region.full(bias),
        Region((Box(((0, 1), samples, (0, state[UNIT]))),)),
    )


def _flops(call: Call, box: Box) -> int:
    """Two a multiply–add, and about ten for what a unit does with each gate."""
    wide, units = call.in_shapes[WEIGHT]
    rows = Box(box[:UNIT]).elements
    return int(rows * wide * (2 * units + 10))


# --- what they compute ---------------------------------------------------------------------------


def _lstm_step(attrs: Attrs, gates: Array, product: Array, states: list[Array]) -> list[Array]:
    _, c = states
    enters, stays, new, leaves = np.split(gates + product, 4, axis=-1)
    c = _sigmoid(stays) * c + _sigmoid(enters) * np.tanh(new)
    return [_sigmoid(leaves) * np.tanh(c), c]


def _gru_step(attrs: Attrs, gates: Array, product: Array, states: list[Array]) -> list[Array]:
    (h,), units = states, states[0].shape[-1]
    reset, stays = np.split(_sigmoid(gates + product)[..., : 2 * units], 2, axis=-1)
    new = np.tanh(gates[..., 2 * units :] + reset * product[..., 2 * units :])
    return [np.asarray(new + stays * (h - new))]


def _rnn_step(attrs: Attrs, gates: Array, product: Array, states: list[Array]) -> list[Array]:
    total = gates + product
    return [np.tanh(total) if attrs["activation"] == "tanh" else np.maximum(total, 0)]


def _reference(step: Callable[..., list[Array]], states: int) -> Callable[..., Array]:
    def run(attrs: Attrs, gates: Array, weight: Array, bias: Array, state: Array) -> Array:
        found, row = [], np.split(state[0], states, axis=-1)
        with np.errstate(over="ignore"):
            for one in gates:
                row = step(attrs, one, row[0] @ weight.T + bias, row)
                found.append(np.concatenate(row, axis=-1))
        return np.stack(found).astype(gates.dtype)

    return run


for _name, _step in (("lstm", _lstm_step), ("gru", _gru_step), ("rnn", _rnn_step)):
    register(
        OpDef(
            _name,
            same_dtype,
            _reference(_step, CELLS[_name].states),
            _forward,
            _needed,
            check=_check(_name),
            whole=lambda call: (UNIT,),
            flops=_flops,
            multiplies=True,
            continues=STATE,
            streams=lambda call: (WEIGHT,),
        )
    )


# --- layers --------------------------------------------------------------------------------------


def recurrent(
    kind: str,
    x: Node,
    state: Node,
    weights: tuple[Node, Node, Node, Node],
    *,
    reverse: bool = False,
    **attrs: Any,
) -> tuple[Node, Node]:
    """One direction of one recurrent layer.

    Args:
        kind: "lstm", "gru", or "rnn" with `activation="tanh"` or "relu".
        x: [steps, samples, features].
        state: what it begins with, [1, samples, states · units]: h, and for an LSTM the cell
            state behind it.
        weights: of the input [gates · units, features] and of h [gates · units, units], and the
            biases of both [gates · units], in PyTorch's order of gates.
        reverse: from the last step to the first.

    Returns:
        h of each step [steps, samples, units], and what the last one leaves, like `state`.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x, state = g.input("x", (20, 1, 6)), g.input("h", (1, 1, 4))
    >>> of_x, of_h = g.parameter("w", (12, 6)), g.parameter("u", (12, 4))
    >>> more, bias = g.parameter("b", (12,)), g.parameter("c", (12,))
    >>> y, last = recurrent("gru", x, state, (of_x, of_h, more, bias))
    >>> y.shape, last.shape
    ((20, 1, 4), (1, 1, 4))
    """
    of_input, of_state, input_bias, state_bias = weights
    gates = linear(flip(x, TIME) if reverse else x, of_input, input_bias)
    attrs = {**CELLS[kind].attrs, **attrs}
    rows = x.builder.apply(kind, gates, of_state, state_bias, state, **attrs)
    h = rows[..., : of_state.shape[1]]
    return flip(h, TIME) if reverse else h, rows[-1:]
