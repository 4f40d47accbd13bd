"""Which program serves a run: the cheapest, as far as anybody can know; on times made up here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import tgbench as tg
from tgbench.base.coords import Domain, Guard
from tgbench.base.errors import PlanError
from tgbench.base.regions import Region
from tgbench.programs.program import SURE, Program
from tgbench.programs.states import NOTHING
from tgbench.runs import difference
from tgbench.runs.buckets import Bucket, BucketClass, Spot
from tgbench.runs.pausing import Pausing, at_once
from tgbench.runs.work import Work
from tgbench.session import serving
from tgbench.session.chooser import Wanted
from tgbench.session.choosing import (
    FIRST_NS,
    FIRST_TIMES,
    HOPES,
    LEAST_PART,
    LONGEST_RUN,
    LOOKING,
    Measured,
    Met,
)
from tgbench.session.experience import COLD, LACKING, OVER_MODEL, Experience
from tgbench.session.purse import ADVANCE, LEAST_SHARE, SHARE, Purse
from tgbench.session.serving import EXACTLY, LARGER, Offer, Rung, finds_nothing

Array = NDArray[Any]
AFRESH = LARGER[-1]
COARSE = next(rung for rung in LARGER if rung.name == "in sixteenths")
FULL_NS, OWN_NS, MAKING_NS = 10_000, 1_000, 50_000


@dataclass
class Imagined:
    """A world of programs with times that are told: what a run costs, and what was made.

    Fields:
        own_ns, full_ns: what a run's own program takes; what all of it takes.
        hoped_ns: what a model says of a run's own program; the truth if left out.
        besides_ns: what a run by its own program takes besides its calls.
        looking_ns: what looking for a run's own program takes.
        spent: nanoseconds so far, making included.
    """

    chooser: Measured = field(init=False)
    hoped_ns: int | None = None
    own_ns: int = OWN_NS
    full_ns: int = FULL_NS
    making_ns: int = MAKING_NS
    besides_ns: int = 0
    looking_ns: int = 0
    looked: int = 0  # how many runs did
    programs: dict[Any, Program] = field(default_factory=dict)
    spent: int = 0
    made: list[Rung] = field(default_factory=list)
    asking_ns: int = 0
    asked: int = 0  # nanoseconds
    parts: list[int] = field(default_factory=list)  # that runs spent on what was wanted
    _paid: int = 0  # in the run that goes on
    _looking: int = 0

    def __post_init__(self) -> None:
        self.chooser = Measured(self._modelled, lambda: self.asked)
        full = self.have(_offer(AFRESH, 0))  # a full program is there from the first run on
        for _ in range(2):  # and is known when it was warm
            self.ran(full)
        self.spent = 0

    def _modelled(self, steps: Iterable[Any], here: Any, there: Any) -> Pausing[Work]:
        yield
        return _work(self.full_ns)  # of what was made: steps of programs here are none

    def run(self, name: int, planned: Any = None) -> Rung:
        """A run that has a program of its own by this name."""
        if not self.chooser.looks():
            self.chooser.passes()
            self.ran(self._at(_offer(AFRESH, 0)), _kind(name))
            return AFRESH
        self.looked += 1
        self._looking = self.looking_ns
        own = self._at(_offer(EXACTLY, name))
        if own.program is not None and own.program.is_good(()):
            self.ran(own)
            return EXACTLY
        offer = self._choice(own, planned or {})
        while self.chooser.wanted is not None and self._go_on(self.chooser.wanted, offer):
            offer = self._choice(own, planned or {})
        self.ran(offer, own.spot.kind)
        return offer.rung

    def _choice(self, own: Offer, planned: Any) -> Offer:
        own, full = self._at(own), self._at(_offer(AFRESH, 0))
        offer = self.chooser.choose(own, lambda: [full], planned)
        self.chooser.took(0)
        assert offer.program is not None
        return offer

    def _go_on(self, wanted: Wanted, offer: Offer) -> bool:
        """Ask or make, for as long as this run may."""
        assert offer.program is not None
        left_ns = self.asking_ns if wanted.is_hope else self.making_ns
        left_ns -= wanted.took_ns
        part_ns = min(left_ns, int(self.chooser.room_ns(offer.program.takes_ns(()), 0)))
        self.parts.append(part_ns)
        self.asked += part_ns if wanted.is_hope else 0
        wanted.took_ns += part_ns
        self.spent += part_ns
        self._paid += part_ns
        self.chooser.spent(wanted.offer, part_ns)
        if part_ns < left_ns:
            return False
        self.chooser.wanted = None
        if wanted.is_hope:
            self.chooser.asked(wanted, (_work(self._hoped(wanted.offer)), Domain(()), 0))
        else:
            self.have(wanted.offer, wanted)
        return True

    def _hoped(self, offer: Offer) -> float:
        own_ns = self.own_ns if self.hoped_ns is None else self.hoped_ns
        return float(own_ns if offer.rung is EXACTLY else self.full_ns)

    def _at(self, offer: Offer) -> Offer:
        return offer._replace(program=self.programs.get(_key(offer)))

    def have(self, offer: Offer, wanted: Wanted | None = None) -> Offer:
        """It is made now."""
        program = _program(renews=offer.rung is AFRESH)
        self.programs[_key(offer)] = program
        cold = 1.0 if self.made else COLD
        self.made.append(offer.rung)
        at_once(self.chooser.modelling(offer, program))
        self.chooser.made(offer, program, int(cold * self.making_ns), wanted)
        return offer._replace(program=program)

    def ran(self, offer: Offer, kind: BucketClass | None = None) -> None:
        assert offer.program is not None
        is_own = offer.rung is EXACTLY
        took, besides = (self.own_ns, self.besides_ns) if is_own else (self.full_ns, 0)
        besides += self._looking
        self.spent += took + besides
        looking, besides = self._looking + self._paid, besides + self._paid
        self._paid = self._looking = 0
        offer.program.ran(took + self.chooser.besides(offer.program, besides, looking))
        self.chooser.ran(offer.spot.kind if kind is None else kind, offer.program, took)


def _work(still_ns: float) -> Work:
    work = Work()
    work.still_ns = float(still_ns)
    return work


def _modelled(steps: Iterable[Any], here: Any, there: Any) -> Pausing[Work]:
    yield
    return _work(FULL_NS)


def _runs_of(making_ns: float) -> int:
    """How many runs bear what making takes."""
    return ceil(making_ns / (LONGEST_RUN - 1) / FULL_NS)


def _nothing() -> Pausing[Any]:
    """In place of deciding what a run computes."""
    yield
    return None, Domain(()), 0


def _program(renews: bool = True) -> Program:
    return Program((), frozenset(), 0, {}, (), renews=renews)


def _kind(name: int) -> BucketClass:
    return BucketClass((("x", (((None, name + 1),),)),), (), ())


def _offer(rung: Rung, name: int, program: Program | None = None) -> Offer:
    bucket = Bucket((("x", Region.full((1_000 if rung is AFRESH else 1,))),), ())
    return Offer(rung, bucket, Spot(_kind(name), ()), 0, program, finds_nothing)


def _key(offer: Offer) -> Any:
    return offer.rung, offer.spot


def test_a_class_that_comes_again_gets_a_program_when_that_is_what_it_would_have_saved() -> None:
    price = 12 * FULL_NS
    world = Imagined(making_ns=price)
    rungs = [world.run(1) for _ in range(300)]
    first = rungs.index(EXACTLY)
    assert rungs[first:] == [EXACTLY] * (300 - first)
    assert first == pytest.approx(price / FULL_NS / SHARE, abs=3)  # it pays as it goes


def test_runs_too_short_to_choose_for_are_computed_as_everything_for_a_while() -> None:
    """Until what may be spent is what a first choice may take."""
    chooser, full = Measured(_modelled), _program()
    full.use.modelled_ns = FIRST_NS
    own, waited = _offer(EXACTLY, 1), []
    for _ in range(40):
        waited.append(chooser.waits())
        assert bool(chooser.again(own, {own.spot.kind: (1.0, ())})) is waited[-1]
        full.use.note(FIRST_NS)
        chooser.ran(own.spot.kind, full, FIRST_NS)
    saved_up = 1 + ADVANCE + (1 - ADVANCE * SHARE) / SHARE
    assert waited.index(False) == pytest.approx(saved_up, abs=1)
    assert not any(waited[waited.index(False) :])


def test_a_first_choice_waits_for_longer_where_choosing_with_the_first_answer_took_longer() -> None:
    """On a slow processor it is dearer than any constant says."""
    waited = []
    for took_ns in (FIRST_NS // FIRST_TIMES, 2 * FIRST_NS):
        chooser, full, own = Measured(_modelled), _program(), _offer(EXACTLY, 1)
        chooser.took(took_ns)  # nothing was there
        full.use.modelled_ns = FIRST_NS
        runs = 0
        while chooser.waits():
            full.use.note(FIRST_NS)
            chooser.ran(own.spot.kind, full, FIRST_NS)
            runs += 1
        waited.append(runs)
    assert waited[1] - waited[0] == pytest.approx((2 * FIRST_TIMES - 1) / SHARE, abs=2)


def test_nothing_is_chosen_before_it_is_known_what_computing_everything_takes() -> None:
    chooser, full, own = Measured(_modelled), _program(), _offer(EXACTLY, 1)
    assert chooser.waits()
    full.use.modelled_ns = FIRST_NS / 100  # less than the first run, when all was cold
    for _ in range(SURE):
        assert chooser.waits()
        full.use.note(10**9)
        chooser.ran(own.spot.kind, full, 10**9)
    assert not chooser.waits()


def test_asking_the_model_waits_where_it_cannot_be_paid_for() -> None:
    world = Imagined(making_ns=1_000, asking_ns=2 * FULL_NS)
    assert [world.run(1) for _ in range(4)] == [AFRESH] * 4
    assert 0 < world.asked < FULL_NS
    for run in range(4, 40):
        world.run(1)
        assert world.asked <= (max(run, ADVANCE) + 2) * SHARE * FULL_NS
    assert world.asked == world.asking_ns
    assert world.run(1) is EXACTLY


def test_no_run_takes_much_longer_than_everything_with_what_it_makes() -> None:
    world = Imagined(making_ns=3 * FULL_NS)
    world.chooser._purse.left_ns = 10.0 * FULL_NS
    while world.run(1) is AFRESH:
        pass
    assert sum(world.parts) == world.making_ns
    assert max(world.parts) <= (LONGEST_RUN - 1) * FULL_NS
    assert len(world.parts) == _runs_of(world.making_ns) + 1  # and a hope


def test_what_a_quick_run_leaves_of_a_full_one_is_spent_on_what_is_wanted() -> None:
    """And where runs take longer than everything does, they bear a little all the same."""
    world = Imagined()
    purse = world.chooser._purse
    purse.left_ns, purse.lost_ns = 10.0 * FULL_NS, 5.0 * FULL_NS
    for took_ns, room_ns in [
        (FULL_NS // 2, (LONGEST_RUN - 0.5) * FULL_NS),
        (3 * FULL_NS, LEAST_PART * FULL_NS),
    ]:
        program = _program()
        program.use.note(took_ns)
        program.use.note(took_ns)
        assert world.chooser.room_ns(program.takes_ns(()), 0) == pytest.approx(room_ns)
    purse.left_ns = -ADVANCE * SHARE * FULL_NS
    takes_ns = program.takes_ns(())
    assert world.chooser.room_ns(takes_ns, 0) <= 0.0  # nothing is left to spend
    world.chooser.wanted = Wanted(_offer(AFRESH, 0), False, 0.0, 0.0)
    assert world.chooser.room_ns(takes_ns, 0) > 0.0  # but on what is lacking


def test_one_program_is_wanted_at_a_time() -> None:
    world = Imagined(making_ns=3 * FULL_NS)
    world.chooser._purse.left_ns = 10.0 * FULL_NS
    while world.chooser.wanted is None:
        world.run(1)
    first = world.chooser.wanted
    for name in range(2, 9):
        world.run(name)
    assert world.chooser.wanted is first
    world.chooser.forget()
    assert world.chooser.wanted is None


def test_a_cheap_program_is_made_when_it_would_have_paid_and_the_purse_holds_it() -> None:
    world = Imagined(own_ns=FULL_NS - 500, making_ns=2 * FULL_NS)
    assert [world.run(1) for _ in range(50)].index(EXACTLY) == pytest.approx(2 / SHARE, abs=3)


def test_of_what_would_pay_the_one_that_is_worth_most_is_wanted() -> None:
    """Whatever it takes: what the purse cannot hold at once it pays bit by bit."""
    world = Imagined(making_ns=20 * FULL_NS)
    chooser, full = world.chooser, world._at(_offer(AFRESH, 0))
    worth = {1: 1.0, 2: 9.0, 3: 4.0}
    offers = [_offer(COARSE, name) for name in worth]
    chooser._worth = lambda offer, expected, planned: worth[  # type: ignore[method-assign]
        offer.spot.kind.changed[0][1][0][0][1] - 1
    ]
    chooser._cost = (  # type: ignore[method-assign]
        lambda offer, expected, planned: 0.0 if offer.program is None else expected
    )
    assert chooser.choose(full, lambda: offers, {}).rung is AFRESH
    assert chooser.wanted is not None
    assert chooser.wanted.offer is offers[1]


def test_a_program_that_does_more_is_credited_with_the_runs_it_would_serve() -> None:
    """Once the model was asked about a class, runs of smaller ones count for its program too."""
    chooser = Imagined().chooser
    many, few = (_spans(n) for n in (8, 3))
    chooser.asked(
        Wanted(
            Offer(EXACTLY, many.bucket((0,)), Spot(many, (0,)), 0, None, finds_nothing),
            True,
            0.0,
            0.0,
        ),
        (_work(OWN_NS), Domain(()), 0),
    )
    own = Offer(EXACTLY, few.bucket((40,)), Spot(few, (40,)), 0, None, finds_nothing)
    assert chooser._with_asked(own, [])[1].spot == Spot(many, (40,))
    behind = Offer(EXACTLY, few.bucket((61,)), Spot(few, (61,)), 0, None, finds_nothing)
    assert chooser._with_asked(behind, [])[1].spot == Spot(many, (56,)), "it would not end in time"
    larger = _spans(9)
    more = Offer(EXACTLY, larger.bucket((0,)), Spot(larger, (0,)), 0, None, finds_nothing)
    assert chooser._with_asked(more, []) == [more]


def _spans(count: int) -> BucketClass:
    """So many elements of 64 change, anywhere."""
    return BucketClass((("x", (((0, count),),)),), (), (64 - count,))


def test_the_share_of_the_first_runs_may_be_spent_in_the_first() -> None:
    world = Imagined(making_ns=int(ADVANCE * SHARE * FULL_NS * 0.8))
    assert [world.run(1) for _ in range(ADVANCE)].index(EXACTLY) < 3
    assert world.spent <= (1 + SHARE) * ADVANCE * FULL_NS
    assert EXACTLY not in [Imagined().run(1) for _ in range(ADVANCE)]


def test_what_the_lack_of_a_program_for_what_is_asked_costs_may_be_spent_on_it_alone() -> None:
    purse = Purse()
    purse.open(FULL_NS)
    purse.lost_ns = 5.0 * FULL_NS
    assert purse.holds(5 * FULL_NS, is_afresh=True)
    assert not purse.holds(5 * FULL_NS)
    before = purse.room_ns
    purse.pay(4 * FULL_NS, is_afresh=True)
    assert (purse.room_ns, purse.lost_ns) == (before, FULL_NS)


def test_what_computes_all_that_is_asked_for_later_is_what_that_takes() -> None:
    """The first row of a text takes little; where nobody chose for another, and what computes
    everything serves it, that is what it takes, and what may be spent goes by it.
    """
    world = Imagined(full_ns=FULL_NS // 20)
    assert world.chooser.full_ns == FULL_NS // 20
    world.full_ns = FULL_NS
    world.ran(_offer(AFRESH, 1)._replace(program=_program()), _kind(1))
    assert world.chooser.full_ns == FULL_NS


def test_before_any_was_made_a_program_costs_in_proportion_to_asking_about_it() -> None:
    """The first one also took what was cold, and what weights took that were laid out with it."""
    world, own = Imagined(making_ns=10**9), _offer(EXACTLY, 1)
    known = world.chooser._experience
    assert known.making(own) == pytest.approx(10**9)

    def parts(steps: Iterable[Any], here: Any, there: Any) -> Pausing[Work]:
        world.asked += 700
        yield
        return _work(1.0)

    known.modelled = parts
    at_once(world.chooser.rehearsing(own, _nothing()))
    assert known.making(own) == 700 * OVER_MODEL


def test_what_no_model_expects_to_be_quicker_is_not_made() -> None:
    world = Imagined(own_ns=FULL_NS // 2, hoped_ns=2 * FULL_NS, making_ns=100)
    assert [world.run(1) for _ in range(40)] == [AFRESH] * 40


def test_classes_that_never_come_again_cost_little_more_than_running_everything() -> None:
    world, runs = Imagined(), 400
    for name in range(runs):
        world.run(name)
    assert world.spent <= 1.05 * (runs * FULL_NS + MAKING_NS)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("own_ns", [500, 5_000, 9_500])
def test_no_history_costs_more_than_twice_what_the_better_of_both_ways_does(
    seed: int, own_ns: int
) -> None:
    random = Random(seed)
    world = Imagined(own_ns=own_ns, making_ns=random.choice([1_000, 20_000, 200_000]))
    kinds = random.choice([2, 10, 100])
    names = [int(random.paretovariate(0.5)) % kinds for _ in range(300)]
    for name in names:
        world.run(name)
    always_full = len(names) * FULL_NS
    always_own = len(names) * own_ns + len(set(names)) * world.making_ns
    slack = (1 + len(set(names))) * FULL_NS  # each class's first runs
    slack += int(world.making_ns / SHARE)  # while the first program is saved up for
    slack += len(world.made) * _runs_of(world.making_ns) * FULL_NS  # while others are made
    assert world.spent - world.making_ns <= 2 * min(always_full, always_own) + slack


@pytest.mark.parametrize("seed", range(20))
def test_at_no_time_more_was_spent_than_full_runs_take_and_a_share(seed: int) -> None:
    """Whatever comes, and whether the programs are any good."""
    random = Random(seed)
    world = Imagined(
        own_ns=random.choice([500, 5_000, 9_500, 12_000]),
        making_ns=random.choice([1_000, 20_000, 200_000]),
    )
    world.spent, kinds = 0, random.choice([2, 10, 100])
    for run in range(400):
        world.run(int(random.paretovariate(0.5)) % kinds)
        assert world.spent <= FULL_NS * (run + 2 + max(ADVANCE, run + 1) * SHARE)


@pytest.mark.parametrize("finding", [0, FULL_NS // 50, FULL_NS // 20, FULL_NS])
def test_what_finding_changes_takes_is_left_out_of_the_share(finding: int) -> None:
    world, share_ns = Imagined(), max(SHARE * FULL_NS - finding, LEAST_SHARE * FULL_NS)
    full, purse = world._at(_offer(AFRESH, 0)), world.chooser._purse
    for _ in range(100):  # until that is the average
        world.chooser.found(finding)
    assert purse.finding_ns == pytest.approx(finding, rel=0.01)
    before_ns = purse.room_ns() - purse.ahead * purse.share_ns
    for _ in range(100):
        world.ran(full)
    assert purse.room_ns() - before_ns == pytest.approx(100 * share_ns, rel=0.01)


def _is_wanted(world: Imagined, planned: Any) -> bool:
    """Whether the first run makes a part of its program."""
    assert world.run(1, planned) is AFRESH
    return world.chooser.wanted is not None and world.chooser.wanted.took_ns > 0


def test_a_planned_class_is_wanted_at_once_if_the_purse_holds_it() -> None:
    within, beyond = int(0.8 * ADVANCE * SHARE * FULL_NS), ADVANCE * FULL_NS
    planned = {_kind(1): (1.0, ())}
    assert _is_wanted(Imagined(own_ns=6_000, making_ns=within), planned)
    assert not _is_wanted(Imagined(own_ns=6_000, making_ns=within), {})  # it may not come again
    assert not _is_wanted(Imagined(own_ns=6_000, making_ns=beyond), planned)


def test_a_program_that_turned_out_slower_is_not_made_again() -> None:
    world = Imagined(own_ns=30_000, hoped_ns=500, making_ns=100)
    for name in [*range(3), *[1] * 40]:
        world.run(name)
    assert world.made.count(EXACTLY) <= 3


def test_a_program_that_turned_out_slower_is_not_taken_for_good() -> None:
    program = _program()
    program.use.instead_ns = 10_000
    for took in (50_000, 9_000, 9_000):
        program.ran(took)
    assert program.is_good(())
    for _ in range(30):
        program.ran(20_000)
    assert not program.is_good(())


def test_what_does_not_fit_costs_a_plan_or_is_out_of_the_question() -> None:
    chooser = Measured(_modelled)
    chooser.planned(10**9)
    full = _offer(AFRESH, 0, _program())
    own, larger = _offer(EXACTLY, 1), _offer(COARSE, 1)
    assert chooser.choose(own, lambda: [], {}) is own
    assert not chooser.refused(own, can_plan=True)
    assert not chooser.refused(larger, can_plan=False)
    assert [chooser.choose(own, lambda: [larger, full], {}) for _ in range(3)] == [full] * 3
    assert chooser.choose(own, lambda: [larger], {}) is own
    assert chooser.refused(own, can_plan=True)  # now it is paid for


def test_what_a_run_takes_besides_its_calls_is_paid_like_all_else() -> None:
    world = Imagined(own_ns=8_000, besides_ns=4_000)
    for i in range(1, 300):
        world.run(1)
        if i > 10:
            assert world.spent <= 1.1 * i * world.full_ns
    assert EXACTLY in world.made
    assert {world.run(1) for _ in range(20)} == {AFRESH}


@pytest.mark.parametrize("names", [1, 400])
def test_looking_for_programs_is_paid_and_left_out_where_it_finds_nothing(names: int) -> None:
    """However long it takes; and where what it finds is worth it, every run looks."""
    world = Imagined(looking_ns=FULL_NS // 5)
    runs = 400
    for i in range(1, runs):
        world.run(i % names)
        if i > 10:
            assert world.spent <= 1.1 * i * world.full_ns
    before = world.looked
    rungs = [world.run(i % names) for i in range(100)]
    looked = world.looked - before
    if names == 1:
        assert set(rungs) == {EXACTLY}
        assert looked == 100
    else:
        assert set(rungs) == {AFRESH}
        assert 0 < looked <= 1 + 100 * LOOKING * FULL_NS / world.looking_ns


def test_what_is_new_is_looked_for_at_once() -> None:
    chooser, full, own = Measured(_modelled), _program(), _program(renews=False)
    kind, offer = _kind(1), _offer(EXACTLY, 1)

    def run(program: Program, took_ns: int) -> bool:
        looks = chooser.looks()
        program.ran(took_ns + chooser.besides(program, 500 * looks + 50, 500 * looks))
        chooser.ran(kind, program, took_ns)
        return looks

    looked = [run(full, FULL_NS) for _ in range(200)]
    seldom = 100 * LOOKING * FULL_NS / 500
    assert all(looked[:8])
    assert sum(looked[-100:]) == pytest.approx(seldom, rel=0.2)
    chooser.made(offer, own, MAKING_NS)
    assert all(run(full, FULL_NS) for _ in range(HOPES))
    assert sum(run(full, FULL_NS) for _ in range(100)) == pytest.approx(seldom, rel=0.2)
    found = [run(own if chooser.looks() else full, OWN_NS) for _ in range(100)]
    assert all(found[8:])


def test_what_computing_everything_takes_besides_is_nobodys_fault() -> None:
    chooser = Measured(_modelled)
    full, own = _program(renews=True), _program(renews=False)
    for took_ns in (5_000, 300, 300):  # the first one was cold
        assert chooser.besides(full, took_ns) == 0
    assert chooser.besides(own, 900) == 600
    chooser.spent(_offer(EXACTLY, 1), 400)
    assert chooser.besides(own, 900) == 200  # the rest is paid already


def test_before_everything_was_computed_the_rest_is_nobodys() -> None:
    """What it takes besides its calls is not known then; looking is charged in any case."""
    chooser, own = Measured(_modelled), _program(renews=False)
    assert chooser.besides(own, 900, 100) == 100
    assert chooser.besides(_program(renews=True), 300) == 0
    assert chooser.besides(own, 900, 100) == 100 + 500


def test_where_runs_are_short_a_choice_stands_for_some_of_them() -> None:
    chooser = Measured(_modelled)
    full = _offer(AFRESH, 0, _program())
    assert full.program is not None
    for _ in range(200):
        full.program.use.note(FULL_NS)
        chooser.ran(full.spot.kind, full.program, FULL_NS)
    chooser.choose(full, lambda: [], {})
    chooser.took(FULL_NS // 1000)
    assert chooser.again(full, {}) == ()
    for _ in range(20):
        chooser.ran(full.spot.kind, full.program, FULL_NS)
        chooser.choose(full, lambda: [], {})
    chooser.took(FULL_NS // 10)
    assert [bool(chooser.again(full, {})) for _ in range(6)] == [True] * 5 + [False]


def test_a_choice_stands_for_so_long_also_where_most_runs_need_none() -> None:
    """One that took a tenth of computing everything, for five such runs, whoever made them."""
    chooser, own = Measured(_modelled), _program(renews=False)
    full = _offer(AFRESH, 0, _program())
    assert full.program is not None
    for _ in range(20):
        full.program.use.note(FULL_NS)
        chooser.ran(full.spot.kind, full.program, FULL_NS)
        chooser.choose(full, lambda: [], {})
    chooser.took(FULL_NS // 10)
    assert chooser.again(full, {}), "it stands"
    for _ in range(6):
        chooser.ran(_kind(1), own, FULL_NS)  # has a program, so nobody asks
    assert not chooser.again(full, {})


def served_by_its_own() -> Imagined:
    """Runs until one of the first class is served by its own program."""
    world = Imagined(making_ns=2 * FULL_NS)
    while world.run(1) is not EXACTLY:
        pass
    return world


def test_a_choice_for_less_than_everything_leaves_that_to_be_compared() -> None:
    """Where what was chosen is not there, or takes longer, computing everything may be quicker."""
    world = served_by_its_own()
    chooser = world.chooser
    chooser._rung, chooser._longest, chooser._skipped, chooser._chosen = EXACTLY, 50, 0, 50
    chooser._purse.left_ns, chooser._choosing_ns, chooser._ran_ns = 10.0 * FULL_NS, FULL_NS, 0
    assert serving.ANEW in chooser.again(_offer(EXACTLY, 2), {})


def test_what_was_quick_and_is_not_right_any_more_is_news() -> None:
    """A choice to compute everything, made for other runs, does not stand for such a class."""
    world = served_by_its_own()
    chooser, own = world.chooser, world._at(_offer(EXACTLY, 1))
    other = _offer(EXACTLY, 2)
    chooser._purse.left_ns, chooser._choosing_ns, chooser._ran_ns = 10.0 * FULL_NS, FULL_NS, 0
    chooser._rung, chooser._longest, chooser._skipped = AFRESH, 50, 0
    assert serving.ANEW in chooser.again(other, {}), "it may as well be computed as everything"
    assert serving.ANEW not in chooser.again(own._replace(program=None), {})
    world._choice(own, {})
    chooser._rung, chooser._longest, chooser._skipped = AFRESH, 50, 0
    chooser._choosing_ns, chooser._ran_ns = FULL_NS, 0
    assert serving.ANEW in chooser.again(own._replace(program=None), {}), "once chosen it is none"


def test_where_nothing_serves_what_will_serve_most_is_made() -> None:
    """Programs for everything are that, until they turn out to be right at few places."""
    chooser = Measured(_modelled)
    own, full = _appended(EXACTLY), _appended(AFRESH)
    planned = {own.spot.kind: (9.0, (5,))}
    chooser._came[own.spot.kind] = Met()
    assert chooser.choose(own, lambda: [full], {}) is full
    assert chooser.choose(own, lambda: [full], planned) is own
    made = Program((), frozenset({Guard(-6, ((0, 1),)), Guard(6, ((0, -1),))}), 0, {}, ())
    own, seldom = _appended(EXACTLY), 3
    for _ in range(seldom):
        chooser._experience.made(full, made, MAKING_NS, inf)
        chooser._came[own.spot.kind].note((5,), 1)
    assert chooser.choose(own, lambda: [full], {}) is own


def test_programs_that_serve_a_run_each_pay_for_a_plan_with_room_for_one_that_serves_all() -> None:
    chooser = Measured(_modelled)
    chooser.planned(3 * MAKING_NS)
    own, full, runs = _appended(EXACTLY), _appended(AFRESH), 0
    chooser.choose(own, lambda: [full], {})
    chooser.made(own, _program(), MAKING_NS)
    chooser.ran(own.spot.kind, _program(), FULL_NS)
    chooser.refused(full, can_plan=True)
    while chooser.choose(own, lambda: [full], {}) is own:
        runs += 1
        chooser.made(own, _program(), MAKING_NS)
        chooser.ran(own.spot.kind, _program(), FULL_NS)
    assert runs == 4
    assert chooser.refused(full, can_plan=True)  # now it is paid for
    chooser.refused(full, can_plan=False)
    assert chooser.choose(own, lambda: [full], {}) is own


def _appended(rung: Rung) -> Offer:
    """A run of one element after others, of 64; nothing is there for it."""
    kind = _spans(1)
    return Offer(rung, kind.bucket((5,)), Spot(kind, (5,)), None, None, finds_nothing)


# --- in a session ---------------------------------------------------------------------------------


def _network(width: int = 64, layers: int = 24) -> tuple[tg.Graph, dict[str, Any]]:
    random = np.random.default_rng(0)
    g = tg.GraphBuilder()
    x = g.input("x", (64, width))
    weights = {}
    for i in range(layers):
        weights[f"w{i}"] = random.standard_normal((width, width)).astype(np.float32) / 8
        x = tg.ops.relu(x @ g.parameter(f"w{i}", (width, width)))
    g.output("y", x)
    return g.build(), weights


def _edits(count: int, runs: int) -> Sequence[Any]:
    random, x = np.random.default_rng(1), np.zeros((64, 64), np.float32)
    found = []
    for _ in range(runs):
        x = x.copy()
        x[random.integers(64, size=count)] = random.standard_normal((count, 64))
        found.append(x)
    return found


def test_changes_that_never_repeat_make_few_programs_and_right_results() -> None:
    graph, weights = _network()
    own = tg.GraphSession(graph, weights, making="always", calibrate=False)
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    for x in _edits(3, 60):
        np.testing.assert_allclose(
            session.run({"x": x})["y"], own.run({"x": x})["y"], rtol=1e-4, atol=1e-5
        )
    assert own.counters.specialised > 40
    assert session.counters.specialised < 20
    assert session.counters.larger + session.counters.moved > 30  # of another run's program
    assert "computed" in str(session.report()) or session.report().served == "exactly"


def test_what_is_scattered_is_gathered_in_boxes_only_where_programs_are_looked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else everything is computed, wherever it is, and finding boxes would be for nothing."""
    gathered: list[Array] = []
    coarse = difference._coarse

    def counted(flags: Array) -> Region:
        gathered.append(flags)
        return coarse(flags)

    monkeypatch.setattr(difference, "_coarse", counted)
    graph, weights = _network()
    random, x, changes = np.random.default_rng(0), np.zeros((64, 64), np.float32), []
    for _ in range(100):
        x = np.where(random.random(x.shape) < 0.1, x + 1, x)
        changes.append(x)
    for making in ("always", "measured"):
        session = tg.GraphSession(graph, weights, making=making, calibrate=False)
        gathered.clear()
        for x in changes:
            expected = tg.evaluate(graph, {"x": x, **weights})["y"]
            np.testing.assert_allclose(session.run({"x": x})["y"], expected, rtol=1e-4, atol=1e-4)
        assert (len(gathered) == 99) is (making == "always")
    assert len(gathered) < 50


