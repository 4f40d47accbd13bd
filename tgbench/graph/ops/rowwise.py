"""Element-wise ops and reductions of rows in one op: what a generated kernel computes.

    steps      (("mul", 0, 0), ("mean", 1), ("number", 1e-6), ("add", 2, 3), ("rsqrt", 4), …)
    values     0 is the input; 1, 2, 3, … what the steps give, each from values before it

A reduction takes the last dimension, and keeps it, 1 wide. What the op gives is the last step's
value. It is written out like every fused op, so regions follow from that; no import makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box
from tgbench.base.words import shorten
from tgbench.graph.graph import Node
from tgbench.graph.op_table import FLOATS, OPS, Array, Attrs, Call, OpDef, TensorType, register

Step: TypeAlias = "tuple[Any, ...]"  # the name of an op and the numbers of its operands
NUMBER = "number"  # the step that is a number: ("number", 2.0); not −0.0, which equals 0.0
REDUCTIONS = ("sum", "mean", "max", "min")
LOGICAL = ("less", "less_equal", "greater", "greater_equal")  # that give bools
ELEMENTWISE = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "maximum": 2, "minimum": 2, "neg": 1, "abs": 1,
    "floor": 1, "ceil": 1, "exp": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "reciprocal": 1,
    "tanh": 1, "erf": 1, "sigmoid": 1, "less": 2, "less_equal": 2, "greater": 2, "greater_equal": 2,
    "where": 3,
}  # fmt: skip
ARITY = ELEMENTWISE | dict.fromkeys(REDUCTIONS, 1)
MOST_STEPS = 64
MOST_INPUTS = 6


def is_step(step: Any, known: int) -> bool:
    """Whether this can be a step behind so many values."""
    if not isinstance(step, tuple) or not step or not isinstance(step[0], str):
        return False
    name, *operands = step
    if name == NUMBER:
        return len(operands) == 1 and type(operands[0]) is float and repr(operands[0]) != "-0.0"
    fits = len(operands) == ARITY.get(name)
    return fits and all(type(i) is int and 0 <= i < known for i in operands)


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    steps = attrs.get("calls")
    if not types or len(types) > MOST_INPUTS or types[0].dtype not in FLOATS:
        raise GraphError(f"rowwise takes up to {MOST_INPUTS} inputs, the first of floats")
    if set(attrs) != {"calls"} or not isinstance(steps, tuple) or not 0 < len(steps) <= MOST_STEPS:
        raise GraphError(f"rowwise has the attribute `calls`, of at most {MOST_STEPS} steps")
    for known, step in enumerate(steps, len(types)):
        if not is_step(step, known):
            raise GraphError(
                f"{shorten(step)} is no step of rowwise; write (op, numbers of earlier values), "
                f"with an op of {', '.join(ARITY)}"
            )
    read = {i for name, *operands in steps if name != NUMBER for i in operands}
    if read != set(range(len(types) + len(steps) - 1)):
        raise GraphError("every input and every step of rowwise but the last is read by a step")


def _decompose(attrs: Attrs, *inputs: Node) -> Node:
    builder, dtype = inputs[0].builder, inputs[0].dtype
    values = list(inputs)
    for name, *operands in attrs["calls"]:
        if name == NUMBER:
            values.append(builder.scalar(operands[0], dtype))
            continue
        own: dict[str, Any] = {"axes": (values[operands[0]].rank - 1,), "keepdims": True}
        more = own if name in REDUCTIONS else {}
        values.append(builder.apply(name, *(values[i] for i in operands), **more))
    return values[-1]


def _reference(attrs: Attrs, *arrays: Array) -> Array:
    values = list(arrays)
    for name, *operands in attrs["calls"]:
        if name == NUMBER:
            values.append(np.asarray(operands[0], arrays[0].dtype))
            continue
        own = {"axes": (-1,), "keepdims": True} if name in REDUCTIONS else {}
        values.append(OPS[name].reference(own, *(values[i] for i in operands)))
    return values[-1]


def reduces(call: Call) -> bool:
    """Whether a call has a reduction among its steps."""
    return any(name in REDUCTIONS for name, *_ in call.attrs["calls"])


def _flops(call: Call, box: Box) -> int:
    """Every step at every element."""
    steps = (name for name, *_ in call.attrs["calls"] if name != NUMBER)
    return sum(box.elements if name in REDUCTIONS else OPS[name].flops(call, box) for name in steps)


register(
    OpDef(
        "rowwise",
        lambda attrs, dtypes: dtypes[0],
        _reference,
        check=_check,
        decompose=_decompose,
        whole=lambda call: (-1,) if reduces(call) else (),
        flops=_flops,
    )
)


def rowwise(steps: Sequence[Step], *inputs: Node) -> Node:
    """Element-wise ops and reductions of rows; of the shape and dtype that they give.

    Raises GraphError for steps that are none, and for shapes that do not broadcast.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (2, 3))
    >>> rowwise((("max", 0), ("sub", 0, 1)), x).type
    TensorType(shape=(2, 3), dtype='float32')
    """
    return inputs[0].builder.apply("rowwise", *inputs, calls=tuple(steps))
