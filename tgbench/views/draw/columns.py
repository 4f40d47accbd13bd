"""Bulk data for scripts: named columns as one little-endian buffer (a structure of arrays).

    ┌────────────┬──────────────────────────────────┬───┬──────────┬──────────┬─ ─
    │ length u32 │ JSON {name: [type, first, count]} │ 0 │ column 0 │ column 1 │
    └────────────┴──────────────────────────────────┴───┴──────────┴──────────┴─ ─

Columns begin at multiples of 8 bytes, so that a script lays typed arrays over them. A column of
text is UTF-8, joined by zero characters. `widgets/common.js` reads this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Column: TypeAlias = "NDArray[Any] | Sequence[str]"
TYPES = {"uint8": "|u1", "int32": "<i4", "float32": "<f4", "float64": "<f8"}
TEXT = "text"
SEPARATOR = "\0"


def pack(columns: Mapping[str, Column]) -> bytes:
    """All columns in one buffer; numbers are uint8, int32, float32 or float64.

    >>> unpack(pack({"size": np.array([64, 96], np.int32), "name": ["q", "k"]}))
    {'size': array([64, 96], dtype=int32), 'name': ['q', 'k']}
    """
    header: dict[str, tuple[str, int, int]] = {}
    parts, at = [], 0
    for name, column in columns.items():
        kind, count, raw = _encoded(column)
        header[name] = (kind, at, count)
        parts.append(raw + bytes(-len(raw) % 8))
        at += len(parts[-1])
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 4) % 8)
    return b"".join([np.uint32(len(head)).astype("<u4").tobytes(), head, *parts])


def unpack(data: bytes) -> dict[str, Any]:
    """The columns of a buffer; text as lists."""
    length = int(np.frombuffer(data, "<u4", 1)[0])
    first = 4 + length
    return {
        name: _decoded(data, kind, first + at, count)
        for name, (kind, at, count) in json.loads(data[4:first]).items()
    }


def _encoded(column: Column) -> tuple[str, int, bytes]:
    if isinstance(column, np.ndarray):
        return column.dtype.name, column.size, column.astype(TYPES[column.dtype.name]).tobytes()
    raw = SEPARATOR.join(column)
    if raw.count(SEPARATOR) >= max(len(column), 1):
        raw = SEPARATOR.join(text.replace(SEPARATOR, "␀") for text in column)
    encoded = raw.encode("utf-8", "replace")
    return f"{TEXT}:{len(column)}", len(encoded), encoded


def _decoded(data: bytes, kind: str, at: int, count: int) -> Any:
    if not kind.startswith(TEXT):
        return np.frombuffer(data, TYPES[kind], count, at).astype(kind)
    rows = int(kind.partition(":")[2])
    return data[at : at + count].decode().split(SEPARATOR) if rows else []
