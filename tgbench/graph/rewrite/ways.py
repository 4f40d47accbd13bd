"""The ways to choose in a cluster, cheapest first, and the graph of a way.

A way takes one option of every class that it needs. Its cost is the sum over these classes: what
two of them read is paid once. Classes are decided in turn, readers before what they read; partial
ways that need the same classes from some place on go on alike, so they are one *state*:

    place 0        {q, k, v}  ─→  {k, v, qkv}  ─→  …  ─→  {}
                              ╲─→  {k, v}      ─→  …

What is left from a state on is found once, from the end. With that, ways are searched for best
first (A*, Hart and others 1968) and no step is taken in vain, but where options cost more among
others than alone: that counts as soon as it is known. Where there are too many states for
it, what is left is bounded from below by cheapest trees, in which each class is paid by those that
may read it in equal shares.

Where the next way is not found in so much work, it is not looked for exactly: the partial ways that
promise most are gone on with, a few at each place (beam search, Lowerre 1976), beside the way the
graph was given in, and the cheapest one by what options cost alone (`exact`), which also shows what
no way costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from itertools import count
from typing import TypeAlias

from tgbench.base.streams import Priced
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.rewrite.choices import Cluster, ClusterChoices, Way
from tgbench.graph.rewrite.exact import exact


def ways(cluster: Cluster) -> Iterator[Priced[Way]]:
    """Every way to choose in a cluster, cheapest first, each once; some, where that is too much."""
    return iter(WaySearch(cluster))


DIGITS = 6  # of a bound: sums in another order are equal
MOST_STATES = 50_000  # of a cluster, that what is left is found of
MOST_WORK = 3_000_000  # choices that are looked at for one way more
LESS_WORK = 300_000  # where what is left is bounded by trees, which seldom leads anywhere
MOST_PARTIAL = 50_000  # options that are tried for partial ways, where that did not do
MOST_SCORED = 500  # of these, that it is found out of what they cost among others
LEAST_WIDTH = 4
MOST_BESIDE = 1_000_000  # choices that are looked at for ways beside those


_NOT_NEEDED: tuple[float, bool, frozenset[int]] = 0.0, False, frozenset()
# bound, minus the place, how many new options, turn, what is needed, cost so far, way so far
_Partial: TypeAlias = "tuple[float, int, int, int, frozenset[int], float, Way]"


@dataclass
class WaySearch:
    """The ways to choose in a cluster, cheapest first.

    Fields:
        bound: what none of those costs less that were not handed out; None as long as all of them
            come in order.
    """

    cluster: Cluster
    bound: float | None = None

    def __iter__(self) -> Iterator[Priced[Way]]:
        cluster, ticket, work, found = self.cluster, count(), 0, list[Way]()
        most = LESS_WORK if self._exact is None else MOST_WORK
        heap: list[_Partial] = [
            (self._left(0, self._start), 0, 0, next(ticket), self._start, 0.0, ())
        ]
        while heap:
            if work > most:
                self.bound = heap[0][0]
                yield from self._promising(found)
                return
            _, turn, new, _, needed, cost, way = heappop(heap)
            place = -turn
            while place < len(cluster.classes) and place not in needed:
                place, way = place + 1, (*way, -1)
            if place == len(cluster.classes):
                work, found = 0, [*found, way]
                yield Priced(cost + cluster.more(way), way)
                continue
            work += len(self._options[place]) * len(way)
            for number, (own, is_new, inner) in enumerate(self._options[place]):
                after = needed | inner
                left = self._left(place + 1, after)
                so_far, further = cost + own, (*way, number)
                bound = round(so_far + left + cluster.more(further), DIGITS)
                count_new, turn = new + is_new, next(ticket)
                # Of equal ones that comes first which is further.
                heappush(heap, (bound, ~place, count_new, turn, after, so_far, further))

    def _promising(self, known: Sequence[Way]) -> Iterator[Priced[Way]]:
        """Some of the ways that are not known yet, cheapest first."""
        ways = {*self._beam(), self._given()}
        if not known:
            ways |= self._cheapest_alone()
        heap = sorted((self._cost(way), way) for way in ways)
        seen, last, work = ways.union(known), 0.0, 0
        while heap:
            cost, way = heappop(heap)
            if way not in known and cost >= last:  # what turns up too late has no place in order
                last = cost
                yield Priced(cost, way)
            if work < MOST_BESIDE:
                beside = set(self._beside(way)).difference(seen)
                work += len(way) * len(beside)
                seen |= beside
                for one in beside:
                    heappush(heap, (self._cost(one), one))

    def _beside(self, way: Way) -> Iterator[Way]:
        """Those that take another option of one class, and what that needs besides."""
        for place, taken in enumerate(way):
            for number in range(len(self._options[place]) if taken >= 0 else 0):
                if number != taken:
                    yield self._other(way, place, number)

    def _other(self, way: Way, place: int, number: int) -> Way:
        """A way but for one class; of those that it had no option of, the cheapest."""
        needed, found = self._start, list[int]()
        for i, options in enumerate(self._options):
            if i not in needed:
                found.append(-1)
                continue
            kept = number if i == place else way[i]
            found.append(kept if kept >= 0 else self._cheapest[i])
            needed |= options[found[-1]][2]
        return tuple(found)

    @cached_property
    def _cheapest(self) -> list[int]:
        """Of each class the option that costs least with what it reads."""
        costs = [
            [own + sum(self._least[j] for j in inner) for own, _, inner in options]
            for options in self._options
        ]
        return [own.index(min(own)) for own in costs]

    def _cheapest_alone(self) -> set[Way]:
        """The cheapest way by what options cost alone, if it is found; none costs less."""
        way, bound = self._alone
        self.bound = max(self.bound or 0.0, bound)
        return set() if way is None else {way}

    @cached_property
    def _alone(self) -> tuple[Way | None, float]:
        """What an integer program comes to, once: it has a limit of time."""
        options = [[(own, inner) for own, _, inner in options] for options in self._options]
        return exact(options, self._start)

    def _beam(self) -> list[Way]:
        """Those that promised most at each place; of those that go on alike, one."""
        tried = sum(map(len, self._options))
        width = max(LEAST_WIDTH, MOST_PARTIAL // tried)
        stride = max(1, len(self._options) * width // MOST_SCORED)
        front: dict[frozenset[int], tuple[float, float, Way]] = {self._start: (0.0, 0.0, ())}
        for place, options in enumerate(self._options):
            after: dict[frozenset[int], tuple[float, float, Way]] = {}
            for needed, (cost, more, way) in front.items():
                chosen = enumerate(options) if place in needed else [(-1, _NOT_NEEDED)]
                for number, (own, _, inner) in chosen:
                    then, one = (needed | inner) - {place}, (cost + own, more, (*way, number))
                    if then not in after or sum(one[:2]) < sum(after[then][:2]):
                        after[then] = one
            if place % stride == 0:
                after = {
                    needed: (cost, self.cluster.more(way), way)
                    for needed, (cost, _, way) in after.items()
                }
            best = sorted(after.items(), key=lambda one: self._bound(place + 1, *one))[:width]
            front = dict(best)
        return [way for _, _, way in front.values()]

    def _bound(
        self, place: int, needed: frozenset[int], partial: tuple[float, float, Way]
    ) -> tuple[float, Way]:
        cost, more, way = partial
        return cost + more + self._left(place, needed), way

    def _given(self) -> Way:
        """What the graph has, wherever that is an option."""
        needed, way = self._start, list[int]()
        for place, options in enumerate(self._options):
            number = next((i for i, (_, is_new, _) in enumerate(options) if not is_new), 0)
            way.append(number if place in needed else -1)
            needed |= options[number][2] if place in needed else frozenset()
        return tuple(way)

    def _cost(self, way: Way) -> float:
        chosen = (options[i][0] for options, i in zip(self._options, way, strict=True) if i >= 0)
        return sum(chosen) + self.cluster.more(way)

    @cached_property
    def _start(self) -> frozenset[int]:
        """What is needed from the beginning."""
        return frozenset(self.cluster.number[name] for name in self.cluster.entries)

    @cached_property
    def _options(self) -> list[list[tuple[float, bool, frozenset[int]]]]:
        """Of each class the cost of each option, whether it is new, and the classes it reads."""
        cluster = self.cluster
        return [
            [
                (
                    cluster.costs[node],
                    node in cluster.new,
                    frozenset(cluster.number[n] for n in cluster.inner[node]),
                )
                for node in cluster.options[name]
            ]
            for name in cluster.classes
        ]

    @cached_property
    def _readers(self) -> list[list[int]]:
        """Of each class those that may read it, in order."""
        found: list[list[int]] = [[] for _ in self._options]
        for i, options in enumerate(self._options):
            for j in frozenset().union(*(inner for *_, inner in options)):
                found[j].append(i)
        return found

    @cached_property
    def _least(self) -> list[float]:
        """What each class costs at least, with what only it reads, and a share of the rest."""
        found = [0.0] * len(self._options)
        for i in reversed(range(len(found))):
            found[i] = min(
                own + sum(found[j] / len(self._readers[j]) for j in inner)
                for own, _, inner in self._options[i]
            )
        return found

    def _left(self, place: int, needed: frozenset[int]) -> float:
        """What needed classes from a place on cost at least, and what they will need."""
        if self._exact is not None:
            return self._exact[place][frozenset(i for i in needed if i >= place)]
        return sum(self._least[i] * self._share(i, place) for i in needed if i >= place)

    @cached_property
    def _states(self) -> list[set[frozenset[int]]] | None:
        """For each place, every set of classes that may be needed from there on; None for many."""
        found = [{self._start}]
        seen = 0
        for place in range(len(self._options)):
            found.append({after for state in found[-1] for after in self._after(place, state)})
            seen += len(found[-1])
            if seen > MOST_STATES:
                return None
        return found

    def _after(self, place: int, state: frozenset[int]) -> list[frozenset[int]]:
        """What may be needed after a place, by option; the same where it is not needed itself."""
        if place not in state:
            return [state]
        return [(state | inner) - {place} for *_, inner in self._options[place]]

    @cached_property
    def _exact(self) -> list[dict[frozenset[int], float]] | None:
        """What is left to pay from every state on."""
        if self._states is None:
            return None
        found: list[dict[frozenset[int], float]] = [dict.fromkeys(self._states[-1], 0.0)]
        for place in reversed(range(len(self._options))):
            then = found[-1]
            costs = [own for own, *_ in self._options[place]]
            found.append(
                {
                    state: min(
                        cost + then[after]
                        for cost, after in zip(
                            costs if place in state else (0.0,),
                            self._after(place, state),
                            strict=True,
                        )
                    )
                    for state in self._states[place]
                }
            )
        return found[::-1]

    def count(self) -> int | None:
        """How many ways there are; None where there are too many states to find out."""
        if self._states is None:
            return None
        counts = dict.fromkeys(self._states[0], 1)
        for place in range(len(self._options)):
            then: dict[frozenset[int], int] = {}
            for state, times in counts.items():
                for after in self._after(place, state):
                    then[after] = then.get(after, 0) + times
            counts = then
        return sum(counts.values())

    def _share(self, i: int, place: int) -> float:
        """The part of a needed class that no reader pays for which is not decided yet."""
        readers = self._readers[i]
        return 1 - sum(j >= place for j in readers) / len(readers) if readers else 1.0


def count_ways(cluster: Cluster) -> int | None:
    """How many ways there are; None where that would take too long to find out."""
    return WaySearch(cluster).count()


def rewritten(choices: ClusterChoices, taken: Mapping[Cluster, Way], graph: Graph) -> Graph:
    """The graph that computes the ends of another in these ways.

    Nodes that are left keep their names, and so do outputs and updates.
    """
    egraph = choices.egraph
    chosen = {**choices.fixed, **choices.forced}
    for cluster, way in taken.items():
        for name, number in zip(cluster.classes, way, strict=True):
            if number >= 0:
                chosen[name] = cluster.options[name][number]
    names: dict[Node, str] = {}
    sources: dict[Node, str] = {}
    for node, made in egraph.of.items():
        names.setdefault(egraph.find(made), node.name)
        sources.setdefault(egraph.find(made), node.source)
    builder = GraphBuilder()
    builder._taken.update((node.name, None) for node in graph.nodes)
    new: dict[Node, Node] = {}
    for name in _inputs_first(egraph.ends, lambda n: egraph.inputs(chosen[n])):
        option = chosen[name]
        before, builder.source = len(builder.nodes), sources.get(name, "")
        new[name] = copy_node(builder, option, tuple(new[n] for n in egraph.inputs(option)))
        if len(builder.nodes) > before and (option.op == "constant" or not option.is_leaf):
            builder.rename(new[name], names.get(name) or builder._fresh(option.op))
    return Graph.of(
        {name: new[egraph.find(egraph.of[node])] for name, node in graph.outputs.items()},
        {name: new[egraph.find(egraph.of[node])] for name, node in graph.updates.items()},
    )


def _inputs_first(
    ends: Iterable[Node], inputs: Callable[[Node], tuple[Node, ...]]
) -> Iterator[Node]:
    """What the ends are made of, each after what it reads."""
    done: set[Node] = set()
    stack = [(name, False) for name in ends]
    while stack:
        name, is_ready = stack.pop()
        if name in done:
            continue
        if is_ready:
            done.add(name)
            yield name
        else:
            stack += [(name, True), *((n, False) for n in inputs(name))]
