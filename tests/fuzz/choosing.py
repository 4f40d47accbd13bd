"""Any program that may serve a run, whatever it costs: every one of them has to be right."""

from __future__ import annotations

from random import Random

from tgbench.plans.decisions import Classes
from tgbench.programs.program import Program
from tgbench.runs.buckets import BucketClass
from tgbench.session.chooser import Larger, Own, Wanted
from tgbench.session.serving import Offer
from tgbench.session.session import GraphSession


class AnyOffer(Own):
    """Picks at random; an offer that does not fit is not picked again."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.refusals: set[tuple[object, BucketClass]] = set()
        self.picked: list[str] = []
        self.strict = self.random.random() < 0.5

    def choose(self, own: Offer, larger: Larger, planned: Classes) -> Offer:
        left = [
            offer
            for offer in (own, *larger())
            if (offer.rung, offer.spot.kind) not in self.refusals
        ]
        found = self.random.choice(left or [own])
        there = [offer for offer in left if offer.program is not None]
        if found.program is None and there and self.random.random() < 0.5:
            asks = self.random.random() < 0.2
            self.wanted = self.wanted or Wanted(found, asks, 0.0, 0.0)
            found = self.random.choice(there)
        self.picked.append(found.rung.name)
        return found

    def room_ns(self, program: Program, spent_ns: int) -> float:
        return self.random.choice([0.0, 1e3, 1e5, 1e6])

    def refused(self, offer: Offer, can_plan: bool) -> bool:
        kind = offer.rung, offer.spot.kind
        is_known = kind in self.refusals
        self.refusals.add(kind)
        return can_plan and (is_known or self.random.random() < 0.2)

    def made(
        self, offer: Offer, program: Program, took_ns: int, wanted: Wanted | None = None
    ) -> None:
        program.use.ran, program.use.time_ns = 3, 1.0
        program.use.instead_ns = self.random.choice([0.0, 2.0])  # half of them are asked for again

    def forget(self) -> None:
        self.refusals.clear()
        self.wanted = None


def serve_any(session: GraphSession, seed: int) -> AnyOffer:
    """Let a session's runs be served by any program."""
    chooser = AnyOffer(seed)
    session.keeper.chooser = session.runner.chooser = chooser
    return chooser
