"""Interrupt runs at one point after the other: `make fuzz-interrupts SECONDS=600 SEED=0`."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

import torch
from looking import Looked, add, look, parser

from interrupts.injecting import Place, Point, in_turns, places
from interrupts.runs import AFTER, ERRORS, RUNS, Tried

KINDS = [(name, error) for error in ERRORS for name in RUNS]  # in turns
MOST = 200_000  # points of a run that are held


class Course:
    """The points of one kind of run.

    Fields:
        reached: bytecodes, and how often each is reached in such a run.
        points: all of them, each bytecode once before one comes again.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        for _ in range(2):  # what is loaded late is loaded
            self.begun = RUNS[name]()
            self.reached: Counter[Place] = places(self.begun.run)
        self.points: list[Point] = list(islice(in_turns(self.reached), MOST))

    def stop(self, point: Point, error: type[BaseException]) -> bool:
        """Whether a run was stopped; raises AssertionError for what is not right then or after."""
        tried = self._next()
        is_stopped = tried.stopped(point, error)
        for _ in range(AFTER):
            tried.run()
        tried.assert_states()
        return is_stopped

    def _next(self) -> Tried:
        """A warm session is warm again after each time; others are new."""
        return self.begun if self.name == "warm" else RUNS[self.name]()


def point_of(seed: int, courses: dict[str, Course]) -> tuple[Course, Point, type[BaseException]]:
    """The run, the point and what is raised there; raises IndexError beyond the last one."""
    name, error = KINDS[seed % len(KINDS)]
    return courses[name], courses[name].points[seed // len(KINDS)], error


def main() -> int:
    """A point a seed; what did harm is told as it comes."""
    options = parser("fuzz-interrupts", __doc__, Path(), 0).parse_args()
    torch.set_num_threads(1)
    courses = {name: Course(name) for name in RUNS}
    counts, seen = Counter[str](), set[tuple[str, Place]]()

    def one(seed: int) -> None:
        try:
            course, point, error = point_of(seed, courses)
        except IndexError:
            return
        counts["points"] += 1
        counts[f"points of a {course.name} run"] += 1
        seen.add((course.name, point.place))
        try:
            counts["stopped"] += course.stop(point, error)
        except Exception as harm:
            counts["harmed"] += 1
            told = f"{course.name} run, {error.__name__} at {point.place}, time {point.time}"
            print(f"\nseed {seed}: {told}: {type(harm).__name__}: {harm}", flush=True)
            course.begun = RUNS[course.name]()

    found = look(options, one, lambda found: _summary(counts, len(seen), found))
    totals = {name: course.reached.total() for name, course in courses.items()}
    for name, course in courses.items():
        print(f"  {name:10} {len(course.reached):,} bytecodes, reached {totals[name]:,} times")
    add(options.results, "interrupts", found, dict(counts))
    return 1 if counts["harmed"] else 0


def _summary(counts: Counter[str], bytecodes: int, found: Looked) -> str:
    shown = "  ".join(f"{counts[f'points of a {name} run']:,} {name}" for name in RUNS)
    return (
        f"{found.seconds:6.0f} s  {counts['points']:,} points of {bytecodes:,} bytecodes  {shown}  "
        f"{counts['stopped']:,} stopped  {counts['harmed']} did harm"
    )


if __name__ == "__main__":
    raise SystemExit(main())
