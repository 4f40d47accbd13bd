"""Which kernels give the same bits in every run, and for which tiles: found out by trying them.

    candidates   every kernel × as it lies, or on copies × every tile of a ladder
    trial        random operands of the session's own shapes, its own weights and masks
                 whole chunk        ████████████████
                 boxes of tiles     ████····██████··     in any layout: the same bits?

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
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from tgbench.anatomy import Anatomy
from tgbench.cost import SENTINEL_NS, plain_site
from tgbench.errors import ExactnessError, RecordsError, TgbenchError
from tgbench.grains import Grain, Sizes
from tgbench.graph import Node
from tgbench.kernels.copied import copied, formed
from tgbench.kernels.registry import KERNELS, Kernel, Site, View
from tgbench.lowering import Addresser, layout
from tgbench.machine import Machine
from tgbench.optable import FLOATS, Call
from tgbench.probe import bound, drawn, same_bits
from tgbench.propagate import rough_ns
from tgbench.records import GrainRecord, Records
from tgbench.regions import EMPTY, Box, Region, in_order
from tgbench.rules import Rules
from tgbench.signature import attributes, code_hash, source_hash
from tgbench.weights import TORCH_DTYPES

DRAWS = 2  # sets of random operands that every candidate is tried on
BOXES = 24  # boxes of tiles in each chunk that is tried, besides the whole of it
MOST_CALLS = 256  # for one run from nothing
MOST_FLOPS = 2e9  # of one chunk
MOST_ELEMENTS = 1 << 24  # of one chunk
ROWS = (4, 8, 16, 32, 64)  # of a tile
LEAST_ROWS = 16  # of a chunk
LAID_ELEMENTS = 1 << 22  # weights up to this size are tried in other layouts than their own
GARBAGE = 7.0  # between the rows of operands

Buffers: TypeAlias = Mapping[tuple[Any, str], torch.Tensor]
Calls: TypeAlias = frozenset[Call]
Tell: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Exactness:
    """How every call of a graph is computed so that no bit depends on the run.

    Fields:
        grains: by call.
        nodes: names of the nodes of each call; equal layers share theirs.
        threads: that torch had; the bits are those of so many.
    """

    grains: Mapping[Call, Grain]
    nodes: Mapping[Call, tuple[str, ...]]
    threads: int

    @property
    def spread(self) -> tuple[str, ...]:
        """Nodes that are computed whole, so that any change of an operand makes all of them dirty.

        Those that kernels compute whole in any case are left out.
        """
        found = [call for call, grain in self.grains.items() if _spreads(call, grain)]
        return tuple(name for call in found for name in self.nodes[call])

    @property
    def by_node(self) -> dict[str, Grain]:
        """The grain of each node that a session computes, by name."""
        return {name: grain for call, grain in self.grains.items() for name in self.nodes[call]}

    def told(self, node: str) -> str:
        """What a node computes together, in words; "" for single elements and lines."""
        calls = (call for call, names in self.nodes.items() if node in names)
        return next((told(call, self.grains[call]) for call in calls), "")

    def check_threads(self) -> None:
        """Raise ExactnessError if torch uses another number of threads now."""
        now = torch.get_num_threads()
        if now != self.threads:
            raise ExactnessError(
                f"torch has {now} threads, and {self.threads} when the session was made: bits may "
                f"differ; call torch.set_num_threads({self.threads}), or make the session anew"
            )

    def __str__(self) -> str:
        lines = [f"{len(self.grains)} calls, with {self.threads} threads"]
        for call, grain in self.grains.items():
            names = self.nodes[call]
            lines.append(
                f"  {call.op.name} {call.out}: {grain.kernel}{' on copies' * grain.copied}, tiles "
                f"of {list(grain.tile)}{_together(call, grain)}; {names[0]}"
                + (f" and {len(names) - 1} more" if len(names) > 1 else "")
            )
        return "\n".join(lines)


def _spreads(call: Call, grain: Grain) -> bool:
    return grain.tile == call.out.shape and grain.tile != _least_tile(call)


def _together(call: Call, grain: Grain) -> str:
    if grain.tile == call.out.shape:
        return ""
    return ", one by one" if grain.tile == grain.chunk else ""


def told(call: Call, grain: Grain) -> str:
    """What a call computes together, in words; "" for single elements and lines."""
    if _spreads(call, grain):
        return (
            f"computed whole, by {grain.kernel}: any change of what it reads makes all of it dirty "
            "(no part of it kept its bits, or none that was modelled faster)"
        )
    if all(size == 1 for size in grain.tile[:-1]) or grain.tile == _least_tile(call):
        return ""
    alone = ", each alone on copies of what it reads" if grain.tile == grain.chunk else ""
    return (
        f"computed in tiles of {list(grain.tile)} counted from 0{alone}, by {grain.kernel}: "
        "an element is as dirty as its tile"
    )


def find(
    anatomy: Anatomy,
    buffers: Buffers,
    device: str,
    tell: Tell | None = None,
    records: Records | None = None,
    unpacked: Calls = frozenset(),
) -> Exactness:
    """A grain for every call that a session computes.

    Args:
        buffers: weights, constants and frozen nodes, as the session has them.
        records: what is in there for this machine and these sources is not tried again; what is
            found out is added.
        unpacked: calls whose weights stay as they lie.

    Raises ExactnessError for a call whose kernels all differ from themselves, RecordsError where
    the database fails or holds what cannot be.
    """
    finder, grains = Finder(anatomy, buffers, device, records, unpacked), {}
    for i, (call, nodes) in enumerate(finder.calls.items()):
        if tell is not None:
            tell(f"trying kernels for equal bits {i + 1}/{len(finder.calls)} {nodes[0].name}")
        grains[call] = finder.grain(call)
    names = {call: tuple(node.name for node in nodes) for call, nodes in finder.calls.items()}
    return Exactness(grains, names, torch.get_num_threads())


@dataclass(frozen=True)
class Finding:
    """A grain, and what speaks for it.

    Fields:
        passed: boxes of tiles that were compared with the whole and had its bits.
        refused: candidates that came before it and did not pass.
    """

    grain: Grain
    passed: int
    refused: int


_remembered: dict[tuple[str, str], Finding] = {}  # by machine and signature


class Finder:
    """Grains of a session's calls: remembered in this process, or recorded, or found by trials."""

    def __init__(
        self,
        anatomy: Anatomy,
        buffers: Buffers,
        device: str,
        records: Records | None = None,
        unpacked: Calls = frozenset(),
    ) -> None:
        self.device, self.records, self.unpacked = device, records, unpacked
        self.calls: dict[Call, list[Node]] = {}
        for node in anatomy.stored:
            self.calls.setdefault(node.call, []).append(node)
        self.machine = Machine.here(device)
        self._given = (anatomy, buffers, device)

    def grain(self, call: Call) -> Grain:
        """The grain of a call; raises as `find` does."""
        anatomy, nodes = self._given[0], self.calls[call]
        weights = [_weights(node, anatomy) for node in nodes]
        stays = tuple(sorted(set(weights[0]).intersection(*weights)))
        kernels = _kernels(call, self.device, self.unpacked)
        by_orders = {str(_orders(node, anatomy)): node for node in reversed(nodes)}
        variants = [by_orders[orders] for orders in sorted(by_orders)]
        signature = _signature(nodes[0], stays, anatomy, self.device, kernels, sorted(by_orders))
        key = self.machine.fingerprint, signature
        found = _remembered.get(key) or self._recorded(call, stays, signature)
        if found is None:
            found = _Search(nodes[0], *self._given, kernels, stays, variants).finding()
        _remembered[key] = found
        self._record(call, found, signature)
        return found.grain

    @cached_property
    def _known(self) -> dict[str, list[GrainRecord]]:
        found: dict[str, list[GrainRecord]] = {}
        if self.records is not None:
            for record in self.records.grains(self.machine.fingerprint):
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
        grain = Grain(record.kernel, record.tile, record.chunk, record.copied, stays)
        if not _may_be(call, grain):
            raise RecordsError(
                f"the record of a grain, {record}, is none that would be tried; delete it "
                f"(DELETE FROM tgbench_grains WHERE id = '{record.id}') and make the session again"
            )
        return Finding(grain, record.passed, record.refused)

    def _record(self, call: Call, found: Finding, signature: str) -> None:
        if self.records is None:
            return
        kernel = next(k for k in KERNELS[call.op.name] if k.name == found.grain.kernel)
        row = GrainRecord(
            kernel.name,
            source_hash(kernel),
            signature,
            self.machine.fingerprint,
            found.grain.tile,
            found.grain.chunk,
            found.grain.copied,
            found.passed,
            found.refused,
        )
        there = self._known.setdefault(signature, [])
        if row.key not in {record.key for record in there}:
            self.records.add_grains([row], self.machine)
            there.append(row)


