"""Which kernels give the same bits in every run, and for which tiles: found out by trying them.

    candidates   every kernel × as it lies, or on copies × every tile of a ladder
    trial        draws of operands at the session's own shapes, its weights, its masks (`trials`)

The first to pass, in the order of what a small edit and everything are modelled to take, computes
the call in every run. What was found is remembered, and kept in a record database if there is one.
Where one call over many tiles keeps no bits, tiles are computed one by one, each on copies of its
operands that lie side by side: the same kernel on the same numbers in the same places, which has
the same bits if the kernel is deterministic. In the end a tile is the whole tensor. Only a kernel
that differs from itself is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from tgbench.base.errors import ExactnessError, RecordsError, TgbenchError
from tgbench.base.machine import Machine
from tgbench.base.memo import Latest
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.switches import telling
from tgbench.base.tiles import Sizes, Tiling
from tgbench.base.words import counted
from tgbench.costs.model import SENTINEL_NS, plain_site
from tgbench.costs.records import Records, TilingRecord
from tgbench.costs.signature import attributes, code_hash, source_hash
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.kernels.binding import Buffers
from tgbench.kernels.copied import copied
from tgbench.kernels.registry import (
    KERNELS,
    Kernel,
    kernel_named,
)
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.exact.trials import (
    Trial,
    ends,
    is_elementwise,
    keeps_elements,
    orders_of,
)
from tgbench.programs.sites import Addresser, layout
from tgbench.runs.propagate import rough_ns
from tgbench.runs.rules import Rules

MOST_CALLS = 256  # for one run from nothing
MOST_TILES = 256  # of which it is seen that a kernel takes them: all those of separate calls
MOST_FLOPS = 2e9  # of one chunk
MOST_ELEMENTS = 1 << 24  # of one chunk
ROWS = (4, 8, 16, 32, 64)  # of a tile
LEAST_ROWS = 16  # of a chunk

Calls: TypeAlias = frozenset[Call]
Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Exactness:
    """How every call of a graph is computed so that no bit depends on the run.

    Fields:
        tilings: by call.
        nodes: names of the nodes of each call; equal layers share theirs.
        threads: that torch had; the bits are those of so many.
    """

    tilings: Mapping[Call, Tiling]
    nodes: Mapping[Call, tuple[str, ...]]
    threads: int

    @property
    def spread(self) -> tuple[str, ...]:
        """Nodes that are computed whole, so that any change of an operand makes all of them dirty.

        Those that kernels compute whole in any case are left out.
        """
        found = [call for call, tiling in self.tilings.items() if _spreads(call, tiling)]
        return tuple(name for call in found for name in self.nodes[call])

    @property
    def by_node(self) -> dict[str, Tiling]:
        """The tiling of each node that a session computes, by name."""
        return {name: tiling for call, tiling in self.tilings.items() for name in self.nodes[call]}

    def told(self, node: str) -> str:
        """What a node computes together, in words; "" for single elements and lines."""
        calls = (call for call, names in self.nodes.items() if node in names)
        return next((told(call, self.tilings[call]) for call in calls), "")

    def check_threads(self) -> None:
        """Raise ExactnessError if torch uses another number of threads now."""
        now = torch.get_num_threads()
        if now != self.threads:
            raise ExactnessError(
                f"torch has {now} threads, and {self.threads} when the session was made: bits may "
                f"differ; call torch.set_num_threads({self.threads}), or make the session anew"
            )

    def __str__(self) -> str:
        lines = [f"{counted(len(self.tilings), 'call')}, with {counted(self.threads, 'thread')}"]
        for call, tiling in self.tilings.items():
            names = self.nodes[call]
            lines.append(
                f"  {call.op.name} {call.out}: {tiling.kernel}{' on copies' * tiling.copied}, "
                f"tiles of {list(tiling.tile)}{_together(call, tiling)}; {names[0]}"
                + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            )
        return "\n".join(lines)


def _spreads(call: Call, tiling: Tiling) -> bool:
    return tiling.tile == call.out.shape and tiling.tile != _least_tile(call)


def _together(call: Call, tiling: Tiling) -> str:
    if tiling.tile == call.out.shape:
        return ""
    return ", one by one" if tiling.tile == tiling.chunk else ""


def told(call: Call, tiling: Tiling) -> str:
    """What a call computes together, in words; "" for single elements and lines."""
    if _spreads(call, tiling):
        return (
            f"computed whole, by {tiling.kernel}: any change of what it reads makes all of it "
            "dirty (no part of it kept its bits, or none that was modelled faster)"
        )
    if all(size == 1 for size in tiling.tile[:-1]) or tiling.tile == _least_tile(call):
        return ""
    alone = ", each alone on copies of what it reads" if tiling.tile == tiling.chunk else ""
    return (
        f"computed in tiles of {list(tiling.tile)} counted from 0{alone}, by {tiling.kernel}: "
        "an element is as dirty as its tile"
    )


def find(
    scheduled: ScheduledGraph,
    buffers: Buffers,
    device: str,
    tell: Tell | None = None,
    records: Records | None = None,
    unpacked: Calls = frozenset(),
) -> Exactness:
    """A tiling for every call that a session computes.

    Args:
        buffers: weights, constants and frozen nodes, as the session has them.
        records: what is in there for this machine and these sources is not tried again; what is
            found out is added.
        unpacked: calls whose weights stay as they lie.

    Raises ExactnessError for a call whose kernels all differ from themselves, RecordsError where
    the database fails or holds what cannot be.
    """
    say = telling(tell)
    finder, tilings = Finder(scheduled, buffers, device, records, unpacked), {}
    for i, (call, nodes) in enumerate(finder.calls.items()):
        say(f"trying kernels for equal bits {i + 1}/{len(finder.calls)} {nodes[0].name}")
        tilings[call] = finder.tiling(call)
    names = {call: tuple(node.name for node in nodes) for call, nodes in finder.calls.items()}
    return Exactness(tilings, names, torch.get_num_threads())


@dataclass(frozen=True)
class Finding:
    """A tiling, and what speaks for it.

    Fields:
        passed: boxes of tiles that were compared with the whole and had its bits.
        refused: candidates that came before it and did not pass.
    """

    tiling: Tiling
    passed: int
    refused: int


MOST_REMEMBERED = 10_000  # findings of a process
_remembered = Latest[tuple[str, str], Finding](MOST_REMEMBERED)  # by machine and signature


class Finder:
    """Tilings of a session's calls: remembered in this process, or recorded, or found by trials."""

    def __init__(
        self,
        scheduled: ScheduledGraph,
        buffers: Buffers,
        device: str,
        records: Records | None = None,
        unpacked: Calls = frozenset(),
    ) -> None:
        self.device, self.records, self.unpacked = device, records, unpacked
        self.calls: dict[Call, list[Node]] = {}
        for node in scheduled.stored:
            self.calls.setdefault(node.call, []).append(node)
        self.machine = Machine.here(device)
        self._ends = {scheduled.base[node] for node in scheduled.graph.ends}
        self._given = (scheduled, buffers, device)

    def tiling(self, call: Call) -> Tiling:
        """The tiling of a call; raises as `find` does."""
        scheduled, nodes = self._given[0], self.calls[call]
        weights = [_weights(node, scheduled) for node in nodes]
        stays = tuple(sorted(set(weights[0]).intersection(*weights)))
        kernels = _kernels(call, self.device, self.unpacked)
        by_orders = {str(orders_of(node, scheduled)): node for node in reversed(nodes)}
        variants = [by_orders[orders] for orders in sorted(by_orders)]
        signature = _signature(nodes[0], stays, scheduled, self.device, kernels, sorted(by_orders))
        key = self.machine.fingerprint, signature
        found = _remembered.get(key) or self._recorded(call, stays, signature)
        if found is None:
            found = _TilingSearch(nodes[0], *self._given, kernels, stays, variants).finding()
        _remembered[key] = found
        self._record(call, found, signature)
        return replace(found.tiling, hands_out=not self._ends.isdisjoint(nodes))

    @cached_property
    def _known(self) -> dict[str, list[TilingRecord]]:
        found: dict[str, list[TilingRecord]] = {}
        if self.records is not None:
            for record in self.records.tilings(self.machine.fingerprint):
                found.setdefault(record.signature, []).append(record)
        return found

    def _recorded(self, call: Call, stays: tuple[int, ...], signature: str) -> Finding | None:
        """What is recorded for kernels as they are now; records that disagree count for nothing."""
        kernels = _kernels(call, self.device, self.unpacked)
        sources = {kernel.name: source_hash(kernel) for kernel in kernels}
        found = [
            record
            for record in self._known.get(signature, ())
            if sources.get(record.kernel) == record.source_hash
        ]
        if len(found) != 1:
            return None
        (record,) = found
        tiling = Tiling(record.kernel, record.tile, record.chunk, record.copied, stays)
        if not _may_be(call, tiling):
            raise RecordsError(
                f"the record of a tiling, {record}, is none that would be tried; delete it "
                f"(DELETE FROM tgbench_grains WHERE id = '{record.id}') and make the session again"
            )
        return Finding(tiling, record.passed, record.refused)

    def _record(self, call: Call, found: Finding, signature: str) -> None:
        if self.records is None:
            return
        kernel = kernel_named(call.op.name, found.tiling.kernel)
        row = TilingRecord(
            kernel.name,
            source_hash(kernel),
            signature,
            self.machine.fingerprint,
            found.tiling.tile,
            found.tiling.chunk,
            found.tiling.copied,
            found.passed,
            found.refused,
        )
        there = self._known.setdefault(signature, [])
        if row.key not in {record.key for record in there}:
            self.records.add_tilings([row], self.machine)
            there.append(row)


