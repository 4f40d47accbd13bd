"""JSON that somebody else may have written: read as it stands, or refused in one sentence.

Python's own reader takes more than JSON (NaN, a name twice in one object, half of a surrogate
pair), goes as deep as the text nests, and makes integers of any length. No file of ours holds any
of that, and each of it breaks something later. Every file, row and line is read here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from os import PathLike
from typing import Any, TypeAlias

from tgbench.base.files import read_bytes

Refuse: TypeAlias = Callable[[str], Exception]  # what is wrong → the error to be raised

MOST_BYTES = 64 << 20  # of a file; graphs hold their constants
MOST_VALUES = 1 << 21  # of a text, which take some 300 bytes each
MOST_DEPTH = 100  # lists and objects within each other
MOST_DIGITS = 20  # of an integer: what 64 bits take, with its sign
_MARK = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)  # a whole text, or a bracket


def parsed(
    text: str | bytes, refuse: Refuse, *, most_bytes: int = MOST_BYTES, infinite: bool = False
) -> Any:
    """What a text holds; raises what `refuse` makes of the fault.

    Args:
        infinite: NaN and Infinity are numbers, as PyTorch writes them.

    >>> parsed('{"rows": [1, 2]}', ValueError)
    {'rows': [1, 2]}
    >>> parsed("[NaN]", ValueError)
    Traceback (most recent call last):
    ValueError: NaN is not JSON
    """
    try:
        _require(len(text) <= most_bytes, f"it has more than {most_bytes} bytes")
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        values = sum(map(text.count, ",[{"))
        _require(values <= MOST_VALUES, f"it has more than {MOST_VALUES} values")
        _require(_depth(text) <= MOST_DEPTH, f"it nests deeper than {MOST_DEPTH} levels")
        constant = float if infinite else _no_constant
        found = json.loads(
            text, object_pairs_hook=_distinct, parse_constant=constant,
            parse_int=_integer, parse_float=_number,
        )  # fmt: skip
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()  # fails for half of a surrogate pair
    except ValueError as error:
        raise refuse(_shown(str(error))) from None
    return found


def bounded_text(path: str | PathLike[str], most_bytes: int = MOST_BYTES) -> str:
    """A regular file's text; raises OSError, and ValueError for a longer one."""
    return read_bytes(path, most_bytes).decode("utf-8")


def read_text(path: str | PathLike[str], refuse: Refuse) -> str:
    """A file's text; raises what `refuse` makes of the fault."""
    try:
        return bounded_text(path)
    except (OSError, ValueError) as error:
        raise refuse(_shown(str(error))) from error


def _require(good: bool, fault: str) -> None:
    if not good:
        raise ValueError(fault)


def _depth(text: str) -> int:
    """How deep the brackets outside of texts nest; no more than there are."""
    deepest = text.count("[") + text.count("{")
    if deepest <= MOST_DEPTH:
        return deepest
    level = deepest = 0
    for found in _MARK.finditer(text):
        mark = found[0]
        level += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, level)
    return deepest


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        _require(name not in found, f"the name {name!a} occurs twice in one object")
        found[name] = value
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _integer(text: str) -> int:
    _require(len(text) <= MOST_DIGITS, f"the integer {text[:8]}… has {len(text)} digits")
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    _require(math.isfinite(found), f"the number {_shown(text)} is too large")
    return found


def _shown(text: str) -> str:
    """The beginning of a message; what it quotes may be long."""
    return text if len(text) <= 160 else f"{text[:157]}..."
