"""All paths, cheapest first: one graph of those that compute the same, and a kernel for each call.

    graph     one way of every cluster of choices (`graph.rewrite`); equal layers choose as one
    kernels   for every signature of that graph's calls, one that takes it
    cost      what runs take in the mean, by what was measured where it was

Nothing is enumerated before it is asked for. Graphs come in the order of what they take with their
best kernels; kernels of one graph in the order of what they take more than these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import TypeAlias

from tgbench.base.pace import paced
from tgbench.base.streams import CostStream, Priced, either, together
from tgbench.base.words import Progress, counted, format_time, silent
from tgbench.costs.model import CostModel, Estimate, total
from tgbench.graph.graph import Graph, Node
from tgbench.graph.rewrite.choices import Alternatives, Cluster, ClusterChoices, Way, choices
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rules import LESS, RULES
from tgbench.graph.rewrite.saturate import USUAL, Saturation, SaturationLimits, saturate
from tgbench.graph.rewrite.ways import WaySearch, count_ways, rewritten
from tgbench.kernels.registry import Kernel
from tgbench.plans.decisions import PlanPath
from tgbench.plans.paths.chosen import described
from tgbench.plans.paths.occasions import Occasion, PlannedRun, occasions
from tgbench.plans.paths.pricing import PathCall, Pricing
from tgbench.runs.rules import Rules

WITHIN = 2.0  # ways and kernels are left out that take so many times the best one
LOOKED_AT = 500  # graphs, for those that differ in time
DIGITS = 1  # of nanoseconds that make a difference
Pins: TypeAlias = "Mapping[str, str]"  # by signature without layouts, a kernel's name


@dataclass(frozen=True, eq=False)
class Path:
    """One complete way to run a graph.

    Fields:
        paths: that it is one of.
        number: its place among them; −1 where nobody has counted.
        taken: the way of every cluster.
        kernels: by signature, those that are not the expected fastest.
        time_ns: of a run, in the mean.
    """

    paths: Paths
    number: int
    taken: Mapping[Cluster, Way]
    kernels: Pins
    time_ns: float

    @cached_property
    def graph(self) -> Graph:
        """The graph that runs."""
        if self.taken == self.paths.given.taken:
            return self.paths.graph
        return rewritten(self.paths.choices, self.taken, self.paths.graph)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The e-nodes that it computes, whatever was decided elsewhere left out."""
        chosen = [*self.paths.choices.forced.values()]
        for cluster, way in self.taken.items():
            pairs = zip(cluster.classes, way, strict=True)
            chosen += [cluster.options[name][i] for name, i in pairs if i >= 0]
        return tuple(chosen)

    @cached_property
    def calls(self) -> tuple[PathCall, ...]:
        """What its runs call."""
        pricing = self.paths.pricing
        chains = [pricing.alone(node) for node in self.paths.choices.forced.values()]
        for cluster, way in self.taken.items():
            chains += pricing.chains(cluster, way)
        return tuple(call for chain in chains if chain for call in pricing.calls(chain))

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """The rules by which it differs from the graph as it was given."""
        found = (self.paths.egraph.rules[node] for node in self.nodes)
        return tuple(dict.fromkeys(rule for rule in found if rule))

    @property
    def is_rounded(self) -> bool:
        """Whether it computes in less than the graph's dtype."""
        return not self.paths.space.exact.issuperset(self.nodes)

    def chosen(self, tolerance: float | None = None) -> PlanPath:
        """The path as a plan holds it, and a session takes it.

        Args:
            tolerance: the error that was allowed, if some of it is in less than its dtype.

        Raises PlanError where it takes more than a plan's reader tries to see that it is one.
        """
        allowed = tolerance if self.is_rounded else None
        given = self.paths.graph
        return described(given, self.graph, self.rules, sorted(self.kernels.items()), allowed)

    def rounded_parts(self) -> dict[frozenset[Node], Path]:
        """What it computes in less than the graph's dtype, each alone in a path of its own.

        The e-nodes of equal layers are one part.
        """
        exact, found = self.paths.space.exact, {}
        for group in self.paths.choices.clusters:
            part = frozenset(
                cluster.options[name][number]
                for cluster in group
                for name, number in zip(cluster.classes, self.taken[cluster], strict=True)
                if number >= 0 and cluster.options[name][number] not in exact
            )
            if part:
                found[part] = self.paths.given.taking({one: self.taken[one] for one in group})
        return found

    def taking(self, ways: Mapping[Cluster, Way]) -> Path:
        """The same but for some clusters."""
        taken = {**self.taken, **ways}
        return Path(self.paths, -1, taken, self.kernels, self.paths.cost(taken))

    @cached_property
    def estimate(self) -> Estimate:
        """What a run takes, with how much of that was measured."""
        parts = []
        for call in self.calls:
            wanted = self.kernels.get(call.signature)
            found = next((e for k, e in call.kernels if k.name == wanted), call.kernels[0][1])
            parts.append(
                Estimate(found.time_ns * call.weight, found.source, found.spread, found.kernel)
            )
        return total(parts)

    @property
    def every_kernel(self) -> dict[str, str]:
        """The kernel of every signature: also of those that take the expected fastest.

        Where calls lie in several ways and take one each, each takes its own.
        """
        found: dict[str, set[str]] = {}
        for call in self.calls:
            first = call.kernels[0][0].name
            found.setdefault(call.signature, set()).add(self.kernels.get(call.signature, first))
        return {signature: min(names) for signature, names in found.items() if len(names) == 1}

    def unmeasured(self) -> tuple[tuple[PathCall, Kernel], ...]:
        """The kernels of its calls that nothing was measured of where operands lie as they do, each
        once.
        """
        found = {}
        for call in self.calls:
            wanted = self.kernels.get(call.signature)
            pair = next((p for p in call.kernels if p[0].name == wanted), call.kernels[0])
            if not self.paths.costs.has_timed(call.lying, pair[0]):
                found[call.lying, pair[0].name] = (call, pair[0])
        return tuple(found.values())

    def differs(self, other: Path) -> dict[str, tuple[str, str]]:
        """What two paths decide otherwise: {where: (here, there)}."""
        found = {}
        for group in self.paths.choices.clusters:
            mine, yours = self.taken[group[0]], other.taken[group[0]]
            for name, i, j in zip(group[0].classes, mine, yours, strict=True):
                if i != j:
                    found[name.name] = (_told(group[0], name, i), _told(group[0], name, j))
        for signature in {*self.kernels, *other.kernels}:
            mine_by, yours_by = self.kernels.get(signature), other.kernels.get(signature)
            if mine_by != yours_by:
                found[signature] = (mine_by or "the fastest", yours_by or "the fastest")
        return found

    def __str__(self) -> str:
        rules = ", ".join(self.rules) or "as it was given"
        pins = f"; {counted(len(self.kernels), 'other kernel')}" if self.kernels else ""
        number = f"path {self.number}" if self.number >= 0 else "path"
        return f"{number}: {format_time(self.time_ns)} a run; {rules}{pins}"


