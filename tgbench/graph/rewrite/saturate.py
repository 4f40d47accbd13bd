"""Rules applied to an e-graph until nothing is new, or a limit is met. It always says which.

    iteration    every rule looks at every e-node around which something changed
                 what was found is added and merged
                 congruence is restored

Rules that alone make more work are tried when all others have nothing new. In an iteration a rule
is applied to everything or, where that would be too much, to nothing: equal layers of a model stay
equal. One that found too much may find twice as much next time and sits out a few iterations, as in
egg's scheduler: what explodes must not keep the rest from being tried.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from tgbench.base.words import Progress, counted, silent
from tgbench.graph.graph import Node
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rule import AnyRule, Found

DEPTH = 2  # of the deepest pattern, below its root
REST = 2  # iterations that a rule sits out which found too much
GROWTH = 3  # e-nodes that a match adds, about


class SaturationEnd(Enum):
    """Why saturation ended."""

    SATURATED = "nothing is new"
    NODES = "as many e-nodes as may be"
    ITERATIONS = "as many iterations as may be"
    SECONDS = "as long as may be"
    FOUND = "what was looked for is there"


@dataclass(frozen=True)
class SaturationLimits:
    """What saturation may cost.

    Fields:
        nodes: e-nodes.
        matches: of one rule in its first iteration.
    """

    nodes: int = 20_000
    iterations: int = 30
    seconds: float = 5.0
    matches: int = 2_000


USUAL = SaturationLimits()


@dataclass(frozen=True)
class Iteration:
    """What one iteration did.

    Fields:
        merged: by rule, how often it showed two classes to be one, or added to a class.
        resting: rules that had found too much.
    """

    nodes: int
    classes: int
    merged: Mapping[str, int]
    resting: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Saturation:
    """How it went."""

    iterations: tuple[Iteration, ...]
    stopped: SaturationEnd

    @property
    def seconds(self) -> float:
        return sum(one.seconds for one in self.iterations)

    def __str__(self) -> str:
        last = self.iterations[-1]
        return (
            f"{counted(last.nodes, 'e-node')} in {counted(last.classes, 'class')} after "
            f"{counted(len(self.iterations), 'iteration')}, {self.seconds:.2f} s; "
            f"stopped: {self.stopped.value}"
        )


def saturate(
    egraph: EGraph,
    rules: Sequence[AnyRule],
    limits: SaturationLimits = USUAL,
    until: Callable[[], bool] = lambda: False,
    progress: Progress = silent,
) -> Saturation:
    """Apply rules to an e-graph, in place; no further than `until` something holds of it.

    `progress` is told how many e-nodes there are, of how many there may be.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> from tgbench.graph.rewrite.rules import RULES
    >>> g = GraphBuilder(); x, a, b = (g.input(name, (2, 3)) for name in "xab")
    >>> g.output("y", x * a + x * b)
    >>> egraph = EGraph.of_graph(g.build())
    >>> saturate(egraph, RULES).stopped.name
    'SATURATED'
    >>> sorted({node.op for node in egraph.members(egraph.ends[0])})
    ['add', 'mul']
    """
    return _Saturating(egraph, rules, limits, until, progress).run()


class _Saturating:
    def __init__(
        self,
        egraph: EGraph,
        rules: Sequence[AnyRule],
        limits: SaturationLimits,
        until: Callable[[], bool],
        progress: Progress,
    ) -> None:
        self.egraph, self.rules, self.limits, self.until = egraph, rules, limits, until
        self.progress = progress
        self.share = {rule.name: limits.matches for rule in rules}
        self.resting: dict[str, int] = {}  # by rule, the iterations that it still sits out
        self.unseen: dict[str, dict[Node, None]] = {rule.name: {} for rule in rules}
        self.is_full = False
        self.began = time.monotonic()

    def run(self) -> Saturation:
        done: list[Iteration] = []
        self.egraph.rebuild()
        self._see(self.egraph.classes())
        may_grow = False
        while True:
            began, merged = time.monotonic(), Counter[str]()
            for rule in self.rules:
                if (may_grow or not rule.grows) and not self._is_late():
                    self.progress(len(self.egraph), self.limits.nodes, "forms found")
                    self._try(rule, merged)
            self._see(self.egraph.rebuild())
            may_grow = not merged
            resting = tuple(self.resting)
            counts = len(self.egraph), sum(1 for _ in self.egraph.classes())
            done.append(Iteration(*counts, dict(merged), resting, time.monotonic() - began))
            stopped = self._stopped(len(done))
            if stopped is not None:
                return Saturation(tuple(done), stopped)

    def _stopped(self, iterations: int) -> SaturationEnd | None:
        if self.until():
            return SaturationEnd.FOUND
        if not any(self.unseen.values()):
            return SaturationEnd.SATURATED
        if self.is_full:
            return SaturationEnd.NODES
        if self._is_late():
            return SaturationEnd.SECONDS
        return SaturationEnd.ITERATIONS if iterations >= self.limits.iterations else None

    def _is_late(self) -> bool:
        return time.monotonic() - self.began >= self.limits.seconds

    def _see(self, changed: Iterable[Node]) -> None:
        """Let rules look at the classes whose patterns may reach what changed."""
        egraph = self.egraph
        found = dict.fromkeys(map(egraph.find, changed))
        edge = list(found)
        for _ in range(DEPTH):
            above = (egraph.find(reader) for name in edge for reader in egraph.readers(name))
            edge = [name for name in dict.fromkeys(above) if name not in found]
            found.update(dict.fromkeys(edge))
        for rule in self.rules:
            self.unseen[rule.name].update(found)

    def _try(self, rule: AnyRule, merged: Counter[str]) -> None:
        """Apply a rule wherever it has not looked, or not at all."""
        left = self.resting.pop(rule.name, 0)
        if left > 1:
            self.resting[rule.name] = left - 1
        if left:
            return
        room = min(self.share[rule.name], (self.limits.nodes - len(self.egraph)) // GROWTH)
        found = list(islice(self._found(rule), max(room, 0) + 1))
        if len(found) > room:
            self.is_full |= room < self.share[rule.name]
            self.share[rule.name] *= 2
            self.resting[rule.name] = REST
            return
        self.unseen[rule.name] = {}
        self._add(rule, found, merged)

    def _found(self, rule: AnyRule) -> Iterator[Found]:
        op = rule.op
        for name in dict.fromkeys(map(self.egraph.find, self.unseen[rule.name])):
            for node in tuple(self.egraph.members(name)):
                if op is None or op == node.op:
                    yield from rule.apply(self.egraph, node)

    def _add(self, rule: AnyRule, found: Iterable[Found], merged: Counter[str]) -> None:
        for name, made in found:
            before = len(self.egraph)
            self.egraph.add(made, rule.name)
            if self.egraph.merge(name, made) or len(self.egraph) > before:
                merged[rule.name] += 1
