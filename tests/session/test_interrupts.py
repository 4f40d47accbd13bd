"""All bytecodes of a warm run, some of others; `make fuzz-interrupts` visits every point."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from interrupts.__main__ import IN_A_ROW, KINDS, Course, point_of
from interrupts.injecting import Injector, Place, Point, in_turns, is_over, places
from interrupts.runs import ERRORS, RUNS, Met, Tried

import tgbench as tg
from tgbench.kernels import waiting


@pytest.fixture(scope="module")
def courses() -> dict[str, Course]:
    waiting.waiting().spin()  # whatever ran before: that its threads sleep is not of these runs
    waiting.waiting.cache_clear()
    return {name: Course(name) for name in RUNS}


def test_who_listens_to_the_collector_is_not_of_a_run() -> None:
    """A run collects when it makes a program; what is raised in a callback nobody hears."""

    def listen(phase: str, info: dict[str, int]) -> None:
        heard.append(phase)

    heard: list[str] = []
    gc.callbacks.append(listen)
    try:
        found = places(lambda: gc.collect())
        assert not heard
        gc.collect()
        assert heard
    finally:
        gc.callbacks.remove(listen)
    assert listen.__code__ not in {place.code for place in found}


@pytest.mark.parametrize("error", ERRORS)
def test_every_bytecode_of_a_warm_run(
    error: type[BaseException], courses: dict[str, Course]
) -> None:
    course = courses["warm"]
    assert len(course.reached) > 1000
    met = [course.stop(p, error) for p in islice(course.points, len(course.reached))]
    course.finish()
    assert met.count(Met.STOPPED) > 0.95 * len(met)
    assert met.count(Met.MISSED) < 0.02 * len(met)  # clocks have some reached now and then


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("name", ["first", "planning"])
def test_points_of_a_run(name: str, error: type[BaseException], courses: dict[str, Course]) -> None:
    """Of bytecodes everywhere, and of those of the run's last steps, where states advance."""
    course, count = courses[name], settings().max_examples
    every = max(len(course.reached) // count, 1)
    last = [p for p in course.points if "/session/running.py" in p.place.code.co_filename]
    met = [
        course.stop(point, error)
        for point in [*course.points[: len(course.reached) : every], *last[:: len(last) // count]]
    ]
    course.finish()
    assert met.count(Met.STOPPED) > 0.9 * len(met)
    assert Met.MISSED not in met


def test_the_planning_run_plans() -> None:
    tried = RUNS["planning"]()
    before = tried.session.plan
    tried.run()
    assert tried.session.plan is not before


def test_seeds_visit_every_point_once(courses: dict[str, Course]) -> None:
    few = {name: Course.__new__(Course) for name in RUNS}
    for name, course in few.items():
        course.name, course.points = name, courses[name].points[:5]
    visited = [point_of(seed, few) for seed in range(5 * len(KINDS))]
    assert len({(course.name, point, error) for course, point, error in visited}) == len(visited)
    with pytest.raises(IndexError):
        point_of(5 * len(KINDS), few)


def test_points_come_bytecode_by_bytecode(courses: dict[str, Course]) -> None:
    course = courses["warm"]
    assert len(set(course.points)) == len(course.points) == course.reached.total()
    assert {point.place for point in course.points[: len(course.reached)]} == set(course.reached)


def test_a_run_is_stopped_some_times_in_a_row(courses: dict[str, Course]) -> None:
    course = courses["first"]
    course.begin()
    begun = course.begun
    for count, point in enumerate(course.points[: IN_A_ROW - 1], 1):
        assert course.stop(point, KeyboardInterrupt) is Met.STOPPED
        assert (course.begun, len(course.row), begun.number) == (begun, count, 0)
    course.finish()
    assert begun.number in (1, 2)
    assert course.begun is not begun


def test_what_a_stop_left_is_noticed_when_the_run_is_let_through(
    courses: dict[str, Course],
) -> None:
    course = courses["planning"]
    course.stop(course.points[-1], MemoryError)
    course.begun.session.set_state("ring", course.begun.right.ring + 1)
    with pytest.raises(AssertionError):
        course.finish()
    course.begin()


def test_what_dataclasses_and_libraries_do_is_part_of_a_run(courses: dict[str, Course]) -> None:
    files = {place.code.co_filename for place in courses["planning"].reached}
    assert "<string>" in files
    assert any(file.endswith("/dataclasses.py") for file in files)
    assert any("/numpy/" in file for file in files)
    assert not any("/tests/" in file for file in files)


def test_only_the_last_bytecode_of_a_run_is_left_out(courses: dict[str, Course]) -> None:
    code = tg.GraphSession.run.__code__
    assert not any(map(is_over, courses["warm"].reached))
    offsets = {place.offset for place in courses["warm"].reached if place.code is code}
    assert is_over(Place(code, max(offsets) + 2))


def harmful() -> Iterator[tuple[str, Callable[[Tried], Any]]]:
    yield "states", lambda tried: tried.session.set_state("total", tried.right.total + 1)
    yield "results", lambda tried: tried.right.__dict__.update(total=tried.right.total + 1)


@pytest.mark.parametrize(("what", "harm"), list(harmful()), ids=lambda one: str(one)[:7])
def test_harm_is_noticed(what: str, harm: Callable[[Tried], Any]) -> None:
    """A check that nothing fails proves nothing."""
    tried = RUNS["warm"]()
    values = tried.values()
    point = next(iter(in_turns(places(lambda: tried.session.run(values)))))
    harm(tried)
    with pytest.raises(AssertionError):
        tried.met(point, KeyboardInterrupt)


def test_what_is_raised_where_nobody_hears_it_survives() -> None:
    """A callback of a weak reference; what is raised later than ever is missed."""

    class Thing:
        pass

    def gone(reference: object) -> None:
        heard.append(reference)

    def drop() -> None:
        thing = Thing()
        heard.append(weakref.ref(thing, gone))

    heard: list[object] = []
    for time, was_raised in ((0, True), (1, False)):
        injector = Injector(Point(Place(gone.__code__, 4), time), MemoryError)
        injector.call(drop)
        assert injector.has_raised is was_raised


def test_it_is_raised_where_it_is_told_to(courses: dict[str, Course]) -> None:
    tried, code = RUNS["warm"](), tg.GraphSession.run.__code__
    inside = sorted(
        (place for place in courses["warm"].reached if place.code is code), key=lambda p: p.offset
    )
    injector, values = Injector(Point(inside[3], 0), KeyboardInterrupt), tried.values()
    with pytest.raises(KeyboardInterrupt) as caught:
        injector.call(lambda: tried.session.run(values))
    others = (one for one in caught.traceback if one.path.name != "injecting.py")
    *_, last = others
    frame = last._rawentry
    assert Place(frame.tb_frame.f_code, frame.tb_lasti) == inside[3]
