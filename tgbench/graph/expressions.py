"""Expressions of symbolic dimensions as JSON: prefix form of a few operators, never a formula's
text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import sympy

from tgbench.base.errors import GraphError

MOST_POWER = 8
MOST_DEGREE = 64  # of an expression multiplied out
MOST_TERMS = 256  # and how many terms it has then
MOST_CHOICES = 8  # of a maximum or minimum: they are compared in pairs
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
    if sign in ("max", "min") and len(arguments) > MOST_CHOICES:
        return None
    if sign == "**" and not _is_small_power(*arguments):
        return None
    sizes = [Growth.of(argument) for argument in arguments]
    if not Growth.joined(sign, sizes, arguments[-1]).is_small:
        return None
    try:
        made = OPERATORS[sign][1](*map(sympy.sympify, arguments))
    except (ArithmeticError, TypeError, ValueError, RecursionError):
        return None
    return made if made.is_finite is not False and not made.has(sympy.nan, sympy.zoo) else None


@dataclass(frozen=True, slots=True)
class Growth:
    """How large an expression is when it is multiplied out: powers of powers are found before."""

    degree: int
    terms: int

    @staticmethod
    def of(size: Any) -> Growth:
        """Of an expression that is there."""
        if not isinstance(size, sympy.Expr) or not size.args:
            return Growth(int(isinstance(size, sympy.Symbol)), 1)
        kind = next((sign for sign, (kind, _) in OPERATORS.items() if isinstance(size, kind)), "+")
        return Growth.joined(kind, list(map(Growth.of, size.args)), size.args[-1])

    @staticmethod
    def joined(sign: str, parts: Sequence[Growth], last: Any) -> Growth:
        """Of an operator applied to expressions, of which `last` is the last."""
        degrees, terms = [part.degree for part in parts], [part.terms for part in parts]
        if sign == "**":
            power = abs(int(last)) if getattr(last, "is_Integer", type(last) is int) else 1
            return Growth(degrees[0] * power, terms[0] ** min(power, MOST_DEGREE))
        if sign == "*":
            return Growth(sum(degrees), prod(terms))
        return Growth(max(degrees), sum(terms))

    @property
    def is_small(self) -> bool:
        """Whether it may be made."""
        return self.degree <= MOST_DEGREE and self.terms <= MOST_TERMS


def _is_small_power(base: Any, exponent: Any) -> bool:
    small = type(exponent) is int and -MOST_POWER <= exponent <= MOST_POWER
    return small and isinstance(base, sympy.Expr) and not base.is_number
