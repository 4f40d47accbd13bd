"""More element-wise functions, each one entry of the table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tgbench.graph.graph import Node, Operand
from tgbench.graph.ops.elementwise import _floats_only, _keeps_zero, _pointwise, _to_bool, _unary

FLOAT_FUNCTIONS = (
    "tan", "sinh", "cosh", "arcsin", "arccos", "arctan", "log1p", "log2", "log10", "expm1",
    "exp2", "trunc",
)  # fmt: skip
_KEEPS_ZERO = ("tan", "sinh", "arcsin", "arctan", "log1p", "expm1", "trunc")


for _name in FLOAT_FUNCTIONS:
    _pointwise(
        _name,
        getattr(np, _name),
        1,
        check=_floats_only,
        known=_keeps_zero if _name in _KEEPS_ZERO else None,
        cost=10,
    )
_pointwise("arctan2", np.arctan2, 2, check=_floats_only, cost=10)
_pointwise("isnan", np.isnan, 1, check=_floats_only, dtype=_to_bool)
_pointwise("isinf", np.isinf, 1, check=_floats_only, dtype=_to_bool)
_pointwise("logical_xor", np.logical_xor, 2, dtype=_to_bool)


def _named(*names: str) -> tuple[Callable[[Node], Node], ...]:
    return tuple(_unary(name) for name in names)


tan, sinh, cosh, arcsin, arccos, arctan = _named(*FLOAT_FUNCTIONS[:6])
log1p, log2, log10, expm1, exp2, trunc = _named(*FLOAT_FUNCTIONS[6:])
isnan, isinf = _named("isnan", "isinf")


def arctan2(a: Node, b: Operand) -> Node:
    """The angle of the point (b, a), element by element."""
    return a._binary("arctan2", b)


def logical_xor(a: Node, b: Operand) -> Node:
    """Whether exactly one of two holds, element by element."""
    return a._binary("logical_xor", b)
