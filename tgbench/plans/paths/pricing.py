"""What the calls of a graph take as the lowering would make them.

    where operands lie     attention reads rows of one product of three, not rows side by side
    what is known of them  elements that a mask closes are not computed
    what is copied         a view that memory order does not allow
    what is one call       a product, and what is done to each number of it (`programs.folding`)

So what an e-node takes depends on what computes the classes around it. Alone it takes what it does
where that suits it best, which is never more; what it takes more is known as soon as these classes
are decided. They are chosen together with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice, pairwise, product
from typing import NoReturn, TypeAlias

from tgbench.base.errors import KernelError
from tgbench.base.regions import EMPTY, Box
from tgbench.costs.model import SENTINEL_NS, CostModel, Estimate
from tgbench.costs.signature import numbers, without_layout
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import Call
from tgbench.graph.rewrite.choices import Alternatives, Cluster, Options, Way, needs, read_twice
from tgbench.kernels.registry import KERNELS, OUT, Kernel, Site, View
from tgbench.kernels.views import same_box
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.paths.laid import MOST, Laid, Lying, as_view, combinations
from tgbench.plans.paths.occasions import Occasion, worked_on
from tgbench.programs.folding import does_besides, post

Ranked: TypeAlias = "tuple[tuple[Kernel, Estimate], ...]"  # the expected fastest first


@dataclass(frozen=True, eq=False)
class PathCall:
    """A call of a graph as some runs make it.

    Fields:
        node: what it computes; of several nodes that are one call, the first.
        signature: without layouts; equal ones take the same kernel.
        lying: the same with layouts, of one of them.
        weight: how often runs make it, in the mean.
        kernels: what takes it, with what it takes, the expected fastest first.
    """

    node: Node
    signature: str
    lying: str
    weight: float
    kernels: Ranked


@dataclass(frozen=True, slots=True, eq=False)
class LaidNode:
    """An e-node where it is known how its operands lie, and what of them is known; one of each
    (`Pricing.placed`).
    """

    node: Node
    call: Call
    out: Laid
    ins: tuple[Laid, ...]


# What may be one call: a node, then what is done to each number of what the one before it gives.
Chain: TypeAlias = "tuple[LaidNode, ...]"
Called: TypeAlias = "list[tuple[str, Ranked]]"  # a run's calls: signatures, and what takes them


@dataclass(eq=False)
class Pricing:
    """What e-nodes take, alone and among others (`choices.Coupling`).

    Args:
        found: what can be computed from what.
        given: the graph that all of it computes.
        occasions: what runs compute of each class.
        within: kernels that take more than so many times the best one are left out.
        looking: called whenever a way of a cluster is looked at, of which there may be very many.
    """

    found: Alternatives
    given: Graph
    occasions: Sequence[Occasion]
    costs: CostModel
    within: float
    looking: Callable[[], None] = lambda: None
    _known: dict[Hashable, tuple[str, Ranked] | None] = field(default_factory=dict)
    _sites: dict[tuple[LaidNode, Occasion], list[Site]] = field(default_factory=dict)
    _single: dict[tuple[LaidNode, Occasion], Called] = field(default_factory=dict)
    _links: dict[tuple[LaidNode, LaidNode, Occasion], list[Site] | None] = field(
        default_factory=dict
    )
    _joined: dict[tuple[Chain, Occasion], Called | None] = field(default_factory=dict)
    _by_sites: dict[tuple[tuple[Site, ...], ...], int] = field(default_factory=dict)
    _numbers: dict[LaidNode, int] = field(default_factory=dict)
    _calls: dict[Chain, tuple[PathCall, ...]] = field(default_factory=dict)
    _times: dict[Chain, float] = field(default_factory=dict)
    _alike: dict[Hashable, float] = field(default_factory=dict)
    _least: dict[Node, float] = field(default_factory=dict)
    _more: dict[Chain, float] = field(default_factory=dict)
    _placed: dict[tuple[Node, tuple[Laid, ...]], tuple[Laid, LaidNode | None]] = field(
        default_factory=dict
    )
    _tallies: dict[Cluster, Tally] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.egraph = self.found.egraph
        self.layouts = Lying(self.found, ScheduledGraph.of(self.given))
        self.found = self.layouts.steadied(self.found)
        self.seen = {name for occasion in self.occasions for name in occasion.reused}
        self.seen |= read_twice(self.egraph)
        self._narrow({name: self.found.options[name] for name in self.found.order})

    def _narrow(self, options: Options) -> None:
        """Nothing but these options is left, readers first."""
        self.options = options
        self.possible = self.layouts.among(options)
        self._needs = needs(self.egraph, options)
        self.readers: dict[Node, list[tuple[Node, Node]]] = {}
        for name in self.possible:
            for node in options[name]:
                for parent in dict.fromkeys(self.egraph.inputs(node)):
                    self.readers.setdefault(parent, []).append((name, node))
        self.heads: dict[Node, Set[str]] = {}
        for name in self.possible:  # each after what it may read
            self.heads[name] = {op for node in options[name] for op in self._heads_of(node)}

    def _heads_of(self, node: Node) -> Iterator[str]:
        """The ops of calls that an e-node may be the last part of."""
        if has_posts(node.op):
            yield node.op
        for parent in self.egraph.inputs(node):
            yield from (op for op in self.heads.get(parent, ()) if self.follows(op, node, parent))

    def follows(self, op: str, node: Node, parent: Node) -> bool:
        """Whether an e-node may be part of a call of some op that gives one of its inputs."""
        if not does_besides(op, node.op) or parent in self.seen:
            return False
        others = list(self.egraph.inputs(node))
        others.remove(parent)
        is_read_again = parent in others or any(self._needs(other, parent) for other in others)
        return not is_read_again and not any(fact is not None for fact in node.call.facts)

    # --- what is chosen together ------------------------------------------------------------------

    @property
    def count(self) -> int:
        """E-nodes that something can be computed from."""
        return sum(map(len, self.found.options.values()))

    def least(self, node: Node) -> float:
        """What an e-node takes where everything around it suits it best."""
        if node not in self._least:
            self._least[node] = self._found_least(node)
        return self._least[node]

    def _found_least(self, node: Node) -> float:
        if node.is_leaf or self.egraph.is_fixed(node):
            return 0.0
        chains = islice(self._chains(node), MOST)
        found = [self.time_ns(chain) for chain in chains]
        for parent in self.egraph.inputs(node):
            if self.may_follow(node, parent):
                found.append(self._least_besides(node, parent))
        return min(found, default=0.0)

    def _least_besides(self, node: Node, parent: Node) -> float:
        """What an e-node takes at least as part of a call that gives one of its inputs."""
        found = []
        for head in self.options.get(parent, ()):
            if self.follows(head.op, node, parent):
                pairs = product(self._everywhere(head), self._everywhere(node))
                found += [self.time_ns(pair) - self.time_ns(pair[:1]) for pair in pairs]
            elif any(self.may_follow(head, n) for n in self.egraph.inputs(head)):
                return 0.0  # the call would do more than these two
        return max(min(found, default=0.0), 0.0)

    def may_follow(self, node: Node, parent: Node) -> bool:
        """Whether an e-node may be part of some call that gives one of its inputs."""
        return any(self.follows(op, node, parent) for op in self.heads.get(parent, ()))

    def _chains(self, node: Node) -> Iterator[Chain]:
        """All that an e-node may be the first part of."""
        pending: list[Chain] = [(laid,) for laid in self._everywhere(node)]
        for chain in pending:
            yield chain
            last = chain[-1].node
            name = self.egraph.find(last)
            if not has_posts(node.op):
                continue
            for _, reader in self.readers.get(name, ()):
                if self.follows(node.op, reader, name):
                    pending += [(*chain, laid) for laid in self._everywhere(reader)]

    def _everywhere(self, node: Node) -> Iterator[LaidNode]:
        """An e-node by all ways in which its operands may lie; none where it shows one of them."""
        for ins in combinations([self.lies(n) for n in self.egraph.inputs(node)]):
            found = self.placed(node, ins)[1]
            if found is not None:
                yield found

    def lies(self, name: Node) -> tuple[Laid, ...]:
        """Every way in which a class may lie."""
        if name in self.found.fixed:
            return (self.layouts.resting(name),)
        return self.possible[name]

    def links(self, options: Options, always: Set[Node]) -> Iterator[tuple[Node, Node]]:
        """Pairs of classes of which one costs what it does for how the other is computed.

        Args:
            options: that are left.
            always: the classes that every way computes.
        """
        self._narrow(options)
        for parent, readers in self.readers.items():
            if parent not in self.possible:
                continue
            names = dict.fromkeys(name for name, _ in readers)
            if len(self.possible[parent]) > 1 or self._may_be_folded(parent, always):
                yield from ((name, parent) for name in names)

    def _may_be_folded(self, parent: Node, always: Set[Node]) -> bool:
        """Whether what some call gives may be read by one other call alone, as part of it."""
        readers = self.readers[parent]
        forced = [name for name, _ in readers if name in always and len(self.options[name]) == 1]
        return len(forced) < 2 and any(self.may_follow(node, parent) for _, node in readers)

    def kind(self, node: Node) -> Hashable:
        """What of an e-node's surroundings its cost depends on."""
        return tuple((self.lies(n), n in self.seen) for n in self.egraph.inputs(node))

    def more(self, cluster: Cluster, way: Way) -> float:
        """What the first choices of a cluster are known to take more than each alone."""
        self.looking()
        return self._tally(cluster).more(way)

    def more_ns(self, chain: Chain) -> float:
        """What a call takes more than its parts alone, at best."""
        if chain not in self._more:
            least = sum(self.least(one.node) for one in chain)
            self._more[chain] = self.time_ns(chain) - least
        return self._more[chain]

    def is_steady(self, node: Node) -> bool:
        """Whether an e-node takes the same whatever is chosen around it."""
        if node.is_leaf:
            return True
        name, inputs = self.egraph.find(node), self.egraph.inputs(node)
        return (
            all(len(self.lies(n)) == 1 for n in inputs)
            and not any(self.may_follow(node, n) for n in inputs)
            and not (
                has_posts(node.op)
                and any(self.follows(node.op, n, name) for _, n in self.readers.get(name, ()))
            )
        )

    def placed(self, node: Node, ins: tuple[Laid, ...]) -> tuple[Laid, LaidNode | None]:
        """How an e-node lies whose operands lie so; and it, where something runs for it."""
        found = self._placed.get((node, ins))
        if found is None:
            laid = self.layouts.of(self.egraph.find(node), node, ins)
            runs = not node.is_leaf and as_view(node, ins) is None
            one = LaidNode(node, self.layouts.call(node, ins), laid, ins) if runs else None
            found = self._placed[node, ins] = laid, one
        return found

    def _tally(self, cluster: Cluster) -> Tally:
        if cluster not in self._tallies:
            self._tallies[cluster] = Tally(self, cluster)
        return self._tallies[cluster]

    def chains(self, cluster: Cluster, way: Way) -> list[Chain]:
        """The calls that a way of a cluster makes."""
        return self._tally(cluster).chains(way)

    def alone(self, node: Node) -> Chain:
        """An e-node that lies in one way whatever is chosen; () where nothing runs for it."""
        if node.is_leaf or self.egraph.is_fixed(node):
            return ()
        return tuple(islice(self._everywhere(node), 1))

    # --- what calls take --------------------------------------------------------------------------

    def time_ns(self, chain: Chain) -> float:
        """What runs take for it, in the mean: as long as for the same in another layer."""
        if chain not in self._times:
            linked = (
                (self._number(after), *self._own(one, after)) for one, after in pairwise(chain)
            )
            alike = self._number(chain[0]), *linked
            if alike not in self._alike:
                calls = self.calls(chain)
                self._alike[alike] = sum(call.weight * call.kernels[0][1].time_ns for call in calls)
            self._times[chain] = self._alike[alike]
        return self._times[chain]

    def _number(self, one: LaidNode) -> int:
        """One for all e-nodes that runs compute at equal sites."""
        if one not in self._numbers:
            sites = tuple(tuple(self._sites_of(one, occasion)) for occasion in self.occasions)
            self._numbers[one] = self._by_sites.setdefault(sites, len(self._by_sites))
        return self._numbers[one]

    def _own(self, one: LaidNode, after: LaidNode) -> list[bool]:
        """Which operands of a part are what the one before it gives."""
        name = self.egraph.find(one.node)
        return [n is name for n in self.egraph.inputs(after.node)]

    def calls(self, chain: Chain) -> tuple[PathCall, ...]:
        """The calls that runs make for it."""
        if chain not in self._calls:
            self._calls[chain] = tuple(self._made(chain))
        return self._calls[chain]

    def _made(self, chain: Chain) -> Iterator[PathCall]:
        everything = sum(one.weight for one in self.occasions)
        weights: dict[tuple[Node, str], float] = {}
        kernels: dict[str, Ranked] = {}
        for occasion in self.occasions:
            for node, text, ranked in self._called(chain, occasion):
                weights[node, text] = weights.get((node, text), 0.0) + occasion.weight / everything
                kernels[text] = ranked
        for (node, text), weight in weights.items():
            yield PathCall(node, without_layout(text), text, weight, kernels[text])

    def _called(self, chain: Chain, occasion: Occasion) -> Iterator[tuple[Node, str, Ranked]]:
        """What a run calls: as many parts at once as some kernel does, the others one by one."""
        first = 1
        for stop in range(len(chain), 1, -1):
            joined = self._as_one(chain[:stop], occasion)
            if joined is not None:
                yield from ((chain[0].node, *one) for one in joined)
                first = stop
                break
        else:
            yield from ((chain[0].node, *one) for one in self._one_by_one(chain[0], occasion))
        for one in chain[first:]:
            yield from ((one.node, *each) for each in self._one_by_one(one, occasion))

    def _one_by_one(self, one: LaidNode, occasion: Occasion) -> Called:
        """What is called where an e-node is computed alone: many chains have it."""
        key = one, occasion
        if key not in self._single:
            self._single[key] = [self._alone(site) for site in self._sites_of(one, occasion)]
        return self._single[key]

    def _as_one(self, chain: Chain, occasion: Occasion) -> Called | None:
        """Several parts as one call a box; None where no kernel does that, or none as quickly."""
        key = chain, occasion
        if key not in self._joined:
            self._joined[key] = self._found_as_one(chain, occasion)
        return self._joined[key]

    def _found_as_one(self, chain: Chain, occasion: Occasion) -> Called | None:
        links = [self._link(one, after, occasion) for one, after in pairwise(chain)]
        if any(link is None for link in links):
            return None
        found = []
        ends = zip(
            self._sites_of(chain[0], occasion), self._sites_of(chain[-1], occasion), strict=True
        )
        posts = zip(*(link for link in links if link is not None), strict=True)
        for (first, last), besides in zip(ends, posts, strict=True):
            one = self._ranked(replace(first, out=last.out, posts=besides))
            if one is None:
                return None
            found.append(one)
        return found

    def _link(self, one: LaidNode, after: LaidNode, occasion: Occasion) -> list[Site] | None:
        """What is done besides, for every box, where a call does the second part with the first;
        None where they do not compute the same boxes.
        """
        key = one, after, occasion
        if key not in self._links:
            self._links[key] = self._new_link(one, after, occasion)
        return self._links[key]

    def _new_link(self, one: LaidNode, after: LaidNode, occasion: Occasion) -> list[Site] | None:
        own = self._own(one, after)
        befores, afters = self._sites_of(one, occasion), self._sites_of(after, occasion)
        if len(befores) != len(afters):
            return None
        for before, site in zip(befores, afters, strict=True):
            have = site.in_boxes[own.index(True)]
            if have is None or not same_box(have, before.out_box):
                return None
            if not same_box(site.out_box, before.out_box):
                return None
        return [post(site, own) for site in afters]

    def _alone(self, site: Site) -> tuple[str, Ranked]:
        found = self._ranked(site)
        if found is not None:
            return found
        text = self.costs.signature(site).text
        return text, ((UNKNOWN, self.costs.estimate(site.call, site.out_box)),)

    def _sites_of(self, one: LaidNode, occasion: Occasion) -> list[Site]:
        """Where the boxes of an e-node are computed, and read what."""
        key = one, occasion
        if key not in self._sites:
            self._sites[key] = self._new_sites(one, occasion)
        return self._sites[key]

    def _new_sites(self, one: LaidNode, occasion: Occasion) -> list[Site]:
        name = self.egraph.find(one.node)
        region = occasion.computed.get(name)
        if region is None:
            return []
        rules, call = self.costs.rules, one.call
        region = worked_on(rules, call, region, occasion.left.get(name, EMPTY))
        return [self._site(one, numbers(box)) for box in rules.parts(call, region)]

    def _site(self, one: LaidNode, box: Box) -> Site:
        rules, call, device = self.costs.rules, one.call, self.costs.device
        reads = rules.reads(call, box)
        ins = tuple(
            None if read is None else _view(i, call.inputs[i].dtype, read, laid)
            for i, (read, laid) in enumerate(zip(reads, one.ins, strict=True))
        )
        resting = (i for i, n in enumerate(one.node.inputs) if self.egraph.is_fixed(n))
        frozen = frozenset[int]()
        if call not in rules.unpacked:
            frozen = frozenset(i for i in resting if ins[i] is not None)
        out = _view(OUT, call.out.dtype, box, one.out)
        return Site(call, box, tuple(reads), out, ins, device, frozen)

    def _ranked(self, site: Site) -> tuple[str, Ranked] | None:
        """The kernels that may be chosen at a site; None for none."""
        if site not in self._known:
            self._known[site] = self._kernels(site)
        return self._known[site]

    def _kernels(self, site: Site) -> tuple[str, Ranked] | None:
        try:
            kernels = self.costs.by_time(site)
        except KernelError:
            return None
        pairs = [(kernel, self.costs.of_site(site, kernel)) for kernel in kernels]
        found = tuple(
            (kernel, estimate)
            for kernel, estimate in pairs
            if estimate.time_ns <= self.within * pairs[0][1].time_ns
            and estimate.time_ns < SENTINEL_NS
        )
        if not found:
            return None
        return self.costs.signature(site).text, found