def _told(cluster: Cluster, name: Node, number: int) -> str:
    return "not needed" if number < 0 else cluster.options[name][number].op


@dataclass(frozen=True, eq=False)
class Space:
    """The graphs that compute the same, and what runs compute of them: nothing of time.

    Fields:
        saturation: how the e-graph was made.
        alternatives: what of it can be computed from what.
    """

    graph: Graph
    egraph: EGraph
    alternatives: Alternatives
    saturation: Saturation
    occasions: tuple[Occasion, ...]

    @staticmethod
    def of(
        graph: Graph,
        rules: Rules,
        runs: Sequence[PlannedRun] = (),
        *,
        rounded: bool = False,
        limits: SaturationLimits = USUAL,
        progress: Progress = silent,
    ) -> Space:
        """All graphs that the rules find.

        Args:
            graph: as a session runs it.
            runs: what is run, how often; everything anew if none is given.
            rounded: products may be computed in less than their dtype.
            limits: of saturation.
            progress: is told (done, of, what is going on).
        """
        egraph, rules_of = EGraph.of_graph(graph), (*RULES, *LESS) if rounded else RULES
        saturation = saturate(egraph, rules_of, limits, progress=paced(progress))
        found, happened = Alternatives.of(egraph), runs or [PlannedRun.whole(graph)]
        progress(0, len(happened), "runs followed through them")
        happening = occasions(found, rules, happened)
        return Space(graph, egraph, found, saturation, happening)

    @cached_property
    def exact(self) -> frozenset[Node]:
        """The e-nodes that compute in their dtype, of operands that can be had so.

        A rule that rounds nothing takes what one that does has made as well: the product of an int8
        weight, written as a layer, is made by a rule of layers.
        """
        egraph, less = self.egraph, {rule.name for rule in LESS}
        given = any("arithmetic" in node.attrs for node in self.graph.nodes)
        found, had = set[Node](), set[Node]()
        left = [
            node
            for node in egraph.nodes()
            if egraph.rules[node] not in less and (given or "arithmetic" not in node.attrs)
        ]
        while left:
            rest = list[Node]()
            for node in left:
                if had.issuperset(egraph.inputs(node)):
                    found.add(node)
                    had.add(egraph.find(node))
                else:
                    rest.append(node)
            if len(rest) == len(left):
                break
            left = rest
        return frozenset(found)


