"""Raise at one bytecode of the package, at one of the times that it is reached."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from types import CodeType, FrameType
from typing import Any

import tgbench as tg

RETURN = __import__("opcode").opmap["RETURN_VALUE"]
Trace = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True)
class Place:
    """A bytecode of the package."""

    code: CodeType
    offset: int

    @property
    def key(self) -> tuple[str, int, str, int]:
        """The same in every process."""
        code = self.code
        return code.co_filename, code.co_firstlineno, code.co_name, self.offset

    def __str__(self) -> str:
        file = self.code.co_filename.rpartition("/tgbench/")[2]
        return f"{file}:{self.code.co_name}+{self.offset}"


@dataclass(frozen=True)
class Point:
    """A time that a bytecode is reached, counted from 0."""

    place: Place
    time: int


def is_ours(code: CodeType) -> bool:
    return "/tgbench/" in code.co_filename and "/tests/" not in code.co_filename


def places(act: Callable[[], Any]) -> Counter[Place]:
    """How often each bytecode is reached."""
    found: Counter[Place] = Counter()

    def step(frame: FrameType, event: str, argument: Any) -> Trace:
        if event == "opcode":
            found[Place(frame.f_code, frame.f_lasti)] += 1
        return step

    with _traced(lambda frame: step if is_ours(frame.f_code) else None):
        act()
    return found


def in_turns(found: Counter[Place], seed: int = 0) -> Iterator[Point]:
    """Every point of a run: of each bytecode one time, then of each another one, and so on."""
    order = sorted(found, key=lambda place: place.key)
    times = {place: list(range(found[place])) for place in order}
    for place in order:
        Random(f"{seed} {place.key}").shuffle(times[place])
    turn = 0
    while order:
        yield from (Point(place, times[place][turn]) for place in order)
        turn += 1
        order = [place for place in order if turn < found[place]]


class Injector:
    """Raises at a point. The last bytecode of a run only hands over what is finished."""

    def __init__(self, point: Point, error: type[BaseException]) -> None:
        self.point, self.error, self.reached = point, error, 0

    def step(self, frame: FrameType, event: str, argument: Any) -> Trace:
        if event == "opcode" and frame.f_lasti == self.point.place.offset:
            self.reached += 1
            if self.reached == self.point.time + 1 and not _is_over(frame):
                raise self.error("injected")
        return self.step

    def local(self, frame: FrameType) -> Trace | None:
        return self.step if frame.f_code is self.point.place.code else None


def _is_over(frame: FrameType) -> bool:
    is_outermost = frame.f_code is tg.GraphSession.run.__code__
    return is_outermost and frame.f_code.co_code[frame.f_lasti] == RETURN


@contextmanager
def injected(point: Point, error: type[BaseException]) -> Iterator[None]:
    """Raise at a point of what is done inside."""
    with _traced(Injector(point, error).local):
        yield


@contextmanager
def _traced(local: Callable[[FrameType], Trace | None]) -> Iterator[None]:
    """Trace bytecodes of the frames that `local` has a function for."""

    def trace(frame: FrameType, event: str, argument: Any) -> Trace | None:
        found = local(frame)
        if found is not None:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return found

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