class Tally:
    """What the choices of one cluster take, as far as they are made."""

    def __init__(self, pricing: Pricing, cluster: Cluster) -> None:
        self.pricing, self.cluster = pricing, cluster
        nodes = [node for name in cluster.classes for node in cluster.options[name]]
        self.inputs = {node: pricing.egraph.inputs(node) for node in nodes}
        self.steady = {node: pricing.alone(node) for node in nodes if pricing.is_steady(node)}
        self.readers = {name: self._readers_of(name) for name in cluster.classes}
        self.given = {
            name
            for name in cluster.classes
            if any(pricing.may_follow(node, name) for _, node in pricing.readers.get(name, ()))
        }
        self.places = [i for i, name in enumerate(cluster.classes) if self._matters(name)]
        self._known: dict[Way, float] = {}

    def _matters(self, name: Node) -> bool:
        """Whether anything takes what it does for how a class is computed."""
        options = self.cluster.options[name]
        return len(self.pricing.lies(name)) > 1 or any(
            node not in self.steady or self.given.intersection(self.inputs[node])
            for node in options
        )

    def _readers_of(self, name: Node) -> tuple[tuple[Node, Node], ...] | None:
        """The classes and e-nodes that may read one; None where not all are chosen with it."""
        found = tuple(dict.fromkeys(self.pricing.readers.get(name, ())))
        return found if all(reader in self.cluster.number for reader, _ in found) else None

    def more(self, way: Way) -> float:
        """What choices are known to take more than each alone."""
        key = tuple([way[i] for i in self.places if i < len(way)])
        if key not in self._known:
            self._known[key] = sum(map(self.pricing.more_ns, self._loose(way)))
        return self._known[key]

    def chains(self, way: Way) -> list[Chain]:
        """What may be one call each."""
        options, pairs = self.cluster.options, zip(self.cluster.classes, way, strict=True)
        chosen = (options[name][i] for name, i in pairs if i >= 0)
        found = [self.steady[node] for node in chosen if node in self.steady]
        return [chain for chain in (*found, *self._loose(way)) if chain]

    def _loose(self, way: Way) -> Iterator[Chain]:
        """The same of what does not take the same in every way, if everything is decided for it."""
        options, pairs = self.cluster.options, zip(self.cluster.classes, way, strict=False)
        decided = _Decided(self, {name: options[name][i] for name, i in pairs if i >= 0}, len(way))
        parts = set[Node]()
        for name, node in reversed(decided.chosen.items()):  # each after what it reads
            if name in parts or node in self.steady:
                continue
            names = decided.one_call(name)
            parts.update(names)
            known = tuple(one for one in map(decided.laid_node, names) if one is not None)
            if known and len(known) == len(names):
                yield known