class Paths:
    """All paths of a graph for some runs, by what they take.

    Args:
        space: of graphs.
        costs: what calls take.
        within: ways and kernels that take more than so many times the best one are left out.
        progress: is told (done, of, what is going on) while paths are weighed and put in order.
            What it raises ends that; who asks again goes on from what was found.

    >>> import tgbench.graph.ops as ops
    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x, a, b = (g.input(name, (512, 512)) for name in "xab")
    >>> g.output("y", x @ a + x @ b)
    >>> paths = Paths(Space.of(g.build(), Rules()), CostModel())
    >>> paths[0].rules
    ('factor a left matrix',)
    """

    def __init__(
        self, space: Space, costs: CostModel, within: float = WITHIN, progress: Progress = silent
    ) -> None:
        self.space, self.costs, self.within = space, costs, within
        self.graph, self.egraph = space.graph, space.egraph
        self.progress, self._weighed, self._begun = paced(progress), 0, 0
        self.pricing = Pricing(
            space.alternatives, space.graph, space.occasions, costs, within, self._looking
        )
        self.choices: ClusterChoices = choices(
            self.pricing.found, self._least, within, self.pricing
        )
        self._ways = [WaySearch(group[0]) for group in self.choices.clusters]
        self._streams = [
            CostStream(partial(self._of_group, number)) for number in range(len(self._ways))
        ]
        self._graphs = CostStream(self._of_graphs)
        self._found = CostStream(self._all)

    # --- what is told of it -----------------------------------------------------------------------

    def _least(self, node: Node) -> float:
        self._weighed += 1
        self.progress(self._weighed, self.pricing.count, "forms weighed")
        return self.pricing.least(node)

    def _looking(self) -> None:
        """The first way of each choice takes longest; they are looked for one after the other."""
        if self._begun:
            self.progress(self._begun, len(self._ways), "choices put in order")

    # --- enumerating ------------------------------------------------------------------------------

    def _all(self) -> Iterator[Priced[Path]]:
        by_graph = (CostStream(partial(self._with_kernels, one.value)) for one in self._graphs)
        for number, priced in enumerate(either(by_graph)):
            yield Priced(priced.cost, replace(priced.value, number=number))

    def graphs(self) -> Iterator[Path]:
        """The cheapest path of each graph, cheapest first."""
        return (priced.value for priced in self._graphs)

    def graph_at(self, place: int) -> Path:
        """One of them; raises IndexError where there are not so many."""
        return self._graphs[place].value

    def has(self, place: int) -> bool:
        """Whether there are more graphs than so many."""
        return self._graphs.get(place) is not None

    def different(self, count: int, most: int = LOOKED_AT) -> dict[int, Path]:
        """The first graphs that differ in time, of so many, by their places among all of them."""
        found: dict[float, int] = {}
        for place, path in enumerate(islice(self.graphs(), most)):
            found.setdefault(round(path.time_ns, DIGITS), place)
            if len(found) == count:
                break
        return {place: self.graph_at(place) for place in found.values()}

    def _of_graphs(self) -> Iterator[Priced[Path]]:
        for priced in together(self._streams):
            taken = {
                cluster: way
                for group, way in zip(self.choices.clusters, priced.value, strict=True)
                for cluster in group
            }
            cost = priced.cost + self.choices.cost
            yield Priced(cost, Path(self, -1, taken, {}, cost))

    def _of_group(self, number: int) -> Iterator[Priced[Way]]:
        """The ways of equal clusters, that all choose alike."""
        self._begun = max(self._begun, number + 1)
        times = len(self.choices.clusters[number])
        for one in self._apart(self._ways[number]):
            yield Priced(one.cost * times, one.value)

    def _apart(self, found: WaySearch) -> Iterator[Priced[Way]]:
        """The ways of a cluster that differ in what they call; of those that do not, the first.

        The others differ in views, in what follows from weights alone, or in the order of equal
        calls.
        """
        seen = set()
        for priced in found:
            chains = self.pricing.chains(found.cluster, priced.value)
            runs = Counter(
                (tuple(one.call for one in chain), self.pricing.time_ns(chain)) for chain in chains
            )
            key = frozenset(runs.items())
            if key not in seen:
                seen.add(key)
                yield priced

    def _with_kernels(self, path: Path) -> Iterator[Priced[Path]]:
        """One graph by all kernels: what each takes more than the fastest."""
        found: dict[str, list[PathCall]] = {}
        for call in path.calls:
            found.setdefault(call.signature, []).append(call)
        streams = [
            CostStream(partial(_others, signature, calls)) for signature, calls in found.items()
        ]
        for priced in together([one for one in streams if one.get(1) is not None]):
            pins = {signature: name for signature, name in priced.value if name}
            cost = path.time_ns + priced.cost
            yield Priced(cost, replace(path, kernels=pins, time_ns=cost))

    def __iter__(self) -> Iterator[Path]:
        return (priced.value for priced in self._found)

    def __getitem__(self, number: int) -> Path:
        return self._found[number].value

    def without(self, nodes: Set[Node]) -> Paths:
        """Those that compute none of these e-nodes, nor what can be computed from them alone."""
        found = self.space.alternatives
        options: dict[Node, tuple[Node, ...]] = {}
        for name in reversed(found.order):  # each after what it may read
            left = (node for node in found.options[name] if node not in nodes)
            kept = tuple(
                node
                for node in left
                if all(n in options or n not in found.options for n in self.egraph.inputs(node))
            )
            if kept:
                options[name] = kept
        order = [name for name in found.order if name in options]
        alternatives = replace(found, options=options, order=order)
        return Paths(
            replace(self.space, alternatives=alternatives), self.costs, self.within, self.progress
        )

    def first(self, count: int) -> list[Path]:
        """The cheapest ones."""
        return list(islice(self, count))

    @cached_property
    def given(self) -> Path:
        """The graph as it was given, by the fastest kernels: what every other path is beside."""
        kept = {self.egraph.find(node): node for node in self.egraph.of.values()}
        taken = {}
        for group in self.choices.clusters:
            for cluster in group:
                taken[cluster] = _as_given(cluster, kept)
        return Path(self, -1, taken, {}, self.cost(taken))

    def cost(self, taken: Mapping[Cluster, Way]) -> float:
        """What runs of a graph take, in the mean."""
        return self.choices.cost + sum(
            self.pricing.time_ns(chain)
            for cluster, way in taken.items()
            for chain in self.pricing.chains(cluster, way)
        )

    def count_graphs(self, *, apart: bool = False) -> int | None:
        """How many graphs there are; `apart`: if each layer chose for itself. None for too many."""
        counts = [(count_ways(group[0]), len(group)) for group in self.choices.clusters]
        product = 1
        for count, times in counts:
            if count is None:
                return None
            product *= count ** (times if apart else 1)
        return product

    @property
    def gap(self) -> float:
        """How much more the first path may take than the fastest, as a part of what that takes; 0
        where it is the fastest. What is left to choose may be too much to look through.
        """
        first, less_ns = self.graph_at(0), 0.0  # what the fastest may take less
        for group, found in zip(self.choices.clusters, self._ways, strict=True):
            if found.bound is None:
                continue
            chains = self.pricing.chains(group[0], first.taken[group[0]])
            taken_ns = sum(map(self.pricing.time_ns, chains))
            less_ns += len(group) * max(taken_ns - found.bound, 0.0)
        return less_ns / (first.time_ns - less_ns) if less_ns else 0.0

    def __str__(self) -> str:
        graphs, apart = self.count_graphs(), self.count_graphs(apart=True)
        told = "more graphs than were counted" if graphs is None else f"{_power(graphs)} graphs"
        told = "1 graph" if graphs == 1 else told
        if apart is not None and apart != graphs:
            told += f" ({_power(apart)} if equal layers chose apart)"
        given, gap = format_time(self.given.time_ns), self.gap
        most = f"; at most {gap:.1%} more than the fastest" if gap else ""
        return f"{told}; {self.space.saturation}\n{self[0]}{most}\nas given: {given}"


