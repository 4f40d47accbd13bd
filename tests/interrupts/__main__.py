"""Interrupt runs at one point after the other: `make fuzz-interrupts SECONDS=600 SEED=0`.

Points of the six kinds (a run, and what is raised in it) come in turns; of each kind every bytecode
comes once, at the first of its times, before one comes again.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path

import torch
from looking import Looked, add, look, parser

from interrupts.injecting import Place, Point, in_turns, places
from interrupts.runs import ERRORS, MORE, ROWS, RUNS, Met
from tgbench.base import collector

KINDS = [(name, error) for error in ERRORS for name in RUNS]  # in turns
MOST = 200_000  # points of a run that are held
COLLECTED = 1000  # points after which what sessions left is looked for
IN_A_ROW = 8  # times that a run is stopped before it is let through
COUNTED = 3  # what is loaded or remembered late is so before the last of these


class Course:
    """The points of one kind of run.

    A run that was stopped is stopped again at the next point, some times in a row, before it is let
    through and compared: what any of these left must not be seen.

    Fields:
        reached: bytecodes, and how often each is reached in such a run.
        points: all of them, each bytecode once before one comes again.
        row: what the run under way was stopped at.
    """

    def __init__(self, name: str) -> None:
        self.name, self.finished = name, 0
        for _ in range(COUNTED):
            self.begin()
            run = partial(self.begun.session.run, self.begun.values())
            self.reached: Counter[Place] = places(run)
        self.points: list[Point] = list(islice(in_turns(self.reached), MOST))
        self.begin()

    def begin(self) -> None:
        """With a new session."""
        with uncollected():
            self.begun = RUNS[self.name]()
        self.row: list[str] = []

    def stop(self, point: Point, error: type[BaseException]) -> Met:
        """What an error there does; raises AssertionError for what is not right then or after."""
        met = self._tried(point, error)
        if met is Met.MISSED:  # a run that was stopped before need not come there again
            self.begin()
            met = self._tried(point, error)
        if met is Met.MISSED:  # nor is one like another
            self.begin()
            collector._Unseen.all = 0
            met = self._tried(Point(point.place, 0), error)
        return met

    def _tried(self, point: Point, error: type[BaseException]) -> Met:
        self.row.append(f"{error.__name__} at {point.place}, time {point.time}")
        met = self.begun.met(point, error)
        if met is not Met.STOPPED or len(self.row) == IN_A_ROW or self.name == "warm":
            self.finish()
        return met

    def finish(self) -> None:
        """Let the run through, now and then another one behind it, and compare."""
        if not self.row:
            return
        self.finished += 1
        for _ in range(1 if self.finished % MORE else 2):
            self.begun.run()
        self.begun.assert_states()
        self.row.clear()
        if self.name != "warm":
            self.begun.assert_process()  # a warm run has no part in that
            self.begin()
            return
        while self.begun.number % ROWS:  # as warm as it was
            self.begun.run()


@contextmanager
def uncollected() -> Iterator[None]:
    """Sessions before this one are let go together: looking for each takes more than making it."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def point_of(seed: int, courses: dict[str, Course]) -> tuple[Course, Point, type[BaseException]]:
    """The run, the point and what is raised there; raises IndexError beyond the last one."""
    name, error = KINDS[seed % len(KINDS)]
    return courses[name], courses[name].points[seed // len(KINDS)], error


def is_first_turn(seed: int, course: Course) -> bool:
    """Whether its bytecode comes for the first time with this error."""
    return seed // len(KINDS) < len(course.reached)


def main() -> int:
    """A point a seed; what did harm is told as it comes."""
    options = parser("fuzz-interrupts", __doc__, Path(), 0).parse_args()
    torch.set_num_threads(1)
    courses = {name: Course(name) for name in RUNS}
    counts = _sizes(courses)

    def one(seed: int) -> None:
        if seed % COLLECTED == 0:
            gc.collect()
        try:
            course, point, error = point_of(seed, courses)
        except IndexError:
            return
        counts["points"] += 1
        counts[f"points of a {course.name} run"] += 1
        try:
            met = course.stop(point, error)
            counts[met.value] += 1
            counts["visited"] += is_first_turn(seed, course) and met is not Met.MISSED
        except Exception as harm:
            _told(course, seed, harm)
            counts["harmed"] += 1

    found = look(options, one, lambda found: _summary(counts, found))
    for course in courses.values():
        try:
            course.finish()
        except Exception as harm:
            _told(course, found.seed, harm)
            counts["harmed"] += 1
    for name, course in courses.items():
        total = course.reached.total()
        print(f"  {name:10} {len(course.reached):,} bytecodes, reached {total:,} times")
    add(options.results, "interrupts", found, dict(counts))
    return 1 if counts["harmed"] else 0


def _told(course: Course, seed: int, harm: Exception) -> None:
    """What the run was stopped at before it came out wrong, the last one at the end."""
    row = "\n  ".join(course.row)
    said = f"{type(harm).__name__}: {harm}"
    print(f"\nuntil seed {seed}: {course.name} run:\n  {row}\n  {said}", flush=True)
    course.begin()


def _sizes(courses: dict[str, Course]) -> Counter[str]:
    """How many points there are: bytecodes, and times that they are reached."""
    found = Counter[str](harmed=0)
    for name, course in courses.items():
        found[f"most bytecodes of a {name} run"] = len(course.reached)
        found[f"most times in a {name} run"] = course.reached.total()
        found["most to visit"] += len(ERRORS) * len(course.reached)
    return found


def _summary(counts: Counter[str], found: Looked) -> str:
    shown = "  ".join(f"{counts[f'points of a {name} run']:,} {name}" for name in RUNS)
    kinds = "  ".join(f"{counts[met.value]:,} {met.value}" for met in Met)
    return (
        f"{found.seconds:6.0f} s  {counts['points']:,} points  {shown}  {kinds}  "
        f"{counts['harmed']} did harm"
    )


if __name__ == "__main__":
    raise SystemExit(main())
