"""Dimensions: numbers, or expressions of symbols until a graph is bound.

Expressions are sympy's, which takes longer to load than most of this package. Nearly all graphs
have numbers only, so it is loaded where the first symbol is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tgbench.base.memo import Latest

if TYPE_CHECKING:
    import sympy

MOST_NAMES = 10_000  # of dimensions, that a process knows the largest value of
_DIM_MAX = Latest[str, int](MOST_NAMES)


def dim(name: str, *, max: int | None = None) -> sympy.Symbol:
    """A symbolic dimension, a positive integer that a session binds.

    >>> dim("T", max=4096) * 4
    4*T
    """
    from sympy import Symbol

    symbol = Symbol(name, integer=True, positive=True)
    if max is not None:
        _DIM_MAX[name] = max
    return symbol


def declared_max(name: str) -> int | None:
    """The largest value that `dim` was given for a symbolic dimension."""
    return _DIM_MAX.get(name)


def is_symbolic(size: Any) -> bool:
    """Whether a size is an expression, of sympy's.

    >>> is_symbolic(4), is_symbolic(dim("T") + 1)
    (False, True)
    """
    return hasattr(size, "free_symbols")


def is_dim(value: Any) -> bool:
    """Whether something may be a size."""
    return isinstance(value, (int, np.integer)) or is_symbolic(value)


def plain(size: Any) -> Any:
    """A size as a Python int where it is a number.

    >>> plain(dim("T") * 0)
    0
    """
    is_number = isinstance(size, (int, np.integer)) or getattr(size, "is_Integer", False)
    return int(size) if is_number else size


def expanded(size: Any) -> Any:
    """A size multiplied out, so that equal ones look the same; a Python int where it is a number.

    >>> expanded((dim("T") + 1) * 2)
    2*T + 2
    """
    return plain(size.expand() if is_symbolic(size) else size)
