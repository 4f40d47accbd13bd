"""Online cache policies on a trace: what each would keep between runs, and what that costs.

    call     what changed is not valid any more; what is computed and what is reused is decided
    execute  in schedule order; a value is pinned from where it is computed (a reused one: from the
             start) to its last read, a demanded one to the end; what is not pinned is the cache

    over capacity: evict the unpinned value with the least score
    still over:    make the least-scored reused values invalid, and decide the call again
    none is left:  the call is out of memory

The simulation favours the policies: memory has no fragmentation, no alignment and no kernel
scratch; an operand that dies in an op that works in place may give its bytes to the result; and of
a value that a run touches, the part that it does not touch can be let go alone.

Sources: GDSF is Cherkasova's, HPL-98-69R1 (1998), with frequency counted since the value came in;
cost and size is the default of LIMA (Phani, Rath, Boehm, SIGMOD 2021), references times cost over
size, where references are hits and misses; DTR is h_DTR^eq of Kirisame et al. (ICLR 2021): cost of
the value and of the absent neighbourhoods around it, over size and staleness, neighbourhoods as
union-find classes that are found anew before each call. All others count the local cost alone: what
the value takes when its inputs are there. Belady (1966) looks up the next call that would read a
value if everything were kept. Left out: DTR's sampling of candidates, LIMA's spilling to disk.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.runs import Floats, Run, Runs, Use, Valid
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Node
from tgbench.runs.buckets import BucketClass

Ints: TypeAlias = NDArray[np.int64]


# --- what a policy sees ---------------------------------------------------------------------------


@dataclass
class Book:
    """What is cached, and what was seen of it: one entry per stored node.

    Fields:
        valid: the regions that are there.
        bytes: what each takes; `pinned_bytes` of it cannot be let go now.
        size_bytes, cost_ns: of the cached value when it was last used: its hull, and what
            computing its region again takes if its inputs are there.
        last_use: how many uses of any value came before its last one; last_use_ns: its time.
        hits: runs that used it since it was computed, that one included.
        references: runs that used it, since the trace began.
        floor: the largest score that had been evicted when it was last used.
        next_use: calls until it is read again, counted as if everything were kept.
        classes: for absent nodes, the number of their neighbourhood, else −1; `class_ns` what
            computing each neighbourhood takes.
        now, now_ns, evicted_score: uses, time and floor of this moment.
    """

    valid: Valid
    bytes: Ints
    pinned_bytes: Ints
    size_bytes: Floats
    cost_ns: Floats
    last_use: Floats
    last_use_ns: Floats
    hits: Floats
    references: Floats
    floor: Floats
    next_use: Floats
    classes: Ints
    class_ns: Floats
    neighbours: tuple[tuple[int, ...], ...]
    now: int = 0
    now_ns: float = 0.0
    evicted_score: float = 0.0

    @staticmethod
    def empty(runs: Runs) -> Book:
        def floats() -> Floats:
            return np.zeros(len(runs.stored))

        def ints() -> Ints:
            return np.zeros(len(runs.stored), np.int64)

        return Book(
            {}, ints(), ints(), floats(), floats(), floats(), floats(), floats(), floats(),
            floats(), floats(), ints(), floats(), runs.neighbours,
        )  # fmt: skip

    def copy(self) -> Book:
        arrays: dict[str, Any] = {
            k: v.copy() for k, v in vars(self).items() if isinstance(v, np.ndarray)
        }
        return replace(self, valid=dict(self.valid), **arrays)

    def nearby_ns(self) -> Floats:
        """For each node, what computing the absent neighbourhoods that touch it takes."""
        node, other = _edges(self.neighbours)
        label, n = self.classes[other], len(self.classes)
        pairs = np.unique((node * n + label)[label >= 0])
        return np.bincount(pairs // n, self.class_ns[pairs % n], n).astype(float)

    def find_classes(self) -> None:
        """Absent nodes that touch are one neighbourhood."""
        self.classes[:] = -1
        self.class_ns[:] = 0
        absent = set(np.flatnonzero(self.bytes == 0).tolist())
        while absent:
            first = absent.pop()
            found = [first]
            for i in found:
                around = absent.intersection(self.neighbours[i])
                absent -= around
                found += around
            self.classes[found] = first
            self.class_ns[first] = self.cost_ns[found].sum()

    def leave(self, i: int) -> None:
        """A node is absent now: the neighbourhoods around it become one with it."""
        around = np.unique(self.classes[list(self.neighbours[i])])
        around = around[around >= 0]
        total = self.cost_ns[i] + self.class_ns[around].sum()
        self.classes[np.isin(self.classes, around)] = i
        self.class_ns[around] = 0
        self.classes[i], self.class_ns[i] = i, total

    def enter(self, i: int) -> None:
        """A node is there again; as in DTR, its neighbourhood is not taken apart."""
        if self.classes[i] >= 0:
            self.class_ns[self.classes[i]] -= self.cost_ns[i]
            self.classes[i] = -1


@cache
def _edges(neighbours: tuple[tuple[int, ...], ...]) -> tuple[Ints, Ints]:
    """Every pair of neighbours, as two arrays."""
    pairs = [(i, other) for i, others in enumerate(neighbours) for other in others]
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()


@dataclass(frozen=True)
class Policy:
    """An eviction rule: of what can be let go, the value with the least score goes.

    Among equal scores the least recently used goes, then the first in the schedule.

    Fields:
        score: one number per stored node.
        follows_neighbours: whether `Book.classes` has to be kept.
        sees_future: whether the score reads `next_use`.
    """

    name: str
    score: Callable[[Book], Floats]
    follows_neighbours: bool = False
    sees_future: bool = False


def _per_byte(book: Book) -> Floats:
    return book.cost_ns / np.maximum(book.size_bytes, 1)


def _staleness_ns(book: Book) -> Floats:
    return np.maximum(book.now_ns - book.last_use_ns, 1)


def _near(book: Book) -> Floats:
    """What computing a value takes together with the absent neighbourhoods around it."""
    return book.cost_ns + book.nearby_ns()


LRU = Policy("LRU", lambda book: book.last_use)
LFU = Policy("LFU", lambda book: book.hits)
GDSF = Policy("GDSF", lambda book: book.floor + book.hits * _per_byte(book))
COST_AND_SIZE = Policy("cost and size", lambda book: book.references * _per_byte(book))
DTR = Policy(
    "DTR",
    lambda book: _near(book) / np.maximum(book.size_bytes, 1) / _staleness_ns(book),
    follows_neighbours=True,
)
DTR_LOCAL = Policy("DTR, local cost", lambda book: _per_byte(book) / _staleness_ns(book))
BELADY = Policy("Belady", lambda book: -book.next_use, sees_future=True)
BELADY_COST = Policy("Belady, cost", lambda book: _per_byte(book) / book.next_use, sees_future=True)
ONLINE = (LRU, LFU, GDSF, COST_AND_SIZE, DTR)
POLICIES = (*ONLINE, BELADY, BELADY_COST)


# --- the simulator --------------------------------------------------------------------------------

Kind: TypeAlias = Literal["write", "evict", "trim"]


@dataclass(frozen=True, slots=True)
class Moment:
    """One thing that happened to a stored node during a call.

    Fields:
        kind: its compute region was written, all of it was let go, or what the run does not touch.
        step: the schedule step; −1 before the first. What goes to make room for a result goes
            after that was written, at the same step: it may be the result's in-place operand.
        valid: what of it is there afterwards.
        used_bytes: of the capacity, afterwards; at the end of a step never more than there is.
    """

    kind: Kind
    step: int
    node: Node
    valid: Region
    used_bytes: int


@dataclass(frozen=True)
class Record:
    """One simulated call: the run that was decided in the end, and what happened in it.

    Fields:
        dropped: reused values that were made invalid because the run did not fit with them.
        run: None if the call was out of memory.
    """

    number: int
    dropped: tuple[Node, ...]
    run: Run | None
    moments: tuple[Moment, ...]


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a trace.

    Fields:
        mean_ns: modelled mean time of the calls after the warm-up; infinite if any call of the
            trace was out of memory.
        warmup_ns: modelled time of the warm-up calls together.
        out_of_memory: calls that did not fit.
        computed, recomputed: nodes executed after the warm-up, and those of them that would not
            have been, or less of them, if everything had been kept.
        by_class: mean time of each class after the warm-up, in order of occurrence.
    """

    policy: str
    capacity_bytes: int
    mean_ns: float
    warmup_ns: float
    out_of_memory: int
    computed: int
    recomputed: int
    by_class: Mapping[BucketClass, float] = field(repr=False)