def _weights(node: Node, scheduled: ScheduledGraph) -> list[int]:
    """Inputs that follow from weights and constants alone."""
    return [i for i, leaf in enumerate(node.inputs) if scheduled.base[leaf] in scheduled.frozen]


def _may_be(call: Call, tiling: Tiling) -> bool:
    """Whether a tiling is one of those that are tried."""
    if tiling.tile not in tiles(call):
        return False
    if tiling.tile == tiling.chunk:
        return tiling.copied
    return tiling.chunk in chunks(call) and _fits(tiling.tile, tiling.chunk, call.out.shape)


# --- what a finding depends on --------------------------------------------------------------------


def _signature(
    node: Node,
    stays: tuple[int, ...],
    scheduled: ScheduledGraph,
    device: str,
    kernels: Sequence[Kernel],
    orders: Sequence[str],
) -> str:
    """Call, known elements, where weights lie, and whatever chooses among the kernels, as a digest.

    Kernels that were not chosen count as well: without them another one might have been.
    """
    call, op, kind = node.call, node.call.op, device.split(":")[0]
    frozen = Addresser(lambda leaf: layout(leaf, scheduled, {}), {})
    lying = [frozen.view(node.inputs[i], Box.full(node.inputs[i].shape)) for i in stays]
    parts = [
        *map(_fact, (*call.facts, call.fact)),
        *(f"{i} {view.strides}" for i, view in zip(stays, lying, strict=True)),
        code_hash(op.flops, op.whole, op.forward, op.needed, op.decompose),
        *orders,
        *(f"{kernel.name} {_ways(kernel)}" for kernel in kernels),
        sources(),
    ]
    types = f"{call.out} = {', '.join(map(str, call.inputs))}"
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
    return f"{op.name}({attributes(call.attrs)}) {types}; {kind}; {digest}"


