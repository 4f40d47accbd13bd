"""The opaque op: operators of PyTorch that no region rule is known of, computed whole.

    calls     what is called (`ops.aten`), one operator or a few in a row
    results   which of their results are the value: one as it is, several flat, one behind the other

Any changed input element makes all of it dirty, and any needed element needs every input whole. The
operators are deterministic and write nothing, so that computing all of it again gives its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import torch

from tgbench.base.errors import GraphError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Array, Attrs, Call, OpDef, TensorType, numpy_dtype, register
from tgbench.graph.ops.opaque.aten import Calls, Outline, Results, Script, outline


def _outline(attrs: Attrs, types: tuple[TensorType, ...]) -> Outline:
    return outline(attrs["calls"], attrs["results"], types)


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    """The calls may stand in a graph, and give what the attributes say."""
    if not types or set(attrs) != {"calls", "results", "shape", "dtype"}:
        raise GraphError("an opaque op has inputs, and calls, results, shape and dtype")
    found = _stored(_outline(attrs, types).types)
    if found != TensorType(attrs["shape"], attrs["dtype"]):
        raise GraphError(f"the operators give {found}, not {attrs['dtype']}{[*attrs['shape']]}")


def _stored(types: Sequence[TensorType]) -> TensorType:
    """One result as it is, several flat in one tensor."""
    dtypes = {type_.dtype for type_ in types}
    if len(dtypes) != 1:
        raise GraphError(f"results of {len(dtypes)} dtypes in one opaque op; it has one")
    shape = types[0].shape if len(types) == 1 else (sum(type_.elements for type_ in types),)
    return TensorType(shape, types[0].dtype)


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    is_clean = all(region.is_empty for region in regions)
    return EMPTY if is_clean else Region.full(call.attrs["shape"])


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    return tuple(map(Region.full, call.in_shapes))


def _reference(attrs: Attrs, *arrays: Array) -> Array:
    """PyTorch on the CPU."""
    script = Script.of(attrs["calls"], attrs["results"])
    made = script.run(*(torch.tensor(array) for array in arrays))
    flat = made[0] if len(made) == 1 else torch.cat([one.reshape(-1) for one in made])
    dtype = numpy_dtype(attrs["dtype"])
    return np.asarray(flat.to(TORCH_DTYPES[str(dtype)]).resolve_conj().resolve_neg().numpy())


def _flops(call: Call, box: Box) -> int:
    """What is read and made, once each: of the arithmetic nothing is known."""
    return int(sum(type_.elements for type_ in call.inputs) + box.elements)


register(
    OpDef(
        "opaque",
        lambda attrs, dtypes: str(attrs["dtype"]),
        _reference,
        _forward,
        _needed,
        check=_check,
        flops=_flops,
        whole=lambda call: tuple(range(len(call.out.shape))),
    )
)


def opaque(inputs: Sequence[Node], calls: Calls, results: Results) -> tuple[Node, ...]:
    """The wanted results of calls of PyTorch's operators, computed whole.

    Results of one dtype are one op. Raises GraphError for operators that may not stand in a graph.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (3, 3))
    >>> (determinant,) = opaque([x], (("linalg_det.default", (("input", 0),), ()),), ((0, 0),))
    >>> determinant.type
    TensorType(shape=(), dtype='float32')
    """
    types = outline(calls, results, tuple(node.type for node in inputs)).types
    places = sorted(range(len(results)), key=lambda i: types[i].dtype)
    made: dict[int, Node] = {}
    for _, group in groupby(places, key=lambda i: types[i].dtype):
        chosen = [*group]
        wanted = tuple(results[i] for i in chosen)
        node = _node(inputs, calls, wanted, [types[i] for i in chosen])
        made |= zip(chosen, _parts(node, [types[i] for i in chosen]), strict=True)
    return tuple(made[i] for i in range(len(results)))


def _node(
    inputs: Sequence[Node], calls: Calls, results: Results, types: Sequence[TensorType]
) -> Node:
    stored = _stored(types)
    return inputs[0].builder.apply(
        "opaque", *inputs, name=calls[-1][0].split(".")[0],
        calls=calls, results=results, shape=stored.shape, dtype=stored.dtype,
    )  # fmt: skip


def _parts(node: Node, types: Sequence[TensorType]) -> Iterator[Node]:
    """The results that lie one behind the other in a node."""
    if len(types) == 1:
        yield node
        return
    start = 0
    for type_ in types:
        yield node[start : start + type_.elements].reshape(*type_.shape)
        start += type_.elements
