"""Where an e-graph leaves a choice, and what the choices are.

    options     the e-nodes of each class that a way to compute the ends may take
    forced      classes that every way computes: what lies between two of them is chosen apart
    cluster     classes that are chosen together; equal ones (layers of a model) choose as one

       x ──┬─→ q ─→        forced: x, q, k, v.  One cluster {q, k, v, qkv}: each of q, k and v is a
           ├─→ k ─→        product of its own, or a slice of qkv, the product of all three weights.
           └─→ v ─→

A class that every way computes costs what it costs, whoever reads it. So what one cluster chooses
changes nothing for another, and the cost of a way is the sum of what its clusters cost: costs of a
*graph*, in which what is read twice is computed once, and not of a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import Any, Protocol, TypeAlias

from tgbench.graph.graph import Node
from tgbench.graph.rewrite.egraph import GIVEN, EGraph

Cost: TypeAlias = "Callable[[Node], float]"  # of an e-node alone, in any unit; never negative
Options: TypeAlias = "Mapping[Node, tuple[Node, ...]]"  # e-nodes, by class
# By class of a cluster, the number of its option; −1 where it is not needed.
Way: TypeAlias = "tuple[int, ...]"


class Coupling(Protocol):
    """What options cost among others: what each costs alone is no more than that."""

    def links(self, options: Options, always: Set[Node]) -> Iterable[tuple[Node, Node]]:
        """Pairs of classes of which one costs what it does for how the other is computed.

        Args:
            options: all that are left of each class that may be needed, readers first.
            always: the classes that every way computes.
        """

    def kind(self, node: Node) -> Hashable:
        """What of an option's surroundings its cost depends on."""

    def more(self, cluster: Cluster, way: Way) -> float:
        """What the first choices of a cluster are known to cost more than each alone."""


@dataclass(frozen=True, eq=False)
class Cluster:
    """Classes that are chosen together.

    Fields:
        entries: the forced classes in it, of which each is needed.
        classes: all of them, readers before what they read.
        options: their e-nodes, in an order that equal clusters share.
        costs: of the options.
        new: options that the graph did not have: of equal ways, those with fewest come first.
        inner: for each option, the classes of this cluster that it reads.
        coupling: what options cost among others; None where each costs what it does alone.
    """

    entries: tuple[Node, ...]
    classes: tuple[Node, ...]
    options: Options
    costs: Mapping[Node, float]
    new: Set[Node]
    inner: Mapping[Node, tuple[Node, ...]]
    coupling: Coupling | None = None

    def more(self, way: Way) -> float:
        """What the first choices of a way are known to cost besides what each costs alone."""
        return 0.0 if self.coupling is None else self.coupling.more(self, way)

    @cached_property
    def number(self) -> Mapping[Node, int]:
        """The place of each class among them."""
        return {name: i for i, name in enumerate(self.classes)}


@dataclass(frozen=True, eq=False)
class ClusterChoices:
    """All that there is to choose in an e-graph.

    Fields:
        fixed: for each class that follows from weights alone, the e-node that computes it.
        forced: for each class that every way computes in one way, its e-node; those that are
            chosen with others are in clusters.
        clusters: where there is a choice; those of one entry are equal and choose as one.
        cost: of what is forced.
    """

    egraph: EGraph
    fixed: Mapping[Node, Node]
    forced: Mapping[Node, Node]
    clusters: tuple[tuple[Cluster, ...], ...]
    cost: float


@dataclass(frozen=True, eq=False)
class Alternatives:
    """What an e-graph can be computed from, whatever that takes.

    Fields:
        fixed: for each class that follows from weights alone, the e-node that computes it.
        options: for every other class its e-nodes, of which none reads what is made of it.
        order: the classes that the ends may need, each before what it may read.
    """

    egraph: EGraph
    fixed: Mapping[Node, Node]
    options: Options
    order: Sequence[Node]

    @staticmethod
    def of(egraph: EGraph) -> Alternatives:
        fixed, steps = _fixed(egraph)
        different = _different(egraph, steps)
        new = {n: float(egraph.rules[n] != GIVEN) for nodes in different.values() for n in nodes}
        options = _acyclic(egraph, different, ranks(egraph, different, new))
        return Alternatives(egraph, fixed, options, _order(egraph, options))


