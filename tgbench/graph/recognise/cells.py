"""Steps of a recurrent cell, as PyTorch writes `nn.LSTMCell`, `nn.GRUCell` and `nn.RNNCell`.

h₁ ── linear ──┬─→ gates ─→ … ─→ h₂        what is written again over the same operands is the
x₂ ── linear ──┘                            same node, or it is no such cell
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tgbench.graph.graph import Node
from tgbench.graph.op_table import FLOATS
from tgbench.graph.ops.elementwise import sigmoid, tanh
from tgbench.graph.ops.nn import relu

DEEP = 8  # nodes between a step's result and its products
BETWEEN = ("add", "sub", "mul", "tanh", "sigmoid", "relu", "slice")
KINDS = {4: "lstm", 3: "gru", 1: "rnn"}  # by numbers that a unit has in a product


class CellStep(NamedTuple):
    """One step: what the input adds, the product of h, and the states before and after."""

    of_input: Node
    of_state: Node
    before: tuple[Node, ...]
    after: tuple[Node, ...]


class RecurrentCell(NamedTuple):
    """The steps of a loop, of one kind and with the same weights.

    Fields:
        activation: of a plain cell.
    """

    kind: str
    activation: str
    steps: tuple[CellStep, ...]


def cell_of(nodes: Sequence[Node]) -> RecurrentCell | None:
    """The cell whose steps give these nodes, each from the one before; None for anything else."""
    first, second, *_ = nodes
    if first.dtype not in FLOATS or not 1 <= first.rank <= 2:
        return None
    product = next((one for one in _products(second) if one.inputs[0] is first), None)
    if product is None:
        return None
    kind = KINDS.get(product.shape[-1] // first.shape[-1], "")
    if not kind or product.shape[-1] % first.shape[-1]:
        return None
    steps = tuple([_step(kind, node) for node in nodes])
    found = [step for step in steps if step is not None]
    alike = all(
        after.before == before.after and after.of_state.inputs[1:] == before.of_state.inputs[1:]
        for before, after in pairwise(found)
    )
    if len(found) < len(nodes) or not alike:
        return None
    return RecurrentCell(kind, nodes[0].op if kind == "rnn" else "", tuple(found))


def _between(node: Node) -> Iterator[Node]:
    """What a node follows from, up to products with weights, and itself; some of it twice."""
    todo = [(node, 0)]
    while todo:
        at, deep = todo.pop()
        yield at
        if at.op in BETWEEN and deep < DEEP:
            todo += [(operand, deep + 1) for operand in at.inputs]


def _products(node: Node) -> list[Node]:
    """The products with weights that a node follows from, without another product between."""
    return list(dict.fromkeys(at for at in _between(node) if at.op == "linear"))


def _step(kind: str, node: Node) -> CellStep | None:
    """A step of a kind, if it gives this node."""
    for of_state in _products(node):
        units = node.shape[-1]
        if of_state.inputs[0].type != node.type or of_state.shape[-1] % units:
            continue
        for of_input in _added(node, of_state):
            before, after = _states(kind, node, of_state)
            if before and of_input.shape == of_state.shape:
                count = len(node.builder.nodes)
                written = _written(kind, node.op, of_input, of_state, before)
                if written is node and len(node.builder.nodes) == count:
                    return CellStep(of_input, of_state, before, after)
    return None


def _added(node: Node, product: Node) -> list[Node]:
    """What is added to a product of h, or to slices of it, on the way to a node."""
    found: dict[Node, None] = {}
    for at in _between(node):
        for one, other in (at.inputs, at.inputs[::-1]) if at.op == "add" else ():
            if one is product:
                found[other] = None
            elif one.op == "slice" and one.inputs[0] is product and other.op == "slice":
                found[other.inputs[0]] = None
    return list(found)


def _states(kind: str, node: Node, of_state: Node) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
    """What a step begins with, and what it leaves; () where it is not written so."""
    h = of_state.inputs[0]
    if kind != "lstm":
        return (h,), (node,)
    if node.op != "mul" or node.inputs[1].op != "tanh":
        return (), ()
    c = node.inputs[1].inputs[0]
    if c.op != "add" or c.inputs[0].op != "mul":
        return (), ()
    return (h, c.inputs[0].inputs[1]), (node, c)


def _written(
    kind: str, op: str, of_input: Node, of_state: Node, before: tuple[Node, ...]
) -> Node | None:
    """A step's h as PyTorch writes it."""
    h, units = before[0], before[0].shape[-1]

    def split(x: Node) -> list[Node]:
        return [x[..., i : i + units] for i in range(0, x.shape[-1], units)]

    if kind == "rnn":
        total = of_state + of_input
        return relu(total) if op == "relu" else tanh(total)
    if kind == "gru":
        of_x, of_h = split(of_input), split(of_state)
        reset, stays = sigmoid(of_h[0] + of_x[0]), sigmoid(of_h[1] + of_x[1])
        new = tanh(of_x[2] + of_h[2] * reset)
        return (h - new) * stays + new
    enters, forgets, new, leaves = split(of_state + of_input)
    c = sigmoid(forgets) * before[1] + sigmoid(enters) * tanh(new)
    return sigmoid(leaves) * tanh(c)
