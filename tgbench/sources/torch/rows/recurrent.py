"""Recurrent layers: an op for each direction of each layer, and what it leaves at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tgbench.graph import ops
from tgbench.graph.graph import Node
from tgbench.sources.torch.table import CallSite, Rule, lowers, refuse


class Layers(NamedTuple):
    """What PyTorch says of the layers of a call, in the order of its schema.

    Fields:
        weights: of each direction of each layer: of the input, of h, and with biases those of both.
        has_biases, layers, dropout, trains, is_both_ways, has_batch_first: as PyTorch has them.
    """

    weights: Sequence[Node]
    has_biases: bool
    layers: int
    dropout: float
    trains: bool
    is_both_ways: bool
    has_batch_first: bool

    @property
    def directions(self) -> tuple[bool, ...]:
        """Of each layer: whether it runs backwards."""
        return (False, True) if self.is_both_ways else (False,)

    def of(self, number: int) -> tuple[Node, Node, Node, Node]:
        """The weights and biases of a direction of a layer."""
        each = 4 if self.has_biases else 2
        found = list(self.weights[number * each : (number + 1) * each])
        while len(found) < 4:
            found.append(_no_bias(found[0]))
        of_input, of_state, input_bias, state_bias = found
        return of_input, of_state, input_bias, state_bias


def _no_bias(weight: Node) -> Node:
    zeros = np.zeros(weight.shape[0], np.float32)
    return weight.builder.constant(zeros).cast(weight.dtype)


Begin = Callable[[int], Node]  # (number of a direction) → [1, samples, states · units]


def _run(
    kind: str, x: Node, begins: Begin, given: Layers, attrs: dict[str, Any]
) -> tuple[Node, list[Node]]:
    """h of each step of the last layer, and what each direction of each layer leaves."""
    x, left = x.permute(1, 0, 2) if given.has_batch_first else x, []
    for layer in range(given.layers):
        found = []
        for side, reverse in enumerate(given.directions):
            number = layer * len(given.directions) + side
            made, state = ops.recurrent(
                kind, x, begins(number), given.of(number), reverse=reverse, **attrs
            )
            found.append(made)
            left.append(state)
        x = ops.concat(found)
    return x.permute(1, 0, 2) if given.has_batch_first else x, left


@lowers("aten.lstm.input")
def _lstm(site: CallSite, x: Node, first: Sequence[Node], *more: Any) -> tuple[Node, Node, Node]:
    h, c = first
    refuse(h.shape != c.shape, "h of an LSTM is projected")
    x, left = _run("lstm", x, lambda i: ops.concat([h[i : i + 1], c[i : i + 1]]), Layers(*more), {})
    units = h.shape[-1]
    last = ops.concat(left, 0)
    return x, last[..., :units], last[..., units:]


def _one_state(kind: str, **attrs: Any) -> Rule:
    def rule(site: CallSite, x: Node, h: Node, *more: Any) -> tuple[Node, Node]:
        x, left = _run(kind, x, lambda i: h[i : i + 1], Layers(*more), attrs)
        return x, ops.concat(left, 0)

    return rule


lowers("aten.gru.input")(_one_state("gru"))
lowers("aten.rnn_tanh.input")(_one_state("rnn", activation="tanh"))
lowers("aten.rnn_relu.input")(_one_state("rnn", activation="relu"))
