"""Which kernels give the same bits in every run, and for which tiles: found out by trying them.

    candidates   every kernel × as it lies, or on copies × every tile of a ladder
    trial        random operands of the session's own shapes, its own weights and masks
                 whole chunk        ████████████████
                 boxes of tiles     ████····██████··     in any layout: the same bits?

The first to pass, in the order of what a small edit and everything are modelled to take, computes
the call in every run. Where one call over many tiles keeps no bits, tiles are computed one by one,
each on copies of its operands that lie side by side: the same kernel on the same numbers in the
same places, which has the same bits if the kernel is deterministic. In the end a tile is the whole
tensor. Only a kernel that differs from itself is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch

from tgbench.anatomy import Anatomy
from tgbench.cost import SENTINEL_NS, plain_site
from tgbench.errors import ExactnessError, TgbenchError
from tgbench.grains import Grain, Sizes
from tgbench.graph import Node
from tgbench.kernels.copied import copied, formed
from tgbench.kernels.registry import KERNELS, Kernel, Site, View
from tgbench.lowering import Addresser, layout
from tgbench.optable import FLOATS, Call
from tgbench.probe import bound, drawn, same_bits
from tgbench.propagate import rough_ns
from tgbench.regions import EMPTY, Box, Region, row_major
from tgbench.rules import Rules
from tgbench.signature import source_hash
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


def find(anatomy: Anatomy, buffers: Buffers, device: str, tell: Tell | None = None) -> Exactness:
    """A grain for every call that a session computes.

    Args:
        buffers: weights, constants and frozen nodes, as the session has them.

    Raises ExactnessError for a call whose kernels all differ from themselves.
    """
    calls: dict[Call, list[Node]] = {}
    for node in anatomy.stored:
        calls.setdefault(node.call, []).append(node)
    grains = {}
    for i, (call, nodes) in enumerate(calls.items()):
        if tell is not None:
            tell(f"trying kernels for equal bits {i + 1}/{len(calls)} {nodes[0].name}")
        grains[call] = grain_of(nodes, anatomy, buffers, device)
    names = {call: tuple(node.name for node in nodes) for call, nodes in calls.items()}
    return Exactness(grains, names, torch.get_num_threads())


def grain_of(nodes: Sequence[Node], anatomy: Anatomy, buffers: Buffers, device: str) -> Grain:
    """The grain of the call that these nodes share; remembered for the life of the process."""
    weights = [_weights(node, anatomy) for node in nodes]
    stays = tuple(sorted(set(weights[0]).intersection(*weights)))
    key = (*_key(nodes[0].call, device), str(stays))
    if key not in _remembered:
        _remembered[key] = _Search(nodes[0], anatomy, buffers, device, stays).grain()
    return _remembered[key]


def _weights(node: Node, anatomy: Anatomy) -> list[int]:
    """Inputs that follow from weights and constants alone."""
    return [i for i, leaf in enumerate(node.inputs) if anatomy.base[leaf] in anatomy.frozen]


_remembered: dict[tuple[str, ...], Grain] = {}


def _key(call: Call, device: str) -> tuple[str, ...]:
    """What a finding depends on: the call, its kernels' sources, the threads."""
    kernels = [f"{kernel.name} {source_hash(kernel)}" for kernel in _kernels(call, device)]
    facts = [_told(fact) for fact in (*call.facts, call.fact)]
    types = [str(type_) for type_ in (*call.inputs, call.out)]
    attrs = [f"{name}={value!r}" for name, value in sorted(call.attrs.items())]
    return call.op.name, *attrs, *types, *facts, *kernels, device, str(torch.get_num_threads())


def _told(fact: Any) -> str:
    if fact is None:
        return ""
    if fact.constant is not None:
        return str(fact.constant.digest)
    return f"{fact.value} {hashlib.sha256(np.packbits(fact.open.array).tobytes()).hexdigest()}"


def _kernels(call: Call, device: str) -> list[Kernel]:
    kind = device.split(":")[0]
    return [kernel for kernel in KERNELS.get(call.op.name, ()) if kind in kernel.devices]


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
        stays: tuple[int, ...] = (),
    ) -> None:
        self.node = node
        self.call = node.call
        self.device = device
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
        return [Trial(*self._given, seed) for seed in range(DRAWS)]

    def grain(self) -> Grain:
        """The best candidate that passes."""
        differs: dict[str, None] = {}
        for candidate in sorted(self._candidates(), key=_order):
            try:
                if self._passes(candidate):
                    return candidate.grain
            except TgbenchError:
                continue  # a kernel that fails at its trial is not for this call
            if not candidate.joins:
                differs[candidate.kernel.name] = None
        raise ExactnessError(
            f"{self.call.op.name} ({self.node.name}): "
            f"{', '.join(differs) or 'no kernel'} gave two results for the same operands; "
            "register a deterministic kernel for the op, or leave out exact='bitwise'"
        )

    def _passes(self, candidate: Candidate) -> bool:
        check = Trial.joins if candidate.joins else Trial.repeats
        return all(check(trial, candidate) for trial in self.trials)

    def _candidates(self) -> Iterator[Candidate]:
        for kernel in _kernels(self.call, self.device):
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
            cost = kernel.cost_ns(site) if kernel.accepts(site) else None
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

    def joins(self, candidate: Candidate) -> bool:
        """Whether boxes of tiles have the bits of the chunk around them, however they lie."""
        grain = candidate.grain
        for chunk in _ends(self.call.out.shape, grain.chunk):
            whole = self.run(candidate, chunk)
            if whole is None:
                return False
            for box in (chunk, *self._boxes(chunk, grain.tile)):
                found = self.run(candidate, box, laid=True)
                inside = tuple(
                    slice(a - c, b - c) for (a, b), (c, _) in zip(box, chunk, strict=True)
                )
                if found is None or not _agree(found, whole[inside]):
                    return False
        return True

    def repeats(self, candidate: Candidate) -> bool:
        """Whether a tile has the same bits twice."""
        for tile in _ends(self.call.out.shape, candidate.grain.tile):
            first = self.run(candidate, tile)
            again = [self.run(candidate, tile, laid=True) for _ in range(2)]
            if first is None or any(b is None or not _agree(b, first) for b in again):
                return False
        return True

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
        if not kernel.accepts(site):
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
        return Site(self.call, box, reads, out, tuple(ins), self.device), buffers

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
        shape = tuple(tensor.shape)
        strides, offset, size = row_major(shape), 0, prod(shape)
        if laid:
            strides, size = self._layout(shape)
            offset = int(self.rng.integers(0, 17))
        flat = torch.full((offset + size,), GARBAGE, dtype=TORCH_DTYPES[dtype], device=self.device)
        buffers[key, dtype] = flat
        view = View(key, dtype, shape, strides, offset)
        _tensor(view, buffers).copy_(tensor)
        return view

    def _layout(self, shape: Sizes) -> tuple[Sizes, int]:
        """Strides with gaps between lines, sometimes with dimensions exchanged; the elements."""
        rank = len(shape)
        order = self.rng.permutation(rank) if self.rng.random() < 0.25 else np.arange(rank)
        gaps = self.rng.integers(0, 5, rank) * (self.rng.random(rank) < 0.5)
        sizes = [int(shape[axis] + gap) for axis, gap in zip(order, gaps, strict=True)]
        strides = dict(zip(order.tolist(), row_major(sizes), strict=True))
        return tuple(strides[axis] for axis in range(rank)), prod(sizes)


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