def choices(
    found: Alternatives, cost: Cost, within: float = math.inf, coupling: Coupling | None = None
) -> ClusterChoices:
    """What can be chosen.

    Args:
        cost: of each e-node alone; nothing is asked of leaves and of what is fixed.
        coupling: what they cost among others; None where that is the same.
        within: ways to compute a class that cost more than so many times the cheapest one are left
            out, unless the graph has them; what several may read is shared among them.
    """
    egraph = found.egraph
    costs = {
        node: 0.0 if node.is_leaf else cost(node)
        for name in found.order
        for node in found.options[name]
    }
    worthy = _worthy(found, costs, within)
    order = _order(egraph, worthy)
    options = {name: worthy[name] for name in order}
    always = _always(egraph, options)
    links = list(coupling.links(options, always)) if coupling is not None else []
    alike: dict[Any, list[Cluster]] = {}
    chosen: set[Node] = set()
    for cluster in _clusters(egraph, options, order, always, costs, links):
        cluster = cluster if not links else replace(cluster, coupling=coupling)
        alike.setdefault(_likeness(egraph, cluster), []).append(cluster)
        chosen.update(cluster.classes)
    groups = tuple(map(tuple, alike.values()))
    forced = {name: options[name][0] for name in order if name in always and name not in chosen}
    spent = sum(costs[node] for node in forced.values())
    return ClusterChoices(egraph, found.fixed, forced, groups, spent)


# --- costs ----------------------------------------------------------------------------------------


def _fixed(egraph: EGraph) -> tuple[dict[Node, Node], dict[Node, int]]:
    """For each fixed class the e-node that takes fewest steps from weights, and how many."""
    steps: dict[Node, int] = {}
    chosen: dict[Node, Node] = {}
    names = [name for name in egraph.classes() if egraph.is_fixed(name)]
    changed = True
    while changed:
        changed = False
        for name in names:
            for node in egraph.members(name):
                inputs = egraph.inputs(node)
                if not steps.keys() >= set(inputs) or node.op in ("input", "state"):
                    continue
                count = 1 + sum(steps[parent] for parent in inputs)
                if name not in steps or count < steps[name]:
                    steps[name], chosen[name] = count, node
                    changed = True
    return chosen, steps


def _different(egraph: EGraph, steps: Mapping[Node, int]) -> dict[Node, tuple[Node, ...]]:
    """The e-nodes of each class that differ in what runs; of the rest, the fewest steps before."""
    found: dict[Node, tuple[Node, ...]] = {}
    for name in egraph.classes():
        if name in steps:
            continue
        best: dict[Any, Node] = {}
        for node in egraph.members(name):
            inputs = egraph.inputs(node)
            moving = tuple(n.type if n in steps else n for n in inputs)
            key = node.op, tuple(sorted(node.attrs.items())), moving, node.is_leaf and node
            count = sum(steps.get(n, 0) for n in inputs)
            other = best.setdefault(key, node)
            is_given = egraph.rules[other] == GIVEN
            if not is_given and count < sum(steps.get(n, 0) for n in egraph.inputs(other)):
                best[key] = node
        found[name] = tuple(best.values())
    return found


def _worthy(found: Alternatives, costs: Mapping[Node, float], within: float) -> Options:
    """The options that cost little enough, by what the graph has, and all of its own.

    What a class costs at least is that of its cheapest tree, down to what is there anyway. So one
    option of each stays whose inputs stay.
    """
    egraph, options = found.egraph, found.options
    there = read_twice(egraph)
    readers = {
        name: max(1, len({egraph.find(reader) for reader in egraph.readers(name)}))
        for name in found.order
    }
    least: dict[Node, float] = {}
    kept: dict[Node, tuple[Node, ...]] = {}
    for name in reversed(found.order):
        alone, shared = {}, {}
        for node in options[name]:
            inner = [n for n in _inner(egraph, node, options) if n not in there]
            alone[node] = costs[node] + sum(least[n] for n in inner)
            shared[node] = costs[node] + sum(least[n] / readers[n] for n in inner)
        least[name] = min(alone.values())
        kept[name] = tuple(
            node
            for node in options[name]
            if egraph.rules[node] == GIVEN or not shared[node] > within * least[name]
        )
    return kept


