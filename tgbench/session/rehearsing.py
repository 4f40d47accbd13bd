"""Runs that did not happen yet: what may come next, and programs made for it ahead of time.

    the first answer ─→ what may follow it, asked about, and made where that is quick
    `prepare`        ─→ planned classes, each followed for a few runs where most is computed

Nothing is executed, and nothing stands otherwise than before.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from tgbench.base.coords import Domain
from tgbench.base.words import counted
from tgbench.plans.following import in_between
from tgbench.programs.ahead import compile_pieces, compile_sizes
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Program
from tgbench.programs.states import NOTHING
from tgbench.runs.buckets import Bucket, BucketClass, Spot
from tgbench.runs.pausing import Pausing
from tgbench.session.choosing import CLEARLY
from tgbench.session.experience import Decided
from tgbench.session.making import Maker
from tgbench.session.planning import Planning
from tgbench.session.scouting import Scout
from tgbench.session.serving import (
    AFRESH,
    ANEW,
    EXACTLY,
    ONWARDS,
    SIZED,
    SWEPT,
    THERE,
    WHOLE,
    WIDER,
    Offer,
    Rung,
    finds_nothing,
)
from tgbench.session.standing import Keeper, Standing

ANYWHERE = SWEPT, WIDER  # where programs for any place of an image are
FEW_PLACES = 16  # of a class: the first and the last are an eighth of them
NARROWER = 2  # times, a third each
AS_MUCH = 0.95  # of the operations of another change: what it reaches is the same but for edges
RUNS_AHEAD = 3  # how far `prepare` follows a class: two runs reach its steady state


class Rehearser:
    """Rehearses the runs of one session."""

    def __init__(self, planning: Planning, keeper: Keeper, scout: Scout, maker: Maker) -> None:
        self.planning, self.keeper = planning, keeper
        self.scout, self.maker = scout, maker

    # --- with the first answer -------------------------------------------------------------------

    def likely(self, bucket: Bucket) -> list[tuple[Rung, Spot]]:
        """Runs which may follow one that is the first: of any size, that go on to the end, whose
        change lies behind what is asked for, is anywhere on an image, or is all that one looks at.
        """
        classify, planning = self.scout.server.classifier.spot, self.planning
        blocks = [classify(one, SIZED.extents) for one in planning.blocks(bucket)]
        onwards = [classify(one, ONWARDS.extents) for one in planning.onwards(bucket)]
        behind = [classify(one) for one in planning.behind(bucket)]
        in_sight = [classify(one) for one in planning.in_sight(bucket)]
        windows = [classify(one, SWEPT.extents) for one in planning.windows(bucket)]
        return [
            *((SIZED, Spot(kind, kind.ahead(origin))) for kind, origin in blocks),
            *((ONWARDS, spot) for spot in onwards),
            *((EXACTLY, spot) for spot in behind),
            *((SWEPT, spot) for spot in windows),
            *((EXACTLY, spot) for spot in in_sight),
        ]

    def rehearsing(self, likely: Sequence[tuple[Rung, Spot]]) -> Pausing[None]:
        """Look at what may come next, the `likely` first, make programs where they pay, and compile
        code for them.

        Following a change to all places that it can have takes seconds: not one that reaches nearly
        everything, nor as much as another that was found to take too long.
        """
        chooser, ready, most = self.keeper.chooser, list[Program](), CLEARLY
        for offer, made in self._expected(likely):
            yield
            share = self._share(offer)
            decided = self.maker.decided(offer) if share < most else self._everything(offer)
            is_quick = yield from chooser.rehearsing(offer, decided)
            if not is_quick:
                is_quick = yield from self._further_on(offer)
            if offer.rung.is_swept and not is_quick:
                most = min(most, AS_MUCH * share)
            for one in made if is_quick else ():
                yield
                ready += self._made_ready(one)
        for program in ready:
            yield from compile_sizes(program)
            yield from compile_pieces(program)
        yield from self._looked_for([spot for _, spot in likely])

    def _further_on(self, offer: Offer) -> Pausing[bool]:
        """Whether a run brings something half-way from where it is to the end, though not there:
        whoever begins with an empty text asks for a row that takes as long as all before it do.
        """
        kind, origin = offer.spot
        place = kind.half_way(origin) if offer.rung.moves else None
        if place is None:
            return False
        there = offer._replace(bucket=kind.bucket(place), spot=Spot(kind, place))
        everything = self.planning.afresh(dict(there.bucket.demand))
        spot = self.scout.server.classifier.spot(everything)
        if not spot.origin or there.bucket == everything:  # it takes as long anywhere
            return False
        anew = Offer(AFRESH, everything, spot, NOTHING, None, finds_nothing)
        return (yield from self.keeper.chooser.rehearsing_on(there, anew, self.maker.decided(anew)))

    def _share(self, offer: Offer) -> float:
        """Of all operations, what a change reaches on average that may be anywhere; 0 of others."""
        if not offer.rung.is_swept:
            return 0.0
        reach = self.planning.reach(offer.bucket)
        return reach.share(in_between(offer.bucket, self.planning.graph))

    def _everything(self, offer: Offer) -> Decided:
        """All that runs with the demand of one compute, of nothing."""
        yield
        return self.planning.reach(offer.bucket).in_full, Domain(()), NOTHING

    def _looked_for(self, likely: Iterable[Spot]) -> Iterator[None]:
        """Look for programs as runs will, and at what these leave: the first time takes many times
        as long. See how long it takes to find one that is ready.
        """
        scout, standing = self.scout, self.keeper.standing
        for spot in (*likely, *self._planned()):
            yield
            bucket = spot.kind.bucket(spot.origin)
            scout.quickest(bucket, THERE, self._own(spot))
            whole = scout.quickest(bucket, (ANEW,))
            if whole is not None and not self.keeper.chooser.strict:
                yield
                self.keeper.earlier.follow(bucket.changed, whole.program)
            for rung in (EXACTLY, WIDER):
                began_ns, one = time.thread_time_ns(), scout.server.classifier.spot(bucket)
                served = scout.ready(scout.own(bucket, one, standing), rung)
                if served is not None:
                    self.keeper.chooser.made_ready(rung, time.thread_time_ns() - began_ns)
                    self.keeper.left_by(served.program, served.spot, standing)
                    break

    def _planned(self) -> list[Spot]:
        """The changes that are planned for, where they are expected next, the most frequent ones
        first.
        """
        known = self.scout.server.classifier.known
        classes = sorted(self.planning.classes.items(), key=lambda one: -one[1][0])
        return [known(Spot(kind, kind.ahead(at))) for kind, (_, at) in classes]

    def _own(self, spot: Spot) -> Offer:
        """A run's own program, if it is there."""
        return self.scout.own(spot.kind.bucket(spot.origin), spot, self.keeper.standing)

    def _expected(
        self, likely: Iterable[tuple[Rung, Spot]]
    ) -> Iterator[tuple[Offer, Iterable[Offer]]]:
        """What may come next, and what is made then if that is quick: blocks of any size, where a
        block was asked for; a change of all behind some element; and the changes that are planned
        for, one element on, or in the middle where they were at the end, as programs for an end are
        right there alone; of a class of few places, these ends as well. Where these are right at
        few places, and did not come again and again, one for any place of an image, else bands that
        hold them anywhere.
        """
        for rung, spot in likely:
            for bucket, one in self._ever_narrower(rung, spot):
                offer = Offer(rung, bucket, one, None, None, finds_nothing)
                yield offer, [offer]
        scout, stands = self.scout, self.keeper.chooser.stands
        for ahead in self._planned():
            kind, own = ahead.kind, self._own(ahead)
            if own.program is not None:
                continue
            larger = scout.larger(own)  # which is quicker from then on
            comes_again = self.planning.classes[kind][0] > 1  # what follows lies where it was
            yield own, (one for one in [own] if comes_again or not stands(one))
            if comes_again or not stands(own):
                yield from self._at_ends(ahead)
                continue
            for offer in larger:
                if offer.rung.is_swept:
                    if scout.quickest(own.bucket, ANYWHERE) is None:
                        yield offer, [offer]
                    if scout.quickest(own.bucket, ANYWHERE) is not None:
                        break
                elif offer.rung.stands and offer.program is None:
                    yield offer, self._bands(kind, offer.rung)

    def _ever_narrower(self, rung: Rung, spot: Spot) -> Iterator[tuple[Bucket, Spot]]:
        """A run; a narrower one where it is anywhere on an image and no program for that is there,
        as runs in pieces, which little memory asks for, have room for few lines.
        """
        bucket = spot.kind.bucket(spot.origin)
        yield bucket, spot
        for _ in range(NARROWER if rung.is_swept else 0):
            if self.scout.quickest(bucket, ANYWHERE) is not None:
                return
            bucket = self.planning.narrower(bucket)
            yield bucket, self.scout.server.classifier.spot(bucket, rung.extents)

    def _at_ends(self, middle: Spot) -> Iterator[tuple[Offer, Iterable[Offer]]]:
        """The first and the last place of a class that has few, if a program is there by now for
        the middle one: it is not right where nothing is to the one side.
        """
        kind = middle.kind
        is_short = len(kind.bounds) == 1 and kind.bounds[0] < FEW_PLACES
        if not is_short or self._own(middle).program is None:
            return
        for place in ((0,), kind.farthest):
            offer = self._own(self.scout.server.classifier.known(Spot(kind, place)))
            if offer.program is None:
                yield offer, [offer]

    def _bands(self, kind: BucketClass, rung: Rung) -> Iterator[Offer]:
        """Of runs in bands, those that hold changes of a class wherever they are."""
        if rung.changed is None or not rung.is_band:
            return
        count = 2 * rung.changed.parts
        places = [[bound * i // (count - 1) for bound in kind.bounds] for i in range(count)]
        arounds = [self.scout.around(kind.bucket(at)) for at in places]
        found = [self.scout.server.offer(around, rung) for around in arounds]
        yield from {one.spot: one for one in found if one and one.program is None}.values()

    def hold(self, runs: Iterable[Spot]) -> None:
        """Make programs of runs that compute everything: they may serve any other."""
        for spot in map(self.scout.server.classifier.known, runs):
            bucket = spot.kind.bucket(spot.origin)
            self._made_ready(Offer(WHOLE, bucket, spot, NOTHING, None, finds_nothing))

    def _made_ready(self, offer: Offer) -> list[Program]:
        """A program made before it is asked for, if it fits with the kernels that are quickest."""
        with suppress(DoesNotFit):
            return [self.maker.make(self.maker.placed(offer, self.keeper.standing))]
        return []

    # --- ahead of time ---------------------------------------------------------------------------

    def prepare(self, seconds: float | None) -> int:
        """Programs for the planned classes, largest slices first; returns how many were made."""
        progress, made = self.planning.progress, 0
        walks = list(map(self.scout.server.classifier.known, self._walks()))
        end = time.monotonic() + (seconds if seconds is not None else 1e9)
        try:
            for i, spot in enumerate(walks):
                progress(f"preparing {i + 1}/{len(walks)} {spot.kind}")
                if time.monotonic() >= end:
                    break
                made += self._walk(spot)
        except KeyboardInterrupt:
            progress(f"stopped; {counted(made, 'program')} kept")
        return made

    def _walks(self) -> list[Spot]:
        """Where the planned classes lie last and at the ends; anywhere on an image is as good."""
        found = self.planning.corners()
        if self.keeper.chooser.strict or not self.planning.graph.is_of_images:
            return found
        last = {kind: origin for kind, (_, origin) in self.planning.classes.items()}
        return [spot for spot in found if last[spot.kind] == spot.origin]

    def _walk(self, spot: Spot) -> int:
        """Make programs for a few runs of one class in a row."""
        standing, made = self.keeper.standing, 0
        for run in self._in_a_row(spot):
            offer = self._ahead(run, standing)
            try:
                program = offer.program
                if program is None:
                    program = self.maker.make(self.maker.placed(offer, standing))
            except DoesNotFit:
                return made
            made += offer.program is None
            left = self.keeper.left_by(program, offer.spot, standing)
            standing = standing._replace(valid=left, last=offer.spot)
        return made

    def _ahead(self, run: Spot, standing: Standing) -> Offer:
        """A run that is prepared for: anywhere on an image, if it may be served so."""
        bucket, scout = run.kind.bucket(run.origin), self.scout
        if not self.keeper.chooser.strict and standing.valid != NOTHING:
            there = scout.around(bucket)._replace(valid=standing.valid, last=standing.last)
            found = scout.server.offer(there, SWEPT)
            if found is not None:
                return found
        return scout.own(bucket, run, standing)

    def _in_a_row(self, spot: Spot) -> Iterator[Spot]:
        """Runs of one class, one position further each time; behind a first one, if none was."""
        if not self.keeper.standing.is_fresh:
            demand = dict(spot.kind.bucket(spot.origin).demand)
            yield self.scout.server.classifier.spot(self.planning.afresh(demand))
        for ahead in range(RUNS_AHEAD):
            origin = spot.kind.further(spot.origin, ahead)
            if origin is not None:
                yield Spot(spot.kind, origin)