def test_where_every_program_is_for_one_place_a_plan_makes_room_for_one_that_is_for_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows of a batch made one list are strewn: what computes those at a place is for it alone."""
    monkeypatch.setattr(Experience, "planning_ns", 1.0)
    graph, weights = _batched_decoder()
    session = tg.GraphSession(graph, weights, making="measured", calibrate=False)
    random, ids = np.random.default_rng(0), np.zeros((2, 40), np.int64)
    for t in range(4, 40):
        ids[:, t] = random.integers(1, 4000, 2)
        found = session.run({"ids": ids.copy()}, want={"logits": np.s_[:, t]})["logits"]
        right = tg.evaluate(graph, {"ids": ids, **weights})["logits"][:, t]
        np.testing.assert_allclose(found, right, rtol=1e-3, atol=1e-4)
    assert session.counters.planned == 2
    assert session.counters.specialised < 10


def _batched_decoder() -> tuple[tg.Graph, dict[str, Any]]:
    g, (batch, time, depth, words) = tg.GraphBuilder(), (2, 40, 8, 4000)
    table = g.parameter("table", (words, depth))
    x = tg.ops.embedding(table, g.input("ids", (batch, time), "int64"))

    def linear(x: tg.Node, name: str) -> tg.Node:
        rows = x.reshape(batch * time, depth)
        weight = g.parameter(name, (depth, depth))
        return tg.ops.linear(rows, weight).reshape(batch, time, depth)

    q, k, v = (linear(x, name).reshape(batch, 1, time, depth) for name in "qkv")
    mixed = tg.ops.attention(q, k, v, g.constant(np.tri(time, dtype=bool)))
    x = x + tg.ops.tanh(linear(mixed.reshape(batch, time, depth), "o"))
    g.output("logits", tg.ops.linear(x, table))
    graph, random = g.build(), np.random.default_rng(0)
    weights = {
        name: random.standard_normal(node.shape).astype(np.float32) / 3
        for name, node in graph.parameters.items()
    }
    return graph, weights


def test_the_change_that_is_planned_for_is_ready_with_the_first_answer() -> None:
    """Where the model says that it takes less than half of everything."""
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    x, weights = g.input("x", (512, 512)), {}
    for i in range(4):
        weights[f"w{i}"] = random.standard_normal((512, 512)).astype(np.float32) / 22
        x = tg.ops.relu(x @ g.parameter(f"w{i}", (512, 512)))
    g.output("y", x)
    session = tg.GraphSession(g.build(), weights, making="measured", calibrate=False)
    given = random.standard_normal((512, 512)).astype(np.float32)
    session.run({"x": given})
    made = session.counters.specialised
    for row in (17, 200, 510):  # not at an end, where programs are right for that end alone
        for change, served in (((row, row), "as a wider one"), ((row,), "exactly")):
            given = given.copy()
            given[change] += 1
            session.run({"x": given})
            assert session.counters.specialised == made
            assert session.report().served == served
            assert session.report().recomputed < 1


@pytest.mark.parametrize("rows", [np.s_[:], np.s_[1:]])
def test_what_computes_everything_is_known_where_rows_depend_on_no_input(rows: Any) -> None:
    """As with the row of a class before an image's patches, which is never dirty."""
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    first = g.constant(random.standard_normal((1, 1, 1, 32)).astype(np.float32))
    x = tg.ops.concat([first, g.input("x", (1, 1, 63, 32))], 2)
    weights = random.standard_normal((32, 32)).astype(np.float32)
    kept = x @ g.parameter("w", (32, 32))
    x = tg.ops.attention(kept, kept, kept, scale=0.1)
    g.output("y", x[0, 0, rows])
    session = tg.GraphSession(g.build(), {"w": weights}, making="measured", calibrate=False)
    given = random.standard_normal((1, 1, 63, 32)).astype(np.float32)
    for row in range(SURE + 2):
        given = given.copy()
        given[0, 0, row] += 1
        session.run({"x": given})
    chooser = session.keeper.chooser
    assert isinstance(chooser, Measured)
    assert chooser._purse.full_ns > 0
    assert chooser._purse.finding_ns > 0