def read_twice(egraph: EGraph) -> set[Node]:
    """Classes that several of the graph's own nodes read: they are there whatever one reads."""
    readers: dict[Node, set[Node]] = {}
    for node in egraph.of.values():
        for parent in egraph.inputs(node):
            readers.setdefault(parent, set()).add(egraph.find(node))
    return {name for name, found in readers.items() if len(found) > 1}.union(egraph.ends)


# --- which classes --------------------------------------------------------------------------------


def ranks(egraph: EGraph, options: Options, costs: Mapping[Node, float]) -> dict[Node, int]:
    """The classes that can be computed, in the order of what their cheapest trees cost.

    The generalisation of Dijkstra's algorithm by Knuth (1977): a class is done when the cheapest
    of what is left is one of its e-nodes. So its cheapest tree reads classes done before it.
    """
    readers: dict[Node, list[tuple[Node, Node]]] = {}
    missing: dict[Node, int] = {}
    heap: list[tuple[float, int, Node]] = []
    for name, nodes in options.items():
        for node in nodes:
            inner = _inner(egraph, node, options)
            missing[node] = len(inner)
            for parent in inner:
                readers.setdefault(parent, []).append((name, node))
            if not inner:
                heappush(heap, (costs[node], name.index, name))
    ranks: dict[Node, int] = {}
    least: dict[Node, float] = {}
    while heap:
        value, _, name = heappop(heap)
        if name in ranks:
            continue
        ranks[name], least[name] = len(ranks), value
        for reader, node in readers.get(name, ()):
            missing[node] -= 1
            if not missing[node] and reader not in ranks:
                inner = _inner(egraph, node, options)
                total = costs[node] + sum(least[n] for n in inner)
                heappush(heap, (total, reader.index, reader))
    return ranks


def _acyclic(egraph: EGraph, options: Options, rank: Mapping[Node, int]) -> Options:
    """Options by which no class is computed from itself, and every class that can be is computed.

    Those that read what was done before are in no circle. Others join them, in building order,
    where they close none.
    """
    reads: dict[Node, set[Node]] = {name: set() for name in rank}
    found: dict[Node, list[Node]] = {name: [] for name in rank}
    late: list[tuple[Node, Node]] = []
    for name in rank:
        for node in options[name]:
            inner = _inner(egraph, node, options)
            if not rank.keys() >= set(inner):
                continue
            if all(rank[parent] < rank[name] for parent in inner):
                found[name].append(node)
                reads[name].update(inner)
            else:
                late.append((name, node))
    for name, node in late:
        inner = _inner(egraph, node, options)
        if not any(_reaches(reads, parent, name) for parent in inner):
            found[name].append(node)
            reads[name].update(inner)
    return {name: tuple(nodes) for name, nodes in found.items()}


def _inner(egraph: EGraph, node: Node, options: Mapping[Node, Any]) -> tuple[Node, ...]:
    """The classes that an e-node reads and that have options."""
    return tuple(name for name in dict.fromkeys(egraph.inputs(node)) if name in options)


def _reaches(reads: Mapping[Node, Set[Node]], start: Node, goal: Node) -> bool:
    seen, stack = {start}, [start]
    while stack:
        name = stack.pop()
        if name is goal:
            return True
        stack += (new := reads[name] - seen)
        seen |= new
    return False


def _order(egraph: EGraph, options: Options) -> list[Node]:
    """The classes that the ends may need, each before what it may read."""
    done: dict[Node, None] = {}
    stack = [(name, False) for name in dict.fromkeys(egraph.ends) if name in options]
    while stack:
        name, is_left = stack.pop()
        if is_left:
            done.setdefault(name)
        elif name not in done:
            stack.append((name, True))
            inner = (n for node in options[name] for n in _inner(egraph, node, options))
            stack += [(n, False) for n in dict.fromkeys(inner) if n not in done]
    return list(reversed(done))