def simulate(
    runs: Runs,
    policy: Policy,
    capacity_bytes: float,
    warmup: int = 1,
    tell: Callable[[Record], None] | None = None,
) -> Outcome:
    """Run a trace under an online policy in `capacity_bytes` of idealised memory.

    Inputs and states count and always stay. A call that is out of memory leaves nothing cached.

    Args:
        warmup: calls at the start that the mean leaves out.
        tell: called after each call.
    """
    book = Book.empty(runs)
    times: list[float] = []
    counts: Counter[str] = Counter()
    for number, ideal in enumerate(runs.ideal):
        record, book = _called(runs, policy, capacity_bytes, number, book)
        times.append(record.run.time_ns if record.run else math.inf)
        counts["out of memory"] += record.run is None
        if record.run and number >= warmup:
            counts["computed"] += sum(bool(use.compute.boxes) for use in record.run.uses)
            counts["recomputed"] += _beyond(record.run, ideal)
        if tell is not None:
            tell(record)
    later: dict[BucketClass, list[float]] = defaultdict(list)
    for kind, time_ns in zip(runs.classes[warmup:], times[warmup:], strict=True):
        later[kind].append(time_ns)
    mean_ns = sum(times[warmup:]) / max(len(times) - warmup, 1)
    return Outcome(
        policy.name,
        int(min(capacity_bytes, 2**62)),
        math.inf if counts["out of memory"] else mean_ns,
        sum(times[:warmup]),
        counts["out of memory"],
        counts["computed"],
        counts["recomputed"],
        {kind: sum(found) / len(found) for kind, found in later.items()},
    )