def _two_towers() -> tuple[tg.GraphSession, dict[str, Array], dict[str, Array]]:
    """Texts, and an image whose patches stand behind a row of their class; one asks for either."""
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    weights = {n: random.standard_normal((32, 32)).astype(np.float32) / 6 for n in "wv"}
    text = g.input("text", (64, 32)) @ g.parameter("w", (32, 32))
    g.output("text embeds", tg.ops.softmax(text, -1))
    first = g.constant(random.standard_normal((1, 1, 1, 32)).astype(np.float32))
    x = tg.ops.concat([first, g.input("image", (1, 1, 63, 32))], 2)
    kept = x @ g.parameter("v", (32, 32))
    g.output("image embeds", tg.ops.attention(kept, kept, kept, scale=0.1)[0, 0])
    session = tg.GraphSession(g.build(), weights, making="measured", calibrate=False)
    given = {
        name: random.standard_normal(node.shape).astype(np.float32)
        for name, node in session.graph.inputs.items()
    }
    return session, given, weights


def test_what_computes_all_that_is_asked_for_is_known_where_other_values_are_kept_as_well() -> None:
    """The row of a class depends on no input, so whoever asks for texts leaves it as it was."""
    session, given, weights = _two_towers()
    for _ in range(2):
        session.run(given, want={"text embeds": np.s_[:]})
        given = {**given, "text": given["text"] + 1}
    assert session.last is not None
    assert session.last.program.renews
    chooser = session.keeper.chooser
    assert isinstance(chooser, Measured)
    assert chooser._purse.full_ns > 0
    found = session.run(given)
    for name, right in tg.evaluate(session.graph, {**given, **weights}).items():
        np.testing.assert_allclose(found[name], right, rtol=1e-4, atol=1e-5)


