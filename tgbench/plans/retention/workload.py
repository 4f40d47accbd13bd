"""What a session is used for: kinds of runs, what follows what, and an example of each.

    trace:  P d d d d e d d d P …      P prefill, d decode, e edit
    rows:   P→d  d→d  d→e  e→d  d→P    each with its share of all transitions

The trace is read as a circle: its last run is followed by its first. The shares are then the
steady state of the transition matrix that the trace estimates.

What is best kept after a run may depend on what ran before it: a class that followed several others
is told apart by them, as far as `MOST_TURNS` allows. A class after another is a *turn*. Runs of one
class in a row, but for the first, are one turn, however many they are: what another class left
lasts through them.

    trace:  P d d d e d d d    turns: P, d after P, d after P again, e, d after e, d after e again
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

from tgbench.base.coords import Coord, Guard, record
from tgbench.base.errors import TraceError
from tgbench.base.regions import Region
from tgbench.graph.graph import Graph, Node
from tgbench.memory.placement import Turn
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.walk import Decide, Walk
from tgbench.programs.held import Held, State
from tgbench.programs.specialiser import holds_alone, taken_for
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.propagate import changes, handed_out, joined
from tgbench.runs.rules import Rules
from tgbench.runs.trace import require_of

Valid = Mapping[Node, Region]
Seen: TypeAlias = "tuple[float, tuple[int, ...]]"  # how often, and where last
NEVER: Seen = (0.0, ())
MOST_CLASSES = 12  # rarer classes must fit, and are not weighed
MOST_TURNS = 12
MOST_PAIRS = 64
EXAMPLES = 48  # of all transitions together


@dataclass(frozen=True)
class Row:
    """An example of one turn after another: the unit that costs are weighed over.

    Fields:
        before, of: positions of the two turns.
        origin: where it happened.
        weight: what share of all transitions it stands for.
        valid: what of every node would be there by then, if everything were retained.
    """

    before: int
    of: int
    origin: tuple[int, ...]
    weight: float
    valid: Valid


@dataclass(frozen=True)
class Workload:
    """The classes, the transitions between them, and the calls that they were read from.

    Fields:
        kinds: the classes, the most frequent first.
        turns: what a retention tells apart; `turns[i].of` is a position in `kinds`.
        rows: the weighed transitions; their weights sum to 1.
        calls: what happened, in order.
        told_by: for every call after the first, and the first again: the row that stands for it;
            -1 where none does.
        seen: for every class of the trace, how often it came and where it came last.
        alone: classes of which a decision held nowhere else: numbers decide those sooner.
    """

    kinds: tuple[BucketClass, ...]
    turns: tuple[Turn, ...]
    rows: tuple[Row, ...]
    calls: tuple[tuple[BucketClass, tuple[int, ...]], ...]
    told_by: tuple[int, ...]
    seen: Mapping[BucketClass, Seen]
    alone: frozenset[BucketClass] = frozenset()

    @staticmethod
    def of(scheduled: ScheduledGraph, rules: Rules, buckets: Iterable[Bucket]) -> Workload:
        """Read a trace; raises TraceError for an empty one, and for one of another graph."""
        calls = tuple(_calls(scheduled.graph, buckets))
        if not calls:
            raise TraceError("the trace is empty; run something first, or open one with trace=path")
        seen = _seen(calls)
        kinds = tuple(_most_frequent(seen))
        turns = _turns(calls, kinds)
        alone: set[BucketClass] = set()
        rows, told_by = _rows(scheduled, rules, calls, kinds, turns, alone)
        return Workload(kinds, turns, rows, calls, told_by, seen, frozenset(alone))

    def over(self, scheduled: ScheduledGraph, rules: Rules) -> Workload:
        """The same calls of a graph in which nodes are computed as often as here."""
        given = self.calls, self.kinds, self.turns, set(self.alone)
        rows, told_by = _rows(scheduled, rules, *given)
        return replace(self, rows=rows, told_by=told_by)

    def kind(self, turn: int) -> BucketClass:
        """The class that runs in a turn."""
        return self.kinds[self.turns[turn].of]

    def first_turn(self, of: int) -> int:
        """Any turn of a class: for what does not depend on what ran before."""
        return next(i for i, turn in enumerate(self.turns) if turn.of == of)

    @property
    def circle(self) -> tuple[tuple[BucketClass, tuple[int, ...]], ...]:
        """The calls, and the first one again: what is replayed."""
        return (*self.calls, self.calls[0])


def _calls(
    graph: Graph, buckets: Iterable[Bucket]
) -> Iterator[tuple[BucketClass, tuple[int, ...]]]:
    known: dict[Bucket, tuple[BucketClass, tuple[int, ...]]] = {}
    for number, bucket in enumerate(buckets, 1):
        if bucket not in known:
            require_of(graph, bucket, f"call {number}")
            known[bucket] = bucket.classify(graph)
        yield known[bucket]


def frequent(graph: Graph, buckets: Iterable[Bucket]) -> dict[BucketClass, Seen]:
    """The classes that are weighed: how often each came, and where it came last."""
    return _most_frequent(_seen(_calls(graph, buckets)))


def _most_frequent(seen: Mapping[BucketClass, Seen]) -> dict[BucketClass, Seen]:
    return dict(sorted(seen.items(), key=lambda one: -one[1][0])[:MOST_CLASSES])


def _seen(calls: Iterable[tuple[BucketClass, tuple[int, ...]]]) -> dict[BucketClass, Seen]:
    """Of every class how often it came, and where it came last."""
    found: dict[BucketClass, Seen] = {}
    for kind, origin in calls:
        found[kind] = found.get(kind, NEVER)[0] + 1.0, origin
    return found


def _turns(
    calls: Sequence[tuple[BucketClass, tuple[int, ...]]], kinds: Sequence[BucketClass]
) -> tuple[Turn, ...]:
    """The classes, the most frequent ones told apart by what ran before them, then those by whether
    they ran last.
    """
    seen = dict.fromkeys(_told(calls, kinds))
    spare, found = MOST_TURNS - len(kinds), list[Turn]()
    for of in range(len(kinds)):
        ran = sorted(
            {run.before for run in seen if run and run.of == of and run.before is not None}
        )
        splits = 1 < len(ran) <= spare + 1
        spare -= (len(ran) - 1) * splits
        found += [Turn(of, one) for one in ran] if splits else [Turn(of)]
    apart: list[Turn] = []
    for turn in found:
        splits = spare > 0 and len({run.again for run in seen if run and turn.holds(run)}) > 1
        spare -= splits
        apart += [replace(turn, again=again) for again in (False, True)] if splits else [turn]
    return tuple(apart)


def _taken(
    calls: Sequence[tuple[BucketClass, tuple[int, ...]]],
    kinds: Sequence[BucketClass],
    turns: Sequence[Turn],
) -> list[int | None]:
    """The turn of each call, the trace read as a circle; None for rare ones."""
    return [
        next((k for k, turn in enumerate(turns) if run is not None and turn.holds(run)), None)
        for run in _told(calls, kinds)
    ]


def _told(
    calls: Sequence[tuple[BucketClass, tuple[int, ...]]], kinds: Sequence[BucketClass]
) -> list[Turn | None]:
    """Each call with all that turns may tell of it; None for rare ones, which are passed over."""
    position = {kind: i for i, kind in enumerate(kinds)}
    places = [position.get(kind) for kind, _ in calls]
    found: list[Turn | None] = []
    last = other = None
    for of in [*places, *places]:  # a circle: the first time around says what ran before
        if of is None:
            found.append(None)
            continue
        other = last if of != last else other
        found.append(Turn(of, other, of == last))
        last = of
    return found[len(places) :]


def _rows(
    scheduled: ScheduledGraph,
    rules: Rules,
    calls: Sequence[tuple[BucketClass, tuple[int, ...]]],
    kinds: Sequence[BucketClass],
    turns: Sequence[Turn],
    alone: set[BucketClass],
) -> tuple[tuple[Row, ...], tuple[int, ...]]:
    """Examples of every transition, and for each call the one that stands for it."""
    circle = [*calls, calls[0]]
    taken = _taken(calls, kinds, turns)
    happened: dict[tuple[int, int], list[int]] = {}
    for i, (before, of) in enumerate(pairwise([*taken, taken[0]])):
        if before is not None and of is not None:
            happened.setdefault((before, of), []).append(i)
    often = sorted(happened, key=lambda pair: (-len(happened[pair]), pair))[:MOST_PAIRS]
    total = sum(len(happened[pair]) for pair in often)
    stands_for: dict[int, int] = {}  # call → the call that is its example
    examples: dict[int, tuple[tuple[int, int], float]] = {}
    for pair in often:
        most = EXAMPLES * len(happened[pair]) // total
        chosen = _examples(happened[pair], circle, most)
        stands_for |= chosen
        for i in dict.fromkeys(chosen.values()):
            share = sum(one == i for one in chosen.values()) / len(chosen)
            examples[i] = pair, len(happened[pair]) / total * share
    walk = Walk(all_retained(scheduled, rules, alone))
    walk.step(*calls[0])
    rows: dict[int, Row] = {}
    for i, (kind, origin) in enumerate(circle[1:]):
        if i in examples:
            (before, of), weight = examples[i]
            valid = numbers(walk.state(kind, origin), origin)
            rows[i] = Row(before, of, origin, weight, valid)
        walk.step(kind, origin)
    order = sorted(rows, key=lambda i: _rank(rows[i]))
    number = {i: n for n, i in enumerate(order)}
    told_by = tuple(number.get(stands_for.get(i, -1), -1) for i in range(len(calls)))
    return tuple(rows[i] for i in order), told_by


def _rank(row: Row) -> tuple[float, int, int, tuple[int, ...]]:
    return -row.weight, row.of, row.before, row.origin


def _examples(
    happened: Sequence[int],
    circle: Sequence[tuple[BucketClass, tuple[int, ...]]],
    most: int,
) -> dict[int, int]:
    """For each of a transition's occurrences, the one of `most` that stands for it.

    They are spread evenly over where it happened.
    """
    count = max(min(len(happened), most), 1)
    by_place = sorted(happened, key=lambda i: (circle[i + 1][1], i))
    groups = [n * count // len(by_place) for n in range(len(by_place))]
    middle = [(2 * e + 1) * len(by_place) // (2 * count) for e in range(count)]
    return {i: by_place[middle[group]] for i, group in zip(by_place, groups, strict=True)}


def all_retained(scheduled: ScheduledGraph, rules: Rules, alone: set[BucketClass]) -> Decide[None]:
    """How a run is decided with everything retained; what it leaves is all that is valid.

    Args:
        alone: classes whose next decisions are made for numbers, as one of theirs held at its own
            place only; those that turn out to be so are added.
    """
    propagator = scheduled.propagator(rules, scheduled.stored)

    def decide(
        state: State, kind: BucketClass, origin: tuple[int, ...]
    ) -> tuple[None, State, frozenset[Guard]]:
        numbers = dict(enumerate(origin)) if kind in alone else {}
        with record(origin) as guards:
            state, place = taken_for(numbers, state, kind)
            changed, demand = asked(scheduled, kind, place)
            valid = {node: held.valid for node, held in state.items()}
            step = propagator.step(valid, changed, demand)
        left = {node: Held(region, (0,) * node.rank) for node, region in step.valid.items()}
        if holds_alone(guards, origin):
            alone.add(kind)
        return None, left, frozenset(guards)

    return decide


def asked(
    scheduled: ScheduledGraph, kind: BucketClass, origin: Sequence[Coord]
) -> tuple[Valid, Valid]:
    """What of the leaves changed, and what of the graph is demanded, in a run of a class."""
    demand = joined(handed_out(scheduled.graph, kind, origin).values())
    return changes(scheduled.graph, kind, origin), demand


def numbers(state: State, origin: Sequence[int]) -> dict[Node, Region]:
    """What is valid at an origin, without the memory of how it depends on it."""
    return {node: held.valid.at(origin) for node, held in state.items()}
