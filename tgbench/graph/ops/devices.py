"""Values on other devices: where a graph says so.

    x (home) ── copy_to(x, "cuda:0") ── linear ── gelu ── copy_to(y) ── add (home)
                         │                 │
                      a node, with bytes   computed where its operands are

An op computes where its operands are; what brings a value elsewhere is a node like any other, with
regions, a cost and bytes of its own. Weights and constants are brought to where they are read
(`GraphBuilder.apply`), once, before the first run. `plans.devices.place` puts copies in by cost.
"""

from __future__ import annotations

import re

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.graph.graph import Node
from tgbench.graph.op_table import (
    HOME,
    Array,
    Attrs,
    OpDef,
    TensorType,
    first_input,
    last_decides,
    register,
    same_dtype,
)
from tgbench.graph.ops.elementwise import forward, needed

DEVICE = re.compile(r"(cpu|cuda)(:\d{1,3})?")


def copy_to(x: Node, device: str | None = None) -> Node:
    """`x` on another device; on the session's own, where its inputs are, with None.

    Args:
        device: "cuda:0", or "cpu:1" for more memory of the host, apart from the arena.

    Raises GraphError for what names no device.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> there = copy_to(g.input("x", (4, 8)), "cuda:0") * 2.0
    >>> print(there.type)
    float32[4, 8] on cuda:0
    >>> print(copy_to(there).type)
    float32[4, 8]
    """
    to = HOME if device is None else device
    if x.type.device == to:
        return x
    while x.op == "copy_to":  # nobody needs what is on the way
        [x] = x.inputs
        if x.type.device == to:
            return x
    return x.builder.apply("copy_to", x, device=to)


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if len(types) != 1:
        raise GraphError(f"copy_to takes one input, got {len(types)}")
    device = attrs["device"]
    if device != HOME and not (isinstance(device, str) and DEVICE.fullmatch(device)):
        raise GraphError(f"copy_to {device!r}: use 'cuda:0', 'cpu:1', or None for the session's")


def _copied(attrs: Attrs, x: Array) -> Array:
    return np.array(x)


register(
    OpDef(
        "copy_to",
        same_dtype,
        _copied,
        forward,
        needed,
        check=_check,
        known=lambda call, facts: facts[0],
        aligned=(0,),
        flops=lambda call, box: 0,
        same_as=first_input,
        merges=last_decides,
        moves=True,
        keeps_axes=True,
        device=lambda attrs, devices: attrs["device"],
    )
)