def _fact(fact: Any) -> str:
    if fact is None:
        return ""
    if fact.constant is not None:
        return str(fact.constant.digest)
    return f"{fact.value} {hashlib.sha256(np.packbits(fact.open.array).tobytes()).hexdigest()}"


@cache
def _ways(kernel: Kernel) -> str:
    """All of a kernel: what it does, what it takes, and what it says that it costs."""
    return code_hash(kernel.bind, kernel.scratch, kernel.accepts, kernel.cost_ns)


@cache
def sources(root: Path = Path(__file__).parents[2]) -> str:
    """A digest of every source file in a folder, however deep: another version looks again.

    Which of them decide what tiling is found is not written down: files move.
    """
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        code = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(code)}\n".encode() + code)
    return digest.hexdigest()


def _kernels(call: Call, device: str, unpacked: Calls) -> list[Kernel]:
    """Kernels of a call on a device that take tiles anywhere, but for those that want weights in
    another layout than it.
    """
    found = [one for one in KERNELS.get(call.op.name, ()) if one.may(call, device)]
    plain = call in unpacked
    return [one for one in found if not one.is_fixed and not (plain and one.prepares)]


# --- tiles ----------------------------------------------------------------------------------------


def tiles(call: Call) -> list[Sizes]:
    """The tiles that are tried, each once: single elements, lines, blocks of rows, the whole."""
    shape, rank = call.out.shape, call.out.rank
    least = _least_tile(call)
    if not rank:
        return [least]
    last, rows = rank - 1, _row_axis(shape)
    wholes = [(), (last,), *([(1,), (1, last)] if rank > 3 else [])]
    found = [_tile(least, shape, whole, {}) for whole in wholes]
    for count in ROWS:
        found.append(_tile(least, shape, (last,), {rows: count}))
        if rank > 3:
            found.append(_tile(least, shape, (1, last), {rows: count}))
            found.append(_tile(least, shape, (1,), {rank - 2: count, last: count}))
    return list(dict.fromkeys([*found, tuple(shape)]))