def test_a_plan_without_which_there_is_no_answer_is_told_apart_like_a_first_one() -> None:
    """What was asked for first needs no room for the other output, which is too large to hold."""
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    x = g.input("x", (64, 32))
    g.output("few", tg.ops.softmax(x @ g.parameter("w", (32, 8)), -1))
    g.output("many", tg.ops.softmax(x @ g.parameter("v", (32, 8192)), -1))
    shapes = {"w": (32, 8), "v": (32, 8192)}
    weights = {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    session = tg.GraphSession(g.build(), weights, making="measured", calibrate=False)
    given = random.standard_normal((64, 32)).astype(np.float32)
    for name in ("few", "many", "few", "many"):
        session.run({"x": given}, want={name: np.s_[:]})
        given = given + 1
    assert session.counters.planned > 1
    assert session.runner._bought == 0


@pytest.mark.parametrize("sizes", [{1}, {3}, {1, 3}])
def test_sizes_are_arguments_of_programs_only_where_they_differ(sizes: set[int]) -> None:
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    x, w = g.input("x", (512, 512)), random.standard_normal((512, 512)).astype(np.float32)
    g.output(
        "y",
        tg.ops.relu(tg.ops.relu(x @ g.parameter("w", (512, 512))) @ g.parameter("v", (512, 512))),
    )
    session = tg.GraphSession(g.build(), {"w": w, "v": w}, making="measured", calibrate=False)
    given, served = random.standard_normal((512, 512)).astype(np.float32), set[str]()
    for i in range(200):
        size = sorted(sizes)[i % len(sizes)]
        start = int(random.integers(1, 500))
        given = given.copy()
        given[start : start + size] += 1
        session.run({"x": given})
        served.add(session.report().served)
    assert "for any size" not in served or len(sizes) > 1


def test_a_program_counts_for_the_runs_of_its_class_at_places_where_it_is_right() -> None:
    def modelled(*_: Any) -> Pausing[Work]:
        yield from ()
        return Work()

    def offer(rung: Rung, place: int, extent: int = 1) -> Offer:
        kind = BucketClass((("x", (((0, extent),),)),), (), (99,))
        return Offer(rung, Bucket.of({}, {}), Spot(kind, (place,)), None, None, finds_nothing)

    known, met = Experience(modelled), Met()
    for place in range(10):
        met.note((place,), 1)
    here, banded = offer(EXACTLY, 3), next(rung for rung in LARGER if rung.is_band)
    assert met.share(here, known) == 1.0  # nobody asked yet
    pinned = Domain([Guard(-3, ((0, 1),)), Guard(3, ((0, -1),))])
    known.asked(here, (Work(), pinned, 0), 1.0)
    assert met.share(here, known) == pytest.approx(0.01 / 10)
    elsewhere = offer(EXACTLY, 70)
    assert met.share(elsewhere, known) == pytest.approx(1.01 / 2)  # that was a border, perhaps
    assert met.share(offer(EXACTLY, 3, extent=2), known) == pytest.approx(1.01 / 2)
    assert met.share(offer(banded, 3), known) == pytest.approx((1 + 1 / 8) / 11)
    assert met.share(offer(banded, 70), known) == pytest.approx(1 / 8 / 11)
    moving = offer(EXACTLY, 5, extent=4)
    known.asked(moving, (Work(), Domain([Guard(-2, ((0, 1),))]), 0), 1.0)
    assert met.share(moving, known) == pytest.approx((8 - 1 + 0.98) / 10)
    for place in range(11, 18):
        pinned = Domain([Guard(-place, ((0, 1),)), Guard(place, ((0, -1),))])
        known.asked(offer(EXACTLY, place), (Work(), pinned, 0), 1.0)
    assert met.share(elsewhere, known) == pytest.approx(0.01 / 10)  # they all are


def test_a_border_that_the_model_was_asked_about_says_nothing_of_all_other_places() -> None:
    """An edit of the first row: others are not like it, and are asked about as well."""
    chooser = Measured(_modelled)
    first, border = _moving(0), Domain([Guard(0, ((0, -1),))])
    chooser._came[first.spot.kind] = met = Met()
    for place in (40, 0, 70):
        met.note((place,), 1)
    chooser.asked(Wanted(first, True, OWN_NS, FULL_NS), (_work(OWN_NS), border, 0))
    assert chooser._asks, "nothing is waited for that hardly ever comes"
    assert chooser._share(_moving(50)) > 0.5
    met.note((0,), 1)
    chooser.asked(Wanted(first, True, OWN_NS, FULL_NS), (_work(OWN_NS), border, 0))
    assert not chooser._asks, "runs are there again"


def _moving(place: int, program: Program | None = None) -> Offer:
    kind = BucketClass((("x", (((0, 1),),)),), (), (99,))
    return Offer(EXACTLY, kind.bucket((place,)), Spot(kind, (place,)), None, program, finds_nothing)


def _where(only: int, offer: Offer) -> Offer:
    """Where one state is there, and no other."""
    return offer._replace(finds=lambda state, place: state == only)


def test_what_a_run_would_count_on_has_to_be_there_for_what_the_model_said_of_such_ones() -> None:
    """Rows that earlier runs left dirty are computed with it: it is another run."""
    chooser, full = Measured(_modelled), _offer(AFRESH, 0, _ran(FULL_NS))
    known = chooser._experience
    known.asked(_moving(3), (_work(OWN_NS), Domain(()), 7), 1.0)
    there, lacking = _where(7, _moving(5)), _where(8, _moving(5))
    assert known.running(there) == OWN_NS
    assert not known.lacks(there)
    assert known.lacks(lacking)
    assert [ns for _, ns in chooser._seen([there, full])] == [OWN_NS, FULL_NS]
    assert [ns for _, ns in chooser._seen([lacking, full])] == [FULL_NS, FULL_NS]
    known.asked(lacking, (_work(2 * OWN_NS), Domain(()), 8), 1.0)
    assert known.running(lacking) == 2 * OWN_NS
    assert known.running(there) == OWN_NS


def test_a_model_is_asked_again_where_runs_go_on_without_what_it_was_asked_about() -> None:
    """Something else may be there in each of them: nothing would ever say so."""
    chooser, full = Measured(_modelled), _offer(AFRESH, 0, _ran(FULL_NS))
    known = chooser._experience
    known.reference = full.program
    known.asked(_moving(3), (_work(OWN_NS), Domain(()), 7), 1.0)
    lacking = _where(8, _moving(5))

    def runs_until_hoped() -> int:
        runs = 0
        while known.lacks(lacking):
            chooser._count(chooser._seen([lacking, full]), full, FULL_NS)
            runs += 1
        return runs

    assert runs_until_hoped() == LACKING << 1
    hoped = chooser._seen([lacking, full])[0]
    assert chooser._is_hope(lacking)
    assert hoped[1] < FULL_NS
    known.asked(_where(9, _moving(5)), (_work(OWN_NS), Domain(()), 9), 1.0)
    assert runs_until_hoped() == LACKING << 2  # in vain: ever more seldom


def test_what_the_model_said_of_a_run_is_not_less_right_for_a_guess_at_another() -> None:
    """A row of an output takes a part of all of it: what runs take that hand out all says nothing
    of it.
    """
    rows, row = (None, 99), (0, 1)

    def offer(rung: Rung, changed: Any, handed: Any, program: Program | None = None) -> Offer:
        kind = BucketClass((("x", ((changed,),)),), (("y", ((handed,),)),), (99, 99))
        spot = Spot(kind, (5, 5))
        return Offer(rung, kind.bucket((5, 5)), spot, None, program, finds_nothing)

    chooser, full = Measured(_modelled), offer(AFRESH, rows, rows, _ran(FULL_NS))
    asked, guessed = offer(serving.AFRESH, rows, row), offer(serving.ONWARDS, (1, 94), row)
    known = chooser._experience
    known.asked(offer(serving.ONWARDS, (1, 94), rows), (_work(FULL_NS), Domain(()), 0), 1.0)
    assert known.running(guessed) == FULL_NS
    assert guessed.is_within(asked)
    assert [ns for _, ns in chooser._seen([guessed, asked, full])] == [FULL_NS] * 3
    known.asked(asked, (_work(OWN_NS), Domain(()), NOTHING), 1.0)
    assert [ns for _, ns in chooser._seen([guessed, asked, full])] == [FULL_NS, OWN_NS, FULL_NS]


def test_where_a_program_is_known_to_pay_it_comes_before_asking_about_other_places() -> None:
    chooser, full = Measured(_modelled), _offer(AFRESH, 0, _ran(FULL_NS))
    here = _moving(3)
    low = Domain([Guard(9, ((0, -1),))])
    for takes_ns, is_asked in ((FULL_NS, True), (OWN_NS, False)):
        chooser.asked(Wanted(here, True, 0.0, FULL_NS), (_work(takes_ns), low, 0))
        assert chooser._asks is is_asked
    for _ in range(HOPES):
        assert not chooser._asks
        assert chooser.choose(full, lambda: [], {}) is full
    assert chooser._asks, "no run was where it pays"
    chooser.asked(Wanted(here, True, 0.0, FULL_NS), (_work(OWN_NS), low, 0))
    chooser.made(here, _program(renews=False), 1, Wanted(here, False, OWN_NS, FULL_NS))
    assert chooser._asks


def _bucket_of(size: int) -> Bucket:
    """So many elements from the first one on, of an input and of an output."""
    rows = Region.full((size,))
    return Bucket((("x", rows),), (("y", rows),))


def _part(rung: Rung, size: int, program: Program | None = None) -> Offer:
    kind = BucketClass((("x", (((None, size),),)),), (("y", (((None, size),),)),), ())
    return Offer(rung, _bucket_of(size), Spot(kind, ()), NOTHING, program, finds_nothing)


def _serves(takes_ns: int, runs: int = SURE, modelled_ns: float = inf) -> Program:
    """A program that continues what is there."""
    program = _program(renews=False)
    for _ in range(runs):
        program.ran(takes_ns)
    program.use.modelled_ns = modelled_ns
    return program


@pytest.mark.parametrize(("takes_ns", "waits"), [(FULL_NS * 9 // 10, True), (FULL_NS // 3, False)])
def test_everything_is_timed_before_anything_is_bought_that_may_not_be_much_quicker(
    takes_ns: int, waits: bool
) -> None:
    """What is paid for it is what runs are taken to be quicker by."""
    chooser, full = Measured(_modelled), _program()
    cold_ns = FULL_NS * 6 // 5
    full.ran(cold_ns)
    chooser.ran(_kind(0), full, cold_ns)
    all_of_it = _part(AFRESH, 1_000, full)
    there = _part(serving.WIDER, 100, _serves(takes_ns))
    own = _part(EXACTLY, 10)
    for _ in range(SURE - 1):
        chosen = chooser.choose(own, lambda: [there, all_of_it], {})
        chooser.took(0)
        assert (chosen is all_of_it) is waits
        assert (chooser.wanted is None) is waits
        if not waits:
            return
        full.ran(FULL_NS)
        chooser.ran(own.spot.kind, full, FULL_NS)
        assert not chooser.waits(), "no choice stands that was made to find out"
    assert full.use.is_warm
    assert chooser.choose(own, lambda: [there, all_of_it], {}) is there
    assert chooser.wanted is not None
    assert chooser.full_ns == FULL_NS


def test_a_model_is_taken_to_be_as_wrong_as_about_what_serves_now() -> None:
    known, own = Experience(_modelled), _part(EXACTLY, 10)
    known.reference = _ran(FULL_NS)
    known.reference.use.modelled_ns = 2 * FULL_NS
    found = _work(OWN_NS), Domain(()), NOTHING
    assert known.asked(own, found, 1.0) == OWN_NS / 2
    known.serving = _serves(3_000, modelled_ns=1_000)
    assert known.asked(own, found, 1.0) == known.running(own) == 3 * OWN_NS
    assert known.asked(_part(serving.AFRESH, 10), found, 1.0) == OWN_NS / 2
    known.serving = _serves(3_000, runs=SURE - 1, modelled_ns=1_000)
    assert known.running(own) == OWN_NS / 2, "it was not timed often enough"


def test_where_small_parts_take_nearly_as_long_as_everything_so_will_smaller_ones() -> None:
    full = _part(AFRESH, 1_000, _ran(FULL_NS))
    for takes_ns, hoped_ns in ((FULL_NS // 10, FULL_NS // 100), (FULL_NS * 9 // 10, 8_100)):
        part = _part(serving.WIDER, 100, _serves(takes_ns))
        own, wider = _part(EXACTLY, 10), _part(serving.ONWARDS, 10)
        seen = Measured(_modelled)._seen([own, wider, part, full])
        for found in seen[:2]:
            by_size = takes_ns / FULL_NS < 1 / 2
            # sizes of what changes and what is asked for are a tenth of a tenth
            least_ns = hoped_ns if not by_size else takes_ns / 10
            assert found[1] == pytest.approx(least_ns, rel=1e-6)
    seen = Measured(_modelled)._seen([_part(EXACTLY, 10), full])
    assert seen[0][1] == pytest.approx(FULL_NS / 100**2)  # of all that changes, and is asked for


def _ran(takes_ns: int) -> Program:
    program = _program()
    for _ in range(SURE):
        program.ran(takes_ns)
    return program


def test_when_programs_are_made_is_said_in_known_words() -> None:
    graph, weights = _network(layers=1)
    with pytest.raises(PlanError, match="making"):
        tg.GraphSession(graph, weights, making="sometimes")  # type: ignore[arg-type]