def _weights(node: Node, anatomy: Anatomy) -> list[int]:
    """Inputs that follow from weights and constants alone."""
    return [i for i, leaf in enumerate(node.inputs) if anatomy.base[leaf] in anatomy.frozen]


def _may_be(call: Call, grain: Grain) -> bool:
    """Whether a grain is one of those that are tried."""
    if grain.tile not in tiles(call):
        return False
    if grain.tile == grain.chunk:
        return grain.copied
    return grain.chunk in chunks(call) and _fits(grain.tile, grain.chunk, call.out.shape)


# --- what a finding depends on --------------------------------------------------------------------


def _signature(
    node: Node,
    stays: tuple[int, ...],
    anatomy: Anatomy,
    device: str,
    kernels: Sequence[Kernel],
    orders: Sequence[str],
) -> str:
    """Call, known elements, where weights lie, and whatever chooses among the kernels, as a digest.

    Kernels that were not chosen count as well: without them another one might have been.
    """
    call, op, kind = node.call, node.call.op, device.split(":")[0]
    frozen = Addresser(lambda leaf: layout(leaf, anatomy, {}), {})
    lying = [frozen.view(node.inputs[i], Box.full(node.inputs[i].shape)) for i in stays]
    parts = [
        *map(_fact, (*call.facts, call.fact)),
        *(f"{i} {view.strides}" for i, view in zip(stays, lying, strict=True)),
        code_hash(op.flops, op.whole, op.forward, op.needed, op.decompose),
        *orders,
        *(f"{kernel.name} {_ways(kernel)}" for kernel in kernels),
        _sources(),
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


DECIDING = (
    "cost.py", "exactness.py", "grains.py", "known.py", "probe.py", "propagate.py", "rules.py",
)  # fmt: skip


@cache
def _sources() -> str:
    """A digest of what of tgbench decides which grain is found: another version looks again."""
    root, digest = Path(__file__).parent, hashlib.sha256()
    named = [root / name for name in DECIDING]
    for path in [*named, *sorted(root.glob("ops/*.py")), *sorted(root.glob("kernels/*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _kernels(call: Call, device: str, unpacked: Calls) -> list[Kernel]:
    """Kernels of a call on a device, but for those that want weights in another layout than it."""
    kind, found = device.split(":")[0], KERNELS.get(call.op.name, ())
    plain = call in unpacked
    return [k for k in found if kind in k.devices and not (plain and k.prepares)]


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


# --- candidates -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A grain that has to be tried.

    Fields:
        joins: whether one call takes many tiles.
        score: the modelled times of a small edit and of everything, multiplied.
    """

    kernel: Kernel
    grain: Grain
    joins: bool
    score: float


class _Search:
    """The grain of one node's call."""

    def __init__(
        self,
        node: Node,
        anatomy: Anatomy,
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
        self._given = (node, anatomy, buffers, device)

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
        _, anatomy, buffers, device = self._given
        draws = range(DRAWS)
        return [Trial(one, anatomy, buffers, device, d) for one in self.variants for d in draws]

    def finding(self) -> Finding:
        """The best candidate that passes."""
        differs: dict[str, None] = {}
        for refused, candidate in enumerate(sorted(self._candidates(), key=_order)):
            try:
                if passed := self._passed(candidate):
                    return Finding(candidate.grain, passed, refused)
            except TgbenchError:
                continue  # a kernel that fails at its trial is not for this call
            if not candidate.joins:
                differs[candidate.kernel.name] = None
        raise ExactnessError(
            f"{self.call.op.name} ({self.node.name}): "
            f"{', '.join(differs) or 'no kernel'} gave two results for the same operands; "
            "register a deterministic kernel for the op, or leave out exact='bitwise'"
        )

    def _passed(self, candidate: Candidate) -> int:
        """How many boxes had the bits that they should; 0 if one did not."""
        check = Trial.joins if candidate.joins else Trial.repeats
        total = 0
        for trial in self.trials:
            passed = check(trial, candidate)
            if not passed:
                return 0
            total += passed
        return total

    def _candidates(self) -> Iterator[Candidate]:
        for kernel in self.kernels:
            for tile in tiles(self.call):
                for is_copied in (False, True):
                    yield from self._joining(kernel, tile, is_copied)
                yield from self._separate(kernel, tile)

    def _joining(self, kernel: Kernel, tile: Sizes, is_copied: bool) -> Iterator[Candidate]:
        """Many tiles a call, as many as the kernel takes."""
        for chunk in chunks(self.call):
            if _fits(tile, chunk, self.call.out.shape):
                grain = Grain(kernel.name, tile, chunk, is_copied, self.stays)
                if (score := self._score(kernel, grain)) is not None:
                    yield Candidate(kernel, grain, True, score)
                    return

    def _separate(self, kernel: Kernel, tile: Sizes) -> Iterator[Candidate]:
        grain = Grain(kernel.name, tile, tile, True, self.stays)
        if (score := self._score(kernel, grain)) is not None:
            yield Candidate(kernel, grain, False, score)

    def _score(self, kernel: Kernel, grain: Grain) -> float | None:
        """The modelled times of a small edit and of everything, multiplied."""
        form = copied(kernel, self.stays) if grain.copied else kernel
        shape = self.call.out.shape
        count = int(prod(-(-n // size) for n, size in zip(shape, grain.chunk, strict=True)))
        tile = self._cost(form, grain.tile) if count <= MOST_CALLS else None
        whole = self._cost(form, grain.chunk) if tile is not None else None
        if whole is None:
            return None
        edit = 0.0
        for box in grain.rounded(self.edit, shape):
            parts = list(grain.calls(box))
            edit += len(parts) * (self._site_cost(form, parts[0]) or whole)
        return edit * count * whole

    def _cost(self, kernel: Kernel, sizes: Sizes) -> float | None:
        """The modelled time of a tile of a size; None unless the kernel takes them all."""
        costs = [self._site_cost(kernel, box) for box in _ends(self.call.out.shape, sizes)]
        found = [cost for cost in costs if cost is not None]
        return max(found) if len(found) == len(costs) else None

    def _site_cost(self, kernel: Kernel, box: Box) -> float | None:
        site = plain_site(self.call, box, self.rules.reads(self.call, box), self.device)
        try:
            cost = kernel.cost_ns(site) if kernel.takes(site) else None
        except TgbenchError:
            return None
        return rough_ns(self.call, box) if cost == 0 else cost


def _order(candidate: Candidate) -> tuple[float, bool, str, Sizes]:
    grain = candidate.grain
    score = min(candidate.score, SENTINEL_NS**2)
    return score, grain.copied, grain.kernel, grain.tile


# --- trials ---------------------------------------------------------------------------------------


class Trial:
    """Operands of one call at its own sizes: random ones, and the session's weights and masks."""

    def __init__(
        self, node: Node, anatomy: Anatomy, buffers: Buffers, device: str, seed: int
    ) -> None:
        self.call, self.device, self.buffers = node.call, device, buffers
        self.rules = Rules()
        self.rng = np.random.default_rng(seed)
        self.orders = _orders(node, anatomy)
        frozen = Addresser(lambda leaf: layout(leaf, anatomy, {}), {})
        self.lying: dict[int, View] = {
            i: frozen.view(parent, Box.full(parent.shape))
            for i, parent in enumerate(node.inputs)
            if anatomy.base[parent] in anatomy.frozen
        }
        self.operands = [
            _tensor(self.lying[i], buffers) if i in self.lying else self._drawn(i, device)
            for i in range(len(node.inputs))
        ]

    def _drawn(self, i: int, device: str) -> torch.Tensor:
        """Random numbers, zeros of both signs among them; what is known is what it is."""
        call, type_ = self.call, self.call.inputs[i]
        found = drawn(type_, call.inputs[0], self.rng)
        if type_.dtype in FLOATS:
            zeros = torch.from_numpy(np.asarray(self.rng.random(type_.shape) < 0.03))
            found = found.masked_fill(zeros, 0.0)
            signs = torch.from_numpy(np.asarray(self.rng.random(type_.shape) < 0.5))
            found = torch.where(signs & zeros, -found, found)
        fact = call.facts[i] if call.facts else None
        if fact is not None and fact.value is not None:
            closed = np.broadcast_to(~fact.open.array, type_.shape)
            found = found.masked_fill(torch.from_numpy(closed.copy()), fact.value)
        return found.to(device)

    def joins(self, candidate: Candidate) -> int:
        """How many boxes of tiles have the bits of the chunk around them; 0 if one has not."""
        grain, passed = candidate.grain, 0
        for chunk in _ends(self.call.out.shape, grain.chunk):
            whole = self.run(candidate, chunk)
            if whole is None:
                return 0
            for box in (chunk, *self._boxes(chunk, grain.tile)):
                found = self.run(candidate, box, laid=True)
                inside = tuple(
                    slice(a - c, b - c) for (a, b), (c, _) in zip(box, chunk, strict=True)
                )
                if found is None or not _agree(found, whole[inside]):
                    return 0
                passed += 1
        return passed

    def repeats(self, candidate: Candidate) -> int:
        """How often tiles have the same bits again; 0 if one has not."""
        passed = 0
        for tile in _ends(self.call.out.shape, candidate.grain.tile):
            first = self.run(candidate, tile)
            again = [self.run(candidate, tile, laid=True) for _ in range(2)]
            if first is None or any(b is None or not _agree(b, first) for b in again):
                return 0
            passed += len(again)
        return passed

    def _boxes(self, chunk: Box, tile: Sizes) -> Iterator[Box]:
        """Single tiles at both ends and inside; then boxes of few and of many tiles."""
        yield from _ends(chunk.extents, tile, chunk.starts)
        for i in range(BOXES):
            yield Box(self._side(side, size, i < 2) for side, size in zip(chunk, tile, strict=True))

    def _side(self, side: tuple[Any, Any], size: int, single: bool) -> tuple[int, int]:
        start, stop = side
        count = -(-(stop - start) // size)
        wide = 1 if single else int(2 ** (self.rng.random() * np.log2(count + 1)))
        first = int(self.rng.integers(0, count - wide + 1))
        last = first + wide
        return start + first * size, min(start + last * size, stop)

    # --- one call ---

    def run(self, candidate: Candidate, box: Box, *, laid: bool = False) -> torch.Tensor | None:
        """What the candidate makes of a box; None where it does not take it.

        Args:
            laid: operands and result in random layouts, the result over an operand now and then.
        """
        site, buffers = self._site(box, laid)
        kernel = formed(candidate.kernel, site, candidate.grain)
        if not kernel.takes(site):
            return None
        function, arguments = bound(kernel, site, buffers, self.device)
        function(*arguments)
        return _tensor(site.out, buffers)

    def _site(self, box: Box, laid: bool) -> tuple[Site, dict[tuple[Any, str], torch.Tensor]]:
        reads = self.rules.reads(self.call, box)
        buffers: dict[tuple[Any, str], torch.Tensor] = {}
        ins: list[View | None] = []
        for i, read in enumerate(reads):
            ins.append(None if read is None else self._operand(i, read, laid, buffers))
        out = self._over(box, reads, ins) if laid else None
        if out is None:
            shape, dtype = tuple(map(int, box.extents)), self.call.out.dtype
            empty = torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=self.device)
            out = self._placed("out", empty, dtype, laid, buffers)
        frozen = frozenset(self.lying)
        return Site(self.call, box, reads, out, tuple(ins), self.device, frozen), buffers

    def _operand(
        self, i: int, read: Box, laid: bool, buffers: dict[tuple[Any, str], torch.Tensor]
    ) -> View:
        whole, dtype = self.operands[i], self.call.inputs[i].dtype
        if i in self.lying and (not laid or whole.numel() > LAID_ELEMENTS):
            view = self.lying[i]
            buffers[view.buffer, dtype] = self.buffers[view.buffer, dtype]
            for axis, (start, stop) in enumerate(read):
                view = view.narrow(axis, start, stop - start)
            return view
        return self._placed(i, whole[read.slices()], dtype, laid, buffers)

    def _over(self, box: Box, reads: Sequence[Any], ins: Sequence[View | None]) -> View | None:
        """The place of an operand that the result may take over, now and then."""
        for i in self.call.op.inplace:
            if reads[i] == box and self.call.inputs[i] == self.call.out and i not in self.lying:
                return ins[i] if self.rng.random() < 0.5 else None
        return None

    def _placed(
        self,
        key: Any,
        tensor: torch.Tensor,
        dtype: str,
        laid: bool,
        buffers: dict[tuple[Any, str], torch.Tensor],
    ) -> View:
        """A tensor copied to a place of its own: side by side, or in a random layout."""
        shape, order, offset = tuple(tensor.shape), self.orders[key], 0
        strides, size = in_order(shape, order), prod(shape)
        if laid:
            strides, size = self._layout(shape, order)
            offset = int(self.rng.integers(0, 17))
        flat = torch.full((offset + size,), GARBAGE, dtype=TORCH_DTYPES[dtype], device=self.device)
        buffers[key, dtype] = flat
        view = View(key, dtype, shape, strides, offset)
        _tensor(view, buffers).copy_(tensor)
        return view

    def _layout(self, shape: Sizes, order: Sizes) -> tuple[Sizes, int]:
        """Strides with gaps between lines; row-major ones sometimes with dimensions exchanged."""
        rank = len(shape)
        if order == tuple(range(rank)) and self.rng.random() < 0.25:
            order = tuple(self.rng.permutation(rank).tolist())
        gaps = self.rng.integers(0, 5, rank) * (self.rng.random(rank) < 0.5)
        sizes = [0] * rank
        for axis, gap in zip(order, gaps.tolist(), strict=True):
            sizes[axis] = shape[axis] + gap
        return in_order(sizes, order), prod(sizes)


Orders: TypeAlias = "dict[Any, Sizes]"  # operand's number, or "out" → dimensions, outermost first


def _orders(node: Node, anatomy: Anatomy) -> Orders:
    """The order in which a session stores the result of a node, and what it reads."""
    nodes: list[tuple[Any, Node]] = [*enumerate(node.inputs), ("out", node)]
    return {key: anatomy.order(one) or tuple(range(one.rank)) for key, one in nodes}


def _ends(shape: Sequence[Any], size: Sizes, starts: Sequence[Any] | None = None) -> list[Box]:
    """The first and the last box of a grid, as one where they are the same."""
    begins = starts if starts is not None else (0,) * len(shape)
    first, last = [], []
    for begin, whole, part in zip(begins, shape, size, strict=True):
        first.append((begin, begin + min(part, whole)))
        last.append((begin + (whole - 1) // part * part, begin + whole))
    return list(dict.fromkeys((Box(first), Box(last))))


def _tensor(view: View, buffers: Buffers) -> torch.Tensor:
    flat = buffers[view.buffer, view.dtype].view(-1)
    place: Callable[..., torch.Tensor] = flat.as_strided
    return place(view.shape, view.strides, flat.storage_offset() + view.offset)


def _agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results have the same bits, where they are numbers."""
    if a.is_floating_point():
        a, b = (torch.where(x.isnan(), torch.zeros_like(x), x) for x in (a, b))
    return same_bits(a, b)