def _least_tile(call: Call) -> Sizes:
    rank = call.out.rank
    whole = {axis % rank for axis in call.op.whole(call)} if rank else set()
    return tuple(size if axis in whole else 1 for axis, size in enumerate(call.out.shape))


def _tile(least: Sizes, shape: Sizes, whole: Sequence[int], rows: Mapping[int, int]) -> Sizes:
    return tuple(
        size if axis in whole else min(size, max(least[axis], rows.get(axis, 1)))
        for axis, size in enumerate(shape)
    )


def _row_axis(shape: Sizes) -> int:
    """The longest dimension before the last one."""
    return max(range(max(len(shape) - 1, 1)), key=lambda axis: shape[axis])


def chunks(call: Call) -> Iterator[Sizes]:
    """The whole of a result and ever fewer rows of it, as far as one call can be tried."""
    shape = call.out.shape
    if not shape:
        yield shape
        return
    axis = _row_axis(shape)
    rows = shape[axis]
    while True:
        sizes = (*shape[:axis], rows, *shape[axis + 1 :])
        if rows <= LEAST_ROWS or not _is_too_much(call, sizes):
            yield sizes
        if rows <= LEAST_ROWS:
            return
        rows = max(LEAST_ROWS, 1 << ((rows - 1).bit_length() - 1))


def _is_too_much(call: Call, sizes: Sizes) -> bool:
    return prod(sizes) > MOST_ELEMENTS or call.op.flops(call, Box.full(sizes)) > MOST_FLOPS


def _fits(tile: Sizes, chunk: Sizes, shape: Sizes) -> bool:
    """Whether chunks begin and end where tiles do."""
    sides = zip(tile, chunk, shape, strict=True)
    return tile != shape and all(c % t == 0 or c == n for t, c, n in sides)


