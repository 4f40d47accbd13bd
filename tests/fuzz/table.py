"""What the fuzzer knows of an op, in one place: how to draw it, to build it, and to compute it.

    op("softmax", "ops.softmax({0}, axis={axis})", bounded.softmax, _softmax)

The code is Python over the public API, with the inputs as {0}, {1} … ({all}: every one) and the
attributes by name. The same text builds the graph and is printed in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuzz.bounded import Bounded

if TYPE_CHECKING:
    from fuzz.drawing import Drawing


class Unfit(Exception):  # noqa: N818
    """What was drawn is no use here: another draw is made."""


@dataclass(frozen=True)
class Op:
    """One entry of the fuzzer's table.

    Fields:
        code: an expression over the public API.
        compute: (*inputs, **attrs) → the result, with its error.
        draw: adds an instance to a drawing, and returns its number; raises Unfit.
        weight: how often it is drawn, beside the others.
    """

    name: str
    code: str
    compute: Callable[..., Bounded]
    draw: Callable[[Drawing], int]
    weight: float = 1.0


@dataclass(frozen=True)
class Pattern:
    """Several ops that belong together, drawn at once."""

    name: str
    draw: Callable[[Drawing], int]
    weight: float


TABLE: dict[str, Op] = {}
PATTERNS: dict[str, Pattern] = {}


def op(
    name: str,
    code: str,
    compute: Callable[..., Bounded],
    draw: Callable[[Drawing], int],
    weight: float = 1.0,
) -> None:
    """Put an op into the table."""
    assert name not in TABLE, name
    TABLE[name] = Op(name, code, compute, draw, weight)


def pattern(name: str, draw: Callable[[Drawing], int], weight: float = 1.0) -> None:
    """Let several ops be drawn together."""
    assert name not in PATTERNS, name
    PATTERNS[name] = Pattern(name, draw, weight)


def written(name: str, inputs: Sequence[str], attrs: Mapping[str, Any]) -> str:
    """The application of an op as Python."""
    words = {key: text(value) for key, value in attrs.items()}
    words |= {"index": indexed(attrs["index"])} if "index" in attrs else {}
    return TABLE[name].code.format(*inputs, all=", ".join(inputs), **words)


def text(value: Any) -> str:
    """A number, a word or a nested list, as Python; lists become tuples."""
    if isinstance(value, (list, tuple)):
        return "(" + "".join(f"{text(part)}, " for part in value).strip() + ")"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "np.inf" if value > 0 else "-np.inf"
    return repr(value)


def indexed(parts: Sequence[Any]) -> str:
    """A basic index: integers, None, "..." and [start, stop, step]."""
    return ", ".join(_indexed(part) for part in parts)


def _indexed(part: Any) -> str:
    if isinstance(part, (list, tuple)):
        start, stop, step = ("" if bound is None else str(bound) for bound in part)
        return f"{start}:{stop}:{step}" if step else f"{start}:{stop}"
    return "..." if part == "..." else str(part)


def basic_index(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The same as Python indexes with it."""
    return tuple(
        slice(*part) if isinstance(part, (list, tuple)) else Ellipsis if part == "..." else part
        for part in parts
    )
