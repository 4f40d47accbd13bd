"""Expressions of symbolic dimensions as JSON: prefix form of a few operators, never a formula's
text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from tgbench.base.errors import GraphError

MOST_POWER = 8
OPERATORS: dict[str, tuple[Any, Callable[..., Any]]] = {
    "+": (sympy.Add, sympy.Add),
    "*": (sympy.Mul, sympy.Mul),
    "**": (sympy.Pow, sympy.Pow),
    "floor": (sympy.floor, sympy.floor),
    "ceiling": (sympy.ceiling, sympy.ceiling),
    "mod": (sympy.Mod, sympy.Mod),
    "max": (sympy.Max, sympy.Max),
    "min": (sympy.Min, sympy.Min),
}


def prefix_form(size: Any) -> Any:
    """A size as JSON: a number, a name, or an expression."""
    if isinstance(size, (int, sympy.Integer)):
        return int(size)
    if isinstance(size, sympy.Symbol):
        return size.name
    if isinstance(size, sympy.Rational):
        return ["/", int(size.p), int(size.q)]
    for sign, (kind, _) in OPERATORS.items():
        if isinstance(size, kind):
            return [sign, *map(prefix_form, size.args)]
    raise GraphError(f"the dimension {size} cannot be written to a file; bind the graph first")


def expression(sign: Any, arguments: Sequence[Any]) -> Any:
    """One operator applied; None for one that is unknown, or that could grow without bound."""
    if sign == "/" and len(arguments) == 2 and all(type(n) is int for n in arguments):
        return sympy.Rational(*arguments) if arguments[1] > 0 else None
    if not isinstance(sign, str) or sign not in OPERATORS or not arguments:
        return None
    if sign in ("floor", "ceiling") and len(arguments) != 1:
        return None
    if sign in ("**", "mod") and len(arguments) != 2:
        return None
    if sign == "**" and not _is_small_power(*arguments):
        return None
    try:
        made = OPERATORS[sign][1](*map(sympy.sympify, arguments))
    except (ArithmeticError, TypeError, ValueError):
        return None
    return made if made.is_finite is not False and not made.has(sympy.nan, sympy.zoo) else None


def _is_small_power(base: Any, exponent: Any) -> bool:
    small = type(exponent) is int and -MOST_POWER <= exponent <= MOST_POWER
    return small and isinstance(base, sympy.Expr) and not base.is_number
