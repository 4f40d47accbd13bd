"""Values made from nothing: iota and full. Simplification folds them into constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import GraphBuilder, Node, Scalar
from tgbench.graph.op_table import (
    ITEMSIZE,
    Array,
    Attrs,
    Call,
    Dim,
    OpDef,
    TensorType,
    numpy_dtype,
    register,
)
from tgbench.graph.ops.elementwise import where


def _check(attrs: Attrs, types: tuple[TensorType, ...]) -> None:
    if types or attrs["dtype"] not in ITEMSIZE:
        raise GraphError(
            f"a tensor made from nothing takes no inputs and a dtype of {list(ITEMSIZE)}"
        )


def _forward(call: Call, regions: tuple[Region, ...]) -> Region:
    return Region.full(call.attrs["shape"])


def _needed(call: Call, box: Box) -> tuple[Region, ...]:
    return ()


def _iota(attrs: Attrs) -> Array:
    shape, axis = attrs["shape"], attrs["axis"]
    line = np.arange(shape[axis], dtype=numpy_dtype(attrs["dtype"]))
    return np.broadcast_to(line.reshape([-1 if i == axis else 1 for i in range(len(shape))]), shape)


def _full(attrs: Attrs) -> Array:
    return np.full(attrs["shape"], attrs["value"], dtype=numpy_dtype(attrs["dtype"]))


for _name, _reference in (("iota", _iota), ("full", _full)):
    register(
        OpDef(
            _name,
            lambda attrs, dtypes: attrs["dtype"],
            _reference,
            _forward,
            _needed,
            check=_check,
        )
    )


def _shape(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    return tuple(int(n) if isinstance(n, np.integer) else n for n in shape)


def iota(builder: GraphBuilder, shape: Sequence[Dim], axis: int = -1, dtype: str = "int64") -> Node:
    """0, 1, 2, … along `axis`, the same everywhere else."""
    return builder.apply("iota", shape=_shape(shape), axis=axis % len(shape), dtype=dtype)


def full(
    builder: GraphBuilder, shape: Sequence[Dim], value: Scalar, dtype: str = "float32"
) -> Node:
    """One value everywhere."""
    return builder.apply("full", shape=_shape(shape), value=value, dtype=dtype)


def _band(x: Node, diagonal: int, *, lower: bool) -> Node:
    if x.rank < 2:
        raise GraphError(f"triu and tril need a matrix, got {x.type}")
    plane: Any = x.shape[-2:]
    rows, columns = iota(x.builder, plane, 0), iota(x.builder, plane, 1)
    inside = columns <= rows + diagonal if lower else columns >= rows + diagonal
    return where(inside, x, False if x.dtype == "bool" else 0)


def tril(x: Node, diagonal: int = 0) -> Node:
    """`x` on and below a diagonal of its last two dimensions, 0 above."""
    return _band(x, diagonal, lower=True)


def triu(x: Node, diagonal: int = 0) -> Node:
    """`x` on and above a diagonal of its last two dimensions, 0 below."""
    return _band(x, diagonal, lower=False)