class _Decided:
    """The first choices of a cluster, and how what they compute lies."""

    def __init__(self, tally: Tally, chosen: dict[Node, Node], count: int) -> None:
        self.pricing, self.number = tally.pricing, tally.cluster.number
        self.inputs, self.readers = tally.inputs, tally.readers
        self.chosen, self.count = chosen, count
        self._lies: dict[Node, Laid | None] = {}

    def is_open(self, name: Node) -> bool:
        """Whether it is not decided yet how a class is computed."""
        return self.number.get(name, -1) >= self.count

    def one_call(self, name: Node) -> list[Node]:
        """A class and those that are computed by the same call; none before that is known."""
        node, pricing = self.chosen[name], self.pricing
        if any(self.is_open(n) and pricing.may_follow(node, n) for n in self.inputs[node]):
            return []
        found = [name]
        while has_posts(node.op):
            reader = self._only_reader(found[-1])
            if reader is None or not self._is_given_by(reader, found[-1], node.op):
                break
            found.append(reader)
        return found

    def _only_reader(self, name: Node) -> Node | None:
        """The class that alone reads one; None where there are several, or it is not known."""
        found = [r for r, node in self.readers[name] or () if self.chosen.get(r) is node]
        return found[0] if len(found) == 1 else None

    def _is_given_by(self, reader: Node, name: Node, op: str) -> bool:
        """Whether a class is part of the call that gives one of its inputs.

        Of several that might, it is the first: an operand is computed after those behind it.
        """
        node = self.chosen[reader]
        inputs = self.inputs[node]
        before = [parent for parent in inputs[: inputs.index(name)] if parent in self.chosen]
        return self.pricing.follows(op, node, name) and not any(
            has_posts(self.chosen[parent].op)
            and self._only_reader(parent) is reader
            and self.pricing.follows(self.chosen[parent].op, node, parent)
            for parent in before
        )

    def laid_node(self, name: Node) -> LaidNode | None:
        """How a class is computed; None where that is not known, or nothing runs for it."""
        node = self.chosen[name]
        ins = self._operands(node)
        return None if ins is None else self.pricing.placed(node, ins)[1]

    def _operands(self, node: Node) -> tuple[Laid, ...] | None:
        found = []
        for name in self.inputs[node]:
            laid = self.lies(name)
            if laid is None:
                return None
            found.append(laid)
        return tuple(found)

    def lies(self, name: Node) -> Laid | None:
        """How a class lies; None where that depends on what is not decided."""
        if name not in self._lies:
            self._lies[name] = self._found(name)
        return self._lies[name]

    def _found(self, name: Node) -> Laid | None:
        possible = self.pricing.lies(name)
        if len(possible) == 1:
            return possible[0]
        node = self.chosen.get(name)
        ins = None if node is None else self._operands(node)
        return None if node is None or ins is None else self.pricing.placed(node, ins)[0]


def _unbound(site: Site, scratch: tuple[View, ...]) -> NoReturn:
    raise KernelError(f"no kernel takes {site.call.op.name} where operands lie as they would")


# Stands for what the lowering finds at a site that no kernel takes as its operands lie.
UNKNOWN = Kernel("unknown", "unknown", lambda site: False, lambda site: 0.0, _unbound)


def _view(buffer: Hashable, dtype: str, box: Box, laid: Laid) -> View:
    return View(buffer, dtype, box.extents, laid.strides, 0)


@cache
def has_posts(op: str) -> bool:
    """Whether a call of an op may do something to each number of its result."""
    return any(kernel.posts for kernel in KERNELS.get(op, ()))
