"""Orders of execution: against every order there is, a slow count of live bytes, and sessions."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.test_session import share_of_examples
from session_cases import CheckedSession
from strategies import Maker, Memory, changes, edited, graphs

from benchmarks import schedule as bench
from tgbench import ops
from tgbench.base.regions import Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import OPS
from tgbench.graph.reference import evaluate
from tgbench.memory.placement import donors
from tgbench.memory.schedule import Order, lowest_peak
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.propagate import Propagator, Storage
from tgbench.runs.rules import Rules

Case = tuple[Graph, Maker]
Sizes = dict[Node, int]


# --- the slow count -------------------------------------------------------------------------------


class Counter:
    """Counts live bytes step by step from the graph alone: names, inputs and ops."""

    def __init__(
        self, graph: Graph, sizes: Sizes, scratch: Sizes | None = None, also: Sizes | None = None
    ) -> None:
        self.present = {node for some in (sizes, also or {}) for node in some if some[node]}
        self.graph, self.sizes, self.scratch = graph, sizes, scratch or {}
        self.base = ScheduledGraph.of(graph).base
        self.ends = {self.bytes_of(n) for n in [*graph.outputs.values(), *graph.updates.values()]}

    def bytes_of(self, node: Node) -> Node:
        """The node with the bytes that a view shows."""
        return self.base[node]

    def is_view(self, node: Node) -> bool:
        return self.bytes_of(node) is not node

    def peak(self, schedule: Sequence[Node]) -> int:
        """Chains in place share the largest of their sizes from first to last."""
        order = [node for node in schedule if not self.is_view(node)]
        reads = {n: [self.bytes_of(p) for p in n.inputs] for n in order}
        last: dict[Node, int] = {}
        for i, node in enumerate(order):
            last[node] = i
            for parent in reads[node]:
                if parent in order:
                    last[parent] = i
        for node in self.ends & set(order):
            last[node] = len(order)
        chains: list[list[Node]] = []
        for i, node in enumerate(order):
            chain = self._chain(node, i, chains, reads, last)
            if chain is None:
                chains.append([node])
            else:
                chain.append(node)
        live = [self.scratch.get(node, 0) for node in order] + [0]
        first = {node: i for i, node in enumerate(order)}
        for chain in chains:
            size = max(self.sizes.get(member, 0) for member in chain)
            for i in range(first[chain[0]], last[chain[-1]] + 1):
                live[i] += size
        return max(live)

    def _chain(
        self,
        node: Node,
        at: int,
        chains: list[list[Node]],
        reads: Mapping[Node, list[Node]],
        last: Mapping[Node, int],
    ) -> list[Node] | None:
        if node not in self.present:
            return None
        for operand in (node.inputs[i] for i in OPS[node.op].inplace):
            dies = last.get(operand) == at and operand not in self.ends
            alone = reads[node].count(operand) == 1 and operand.type == node.type
            if dies and alone and operand in self.present:
                return next(chain for chain in chains if chain[-1] is operand)
        return None


def every_order(counter: Counter, nodes: Sequence[Node]) -> Iterator[list[Node]]:
    """All topological orders."""
    needs = {n: {counter.bytes_of(p) for p in n.inputs} & set(nodes) for n in nodes}

    def extended(done: list[Node]) -> Iterator[list[Node]]:
        if len(done) == len(nodes):
            yield done
        for node in nodes:
            if node not in done and needs[node] <= set(done):
                yield from extended([*done, node])

    return extended([])


def check(graph: Graph, found: Order, sizes: Sizes, scratch: Sizes | None = None) -> None:
    """A topological permutation; the peaks are what the slow count says; not worse than given."""
    schedule = ScheduledGraph.of(graph).schedule
    counter = Counter(graph, sizes, scratch)
    assert sorted(found.schedule, key=lambda n: n.index) == list(schedule)
    seen: set[Node] = set()
    for node in found.schedule:
        assert all(p in seen or p not in schedule for p in node.inputs), node
        seen.add(node)
    assert found.given_bytes == counter.peak(schedule)
    assert found.peak_bytes == counter.peak(found.schedule)
    assert found.bound_bytes <= found.peak_bytes <= found.given_bytes
    if found.peak_bytes == found.given_bytes:
        assert found.schedule == schedule, "no gain, no change"
    if found.stop == "optimal":
        assert found.bound_bytes == found.peak_bytes


# --- random graphs --------------------------------------------------------------------------------


def drawn(seed: int, count: int, width: int = 1000, fan: int = 3) -> tuple[Graph, Sizes]:
    """Sums, in-place sums, views and several outputs; sizes that have nothing to do with shapes."""
    rng = random.Random(seed)
    g = GraphBuilder()
    made: list[Node] = [g.input("x", (4,))]
    for i in range(count):
        parents = [rng.choice(made[-width:]) for _ in range(rng.randint(1, fan))]
        kind = rng.randrange(4)
        if kind == 0:
            made.append(ops.concat([*parents, g.input(f"in{i}", (1,))], 0)[:4])
        elif kind == 1 and not parents[0].is_leaf:
            made.append(parents[0][::-1])
        elif kind == 2:
            made.append(parents[0] + parents[-1] * 1.0 if len(parents) > 1 else -parents[0])
        else:
            made.append(ops.relu(parents[0]) if len(parents) == 1 else parents[0] + parents[1])
    read = {p for node in g.nodes for p in node.inputs}
    ends = [node for node in made if node not in read and not node.is_leaf]
    while len(ends) > 2:
        one = ends.pop(rng.randrange(len(ends)))
        other = ends.pop(rng.randrange(len(ends)))
        ends.append(ops.maximum(one, other))
    for i, node in enumerate(ends):
        g.output(f"y{i}", node)
    if not ends:
        g.output("y", made[0] + 1.0)
    graph = g.build()
    return graph, random_sizes(graph, rng)


def random_sizes(graph: Graph, rng: random.Random, zero: float = 0.1) -> Sizes:
    """Equal along pairs that may be in place, random otherwise, sometimes nothing."""
    scheduled = ScheduledGraph.of(graph)
    sizes: Sizes = {}
    for node in scheduled.stored:
        sizes[node] = 0 if rng.random() < zero else rng.choice([1, 2, 3, 5, 8, 20])
    return sizes


def levelled(graph: Graph, sizes: Sizes) -> Sizes:
    """Results that may be in place, as large as what they may take over."""
    result = dict(sizes)
    for node in ScheduledGraph.of(graph).stored:
        for i in OPS[node.op].inplace:
            operand = node.inputs[i]
            if operand in result and operand.type == node.type and result[node]:
                result[node] = result[operand] or result[node]
    return result


def are_level(graph: Graph, sizes: Sizes) -> bool:
    """Whether pairs in place have equal sizes: then the search proves what it finds."""
    pairs = [(n, n.inputs[i]) for n in sizes for i in OPS[n.op].inplace if sizes[n]]
    return all(sizes[n] == sizes[p] for n, p in pairs if sizes.get(p) and n.type == p.type)


def least(graph: Graph, maps: Sequence[Sizes], scratch: Sizes, most: int = 2000) -> int | None:
    """The lowest peak of all orders, or None where there are very many of them."""
    counters = [
        Counter(graph, sizes, scratch, also) for sizes, also in zip(maps, maps[::-1], strict=True)
    ]
    orders = list(islice(every_order(counters[0], ScheduledGraph.of(graph).stored), most + 1))
    if len(orders) > most:
        return None
    return min(max(counter.peak(order) for counter in counters) for order in orders)


@pytest.mark.parametrize("seed", range(90))
def test_no_order_is_better(seed: int) -> None:
    graph, sizes = drawn(seed, 3 + seed % 5)
    rng = random.Random(seed)
    if seed % 3:
        sizes = levelled(graph, sizes)
    scratch = {node: rng.choice([0, 0, 4]) for node in sizes} if seed % 2 else {}
    found = lowest_peak(graph, sizes, scratch=scratch)
    check(graph, found, sizes, scratch)
    right = least(graph, [sizes], scratch)
    if right is not None:
        assert found.bound_bytes <= right <= found.peak_bytes
        assert found.stop != "optimal" or found.peak_bytes == right
        assert found.stop == "optimal" or not are_level(graph, sizes)


@pytest.mark.parametrize("seed", range(30))
def test_no_order_is_better_for_the_worst_of_several_classes(seed: int) -> None:
    graph, sizes = drawn(seed, 3 + seed % 5)
    sizes = levelled(graph, sizes)
    other = levelled(graph, random_sizes(graph, random.Random(seed + 1), zero=0.4))
    other = {node: size if sizes[node] else 0 for node, size in other.items()}
    found = lowest_peak(graph, sizes, also=[other])
    counters = [Counter(graph, sizes, {}, other), Counter(graph, other, {}, sizes)]
    assert found.peak_bytes == max(counter.peak(found.schedule) for counter in counters)
    right = least(graph, [sizes, other], {})
    if right is not None:
        assert found.bound_bytes <= right <= found.peak_bytes
        assert found.stop != "optimal" or found.peak_bytes == right


def test_a_class_that_is_smaller_everywhere_changes_nothing() -> None:
    graph, sizes = drawn(3, 30)
    smaller = {node: size // 2 for node, size in sizes.items()}
    alone = lowest_peak(graph, sizes)
    both = lowest_peak(graph, sizes, also=[smaller])
    assert alone.peak_bytes == both.peak_bytes
    assert alone.schedule == both.schedule


@given(graphs(most_ops=14), st.integers(0, 100), st.integers(0, 2000))
def test_every_graph_gets_an_order(case: Case, seed: int, steps: int) -> None:
    graph, _ = case
    sizes = random_sizes(graph, random.Random(seed))
    check(graph, lowest_peak(graph, sizes, max_steps=steps, seed=seed), sizes)


@pytest.mark.parametrize("steps", [0, 1, 100, 3_000, 60_000])
def test_a_limit_is_kept_and_what_is_found_is_an_order(steps: int) -> None:
    graph, sizes = drawn(5, 120)
    found = lowest_peak(graph, sizes, max_steps=steps)
    check(graph, found, sizes)
    assert found.stop == "steps"
    assert found.steps <= steps + 2_000, "a limit may be passed by what was begun"


def test_no_time_is_no_search() -> None:
    graph, sizes = drawn(5, 120)
    found = lowest_peak(graph, sizes, seconds=0)
    check(graph, found, sizes)
    assert (found.stop, found.steps) == ("time", 0)


@pytest.mark.parametrize(("count", "width", "fan"), [(60, 1000, 3), (150, 12, 2), (200, 40, 4)])
def test_larger_graphs_are_counted_right(count: int, width: int, fan: int) -> None:
    graph, sizes = drawn(count, count, width, fan)
    found = lowest_peak(graph, sizes, max_steps=50_000)
    check(graph, found, sizes)
    assert found.peak_bytes < found.given_bytes


def test_the_same_arguments_give_the_same_order() -> None:
    graph, sizes = drawn(8, 80)
    one, again = (lowest_peak(graph, sizes, max_steps=60_000, seed=4) for _ in range(2))
    assert one == again


def test_more_steps_are_not_worse() -> None:
    graph, sizes = drawn(11, 60)
    peaks = [lowest_peak(graph, sizes, max_steps=n).peak_bytes for n in (1_000, 10_000, 100_000)]
    assert peaks[-1] <= peaks[0]


# --- graphs with a known answer -------------------------------------------------------------------


def column(g: GraphBuilder, x: Node, index: int, size: int) -> Node:
    """A new value of `size` float32 from a vector, which no kernel makes in place."""
    return ops.concat([x, g.constant(np.full(size - x.shape[0], index, "float32"))], 0)


def bytes_of(graph: Graph) -> Sizes:
    return {node: node.type.size_bytes for node in ScheduledGraph.of(graph).stored}


def branches(count: int) -> Graph:
    """Wide values that are summed up: made first, all of them live together."""
    g = GraphBuilder()
    x = g.input("x", (1,))
    wide = [column(g, x, i, 256) for i in range(count)]
    narrow = [ops.sum_(value, 0, keepdims=True) for value in wide]
    g.output("y", ops.concat(narrow, 0))
    return g.build()


def test_branches_are_finished_one_at_a_time() -> None:
    graph = branches(6)
    found = lowest_peak(graph, bytes_of(graph))
    assert found.given_bytes == 6 * 1024 + 4
    assert found.peak_bytes == 1024 + 6 * 4
    assert found.stop == "optimal"


def test_the_branch_with_the_highest_hill_goes_first() -> None:
    """Inception-like: what a branch leaves behind is paid for by those after it."""
    g = GraphBuilder()
    x = g.input("x", (1,))
    ends = []
    for i, (hill, valley) in enumerate([(16, 8), (64, 8), (512, 8), (256, 128)]):
        wide = column(g, x, i, hill)
        ends.append(ops.max_(wide.reshape(hill // valley, valley), 0))
    g.output("y", ops.sum_(ops.concat(ends, 0), 0))
    graph = g.build()
    found = lowest_peak(graph, bytes_of(graph))
    order = [node.shape[0] for node in found.schedule if node.op == "concat"]
    assert order[0] == 512
    assert (found.given_bytes, found.peak_bytes) == (2048 + 3 * 32, 2048 + 32)
    assert found.stop == "optimal"
    assert found.peak_bytes == least(graph, [bytes_of(graph)], {}, 20_000)


def u_net(depth: int) -> Graph:
    """Down and up with skips; a wide side output of each level, summed at the end."""
    g = GraphBuilder()
    value, skips, sides = column(g, g.input("x", (1,)), 0, 512), [], []
    for level in range(depth):
        sides.append(column(g, value, 100 + level, 1024))
        skips.append(value)
        half = value.shape[0] // 2
        value = ops.max_(value.reshape(half, 2), 1)
    totals = [ops.sum_(side, 0, keepdims=True) for side in sides]
    for skip in reversed(skips):
        value = ops.concat([value, value], 0) * skip
    g.output("y", value)
    g.output("z", ops.concat(totals, 0))
    return g.build()


def test_a_u_net_computes_its_sides_where_they_are_read() -> None:
    graph = u_net(4)
    found = lowest_peak(graph, bytes_of(graph))
    check(graph, found, bytes_of(graph))
    assert found.given_bytes == 4 * 4096 + 4 * (512 + 256 + 128 + 64 + 32) + 4
    assert found.peak_bytes < 4096 + 2 * 2048 + 1024
    assert found.stop == "optimal"


def test_a_chain_is_left_as_it_is() -> None:
    g = GraphBuilder()
    x = g.input("x", (8, 8))
    for i in range(50):
        x = ops.relu(x @ g.parameter(f"w{i}", (8, 8))) + x
    g.output("y", x)
    graph = g.build()
    found = lowest_peak(graph, bytes_of(graph))
    assert found.schedule == ScheduledGraph.of(graph).schedule
    assert (found.stop, found.steps) == ("optimal", 0)


def test_views_stand_before_their_readers() -> None:
    g = GraphBuilder()
    x = g.input("x", (4, 8))
    a, b = ops.exp(x), ops.concat([x, x], 1)
    seen = a.permute(1, 0).reshape(4, 8)
    early, late = ops.sum_(b, (0, 1)), ops.sum_(seen.permute(1, 0), (0, 1))
    g.output("shown", a.permute(1, 0))
    g.output("y", early + late)
    graph = g.build()
    sizes = bytes_of(graph)
    check(graph, lowest_peak(graph, sizes), sizes)


def test_sizes_that_make_no_sense_are_refused() -> None:
    graph = branches(2)
    node = ScheduledGraph.of(graph).stored[0]
    with pytest.raises(ValueError, match=f"{node.name} has size -1 B"):
        lowest_peak(graph, {node: -1})
    with pytest.raises(ValueError, match="x is given 4 B, but it is a leaf"):
        lowest_peak(graph, {graph.inputs["x"]: 4})


# --- in force -------------------------------------------------------------------------------------


def reordered(graph: Graph, seed: int) -> ScheduledGraph:
    """A scheduled graph with some other topological order."""
    rng = random.Random(seed)
    left = list(ScheduledGraph.of(graph).schedule)
    order: list[Node] = []
    while left:
        ready = [n for n in left if not any(p in left for p in n.inputs)]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return ScheduledGraph.of(graph, order)


@given(graphs(most_ops=10), st.integers(0, 50))
def test_donors_are_those_of_a_placement(case: Case, seed: int) -> None:
    graph, _ = case
    sizes = bytes_of(graph)
    order = ScheduledGraph.of(graph, lowest_peak(graph, sizes, seed=seed).schedule)
    extents = {node: node.shape for node in order.stored}
    pairs = donors(order, frozenset(), extents)
    counted = dict.fromkeys(order.schedule, 0)
    for node, live in order.live.items():
        merged = next((r for r, d in pairs.items() if d is node), None)
        stop = live.stop - (merged is not None)
        for step in range(live.start, min(stop, len(order.schedule))):
            counted[order.schedule[step]] += sizes[node]
    assert max(counted.values(), default=0) == Counter(graph, sizes).peak(order.schedule)


@given(st.data())
def test_runs_in_another_order_are_right(data: st.DataObject) -> None:
    graph, make = data.draw(graphs(most_ops=9))
    scheduled = reordered(graph, data.draw(st.integers(0, 1000)))
    storage = Storage(scheduled.views, scheduled.frozen, frozenset(), {})
    propagator = Propagator(graph, storage, Rules(), scheduled.schedule)
    values, memory = make(0), Memory(graph, storage)
    demand = {node: Region.full(node.shape) for node in graph.outputs.values()}
    everything = {leaf: Region.full(leaf.shape) for leaf in graph.inputs.values()}
    memory.load(values)
    step = propagator.step({}, everything, demand)
    memory.run(step)
    change = data.draw(changes(graph))
    values = edited(values, change, make(1))
    memory.load(values)
    step = propagator.step(step.valid, {graph.inputs[n]: r for n, r in change.items()}, demand)
    memory.run(step)
    position = {node: i for i, node in enumerate(scheduled.schedule)}
    assert all(position[a] < position[b] for a, b in pairwise(step.compute))
    right = evaluate(graph, values)
    for name, node in graph.outputs.items():
        assert np.array_equal(memory.read(node), right[name])


@pytest.mark.parametrize("retain", ["auto", "all"])
@share_of_examples(4)
@given(data=st.data())
def test_sessions_run_in_the_order_that_was_found(retain: str, data: st.DataObject) -> None:
    graph, make = data.draw(graphs(most_ops=9))
    checked = CheckedSession(graph, make(0), retain=retain)
    session = checked.session
    if data.draw(st.booleans()):
        found = lowest_peak(session.graph, bytes_of(session.graph)).schedule
        session.planning.scheduled = ScheduledGraph.of(session.graph, found)
    else:
        session.planning.scheduled = reordered(session.graph, data.draw(st.integers(0, 1000)))
    checked.run()
    for seed in (1, 2):
        change = data.draw(changes(graph))
        checked.run(edited(checked.values, change, make(seed)))


def test_a_session_fits_a_smaller_budget_in_the_order_that_was_found() -> None:
    graph = branches(6)
    values: dict[str, Any] = {"x": np.ones(1, "float32")}
    tight = CheckedSession(graph, values, memory="2KiB")
    tight.run()
    given = ScheduledGraph.of(tight.session.graph).schedule
    assert tight.session.scheduled.schedule != given, "the planner looks for another order as well"
    checked = CheckedSession(graph, values, memory="2KiB")
    own = checked.session
    own.planning.scheduled = ScheduledGraph.of(
        own.graph, lowest_peak(own.graph, bytes_of(own.graph)).schedule
    )
    checked.run()


def test_the_bench_writes_what_it_found(tmp_path: Path) -> None:
    bench.main(["--quick", "--output", str(tmp_path / "schedule.json")])
    cases = json.loads((tmp_path / "schedule.json").read_text())["cases"]
    assert list(cases) == list(bench.QUICK)
    assert all(found["peak_bytes"] <= found["given_bytes"] for found in cases.values())
