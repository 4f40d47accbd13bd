"""Which programs may serve a run: its own, and those of other runs that dominate it.

A program is right wherever what it reads and does not compute is valid and clean, and what it hands
out covers what is asked for. So a program for a larger change, a larger demand and a smaller
validity serves as well; and the coarser the grid that the three are rounded to, the sooner a later
run meets the same program again.

    rung              changed          valid             asked for
    EXACTLY           what changed     what is there,    what is asked for     at moving places
                                       or any part of it
    ONWARDS           from the first   what is there,    what is asked for
                      element on       or any part of it
    SIZED             one box of any   what is there,    one box of any size
                      size             or any part of it
    SWEPT             a box in each    what is there,    what is asked for     at any place of an
                      image            or any part of it                       image
    WIDER             as it is for a program that is there, and does all of this and more
    ANEW              the same for one that counts on nothing: whatever changed
    in sixteenths     rounded out      rounded in        rounded out           at one place
    in bands          to a band        rounded in        to a band, along one dimension
    in whole inputs   whole inputs     whole values      in sixteenths
    AFRESH            everything       nothing           what is asked for
    afresh, more      everything       nothing           in sixteenths; everything
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple, TypeAlias

from tgbench.base.memo import Allowance, Latest
from tgbench.base.regions import Region
from tgbench.graph.graph import Graph, Node
from tgbench.programs.program import Program
from tgbench.programs.states import MOST_PLACES, NOTHING, States
from tgbench.runs.buckets import Boxes, Bucket, BucketClass, Classifier, Extents, Spans, Spot
from tgbench.runs.raster import Raster, as_one, by_image, onwards
from tgbench.runs.work import Place
from tgbench.session.library import Library

Enlarges: TypeAlias = Callable[[Region, Sequence[int]], Region]  # a region of a shape
Finds: TypeAlias = Callable[[int, Place], bool]  # whether a state is there, from a place on


@dataclass(frozen=True, eq=False)
class Rung:
    """How far a run is rounded to a larger one; one of those below, and only itself.

    Fields:
        name: as a report says it.
        changed: to which grid changes are rounded out, and what is valid is rounded in; None for
            neither.
        demand: to which grid the demand is rounded out; None for not at all.
        is_band: both along one dimension, and whole in the others.
        is_sized: one box around, whose size is an entry of the origin.
        is_swept: at every place what follows from changes there is as large.
        goes_on: each input changed from its first changed element on.
        is_afresh: everything changed and nothing is valid.
        is_there: what some program that is there computes.
    """

    name: str
    changed: Raster | None = None
    demand: Raster | None = None
    is_band: bool = False
    is_sized: bool = False
    is_swept: bool = False
    goes_on: bool = False
    is_afresh: bool = False
    is_there: bool = False

    @property
    def places(self) -> int:
        """At how many places such a run may stand; one whose program moves stands anywhere."""
        rasters = self.changed, self.demand
        return max((raster.parts for raster in rasters if raster is not None), default=1)

    @property
    def moves(self) -> bool:
        """Whether its program is for any place: nothing of the run lies on a raster."""
        return self.changed is None and self.demand is None

    @property
    def rounds_changes(self) -> Enlarges | None:
        """How changes are rounded out; None for not at all."""
        if self.goes_on or self.is_sized:
            return onwards if self.goes_on else as_one
        if self.is_swept:
            return by_image
        return self._rounded_to(self.changed)

    @property
    def rounds_demand(self) -> Enlarges | None:
        """The same of what is asked for."""
        if self.is_sized:
            return as_one
        return self._rounded_to(self.demand)

    def _rounded_to(self, raster: Raster | None) -> Enlarges | None:
        if raster is None:
            return None
        return raster.banded if self.is_band else raster.around

    @property
    def extents(self) -> Extents:
        """What its class says of extents."""
        if self.is_sized or self.is_swept:
            return "sized" if self.is_sized else "swept"
        return "onwards" if self.goes_on else "as they are"

    @property
    def stands(self) -> bool:
        """Whether its program is for one place."""
        return self.goes_by_place and not self.moves

    @property
    def goes_by_place(self) -> bool:
        """Whether which runs its program serves depends on where they are."""
        return not self.is_afresh and not self.is_there

    @property
    def is_modest(self) -> bool:
        """Whether it asks for little more: whole outputs are not worth memory of their own."""
        return self.demand is None or self.demand.parts > 1


EXACTLY = Rung("exactly")
ONWARDS = Rung("from there on", goes_on=True)
SIZED = Rung("for any size", is_sized=True)
SWEPT = Rung("anywhere", is_swept=True)
WIDER = Rung("as a wider one", is_there=True)
AFRESH = Rung("afresh", is_afresh=True)
WHOLE = Rung("afresh", None, Raster(1), is_afresh=True)
ANEW = Rung("afresh", is_afresh=True, is_there=True)
CONTINUING = (SWEPT, WIDER)
THERE = (*CONTINUING, ANEW)  # where programs are that serve runs nobody made one for
LARGER = (
    ONWARDS,
    SIZED,
    SWEPT,
    WIDER,
    ANEW,
    Rung("in sixteenths", Raster(16), Raster(16)),
    Rung("in bands", Raster(8), Raster(8), is_band=True),
    Rung("in whole inputs", Raster(1), Raster(16)),
    AFRESH,
    Rung("afresh", None, Raster(16), is_afresh=True),
    WHOLE,
)
MOST_DEMANDS = 256  # of which is remembered what computes all of them
NOT_KNOWN = None, None
COMPARED = 32  # runs after which such programs are compared again
MOST_KINDS = 32  # of programs, that a run is compared with


def finds_nothing(state: int, place: Place) -> bool:
    """What is there before anything ran."""
    return state == NOTHING


class Offer(NamedTuple):
    """One program that would serve a run.

    Fields:
        rung: how far the run is rounded.
        bucket, spot: what it is rounded to; its class and place.
        state: what the program counts on, a number of `States`; None where that is not worked out,
            as nobody asks before a program of the run's own is to be made.
        program: None where it is not made yet.
        finds: whether what a program at a place would count on is there.
    """

    rung: Rung
    bucket: Bucket
    spot: Spot
    state: int | None
    program: Program | None
    finds: Finds

    def is_within(self, other: Offer) -> bool:
        """Whether whoever computes the other one computes this as well; of a sweep, that is as much
        as anywhere.
        """
        if self.rung.is_afresh and not other.rung.is_afresh:
            return False
        if self.rung.is_swept and not other.rung.is_swept:
            return False
        return self.bucket.is_within(other.bucket)


class Around(NamedTuple):
    """A run that is to be served, and what there is.

    Fields:
        bucket: the run as it is.
        valid, last: what holds values, a number of `States`, and what run left it.
        kept: nodes that are kept whatever else happens.
        everything: names of the inputs and states that count.
    """

    bucket: Bucket
    valid: int
    last: Spot | None
    kept: Container[Node]
    everything: Sequence[str]


@dataclass
class _Way:
    """How a class is computed from nothing: on which rung, and for how many runs it was."""

    rung: Rung | None = None
    runs: int = 0


class Server:
    """Finds the programs that may serve a run, made and not made.

    Fields:
        classifier: of all runs.
    """

    def __init__(
        self, graph: Graph, states: States, programs: Library, allowance: Allowance
    ) -> None:
        self.states, self.programs = states, programs
        self.classifier = Classifier(graph, allowance)
        leaves: dict[str, Node] = {**graph.inputs, **graph.states}
        self.shapes = {name: node.shape for name, node in leaves.items()}
        self.outputs = {name: node.shape for name, node in graph.outputs.items()}
        self._on_images = graph.is_of_images
        self._rounded = allowance.memo(MOST_PLACES)
        self._known_anew = Latest[Boxes, tuple[Offer | None, _Way | None]](MOST_DEMANDS)
        self._ways = Latest[BucketClass, _Way](MOST_DEMANDS)  # in which a class is
        self._anew_at = 0  # how many programs had come and gone then

    def larger(self, own: Offer, run: Around) -> list[Offer]:
        """The run as larger ones than its `own`; none of those that stand where a program is there
        for any place of an image.
        """
        found, is_anywhere = {(own.state, own.spot.kind, own.bucket): own}, False
        for rung in LARGER:
            offer = None if rung.stands and is_anywhere else self.offer(run, rung)
            if offer is not None:
                found.setdefault((offer.state, offer.spot.kind, offer.bucket), offer)
                is_anywhere |= offer.program is not None and offer.spot.kind.is_swept
        return list(found.values())[1:]

    def offer(self, run: Around, rung: Rung) -> Offer | None:
        """The run as a larger one; None where there is none."""
        if rung.is_there and rung.is_afresh:
            return self.known_anew(run.bucket.demand) or self.anew(run)
        if rung.is_there:
            return self._wider(run, anew=False)
        if rung.is_swept and not self._on_images:
            return None
        bucket = self._around(run.bucket, rung, run.everything)
        spot = self.classifier.spot(bucket, rung.extents)
        if rung.is_swept and not spot.origin:
            return None
        if rung.is_afresh:
            program = self.programs.find(NOTHING, spot.kind, spot.origin)
            return Offer(rung, bucket, spot, NOTHING, program, finds_nothing)
        finds = self.finds(run.valid, run.last)
        if rung.changed is None:
            there, program = self._there(run, spot) or (spot, None)
            if there != spot:
                bucket = there.kind.bucket(there.origin)
            return Offer(rung, bucket, there, None, program, finds)
        state = self.states.within(run.valid, run.last, rung.changed, run.kept)
        program = self.programs.find(state, spot.kind, spot.origin)
        if program is None:
            program = self.for_less(run.valid, run.last, spot)
        return Offer(rung, bucket, spot, state, program, finds)

    def finds(self, valid: int, last: Spot | None) -> Finds:
        """What is there after the `last` run."""
        if last is None:
            return finds_nothing
        place_before = last.origin

        def is_there(state: int, place: Place) -> bool:
            return state == NOTHING or self.states.are_there(state, place, valid, place_before)

        return is_there

    def known_anew(self, demand: Boxes) -> Offer | None:
        """The quickest program that is there and computes all that is demanded, whatever changed,
        if that is remembered: until programs come or go, and it is compared again now and then.
        """
        if self._anew_at != self.programs.changes:
            self._known_anew.clear()
            self._ways.clear()
            self._anew_at = self.programs.changes
        known, way = self._known_anew.get(demand, NOT_KNOWN)
        if way is not None:
            way.runs += 1
            if way.runs % COMPARED:
                return known
        return None

    def anew(self, run: Around) -> Offer | None:
        """The quickest such program, looked for. What a class demands elsewhere is computed in the
        same way. A class is first computed by its own program, if that is there: comparing takes as
        long as short runs do.
        """
        demand = run.bucket.demand
        known, way = self._known_anew.get(demand, NOT_KNOWN)
        kind = self.classifier.spot(self._around(run.bucket, AFRESH, run.everything)).kind
        way = way or self._ways.setdefault(kind, _Way())
        known = self._by(way.rung or AFRESH, run) if known is None else None
        if known is None or known.program is None:
            ways = [(self._by(rung, run), rung) for rung in (AFRESH, ANEW, WHOLE)]
            there = [
                (one, rung) for one, rung in ways if one is not None and one.program is not None
            ]
            if not there:
                return None
            known, way.rung = min(there, key=lambda one: _takes_ns(one[0]))
        self._known_anew[demand] = known, way
        return known

    def _by(self, way: Rung, run: Around) -> Offer | None:
        """What computes everything in one of three ways."""
        return self._wider(run, anew=True) if way is ANEW else self.offer(run, way)

    def _wider(self, run: Around, anew: bool) -> Offer | None:
        """The same as an offer."""
        there = self.wider(run, anew)
        if there is None:
            return None
        spot, program = there
        bucket, finds = spot.kind.bucket(spot.origin), self.finds(run.valid, run.last)
        return Offer(WIDER, bucket, spot, None, program, finds)

    def wider(self, run: Around, anew: bool = False) -> tuple[Spot, Program] | None:
        """The run as the quickest one that a program is there for, and that does all of it; of
        those that compute from all inputs and count on nothing, or of the others.
        """
        found: list[tuple[float, int, Spot, Program]] = []
        everything = self._all_of(run.everything)
        for kind in self.programs.kinds(MOST_KINDS):
            between = kind.around(run.bucket) if (kind.changed == everything) is anew else None
            for origin in () if between is None else self.programs.origins(kind, *between):
                spot = Spot(kind, origin)
                if anew:
                    program = self.programs.find(NOTHING, kind, origin)
                else:
                    there = self._there(run, spot)
                    spot, program = (spot, None) if there is None else there
                if program is not None:
                    found.append((program.takes_ns(spot.origin), len(found), spot, program))
        return min(found)[2:] if found else None

    def _all_of(self, names: Sequence[str]) -> Spans:
        """How a class says that all of some inputs changed."""
        return tuple(
            (name, (tuple([(None, size) for size in self.shapes[name]]),)) for name in sorted(names)
        )

    def _there(self, run: Around, spot: Spot) -> tuple[Spot, Program] | None:
        """The quickest program for a run, or for one that begins earlier, where what that counts on
        is there: what earlier changes left dirty is computed with it.
        """
        program = self.for_less(run.valid, run.last, spot)
        if program is not None:
            return spot, program
        (kind, origin), found = spot, list[tuple[float, int, Spot, Program]]()
        if kind.reaching is None or run.last is None:
            return None
        places = partial(kind.earlier, origin)
        for state in self.programs.states(kind):
            start = self.states.reach(
                state, places, origin[kind.reaching], run.valid, run.last.origin
            )
            if start is None:
                continue
            for at in kind.starts(origin, start):
                program = self.programs.find(state, kind, places(at))
                if program is not None and self.states.are_there(
                    state, places(at), run.valid, run.last.origin
                ):
                    there = Spot(kind, places(at))
                    found.append((program.takes_ns(there.origin), len(found), there, program))
                    break
        return min(found)[2:] if found else None

    def for_less(self, valid: int, last: Spot | None, spot: Spot) -> Program | None:
        """The quickest program for a run that counts on no more than what the `last` one left."""
        found: list[Program] = []
        if last is None:
            return None
        kind, origin = spot
        for state in reversed(self.programs.states(kind)):
            program = self.programs.find(state, kind, origin)
            if program is not None and self.states.are_there(state, origin, valid, last.origin):
                found.append(program)
        if len(found) < 2:
            return found[0] if found else None
        return min(found, key=lambda program: program.takes_ns(origin))

    def _around(self, bucket: Bucket, rung: Rung, everything: Sequence[str]) -> Bucket:
        """A run as a larger one."""
        if rung.is_afresh:
            key: object = rung, bucket.demand
        elif rung.changed is not None and rung.changed.parts == 1:  # it does not matter where
            key = rung, bucket.demand, tuple([name for name, _ in bucket.changed])
        else:
            key = rung, bucket.demand, bucket.changed
        return self._rounded.get(key, self._larger, bucket, rung, everything)

    def _larger(self, bucket: Bucket, rung: Rung, everything: Sequence[str]) -> Bucket:
        if rung.is_afresh:
            changed = {name: Region.full(self.shapes[name]) for name in everything}
        else:
            changed = _enlarged(bucket.changed, rung.rounds_changes, self.shapes)
        return Bucket.of(changed, _enlarged(bucket.demand, rung.rounds_demand, self.outputs))


def _takes_ns(offer: Offer) -> float:
    return inf if offer.program is None else offer.program.takes_ns(offer.spot.origin)


def _enlarged(
    parts: Sequence[tuple[str, Region]],
    how: Enlarges | None,
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, Region]:
    return {name: how(part, shapes[name]) if how else part for name, part in parts}
