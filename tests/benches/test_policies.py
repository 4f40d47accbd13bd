"""Online cache policies: replayed on garbage-filled memory, and against textbook paging."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.test_session import share_of_examples
from strategies import Maker, Memory, changes, demands, edited, graphs

from benchmarks.policies import (
    BELADY,
    BELADY_COST,
    COST_AND_SIZE,
    DTR,
    DTR_LOCAL,
    GDSF,
    LFU,
    LRU,
    POLICIES,
    Book,
    Outcome,
    Policy,
    Record,
    simulate,
)
from benchmarks.runs import Runs, enough_bytes, keep_everything_bytes, least_bytes
from tgbench.base.errors import GraphError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import OPS, Call
from tgbench.graph.reference import evaluate
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.planner import Planner
from tgbench.runs.buckets import Bucket
from tgbench.runs.propagate import rough_ns
from tgbench.runs.rules import Rules

EVERY = (*POLICIES, DTR_LOCAL)


def runs_of(graph: Graph, calls: Sequence[Bucket], cost: Any = rough_ns) -> Runs:
    return Runs(ScheduledGraph.of(graph), Rules(), calls, cost)


@st.composite
def traces(draw: Any, graph: Graph) -> tuple[Bucket, ...]:
    """A first call that changes everything, then a few that change parts."""
    names = {node: name for name, node in graph.outputs.items()}
    found = []
    for i in range(draw(st.integers(2, 6))):
        whole = {name: Region.full(node.shape) for name, node in graph.inputs.items()}
        asked = {names[node]: region for node, region in draw(demands(graph)).items()}
        found.append(Bucket.of(draw(changes(graph)) if i else whole, asked))
    return tuple(found)


# --- what is reused is right, and it fits ---------------------------------------------------------


class Replay:
    """Executes the records of a simulation on arrays in which whatever is not held is garbage."""

    def __init__(self, runs: Runs, make: Maker, capacity_bytes: int) -> None:
        self.runs, self.make, self.capacity_bytes = runs, make, capacity_bytes
        self.graph = runs.scheduled.graph
        self.memory = Memory(self.graph, runs._propagator.storage)
        self.values = {
            name: value
            for name, value in make(0).items()
            if name in self.graph.inputs or name in self.graph.parameters
        }
        self.held: dict[Node, Region] = {}
        planner = Planner(runs.scheduled, Rules(), "cpu")
        self.forward = planner.runs.propagator(runs.stored).forward

    def __call__(self, record: Record) -> None:
        bucket = self.runs.calls[record.number]
        self.values = edited(self.values, dict(bucket.changed), self.make(record.number + 1))
        self.memory.load(self.values)
        dirty = self.forward({self.graph.inputs[name]: r for name, r in bucket.changed})
        self.held = {n: r.subtract(dirty.get(n, EMPTY)) for n, r in self.held.items()}
        right = self.truth()
        for node in record.dropped if record.run else self.runs.stored:
            self.let_go(node, EMPTY)
        if record.run is None:
            return
        for use in record.run.reused:
            node = self.runs.stored[use.index]
            self.require(node, use.reused, right)
        self.follow(record, right)
        for name, region in bucket.demand:
            found = self.memory.read(self.graph.outputs[name])
            for box in region:
                assert np.array_equal(found[box.slices()], right[name][box.slices()])

    def truth(self) -> Mapping[str, Any]:
        names = [node.name for node in self.runs.stored]
        found = evaluate(self.graph, self.values, nodes=names)
        return found | evaluate(self.graph, self.values)

    def follow(self, record: Record, right: Mapping[str, Any]) -> None:
        assert record.run is not None
        computed = {self.runs.stored[use.index]: use.compute for use in record.run.uses}
        for _, moments in groupby(record.moments, key=lambda moment: moment.step):
            written: Node | None = None
            for moment in moments:
                node = moment.node
                if moment.kind == "write":
                    self.write(node, computed[node])
                    self.held[node] = moment.valid
                    written = node
                else:
                    self.let_go(node, moment.valid)
                    self.require_not_read(node, written if moment.kind == "evict" else None)
                self.require(node, moment.valid, right)
                assert self.recounted() <= moment.used_bytes
            assert moment.used_bytes <= self.capacity_bytes
        assert self.recounted() <= self.capacity_bytes

    def require_not_read(self, node: Node, result: Node | None) -> None:
        """What goes while a result is written is no operand of it, or one that it overwrites."""
        if result is None:
            return
        operands = [self.runs.scheduled.base.get(parent) for parent in result.inputs]
        if node in operands:
            at = operands.index(node)
            assert at in OPS[result.op].inplace
            assert result.inputs[at].type == result.type

    def write(self, node: Node, region: Region) -> None:
        inputs = [self.memory.read(parent) for parent in node.inputs]
        result = node.call.op.reference(node.call.attrs, *inputs)
        for box in region:
            self.memory.arrays[node][box.slices()] = result[box.slices()]

    def let_go(self, node: Node, rest: Region) -> None:
        old = self.memory.arrays[node]
        self.memory._poison(node)
        for box in rest:
            self.memory.arrays[node][box.slices()] = old[box.slices()]
        self.held[node] = rest

    def require(self, node: Node, region: Region, right: Mapping[str, Any]) -> None:
        for box in region:
            found = self.memory.arrays[node][box.slices()]
            assert np.array_equal(found, right[node.name][box.slices()]), node.name

    def recounted(self) -> int:
        """Bytes of the hulls of what is held, and of the inputs."""
        total = sum(node.type.size_bytes for node in self.graph.inputs.values())
        for node, region in self.held.items():
            if region.boxes:
                sizes = [b - a for a, b in region.hull()]
                total += int(np.prod(sizes, dtype=np.int64)) * node.type.itemsize
        return int(total)


@share_of_examples(3)
@given(st.data())
def test_replayed_on_garbage_memory_everything_is_right_and_fits(data: Any) -> None:
    graph, make = data.draw(graphs(most_ops=8))
    runs = runs_of(graph, data.draw(traces(graph)))
    low, high = least_bytes(runs), max(keep_everything_bytes(runs), enough_bytes(runs))
    capacity = data.draw(st.integers(min(low, high), high))
    policy = data.draw(st.sampled_from(EVERY))
    simulate(runs, policy, capacity, tell=Replay(runs, make, capacity))


@share_of_examples(3)
@given(st.data())
def test_what_a_trace_needs_at_least(data: Any) -> None:
    graph, _ = data.draw(graphs(most_ops=8))
    runs = runs_of(graph, data.draw(traces(graph)))
    policy = data.draw(st.sampled_from(EVERY))
    assert least_bytes(runs) <= enough_bytes(runs)
    assert simulate(runs, policy, enough_bytes(runs)).out_of_memory == 0
    if runs.decide(0, {}).uses:
        short = simulate(runs, policy, least_bytes(runs) - 1)
        assert short.out_of_memory
        assert short.mean_ns == math.inf


def retained_times(runs: Runs, keep: bool) -> list[float]:
    """Times of the calls by propagation alone, everything kept or nothing."""
    graph, scheduled = runs.scheduled.graph, runs.scheduled
    propagator = Planner(scheduled, Rules(), "cpu").runs.propagator(scheduled.stored)
    valid: Mapping[Node, Region] = {}
    times = []
    for bucket in runs.calls:
        changed = {graph.inputs[name]: region for name, region in bucket.changed}
        demand: dict[Node, Region] = defaultdict(lambda: EMPTY)
        for name, region in bucket.demand:
            demand[graph.outputs[name]] = demand[graph.outputs[name]].union(region)
        step = propagator.step(valid if keep else {}, changed, demand)
        valid = {node: region for node, region in step.valid.items() if node in runs.index}
        stored = [(n, r) for n, r in step.compute.items() if n in runs.index]
        times.append(sum(runs.cost(n.call, box) for n, r in stored for box in r))
    return times


@share_of_examples(3)
@given(st.data())
def test_without_a_limit_everything_is_kept(data: Any) -> None:
    graph, _ = data.draw(graphs(most_ops=8))
    runs = runs_of(graph, data.draw(traces(graph)))
    times: list[float] = []
    outcome = simulate(
        runs,
        data.draw(st.sampled_from(EVERY)),
        math.inf,
        tell=lambda record: times.append(record.run.time_ns if record.run else math.inf),
    )
    assert times == pytest.approx(retained_times(runs, keep=True))
    assert outcome.recomputed == 0
    assert outcome.warmup_ns + outcome.mean_ns * (len(times) - 1) == pytest.approx(sum(times))


@share_of_examples(3)
@given(st.data())
def test_from_nothing_everything_is_computed(data: Any) -> None:
    graph, _ = data.draw(graphs(most_ops=8))
    runs = runs_of(graph, data.draw(traces(graph)))
    found = [runs.decide(number, {}).time_ns for number in range(len(runs.calls))]
    assert found == pytest.approx(retained_times(runs, keep=False))


@share_of_examples(3)
@given(st.data())
def test_a_remembered_decision_is_the_one_that_would_be_made(data: Any) -> None:
    """Whether it is looked up or made depends on what was asked before; the answer does not."""
    graph, _ = data.draw(graphs(most_ops=8))
    calls = data.draw(traces(graph))
    shared = runs_of(graph, calls)
    for policy in (LRU, LFU, BELADY):
        capacity = (least_bytes(shared) + keep_everything_bytes(shared)) // 2
        mine = simulate(runs_of(graph, calls), policy, capacity)
        assert simulate(shared, policy, capacity) == mine


# --- pages: values that do not depend on each other -----------------------------------------------

WIDE = 4  # elements of a page of size 1


def paging(reference: str, sizes: Mapping[str, int], costs: Mapping[str, float]) -> Runs:
    """Every call reads one page; computing a page costs, everything else is free.

    A page of size n is [4 n, 1] float32. It is read by a product with a vector that is new at
    every call, so that nothing but pages is worth keeping.
    """
    g = GraphBuilder()
    for name in sorted(set(reference)):
        rows = WIDE * sizes.get(name, 1)
        raw = g.input(f"raw_{name}", (rows, 1))
        page = g.name(raw * float(ord(name)), f"page_{name}")  # each has a call of its own
        g.output(name, g.input(f"new_{rows}", (1, rows)) @ page)
    graph = g.build()
    price = {id(graph.node(f"page_{name}").call): costs.get(name, 1.0) for name in set(reference)}
    everything = {name: Region.full(node.shape) for name, node in graph.inputs.items()}
    news = {name: region for name, region in everything.items() if name.startswith("new")}
    calls = [
        Bucket.of(news if i else everything, {name: Region.full((1, 1))})
        for i, name in enumerate(reference)
    ]
    return runs_of(graph, calls, lambda call, box: price.get(id(call), 0.0))


def frames(runs: Runs, count: int) -> int:
    """The capacity that holds so many pages of size 1, and the result of one call."""
    return runs.kept_bytes + count * WIDE * 4 + 4


def faults(reference: str, policy: Policy, count: int) -> int:
    runs = paging(reference, {}, {})
    outcome = simulate(runs, policy, frames(runs, count), warmup=0)
    return round(outcome.mean_ns * len(reference))


TEXTBOOK = "70120304230321201701"  # Silberschatz, Galvin, Gagne: Operating System Concepts, ch. 10


@pytest.mark.parametrize(("policy", "expected"), [(LRU, 12), (BELADY, 9), (BELADY_COST, 9)])
def test_the_textbook_string_has_the_textbook_faults(policy: Policy, expected: int) -> None:
    assert faults(TEXTBOOK, policy, 3) == expected


@share_of_examples(2)
@given(st.text("abcdef", min_size=2, max_size=24), st.integers(1, 4))
def test_no_policy_beats_belady_where_pages_are_alike(reference: str, count: int) -> None:
    best = faults(reference, BELADY, count)
    assert best == optimal_faults(reference, count)
    assert all(best <= faults(reference, policy, count) for policy in EVERY)


def optimal_faults(reference: str, count: int) -> int:
    """The fewest faults over all choices of victims, by trying them all."""
    states = {frozenset[str](): 0}
    for name in reference:
        after: dict[frozenset[str], int] = {}
        for held, cost in states.items():
            if name in held:
                choices = [(held, cost)]
            elif len(held) < count:
                choices = [(held | {name}, cost + 1)]
            else:
                choices = [((held - {old}) | {name}, cost + 1) for old in held]
            for kept, total in choices:
                after[kept] = min(total, after.get(kept, total))
        states = after
    return min(states.values())


@pytest.mark.parametrize(
    ("policy", "victim"),
    [(LRU, "a"), (LFU, "c"), (GDSF, "b"), (COST_AND_SIZE, "b"), (DTR, "a"), (DTR_LOCAL, "a"),
     (BELADY, "c"), (BELADY_COST, "a")],
)  # fmt: skip
def test_each_policy_lets_another_page_go(policy: Policy, victim: str) -> None:
    """When d comes:

    page   bytes   cost   read   last read at   next read
    a        16      30   3 ×         30          call 8
    b        32      60   2 ×         90          call 7
    c        16     100   1 ×        190          call 9
    """
    runs = paging("aaabbcdbac", {"b": 2}, {"a": 30, "b": 60, "c": 100})
    assert victims(runs, policy, frames(runs, 4))[0] == victim


def victims(runs: Runs, policy: Policy, capacity_bytes: int) -> list[str]:
    """Pages in the order in which they are evicted."""
    found: list[str] = []

    def listen(record: Record) -> None:
        for moment in record.moments:
            if moment.kind == "evict" and moment.node.name.startswith("page"):
                found.append(moment.node.name.removeprefix("page_"))

    simulate(runs, policy, capacity_bytes, tell=listen)
    return found


def test_gdsf_forgets_what_was_popular_and_lfu_does_not() -> None:
    runs = paging("aaaabcbcbcdedede", {}, {})
    assert "a" in victims(runs, GDSF, frames(runs, 2))
    assert "a" not in victims(runs, LFU, frames(runs, 2))


def test_cost_and_size_counts_misses_and_gdsf_starts_again() -> None:
    """One frame: every call is a miss; when b comes the second time, a has been read 2 ×."""
    runs = paging("abab", {}, {})
    a = runs.index[runs.scheduled.graph.node("page_a")]
    seen: list[tuple[float, float]] = []

    def spy(book: Book) -> Any:
        seen.append((float(book.hits[a]), float(book.references[a])))
        return book.last_use

    simulate(runs, Policy("spy", spy), frames(runs, 1))
    assert seen[-1] == (1, 2)


def test_dtr_counts_what_is_absent_nearby() -> None:
    """x → p → q → y; p is absent, so letting q go costs p as well."""
    runs = chain()
    book = Book.empty(runs)
    book.cost_ns[:] = [1, 2, 4]
    book.bytes[:] = [0, 8, 8]
    book.find_classes()
    assert book.nearby_ns().tolist()[1:] == [1, 0]
    book.leave(1)
    assert book.nearby_ns().tolist()[2] == 3
    book.enter(0)
    assert book.nearby_ns().tolist()[2] == 2


def chain() -> Runs:
    g = GraphBuilder()
    x = g.input("x", (1, 2))
    for name in ("p", "q"):
        x = g.name(x @ g.parameter(f"w{name}", (2, 2)), name)
    g.output("y", x @ g.parameter("w", (2, 2)))
    whole = Region.full((1, 2))
    return runs_of(g.build(), [Bucket.of({"x": whole}, {"y": whole})])


@share_of_examples(3)
@given(st.data())
def test_neighbourhoods_are_the_components_of_what_is_absent(data: Any) -> None:
    graph, _ = data.draw(graphs(most_ops=10))
    runs = runs_of(graph, data.draw(traces(graph)))
    count = len(runs.stored)
    book = Book.empty(runs)
    book.cost_ns[:] = np.arange(1, count + 1)
    present = set(data.draw(st.lists(st.sampled_from(range(count)), unique=True))) if count else []
    book.bytes[list(present)] = 8
    book.find_classes()
    for i in data.draw(st.permutations(sorted(present))):
        expected = [nearby(runs, book, j) for j in present]
        assert [book.nearby_ns()[j] for j in present] == expected
        book.bytes[i] = 0
        book.leave(i)
        present = set(present) - {i}


def nearby(runs: Runs, book: Book, i: int) -> float:
    """Costs of the absent nodes that a walk over absent nodes reaches."""
    found: set[int] = set()
    border = list(runs.neighbours[i])
    while border:
        j = border.pop()
        if j not in found and not book.bytes[j]:
            found.add(j)
            border += runs.neighbours[j]
    return float(sum(book.cost_ns[j] for j in found))


# --- regions --------------------------------------------------------------------------------------


def rows(a: int, b: int, wide: int = 2) -> Region:
    return Region((Box(((a, b), (0, wide))),))


def two_products(length: int = 8) -> Graph:
    """y = (x w) v: rows do not depend on each other."""
    g = GraphBuilder()
    middle = g.name(g.input("x", (length, 2)) @ g.parameter("w", (2, 2)), "middle")
    g.output("y", g.name(middle @ g.parameter("v", (2, 2)), "y"))
    return g.build()


def append(graph: Graph, length: int) -> list[Bucket]:
    first = Bucket.of({"x": Region.full((length, 2))}, {"y": rows(0, 1)})
    return [first, *(Bucket.of({"x": rows(t, t + 1)}, {"y": rows(t, t + 1)})
                     for t in range(1, length))]  # fmt: skip


def test_the_idle_part_of_a_value_goes_alone() -> None:
    """Row t is computed; the rows before it, which nobody reads, make room for it."""
    graph = two_products()
    runs = runs_of(graph, append(graph, 8))
    found: list[Record] = []
    row = 2 * 4
    simulate(runs, LRU, runs.kept_bytes + 3 * row, tell=found.append)
    assert [record.run is not None for record in found] == [True] * 8
    trimmed = [m for record in found for m in record.moments if m.kind == "trim"]
    assert trimmed
    assert all(len(moment.valid) == 1 for moment in trimmed)


def test_reused_values_are_given_up_when_a_run_does_not_fit_with_them() -> None:
    """y reads both branches; with one kept from before, the other's wide middle does not fit."""
    g = GraphBuilder()
    a, b = g.input("a", (1, 2)), g.input("b", (1, 2))
    left = g.name(a @ g.parameter("u", (2, 8)), "left")
    wide = g.name(b @ g.parameter("v", (2, 16)), "wide")
    right = g.name(wide @ g.parameter("w", (16, 8)), "right")
    g.output("y", g.name(left - right, "y"))
    whole = {"a": Region.full((1, 2)), "b": Region.full((1, 2))}
    asked = {"y": Region.full((1, 8))}
    calls = [Bucket.of(whole, asked), Bucket.of({"b": whole["b"]}, asked)]
    graph = g.build()
    schedule = [graph.node(name) for name in ("wide", "right", "left", "y")]
    runs = Runs(ScheduledGraph.of(graph, schedule), Rules(), calls)
    assert least_bytes(runs) == runs.kept_bytes + 96
    found: list[Record] = []
    outcome = simulate(runs, LRU, least_bytes(runs), tell=found.append)
    assert [[node.name for node in record.dropped] for record in found] == [[], ["left"]]
    assert (outcome.computed, outcome.recomputed, outcome.out_of_memory) == (4, 1, 0)
    assert simulate(runs, LRU, least_bytes(runs) + 32).recomputed == 0


def test_hundred_per_cent_is_what_keeping_everything_takes() -> None:
    graph = two_products()
    runs = runs_of(graph, append(graph, 8))
    row = 2 * 4
    assert runs.kept_bytes == 8 * row
    assert keep_everything_bytes(runs) == runs.kept_bytes + 8 * row + row  # x, middle, a row of y
    assert least_bytes(runs) == enough_bytes(runs) == runs.kept_bytes + 2 * row


def test_classes_have_their_own_means() -> None:
    graph = two_products()
    calls = append(graph, 8)
    outcome: Outcome = simulate(runs_of(graph, calls, flat), LRU, math.inf)
    assert list(outcome.by_class) == [calls[1].classify(graph)[0]]
    assert list(outcome.by_class.values()) == [2.0]
    assert (outcome.mean_ns, outcome.warmup_ns, outcome.computed) == (2.0, 2.0, 14)


def flat(call: Call, box: Box) -> float:
    """Every box of every op takes a nanosecond."""
    return 1.0


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(GraphError, match="at least one call"):
        runs_of(two_products(), [])
