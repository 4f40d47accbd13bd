"""Raise at one bytecode of a run, at one of the times that it is reached.

All of Python counts: the package, the methods that dataclasses write, and the libraries beneath.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from types import CodeType, FrameType
from typing import Any

import tgbench as tg

RETURN = __import__("opcode").opmap["RETURN_VALUE"]
TESTS = __file__.rpartition("/tests/")[0] + "/tests/"
Trace = Callable[[FrameType, str, Any], Any]
Key = tuple[str, int, str, tuple[str, ...], tuple[str, ...], int]


@dataclass(frozen=True, eq=False)
class Place:
    """A bytecode. Code that only looks alike is another one."""

    code: CodeType
    offset: int

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Place) and self.code is other.code
        return same and self.offset == other.offset

    def __hash__(self) -> int:
        return hash((id(self.code), self.offset))

    @property
    def key(self) -> Key:
        """The same in every process."""
        code = self.code
        line = code.co_firstlineno
        return (
            code.co_filename,
            line,
            code.co_qualname,
            code.co_varnames,
            code.co_names,
            self.offset,
        )

    def __str__(self) -> str:
        file = self.code.co_filename.rpartition("/tgbench/")[2]
        return f"{file}:{self.code.co_qualname}+{self.offset}"


@dataclass(frozen=True)
class Point:
    """A time that a bytecode is reached, counted from 0."""

    place: Place
    time: int


def places(act: Callable[[], Any]) -> Counter[Place]:
    """How often each bytecode is reached, but for the last one of a run."""
    by_identity: dict[int, Counter[int]] = {}
    codes: dict[int, CodeType] = {}

    def step(frame: FrameType, event: str, argument: Any) -> Trace:
        if event == "opcode":
            by_identity[id(frame.f_code)][frame.f_lasti] += 1
        return step

    def trace(frame: FrameType, event: str, argument: Any) -> Trace | None:
        code = frame.f_code
        if code.co_filename.startswith(TESTS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        codes[id(code)] = code
        by_identity.setdefault(id(code), Counter())
        return step

    _traced(act, trace)
    return Counter({
        place: count
        for number, offsets in by_identity.items()
        for offset, count in offsets.items()
        if not is_over(place := Place(codes[number], offset))
    })  # fmt: skip


def is_over(place: Place) -> bool:
    """Whether it only hands over what is finished."""
    code = place.code
    return code is tg.GraphSession.run.__code__ and code.co_code[place.offset] == RETURN


def in_turns(found: Counter[Place], seed: int = 0) -> Iterator[Point]:
    """Every point of a run: of each bytecode the first time, then another one, and so on."""
    order = sorted(found, key=lambda place: place.key)
    times = {}
    for place in order:
        later = list(range(1, found[place]))
        Random(f"{seed} {place.key}").shuffle(later)
        times[place] = [0, *later]
    turn = 0
    while order:
        yield from (Point(place, times[place][turn]) for place in order)
        turn += 1
        order = [place for place in order if turn < found[place]]


class Injector:
    """Raises at a point of what is called, once.

    Fields:
        has_raised: whether the point was reached.
    """

    def __init__(self, point: Point, error: type[BaseException]) -> None:
        self.point, self.error, self.has_raised = point, error, False

    def call(self, act: Callable[[], Any]) -> Any:
        code, offset, left = self.point.place.code, self.point.place.offset, self.point.time

        def step(frame: FrameType, event: str, argument: Any) -> Trace:
            nonlocal left
            if event == "opcode" and frame.f_lasti == offset:
                left -= 1
                if left == -1:
                    self.has_raised = True
                    raise self.error("injected")
            return step

        def trace(frame: FrameType, event: str, argument: Any) -> Trace | None:
            if frame.f_code is not code:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return step

        before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            return _traced(act, trace)
        finally:  # what is raised where an object goes is dropped, and said by this hook
            sys.unraisablehook = before


def _traced(act: Callable[[], Any], trace: Trace) -> Any:
    """Call with a trace function for the frames that are entered.

    Nothing is collected meanwhile unless the run asks, and no library that listens to that is told
    (Hypothesis keeps the time of it, once a test of its own ran): neither is of the run.
    """
    before, thresholds, callbacks = sys.gettrace(), gc.get_threshold(), gc.callbacks[:]
    gc.set_threshold(0)  # a collector that is off is something that a run would see
    gc.callbacks.clear()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 asks for it where tracing begins
    sys.settrace(trace)
    try:
        return act()
    finally:
        sys.settrace(before)
        gc.callbacks[:] = callbacks
        gc.set_threshold(*thresholds)