def _beyond(run: Run, ideal: Run) -> int:
    """How many nodes a run computes more of than if everything had been kept."""
    least = {use.index: use.compute for use in ideal.uses}
    return sum(not least.get(use.index, EMPTY).contains(use.compute) for use in run.uses)


def _called(
    runs: Runs, policy: Policy, capacity_bytes: float, number: int, book: Book
) -> tuple[Record, Book]:
    """Simulate one call, deciding it again with fewer reused values until it fits."""
    _begin(runs, policy, number, book)
    dropped: list[int] = []
    while True:
        attempt = _Attempt(runs, policy, capacity_bytes, book.copy())
        for i in dropped:
            attempt.forget(i)
        run = runs.decide(number, attempt.book.valid)
        lacking = attempt.execute(run)
        nodes = tuple(runs.stored[i] for i in dropped)
        if lacking <= 0:
            return Record(number, nodes, run, tuple(attempt.moments)), attempt.book
        less = attempt.worst_reused(run, lacking)
        if not less:
            return Record(number, nodes, None, ()), _emptied(runs, book)
        dropped += less


def _emptied(runs: Runs, book: Book) -> Book:
    """Nothing is cached; time and what was counted of absent values go on."""
    return replace(Book.empty(runs), now=book.now, now_ns=book.now_ns, references=book.references)


def _begin(runs: Runs, policy: Policy, number: int, book: Book) -> None:
    """Take the changes of a call off what is cached."""
    left = runs.left(number, book.valid)
    for i, region in book.valid.items():
        if left.get(i) is not region:
            _hold(runs, book, i, left.get(i, EMPTY))
    book.valid = left
    if policy.sees_future:
        book.next_use = runs.next_reuse[number] - number
    if policy.follows_neighbours:
        book.find_classes()


def _hold(runs: Runs, book: Book, i: int, region: Region) -> None:
    """A node's cached value is this region from now on; an absent one keeps its last cost."""
    book.bytes[i] = book.size_bytes[i] = runs.held_bytes(i, region)
    if region.boxes:
        book.valid[i] = region
        book.cost_ns[i] = runs.cost_ns(runs.stored[i].call, region)


