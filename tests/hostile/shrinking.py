"""The smallest file that fails as a given one does: parts that can be left out are left out."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from hostile.reading import Outcome, Reader


def shrunk(reader: Reader, kind: str, data: bytes, failure: Outcome, seconds: float) -> bytes:
    """The smallest file found in that time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = _smaller(reader, kind, data, failure, end)
        if found is None:
            break
        data = found
    return data


def _smaller(reader: Reader, kind: str, data: bytes, failure: Outcome, end: float) -> bytes | None:
    for proposal in _proposals(kind, data):
        if time.monotonic() > end:
            return None
        if len(proposal) < len(data) and reader.read(kind, proposal).is_like(failure):
            return proposal
    return None


def _proposals(kind: str, data: bytes) -> Iterator[bytes]:
    if kind in ("graph", "plan"):
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        yield from (json.dumps(smaller).encode() for smaller in _without(document))
    if kind in ("records", "pt2"):
        return  # what is left of them is no file of their kind
    size = len(data) // 2
    while size:
        for at in range(0, len(data), size):
            yield data[:at] + data[at + size :]
        size //= 2


def _without(document: Any) -> Iterator[Any]:
    """The document without one of its parts, large ones first."""
    places = sorted(_paths(document), key=len)
    for path in places:
        copy = json.loads(json.dumps(document))
        holder = copy
        for key in path[:-1]:
            holder = holder[key]
        del holder[path[-1]]
        yield copy


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items if isinstance(value, (dict, list)) else ():
        yield (*before, key)
        yield from _paths(inner, (*before, key))
