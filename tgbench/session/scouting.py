"""Which programs there are for a run, after what stands.

Its own is right there; those of larger runs are found by `serving`. Nothing is made here, and
nothing chosen but the quickest of what is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tgbench.programs.program import Program
from tgbench.programs.states import NOTHING
from tgbench.runs.buckets import Bucket, Spot
from tgbench.session.planning import Planning
from tgbench.session.serving import CONTINUING, EXACTLY, WIDER, Around, Offer, Rung, Server
from tgbench.session.standing import Keeper, Standing


class Served(NamedTuple):
    """A program for a run.

    Fields:
        rung: how far the run is rounded to a larger one.
        spot: the class that the program is of, and where it runs.
        program: right for it, made now if `is_new`.
    """

    rung: Rung
    spot: Spot
    program: Program
    is_new: bool

    @property
    def takes_ns(self) -> float:
        """How long the run takes."""
        return self.program.takes_ns(self.spot.origin)

    @staticmethod
    def by(offer: Offer, program: Program, is_new: bool = False) -> Served:
        return Served(offer.rung, offer.spot, program, is_new)


class Scout:
    """Finds the programs of one session.

    Fields:
        server: finds those of larger runs, made and not made.
    """

    def __init__(self, planning: Planning, keeper: Keeper) -> None:
        self.planning, self.keeper = planning, keeper
        self.server = Server(
            planning.graph, keeper.states, keeper.programs, planning.rules.allowance
        )

    def own(self, bucket: Bucket, spot: Spot, standing: Standing) -> Offer:
        """A run's own program, if it is there."""
        return self.offered(bucket, spot, standing, *self.found(spot, standing))

    def found(self, spot: Spot, standing: Standing) -> tuple[int | None, Program | None]:
        """The same alone, and what a run counts on, where that is worked out before it is made."""
        if self.keeper.chooser.strict:
            state = self.keeper.states.moved(standing.valid, standing.last, spot)
            return state, self.keeper.programs.find(state, spot.kind, spot.origin)
        if standing.last is None:
            return None, self.keeper.programs.find(NOTHING, spot.kind, spot.origin)
        return None, self.server.for_less(standing.valid, standing.last, spot)

    def offered(
        self,
        bucket: Bucket,
        spot: Spot,
        standing: Standing,
        state: int | None,
        program: Program | None,
    ) -> Offer:
        """What was found as what is chosen from."""
        finds = self.server.finds(standing.valid, standing.last)
        return Offer(EXACTLY, bucket, spot, state, program, finds)

    def ready(self, own: Offer, rung: Rung) -> Served | None:
        """What was made ready for a run: its own program, or one that does all of it and more."""
        if rung is not EXACTLY:
            return self.quickest(own.bucket, CONTINUING, own)
        program = own.program
        is_right = program is not None and program.is_good(own.spot.origin)
        return Served.by(own, program) if program is not None and is_right else None

    def larger(self, own: Offer) -> Sequence[Offer]:
        """The run as larger ones than its `own`."""
        return self.server.larger(own, self.around(own.bucket))

    def quickest(
        self, bucket: Bucket, rungs: Sequence[Rung], own: Offer | None = None
    ) -> Served | None:
        """The quickest of the programs that are there on some rungs, if any is."""
        around, found = self.around(bucket), list[Served]()
        for rung in rungs:
            if rung is WIDER:
                there = self.server.wider(around)
                if there is not None:
                    found.append(Served(rung, *there, is_new=False))
                continue
            offer = own if rung is EXACTLY else self.server.offer(around, rung)
            if offer is not None and offer.program is not None:
                found.append(Served.by(offer, offer.program))
        if len(found) < 2:
            return found[0] if found else None
        return min(found, key=lambda one: one.takes_ns)

    def afresh(self, bucket: Bucket) -> Served | None:
        """The quickest one that is there and computes all that is demanded, whatever changed."""
        offer = self.server.known_anew(bucket.demand) or self.server.anew(self.around(bucket))
        return None if offer is None or offer.program is None else Served.by(offer, offer.program)

    def around(self, bucket: Bucket) -> Around:
        """A run, and what there is."""
        standing = self.keeper.standing
        return Around(
            bucket, standing.valid, standing.last, self.keeper.memory.placement.retained,
            self.planning.leaves,
        )  # fmt: skip