class _Attempt:
    """One try at a run in a given capacity, on its own copy of the book."""

    def __init__(self, runs: Runs, policy: Policy, capacity_bytes: float, book: Book) -> None:
        self.runs, self.policy, self.book = runs, policy, book
        self.room_bytes: float = capacity_bytes - runs.kept_bytes - int(book.bytes.sum())
        self.began_ns = book.now_ns
        self.step = -1
        self.moments: list[Moment] = []

    def execute(self, run: Run) -> float:
        """Go through a run; returns the bytes that it lacks, or 0."""
        ends = list(reversed(run.ends))
        self.touching = {use.index: use for use in run.uses}
        for use in run.reused:
            hull = use.box if use.start < 0 else use.reused.hull()
            self.pin(use.index, self.book.valid[use.index], hull)
        for use in run.uses:
            while ends[-1].stop <= use.start:
                self.release(ends.pop())
            self.step, self.book.now_ns = use.start, self.began_ns + use.start_ns
            if use.start >= 0:
                self.write(use)
            self.make_room()
            if self.room_bytes < 0:
                return -self.room_bytes
        while ends:
            self.release(ends.pop())
        self.book.now_ns = self.began_ns + run.time_ns
        return max(-self.room_bytes, 0)

    def write(self, use: Use) -> None:
        i, book = use.index, self.book
        if self.policy.follows_neighbours:
            book.enter(i)
        region = self.runs.rules.union(book.valid.get(i, EMPTY), use.compute)
        self.pin(i, region, use.box)
        self.note("write", i)

    def pin(self, i: int, region: Region, box: Box) -> None:
        """A node holds a region, of which the run touches a box."""
        hull = region.hull().hull(box) if region.boxes else box
        self.resize(i, self.runs.size_bytes(i, hull))
        self.book.pinned_bytes[i] = self.runs.size_bytes(i, box)
        if region.boxes:
            self.book.valid[i] = region

    def release(self, use: Use) -> None:
        """The last read is over: the value is in the cache, as the latest one used."""
        i, book = use.index, self.book
        book.pinned_bytes[i] = 0
        region = book.valid.get(i, EMPTY)
        self.resize(i, self.runs.held_bytes(i, region))
        _hold(self.runs, book, i, region)
        book.hits[i] = book.hits[i] + 1 if use.reused.boxes else 1
        book.references[i] += 1
        book.now += 1
        book.last_use[i], book.last_use_ns[i] = book.now, self.began_ns + use.stop_ns
        book.floor[i] = book.evicted_score

    def resize(self, i: int, size_bytes: int) -> None:
        self.room_bytes -= size_bytes - int(self.book.bytes[i])
        self.book.bytes[i] = size_bytes

    def make_room(self) -> None:
        """Evict by score until it fits, or nothing is left that can go."""
        book = self.book
        while self.room_bytes < 0:
            free = np.flatnonzero(book.bytes > book.pinned_bytes)
            if not len(free):
                return
            scores = self.policy.score(book)[free]
            least = free[scores == scores.min()]
            victim = int(least[np.argmin(book.last_use[least])])
            book.evicted_score = max(book.evicted_score, float(scores.min()))
            self.evict(victim)

    def evict(self, i: int) -> None:
        if self.book.pinned_bytes[i]:
            use = self.touching[i]
            written = use.compute if self.book.valid[i].contains(use.compute) else EMPTY
            rest = self.runs.rules.union(use.reused, written)
            del self.book.valid[i]
            if rest.boxes:
                self.book.valid[i] = rest
            self.resize(i, int(self.book.pinned_bytes[i]))
            self.note("trim", i)
        else:
            self.forget(i)
            self.note("evict", i)

    def forget(self, i: int) -> None:
        self.resize(i, 0)
        self.book.valid.pop(i, None)
        if self.policy.follows_neighbours:
            self.book.leave(i)

    def worst_reused(self, run: Run, lacking: float) -> list[int]:
        """Pinned reused values to give up, the least-scored first, until enough bytes are free."""
        pinned = [use.index for use in run.reused if self.book.pinned_bytes[use.index]]
        scores = self.policy.score(self.book)
        pinned.sort(key=lambda i: (scores[i], self.book.last_use[i]))
        freed = list(accumulate((int(self.book.bytes[i]) for i in pinned), initial=0))
        return [i for i, before in zip(pinned, freed, strict=False) if before < lacking]

    def note(self, kind: Kind, i: int) -> None:
        used = self.runs.kept_bytes + int(self.book.bytes.sum())
        region = self.book.valid.get(i, EMPTY)
        self.moments.append(Moment(kind, self.step, self.runs.stored[i], region, used))
