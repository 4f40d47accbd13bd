"""Calls: what a trace remembers of one run, and how that is one line of JSON.

    {"v": 1,
     "changed": {"ids": [[[0, 1], [130, 131]]]},       input → boxes → [start, stop) per dimension
     "demand": {"logits": [[[0, 1], [130, 131]]]},     output → boxes
     "hit": true, "ns": 812345, "t": 1700000000.0}     t: unix seconds

Reading is strict: a line has exactly these fields, of these types, in range, with boxes that do not
overlap. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tgbench.base.errors import TraceError
from tgbench.base.regions import MOST_LISTED, Box, Region, listed_region
from tgbench.base.strict_json import parsed
from tgbench.base.words import is_name, shorten
from tgbench.runs.buckets import Bucket

VERSION = 1
FIELDS = ("v", "changed", "demand", "hit", "ns", "t")
INT_LIMIT = 2**63
TIME_LIMIT_S = 2**33  # the year 2242, which every date type holds
MOST_DIMENSIONS = 64
MOST_LINE_BYTES = 1 << 20
CALL_BYTES = 270  # less those of its bucket
MEND = "delete the line, or restore the file from a copy"


class CallFields(NamedTuple):
    """A line of a log, whatever is in it."""

    bucket: Bucket
    hit: bool
    duration_ns: int
    time: float


class LoggedCall(CallFields):
    """One run.

    Fields:
        bucket: what had changed and what was asked for.
        hit: its program existed already.
        duration_ns: of the whole run.
        time: unix seconds, when it ended.

    >>> call = LoggedCall(Bucket.of({"x": Region.full((2,))}, {}), True, 1500, 1700000000.0)
    >>> print(call.to_json())
    {"v":1,"changed":{"x":[[[0,2]]]},"demand":{},"hit":true,"ns":1500,"t":1700000000.0}
    >>> LoggedCall.from_json(call.to_json()) == call
    True
    """

    __slots__ = ()

    def __new__(cls, bucket: Bucket, hit: bool, duration_ns: int, time: float) -> LoggedCall:
        if not 0 <= duration_ns < INT_LIMIT:
            raise TraceError(
                f"duration_ns={duration_ns} is not in 0..2**63 - 1; "
                "subtract an earlier time.perf_counter_ns() from a later one"
            )
        if not 0 <= time < TIME_LIMIT_S:
            raise TraceError(f"time={time} is not in 0..2**33 seconds; pass time.time()")
        return tuple.__new__(cls, (bucket, hit, duration_ns, time))

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, less what equal calls share."""
        return CALL_BYTES + self.bucket.size_bytes

    def to_json(self) -> str:
        """One line, without its end."""
        record = {
            "v": VERSION,
            "changed": _listed(self.bucket.changed),
            "demand": _listed(self.bucket.demand),
            "hit": bool(self.hit),
            "ns": int(self.duration_ns),
            "t": float(self.time),
        }
        return json.dumps(record, separators=(",", ":"))

    @staticmethod
    def from_json(line: str | bytes) -> LoggedCall:
        """The call that a line records; raises TraceError naming the field and the mend."""
        record = _record(line)
        return LoggedCall(
            Bucket.of(_regions(record, "changed"), _regions(record, "demand")),
            _field(record, "hit", "true or false", _is_bool),
            _field(record, "ns", "an integer in 0..2**63 - 1", _is_size),
            float(_field(record, "t", "a number of seconds in 0..2**33", _is_time)),
        )


def _listed(boxes: Sequence[tuple[str, Region]]) -> dict[str, list[list[list[int]]]]:
    return {
        name: [[[int(start), int(stop)] for start, stop in box] for box in _few(region)]
        for name, region in boxes
    }


def _few(region: Region) -> Iterable[Box]:
    """The boxes of a region, or the one around them where they are more than a line takes."""
    return region if len(region) <= MOST_LISTED else (region.hull(),)


def _record(line: str | bytes) -> dict[str, Any]:
    """The JSON object of a line, with the fields of this version."""
    record = parsed(
        line,
        lambda fault: TraceError(f"not a JSON object: {fault}; {MEND}"),
        most_bytes=MOST_LINE_BYTES,
    )
    if not isinstance(record, dict):
        raise TraceError(f"not a JSON object but {shorten(record)}; {MEND}")
    version = record.get("v")
    if type(version) is not int or version != VERSION:
        raise TraceError(
            f"field 'v' is {shorten(version)}, and this tgbench reads version {VERSION}; "
            "install a tgbench that reads it, or trace to another file"
        )
    for name in FIELDS:
        if name not in record:
            raise TraceError(f"field {name!r} is missing; {MEND}")
    for name in record:
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            raise TraceError(f"field {shorten(name)} is unknown; a line has {known}; {MEND}")
    return record


def _field(record: Mapping[str, Any], name: str, what: str, good: Callable[[Any], bool]) -> Any:
    if not good(record[name]):
        raise TraceError(f"field {name!r} is {shorten(record[name])}, not {what}; {MEND}")
    return record[name]


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < INT_LIMIT


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < TIME_LIMIT_S


def _is_object(value: Any) -> bool:
    return type(value) is dict


def _regions(record: Mapping[str, Any], part: str) -> dict[str, Region]:
    by_name = _field(record, part, "an object of boxes by name", _is_object)
    for name in by_name:
        if not is_name(name):
            raise TraceError(f"field {shorten(part)}: {shorten(name)} names nothing; {MEND}")
    return {name: _region(boxes, f"{part}.{name}") for name, boxes in by_name.items()}


def _region(boxes: Any, where: str) -> Region:
    def require(good: bool, fault: str) -> None:
        if not good:
            raise TraceError(f"field {shorten(where)}: {fault}; {MEND}")

    require(type(boxes) is list and bool(boxes), f"{shorten(boxes)} is not a list of boxes")
    require(len(boxes) <= MOST_LISTED, f"{len(boxes)} boxes are more than {MOST_LISTED}")
    for box in boxes:
        require(type(box) is list, f"{shorten(box)} is not a box, a list of intervals")
        require(len(box) == len(boxes[0]), "its boxes differ in their number of dimensions")
        require(len(box) <= MOST_DIMENSIONS, f"{len(box)} dimensions are more than 64")
        for interval in box:
            fault = f"{shorten(interval)} is not [start, stop] with 0 <= start < stop < 2**63"
            require(type(interval) is list and len(interval) == 2, fault)
            require(all(map(_is_size, interval)) and interval[0] < interval[1], fault)
    region = listed_region([Box((start, stop) for start, stop in box) for box in boxes])
    require(region is not None, "its boxes overlap, or take too many bands")
    assert region is not None
    return region