def _power(count: int) -> str:
    return f"{count:,}" if count < 10**6 else f"about 10^{len(str(count)) - 1}"


def _others(signature: str, calls: Sequence[PathCall]) -> Iterator[Priced[tuple[str, str]]]:
    """The kernels of a signature, with what each takes more than the first; that has no name."""
    yield Priced(0.0, (signature, ""))
    names = dict.fromkeys(kernel.name for call in calls for kernel, _ in call.kernels[1:])
    more = [(sum(call.weight * _further(call, name) for call in calls), name) for name in names]
    for cost, name in sorted(more):
        yield Priced(cost, (signature, name))


def _further(call: PathCall, name: str) -> float:
    """What a call takes more if a kernel is preferred; nothing where that does not take it."""
    (_, best), *others = call.kernels
    found = (e.time_ns for kernel, e in others if kernel.name == name)
    return max(next(found, best.time_ns) - best.time_ns, 0.0)


def _as_given(cluster: Cluster, kept: Mapping[Node, Node]) -> Way:
    """The way of a cluster that takes what the graph has, wherever that is an option."""
    needed = {cluster.number[name] for name in cluster.entries}
    way = []
    for place, name in enumerate(cluster.classes):
        options = cluster.options[name]
        number = options.index(kept[name]) if kept.get(name) in options else 0
        way.append(number if place in needed else -1)
        if place in needed:
            needed |= {cluster.number[n] for n in cluster.inner[options[number]]}
    return tuple(way)