def _some_tiles(shape: Sizes, tile: Sizes) -> Iterator[Box]:
    """All tiles of a result; of too many those near its borders, and some inside."""
    counts = [-(-n // size) for n, size in zip(shape, tile, strict=True)]
    most = max(counts, default=1)
    while prod(min(n, most) for n in counts) > MOST_TILES:
        most -= 1
    for at in product(*(_near_ends(n, most) for n in counts)):
        yield Box(
            (i * size, min((i + 1) * size, n)) for i, size, n in zip(at, tile, shape, strict=True)
        )


def _near_ends(count: int, most: int) -> Sequence[int]:
    if count <= most:
        return range(count)
    low = most // 2
    return [*range(low), count // 2, *range(count - (most - 1 - low), count)]


# --- candidates -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TilingCandidate:
    """A tiling that has to be tried.

    Fields:
        joins: whether one call takes many tiles.
        score: the modelled times of a small edit and of everything, multiplied.
    """

    kernel: Kernel
    tiling: Tiling
    joins: bool
    score: float


class _TilingSearch:
    """The tiling of one node's call."""

    def __init__(
        self,
        node: Node,
        scheduled: ScheduledGraph,
        buffers: Buffers,
        device: str,
        kernels: Sequence[Kernel],
        stays: tuple[int, ...] = (),
        variants: Sequence[Node] = (),
    ) -> None:
        self.node = node
        self.variants = variants or (node,)
        self.call = node.call
        self.device = device
        self.kernels = kernels
        self.stays = stays
        self.rules = Rules()
        self._given = (node, scheduled, buffers, device)

    @cached_property
    def edit(self) -> Region:
        """What of the result one changed element can change: of the operand for which it is least.

        The element is the middle one; weights do not change.
        """
        found = []
        for i, type_ in enumerate(self.call.inputs):
            if i not in self.stays:
                middle = Region((Box((n // 2, n // 2 + 1) for n in type_.shape),))
                parts = [EMPTY] * len(self.call.inputs)
                parts[i] = middle
                region = self.rules.dirty(self.call, tuple(parts))
                found += [region] if region.boxes else []
        return min(found, key=lambda region: region.elements, default=self._all)

    @cached_property
    def _all(self) -> Region:
        return Region.full(self.call.out.shape)

    @cached_property
    def trials(self) -> list[Trial]:
        _, scheduled, buffers, device = self._given
        return [Trial(one, scheduled, buffers, device) for one in self.variants]

    def finding(self) -> Finding:
        """The best candidate that passes."""
        differs: dict[str, None] = {}
        for refused, candidate in enumerate(sorted(self._candidates(), key=_order)):
            try:
                if passed := self._passed(candidate):
                    return Finding(candidate.tiling, passed, refused)
            except Exception:  # a kernel that fails at its trial is not for this call
                continue
            if not candidate.joins:
                differs[candidate.kernel.name] = None
        raise ExactnessError(
            f"{self.call.op.name} ({self.node.name}): "
            f"{', '.join(differs) or 'no kernel'} gave two results for the same operands; "
            "register a deterministic kernel for the op, or leave out exact='bitwise'"
        )

    def _passed(self, candidate: TilingCandidate) -> int:
        """How many boxes had the bits that they should; 0 if one did not. What only moves elements
        has no others.
        """
        if self.call.op.moves:
            return int(self._takes_tiles(candidate))
        if candidate.joins and not self._joins(candidate):
            return 0
        if candidate.kernel.repeats and not candidate.joins and self.device == "cpu":
            return 1
        check = Trial.joins if candidate.joins else Trial.repeats
        total = 0
        for trial in self.trials:
            passed = check(trial, candidate.kernel, candidate.tiling)
            if not passed:
                return 0
            total += passed
        return total if self._takes_tiles(candidate) else 0

    def _joins(self, candidate: TilingCandidate) -> bool:
        """Whether an element-wise kernel keeps the bits of elements among other neighbours."""
        if not is_elementwise(self.call):
            return True
        operands = enumerate(zip(self.call.inputs, self.trials[0].draws[0], strict=True))
        numbers = [
            operand.item() if i in self.stays and type_.elements == 1 else None
            for i, (type_, operand) in operands
        ]
        return keeps_elements(candidate.kernel, self.call, numbers, self.device)

    def _takes_tiles(self, candidate: TilingCandidate) -> bool:
        """Whether the kernel takes every tile: those at a border may see padding alone."""
        form, tiling = self._form(candidate.kernel, candidate.tiling), candidate.tiling
        boxes = _some_tiles(self.call.out.shape, tiling.tile)
        return all(self._site_cost(form, box) is not None for box in boxes)

    def _candidates(self) -> Iterator[TilingCandidate]:
        for kernel in self.kernels:
            for tile in tiles(self.call):
                for is_copied in (False, True):
                    yield from self._joining(kernel, tile, is_copied)
                yield from self._separate(kernel, tile)

    def _joining(self, kernel: Kernel, tile: Sizes, is_copied: bool) -> Iterator[TilingCandidate]:
        """Many tiles a call, as many as the kernel takes."""
        for chunk in chunks(self.call):
            if _fits(tile, chunk, self.call.out.shape):
                tiling = Tiling(kernel.name, tile, chunk, is_copied, self.stays)
                if (score := self._score(kernel, tiling)) is not None:
                    yield TilingCandidate(kernel, tiling, True, score)
                    return

    def _separate(self, kernel: Kernel, tile: Sizes) -> Iterator[TilingCandidate]:
        tiling = Tiling(kernel.name, tile, tile, True, self.stays)
        if (score := self._score(kernel, tiling)) is not None:
            yield TilingCandidate(kernel, tiling, False, score)

    def _score(self, kernel: Kernel, tiling: Tiling) -> float | None:
        """The modelled times of a small edit and of everything, multiplied."""
        form = self._form(kernel, tiling)
        shape = self.call.out.shape
        count = int(prod(-(-n // size) for n, size in zip(shape, tiling.chunk, strict=True)))
        tile = self._cost(form, tiling.tile) if count <= MOST_CALLS else None
        whole = self._cost(form, tiling.chunk) if tile is not None else None
        if whole is None:
            return None
        edit = 0.0
        for box in tiling.rounded(self.edit, shape):
            parts = list(tiling.calls(box))
            edit += len(parts) * (self._site_cost(form, parts[0]) or whole)
        return edit * count * whole

    def _form(self, kernel: Kernel, tiling: Tiling) -> Kernel:
        return copied(kernel, self.stays) if tiling.copied else kernel

    def _cost(self, kernel: Kernel, sizes: Sizes) -> float | None:
        """The modelled time of a tile of a size; None unless the kernel takes them all."""
        costs = [self._site_cost(kernel, box) for box in ends(self.call.out.shape, sizes)]
        found = [cost for cost in costs if cost is not None]
        return max(found) if len(found) == len(costs) else None

    def _site_cost(self, kernel: Kernel, box: Box) -> float | None:
        site = plain_site(self.call, box, self.rules.reads(self.call, box), self.device)
        try:
            cost = kernel.cost_ns(site) if kernel.takes(site) else None
        except TgbenchError:
            return None
        return rough_ns(self.call, box) if cost == 0 else cost


def _order(candidate: TilingCandidate) -> tuple[float, bool, str, Sizes]:
    tiling = candidate.tiling
    score = min(candidate.score, SENTINEL_NS**2)
    return score, tiling.copied, tiling.kernel, tiling.tile
