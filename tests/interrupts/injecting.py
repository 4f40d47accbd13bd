"""Raise at one bytecode of a run, at one of the times that it is reached.

All of Python counts: the package, the methods that dataclasses write, and the libraries beneath;
but for what is `LEFT_OUT`.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from types import CodeType, FrameType
from typing import Any

import tgbench as tg

RETURN = __import__("opcode").opmap["RETURN_VALUE"]
TESTS = __file__.rpartition("/tests/")[0] + "/tests/"
# Before Python 3.12 one lock for all objects of a class is given back here, by bytecodes between
# which no signal is heard: raised at, it would be held for ever, and other threads wait for it.
LEFT_OUT = {functools.cached_property.__get__.__code__} if sys.version_info < (3, 12) else set()
TOOL = 4  # of `sys.monitoring`, which no debugger and no profiler has
Trace = Callable[[FrameType, str, Any], Any]
Reached = Callable[[CodeType, int], None]
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

    def reached(code: CodeType, offset: int) -> None:
        if code.co_filename.startswith(TESTS) or code in LEFT_OUT:
            return
        codes[id(code)] = code
        by_identity.setdefault(id(code), Counter())[offset] += 1

    _traced(act, reached)
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
        place, left = self.point.place, self.point.time

        def reached(code: CodeType, offset: int) -> None:
            nonlocal left
            if code is place.code and offset == place.offset:
                left -= 1
                if left == -1:
                    self.has_raised = True
                    raise self.error("injected")

        before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        try:
            return _traced(act, reached, place.code)
        finally:  # what is raised where an object goes is dropped, and said by this hook
            sys.unraisablehook = before


def _traced(act: Callable[[], Any], reached: Reached, only: CodeType | None = None) -> Any:
    """Call, and tell of every bytecode that this thread reaches meanwhile; of some code `only`.

    Nothing is collected meanwhile unless the run asks, and no library that listens to that is told
    (Hypothesis keeps the time of it, once a test of its own ran): neither is of the run.
    """
    thresholds, callbacks = gc.get_threshold(), gc.callbacks[:]
    gc.set_threshold(0)  # a collector that is off is something that a run would see
    gc.callbacks.clear()
    stop = _telling(reached, only)
    try:
        return act()
    finally:
        stop()
        gc.callbacks[:] = callbacks
        gc.set_threshold(*thresholds)


if sys.version_info >= (3, 12):  # whose trace functions are not told of code that runs first

    def _telling(reached: Reached, only: CodeType | None) -> Callable[[], Any]:
        """Tell from now on; returns what ends it."""
        monitoring, own = sys.monitoring, threading.get_ident()
        events = monitoring.events.INSTRUCTION

        def instruction(code: CodeType, offset: int) -> None:
            if threading.get_ident() == own:
                reached(code, offset)

        def watch(events: int) -> None:
            if only is None:
                monitoring.set_events(TOOL, events)
            else:
                monitoring.set_local_events(TOOL, only, events)

        def stop() -> None:
            watch(0)
            monitoring.register_callback(TOOL, events, None)
            monitoring.free_tool_id(TOOL)

        monitoring.use_tool_id(TOOL, "interrupts")
        monitoring.register_callback(TOOL, events, instruction)
        watch(events)
        return stop

else:

    def _telling(reached: Reached, only: CodeType | None) -> Callable[[], Any]:
        """Tell from now on; returns what ends it."""

        def step(frame: FrameType, event: str, argument: Any) -> Trace:
            if event == "opcode":
                reached(frame.f_code, frame.f_lasti)
            return step

        def trace(frame: FrameType, event: str, argument: Any) -> Trace | None:
            code = frame.f_code
            if code.co_filename.startswith(TESTS) if only is None else code is not only:
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return step

        stop = partial(sys.settrace, sys.gettrace())
        sys.settrace(trace)
        return stop