def needs(egraph: EGraph, options: Options) -> Callable[[Node, Node], bool]:
    """Whether every way to compute a class computes another one.

    Args:
        options: of each class, before those of what it may read.
    """
    bit = {name: 1 << i for i, name in enumerate(options)}
    found: dict[Node, int] = {}
    for name in reversed(tuple(options)):
        everywhere = -1
        for node in options[name]:
            here = 0
            for parent in _inner(egraph, node, options):
                here |= found[parent]
            everywhere &= here
        found[name] = bit[name] | everywhere
    return lambda name, other: bool(found.get(name, 0) & bit[other])


def _always(egraph: EGraph, options: Options) -> set[Node]:
    """The classes that every way computes."""
    is_needed = needs(egraph, options)
    ends = set(egraph.ends)
    return {name for name in options if any(is_needed(end, name) for end in ends)}


# --- clusters -------------------------------------------------------------------------------------


def _clusters(
    egraph: EGraph,
    options: Options,
    order: Sequence[Node],
    always: Set[Node],
    costs: Mapping[Node, float],
    links: Sequence[tuple[Node, Node]],
) -> Iterator[Cluster]:
    """The classes with a choice, with what they alone may need, and what is chosen with them."""
    place = {name: i for i, name in enumerate(order)}
    owner: dict[Node, Node] = {}  # of each class the entry whose cluster it is in, as a forest

    def root(name: Node) -> Node:
        while owner[name] is not name:
            owner[name] = owner[owner[name]]
            name = owner[name]
        return name

    linked = {name for pair in links for name in pair}
    entries = [
        name for name in order if name in always and (len(options[name]) > 1 or name in linked)
    ]
    for entry in entries:
        owner[entry] = entry
        stack, seen = [entry], {entry}
        while stack:
            name = stack.pop()
            for inner in (n for node in options[name] for n in _inner(egraph, node, options)):
                if inner in always or inner in seen:
                    continue
                seen.add(inner)
                if inner in owner:
                    owner[root(entry)] = root(inner)
                else:
                    owner[inner] = root(entry)
                    stack.append(inner)
    for one, other in links:
        owner[root(one)] = root(other)
    members: dict[Node, list[Node]] = {}
    for name in owner:
        members.setdefault(root(name), []).append(name)
    for names in members.values():
        ordered = tuple(sorted(names, key=place.__getitem__))
        found = set(names)
        chosen = {name: _sorted(egraph, options[name], costs) for name in ordered}
        nodes = [node for name in ordered for node in chosen[name]]
        inner_of = {
            node: tuple(n for n in _inner(egraph, node, options) if n in found and n not in always)
            for node in nodes
        }
        yield Cluster(
            tuple(name for name in ordered if name in always), ordered, chosen,
            {node: costs[node] for node in nodes},
            {node for node in nodes if egraph.rules[node] != GIVEN}, inner_of,
        )  # fmt: skip


def _sorted(egraph: EGraph, nodes: Iterable[Node], costs: Mapping[Node, float]) -> tuple[Node, ...]:
    """Options in an order that does not depend on when they were found, but for the graph's own."""

    def key(node: Node) -> tuple[Any, ...]:
        is_new = egraph.rules[node] != GIVEN
        return costs[node], is_new, node.op, repr(sorted(node.attrs.items()))

    return tuple(sorted(nodes, key=key))


def _likeness(egraph: EGraph, cluster: Cluster) -> Any:
    """Equal for clusters whose choices are the same: ops, costs, and who reads what."""
    seen: dict[Node, int] = dict(cluster.number)
    lines = []
    for name in cluster.classes:
        for node in cluster.options[name]:
            inputs = [seen.setdefault(n, len(seen)) for n in egraph.inputs(node)]
            what: Any = node.name if node.is_leaf else node.call
            kind = cluster.coupling and cluster.coupling.kind(node)
            lines.append((seen[name], what, tuple(inputs), cluster.costs[node], kind))
    return len(cluster.entries), tuple(lines)
