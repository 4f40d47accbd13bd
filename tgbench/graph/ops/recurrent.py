"""Recurrent layers: some steps of one direction are one op.

    x ── linear, all steps ──→ what each step adds to its gates
              │ steps 0..16     │ steps 16..32    │
    state ──→ lstm ───state───→ lstm ───state───→ …        h of each step, and the last cell state

Who changes the input of a step changes all that follow, and nothing before: these are computed
again from the first of the few steps that are one op. What an input adds to the gates follows from
that input alone, and is an ordinary `linear`.

A result holds h of each step along its first dimension, and for an LSTM the cell state behind the
last of them: h and the cell state that the next op wants lie side by side. Backwards everything
lies the other way round.

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
from tgbench.base.regions import Box, Interval, Region
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Array, Attrs, Call, OpDef, TensorType, register, same_dtype
from tgbench.graph.ops.layout import concat
from tgbench.graph.ops.nn import linear

FEWEST_STEPS, MOST_PARTS = 16, 16  # of an op; that a layer is cut into, if it is long
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
    "rnn": CellKind(1, 1, MappingProxyType({"function": "tanh"})),
}
FUNCTIONS = ("tanh", "relu")  # of a plain cell


def _check(name: str) -> Callable[[Attrs, tuple[TensorType, ...]], None]:
    cell = CELLS[name]

    def check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
        if len(types) != 4 or types[GATES].rank != 3:
            raise GraphError(f"{name} takes gates, weight, bias and state, got {types}")
        steps, batch, width = types[GATES].shape
        units = width // cell.gates
        shapes = (
            (steps, batch, cell.gates * units), (cell.gates * units, units),
            (cell.gates * units,), (cell.states, batch, units),
        )  # fmt: skip
        found = tuple(type_.shape for type_ in types)
        if found != shapes:
            raise GraphError(f"{name} of {units} units takes {shapes}, got {found}")
        if types[GATES].dtype not in ("float64", "float32", "float16", "bfloat16"):
            raise GraphError(f"{name} computes floats, not {types[GATES].dtype}")
        if name == "rnn" and attrs["function"] not in FUNCTIONS:
            raise GraphError(f"an rnn's function is one of {FUNCTIONS}, not {attrs['function']!r}")

    return check


# --- regions -------------------------------------------------------------------------------------


def _extra(call: Call) -> int:
    """How many rows of a result are no h of a step."""
    return CELLS[call.op.name].states - 1


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    """All that follows the first changed step, of the samples that changed."""
    steps, batch, width = call.in_shapes[GATES]
    units, extra = width // CELLS[call.op.name].gates, _extra(call)
    whole = Region.full((steps + extra, batch, units))
    if regions[WEIGHT].boxes or regions[BIAS].boxes:
        return whole
    found = [Box(((0, steps + extra), box[BATCH], (0, units))) for box in regions[STATE].boxes]
    for box in regions[GATES].boxes:
        start, stop = box[TIME]
        rows: Interval = (start, steps + extra)
        if call.attrs["reverse"]:
            rows = (0, stop + extra)
        found.append(Box((rows, box[BATCH], (0, units))))
    return Region.of(*found)


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    """All steps up to the last one that is asked for, of the samples that are."""
    steps, _, width = call.in_shapes[GATES]
    (start, stop), extra = box[TIME], _extra(call)
    rows: Interval = (0, steps if steps < stop else stop)
    if call.attrs["reverse"]:
        rows = (0 if start < extra else start - extra, steps)
    return (
        Region((Box((rows, box[BATCH], (0, width))),)),
        Region.full(call.in_shapes[WEIGHT]),
        Region.full(call.in_shapes[BIAS]),
        Region((Box(((0, 1 + extra), box[BATCH], (0, width // CELLS[call.op.name].gates))),)),
    )


def _flops(call: Call, box: Box) -> int:
    """Two a multiply–add, and about ten for what a unit does with each gate."""
    steps, _, width = call.in_shapes[GATES]
    units = width // CELLS[call.op.name].gates
    samples = Box((box[BATCH],)).elements
    return int(2 * steps * width * units + 10 * steps * width) * samples


# --- what they compute ---------------------------------------------------------------------------


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


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
    return [np.tanh(total) if attrs["function"] == "tanh" else np.maximum(total, 0)]


def _reference(step: Callable[..., list[Array]]) -> Callable[..., Array]:
    def run(attrs: Attrs, gates: Array, weight: Array, bias: Array, state: Array) -> Array:
        """Forwards, on arrays that are turned round where time runs backwards."""
        turn = slice(None, None, -1 if attrs["reverse"] else 1)
        states, found = list(state[turn]), []
        with np.errstate(over="ignore"):
            for row in gates[turn]:
                states = step(attrs, row, states[0] @ weight.T + bias, states)
                found.append(states[0])
        return np.ascontiguousarray(np.stack([*found, *states[1:]])[turn].astype(gates.dtype))

    return run


for _name, _step in (("lstm", _lstm_step), ("gru", _gru_step), ("rnn", _rnn_step)):
    register(
        OpDef(
            _name,
            same_dtype,
            _reference(_step),
            _forward,
            _needed,
            check=_check(_name),
            whole=lambda call: (TIME, UNIT),
            flops=_flops,
            multiplies=True,
            hands_on=True,
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
        kind: "lstm", "gru", or "rnn" with `function="tanh"` or "relu".
        x: [steps, samples, features].
        state: what it begins with, [states, samples, units]: h, and for an LSTM the cell state
            behind it (before it, backwards).
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
    gates, extra = linear(x, of_input, input_bias), CELLS[kind].states - 1
    steps, found, attrs = x.shape[TIME], list[Node](), {**CELLS[kind].attrs, **attrs}
    for start, stop in parts_of(steps, reverse):
        made = x.builder.apply(
            kind, gates[start:stop], of_state, state_bias, state, reverse=reverse, **attrs
        )
        rows = stop - start
        found.append(made[extra:] if reverse else made[:rows])
        state = made[: 1 + extra] if reverse else made[rows - 1 :]
    return concat(found[::-1] if reverse else found, 0), state


def parts_of(steps: int, reverse: bool) -> list[tuple[int, int]]:
    """How the steps of a layer are cut, in the order in which they are computed."""
    size = max(FEWEST_STEPS, -(-steps // MOST_PARTS))
    parts = [(start, min(start + size, steps)) for start in range(0, steps, size)]
    return parts[::-1] if reverse else parts
