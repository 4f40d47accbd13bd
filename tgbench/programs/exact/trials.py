"""Whether a kernel keeps its bits: the same operands, cut and laid otherwise, bit by bit.

    Trial   one call at its own sizes, over its own weights and masks, on many draws of operands
    Pool    one element-wise op over thousands of numbers, in rows of every length

            whole chunk        ████████████████
            boxes of tiles     ████····██████··     in any layout: the same bits?

Draws are of kinds (`KINDS`): what rounds everywhere, magnitudes of all sizes, zeros of both signs
with ties, and the ends of the dtype. All NaN count as one: no op tells them apart, and a session
hands out one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.coords import Coord
from tgbench.base.regions import Box, in_order
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.base.tiles import Sizes, Tiling
from tgbench.costs.probe import drawn, same_bits, twin_call
from tgbench.graph.graph import Node
from tgbench.graph.op_table import FLOATS, Attrs, Call, OpDef, TensorType
from tgbench.kernels.binding import Buffers, bound, tensor_of
from tgbench.kernels.copied import formed
from tgbench.kernels.registry import OUT, Kernel, Site, View
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.sites import Addresser, layout
from tgbench.runs.rules import Rules

BOXES = 24  # boxes of tiles in each chunk that is tried, besides the whole of it
FEW_TIMES = 3  # as many for a small one
FULLY_TRIED = 8  # of them, on every draw, and all of a small one that have a shape of their own,
LATER_DRAWS = 2  # as another shape may be computed otherwise; the others on as many draws as this
MANY = 1 << 12  # elements of a draw that is enough of its kind
MOST_TIMES = 6  # draws of a kind
LAID_ELEMENTS = 1 << 22  # weights up to this size are tried in other layouts than their own
DENSE, RETAINED, ANYHOW = "dense", "retained", "anyhow"  # how operands lie: side by side, in
# place in the whole tensor, or with gaps, at any alignment, with dimensions exchanged
GARBAGE = 7.0  # between the rows of operands
POOLS = (1 << 16, 1 << 13)  # so many numbers an element-wise kernel is tried on, as it takes them
ROW = 1024  # as long as the rows are that others are compared with
WIDTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 64, 71)  # of the rows that they lie in

Operands: TypeAlias = "list[torch.Tensor]"
Run: TypeAlias = Callable[[Operands], torch.Tensor]


# --- draws ----------------------------------------------------------------------------------------


def _wide(shape: Sizes, info: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Magnitudes of all sizes, denormal ones among them."""
    low, high = np.log2(float(info.smallest_normal)) - 4, np.log2(float(info.max)) - 0.01
    return np.asarray(rng.choice([-1.0, 1.0], shape) * 2.0 ** rng.uniform(low, high, shape))


def _tied(shape: Sizes, info: Any, rng: np.random.Generator) -> NDArray[Any]:
    return np.asarray(rng.choice([-1.0, -0.0, 0.0, 1.0, 2.0], shape, p=[0.1, 0.35, 0.35, 0.1, 0.1]))


def _special(shape: Sizes, info: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Ends of the dtype, and what can arise inside: infinities, and what is not a number."""
    least, most = float(info.smallest_normal), float(info.max)
    ends = [0.0, -0.0, 1.0, -1.0, 0.5, least, -least, least / 4, most, -most, most / 2]
    found = rng.choice([*ends, *np.sqrt([least, most]), np.inf, -np.inf, np.nan], shape)
    return np.where(rng.random(shape) < 0.6, rng.standard_normal(shape), found)


def _moderate(shape: Sizes, info: Any, rng: np.random.Generator) -> NDArray[Any]:
    """Above 0, where logarithms, roots and powers are numbers."""
    return np.asarray(np.exp(2 * rng.standard_normal(shape)))


KINDS: tuple[Callable[[Sizes, Any, np.random.Generator], NDArray[Any]], ...] = (
    lambda shape, info, rng: np.asarray(rng.standard_normal(shape)), _moderate, _special, _tied,
    _wide,
)  # fmt: skip


def drawn_of(
    type_: TensorType, first: TensorType, kind: int, rng: np.random.Generator
) -> torch.Tensor:
    """Numbers of a kind; indices that exist in the first operand; masks that are mostly open."""
    dtype = TORCH_DTYPES[type_.dtype]
    if type_.dtype not in FLOATS:
        return drawn(type_, first, rng)
    return torch.from_numpy(KINDS[kind](type_.shape, torch.finfo(dtype), rng)).to(dtype)


# --- one call at its own sizes --------------------------------------------------------------------


class Trial:
    """One call at its own sizes: draws of each kind, the session's weights and masks."""

    def __init__(
        self, node: Node, scheduled: ScheduledGraph, buffers: Buffers, device: str
    ) -> None:
        self.call, self.device, self.buffers = node.call, device, buffers
        self.rules = Rules()
        self.rng = np.random.default_rng(0)
        self.orders = orders_of(node, scheduled)
        frozen = Addresser(lambda leaf: layout(leaf, scheduled, {}), {})
        self.lying: dict[int, View] = {
            i: frozen.view(parent, Box.full(parent.shape))
            for i, parent in enumerate(node.inputs)
            if scheduled.base[parent] in scheduled.frozen
        }
        times = max(1, min(MANY // max(self.call.out.elements, 1), MOST_TIMES))
        self.draws = [self._drawn(kind) for _ in range(times) for kind in range(len(KINDS))]

    def _drawn(self, kind: int) -> Operands:
        return [
            tensor_of(self.lying[i], self.buffers) if i in self.lying else self._operand(i, kind)
            for i in range(len(self.call.inputs))
        ]

    def _operand(self, i: int, kind: int) -> torch.Tensor:
        """Numbers of a kind; what is known is what it is."""
        call, type_ = self.call, self.call.inputs[i]
        found = drawn_of(type_, call.inputs[0], kind, self.rng)
        if type_.dtype in FLOATS and self._meets_masks:
            found = found.nan_to_num()
        fact = call.facts[i] if call.facts else None
        if fact is not None and fact.value is not None:
            closed = np.broadcast_to(~fact.open.array, type_.shape)
            found = found.masked_fill(torch.from_numpy(closed.copy()), fact.value)
        return found.to(self.device)

    @cached_property
    def _meets_masks(self) -> bool:
        """Whether an operand may be known to be 0 where another is infinite or no number.

        In a product of lines one such element is in all of them: there nothing is promised.
        """
        return not is_elementwise(self.call) and any(fact is not None for fact in self.call.facts)

    def joins(self, kernel: Kernel, tiling: Tiling) -> int:
        """How many boxes of tiles have the bits of the chunk around them; 0 if one has not."""
        passed = 0
        for chunk in ends(self.call.out.shape, tiling.chunk):
            run = self.run(kernel, tiling, chunk)
            if run is None:
                return 0
            wholes = [run(operands).clone() for operands in self.draws]
            is_small, shapes = prod(chunk.extents) <= MANY, set[tuple[Coord, ...]]()
            for i, box in enumerate((chunk, *self._boxes(chunk, tiling.tile))):
                is_new = is_small and box.extents not in shapes
                shapes.add(box.extents)
                draws = len(self.draws) if is_new or i < FULLY_TRIED else LATER_DRAWS
                for laid in (RETAINED, ANYHOW):
                    if not self._has_bits(kernel, tiling, box, chunk, wholes[:draws], laid):
                        return 0
                    passed += draws
        return passed

    def _has_bits(
        self,
        kernel: Kernel,
        tiling: Tiling,
        box: Box,
        chunk: Box,
        wholes: Sequence[torch.Tensor],
        laid: str,
    ) -> bool:
        run = self.run(kernel, tiling, box, laid)
        at = tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(box, chunk, strict=True))
        draws = zip(self.draws, wholes, strict=False)
        return run is not None and all(agree(run(given), whole[at]) for given, whole in draws)

    def repeats(self, kernel: Kernel, tiling: Tiling) -> int:
        """How often tiles have the same bits again; 0 if one has not."""
        passed = 0
        for tile in ends(self.call.out.shape, tiling.tile):
            run = self.run(kernel, tiling, tile)
            if run is None:
                return 0
            firsts = [run(operands).clone() for operands in self.draws]
            for laid in (RETAINED, ANYHOW):
                if not self._has_bits(kernel, tiling, tile, tile, firsts, laid):
                    return 0
                passed += len(firsts)
        return passed

    def _boxes(self, chunk: Box, tile: Sizes) -> Iterator[Box]:
        """Single tiles at both ends and inside; then boxes of few and of many tiles."""
        yield from ends(chunk.extents, tile, chunk.starts)
        for i in range(BOXES if prod(chunk.extents) > MANY else FEW_TIMES * BOXES):
            yield Box(
                self._side(side, size, i % 3 == 0) for side, size in zip(chunk, tile, strict=True)
            )

    def _side(self, side: tuple[Any, Any], size: int, single: bool) -> tuple[int, int]:
        start, stop = side
        count = -(-(stop - start) // size)
        wide = 1 if single else int(2 ** (self.rng.random() * np.log2(count + 1)))
        first = int(self.rng.integers(0, count - wide + 1))
        last = first + wide
        return start + first * size, min(start + last * size, stop)

    # --- one site ---

    def run(self, kernel: Kernel, tiling: Tiling, box: Box, laid: str = DENSE) -> Run | None:
        """What a kernel makes of a box, of any operands; None where it does not take the box.

        Args:
            laid: how operands and result lie; `ANYHOW` has the result over an operand at times.
        """
        site, buffers = self._site(box, laid)
        kernel = formed(kernel, site, tiling)
        if not kernel.takes(site):
            return None
        function, arguments = bound(kernel, site, buffers, self.device)
        places = [
            (tensor_of(view, buffers), i, read.slices())
            for i, (view, read) in enumerate(zip(site.ins, site.in_boxes, strict=True))
            if view is not None and read is not None and i not in self.lying
        ]
        out = tensor_of(site.out, buffers)

        def run(operands: Operands) -> torch.Tensor:
            for place, i, inside in places:
                place.copy_(operands[i][inside])
            function(*arguments)
            return out

        return run

    def _site(self, box: Box, laid: str) -> tuple[Site, dict[tuple[Any, str], torch.Tensor]]:
        reads = self.rules.reads(self.call, box)
        buffers: dict[tuple[Any, str], torch.Tensor] = {}
        ins: list[View | None] = []
        for i, read in enumerate(reads):
            ins.append(None if read is None else self._placed_operand(i, read, laid, buffers))
        out = self._over(box, reads, ins) if laid == ANYHOW else None
        if out is None:
            out = self._placed(OUT, box, self.call.out, laid, buffers)
        frozen = frozenset(self.lying)
        return Site(self.call, box, reads, out, tuple(ins), self.device, frozen), buffers

    def _placed_operand(
        self, i: int, read: Box, laid: str, buffers: dict[tuple[Any, str], torch.Tensor]
    ) -> View:
        type_ = self.call.inputs[i]
        if i in self.lying and (laid != ANYHOW or type_.elements > LAID_ELEMENTS):
            view = self.lying[i]
            buffers[view.buffer, type_.dtype] = self.buffers[view.buffer, type_.dtype]
            for axis, (start, stop) in enumerate(read):
                view = view.narrow(axis, start, stop - start)
            return view
        view = self._placed(i, read, type_, laid, buffers)
        if i in self.lying:
            tensor_of(view, buffers).copy_(self.draws[0][i][read.slices()])
        return view

    def _over(self, box: Box, reads: Sequence[Any], ins: Sequence[View | None]) -> View | None:
        """The place of an operand that the result may take over, now and then."""
        for i in self.call.op.inplace:
            if reads[i] == box and self.call.inputs[i] == self.call.out and i not in self.lying:
                return ins[i] if self.rng.random() < 0.5 else None
        return None

    def _placed(
        self,
        key: Any,
        box: Box,
        type_: TensorType,
        laid: str,
        buffers: dict[tuple[Any, str], torch.Tensor],
    ) -> View:
        """A place of its own for a box of an operand, or of the result."""
        shape, order, offset = tuple(map(int, box.extents)), self.orders[key], 0
        strides, size = in_order(shape, order), prod(shape)
        if laid == RETAINED and type_.elements <= LAID_ELEMENTS:
            strides, size = in_order(type_.shape, order), type_.elements
            offset = sum(int(a) * step for a, step in zip(box.starts, strides, strict=True))
        elif laid == ANYHOW:
            strides, extent = self._layout(shape, order)
            offset = int(self.rng.integers(0, 17))
            size = offset + extent
        flat = torch.full((size,), GARBAGE, dtype=TORCH_DTYPES[type_.dtype], device=self.device)
        buffers[key, type_.dtype] = flat
        return View(key, type_.dtype, shape, strides, offset)

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


Orders: TypeAlias = "dict[Any, Sizes]"  # operand's number, or OUT → dimensions, outermost first


def orders_of(node: Node, scheduled: ScheduledGraph) -> Orders:
    """The order in which a session stores the result of a node, and what it reads."""
    nodes: list[tuple[Any, Node]] = [*enumerate(node.inputs), (OUT, node)]
    return {key: _order_of(one, scheduled) for key, one in nodes}


def _order_of(node: Node, scheduled: ScheduledGraph) -> Sizes:
    """Dimensions of a node as they lie in what it shows; those along which it repeats come first.

    A library adds up otherwise where an operand lies transposed.
    """
    base, dims = scheduled.base[node], scheduled.maps[node].dims
    outer = scheduled.order(base) or tuple(range(base.rank))

    def place(axis: int) -> tuple[int, int]:
        to = dims[axis]
        return (-1, 0) if to is None else (outer.index(to[0]), -abs(to[1]))

    return tuple(sorted(range(node.rank), key=place))


def ends(shape: Sequence[Any], size: Sizes, starts: Sequence[Any] | None = None) -> list[Box]:
    """The first and the last box of a grid, as one where they are the same."""
    begins = starts if starts is not None else (0,) * len(shape)
    first, last = [], []
    for begin, whole, part in zip(begins, shape, size, strict=True):
        first.append((begin, begin + min(part, whole)))
        last.append((begin + (whole - 1) // part * part, begin + whole))
    return list(dict.fromkeys((Box(first), Box(last))))


def agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two results have the same bits, where they are numbers."""
    if same_bits(a, b):
        return True
    if not a.is_floating_point():
        return False
    a, b = (torch.where(x.isnan(), torch.full_like(x, torch.nan), x) for x in (a, b))
    return same_bits(a, b)


# --- an element-wise op over many numbers ---------------------------------------------------------


def is_elementwise(call: Call) -> bool:
    """Whether each element follows from the operands' elements at its own place."""
    count = len(call.inputs)
    return count > 0 and call.op.aligned == tuple(range(count)) and not call.op.whole(call)


def keeps_elements(
    kernel: Kernel, call: Call, numbers: Sequence[float | None], device: str
) -> bool:
    """Whether an element's bits follow from its operands alone, wherever in a row it lies.

    A vectorised function and the scalar one for the ends of rows may differ once in a thousand
    numbers, which few draws of a small call do not find.

    Args:
        numbers: for each input the one number that it always is; None for any other.
    """
    kinds = tuple((type_.dtype, type_.elements == 1) for type_ in call.inputs)
    attrs = tuple(sorted(call.attrs.items()))
    return _keeps_elements(kernel, call.op, attrs, kinds, tuple(numbers), device)


@cache
def _keeps_elements(
    kernel: Kernel,
    op: OpDef,
    attrs: tuple[tuple[str, Any], ...],
    kinds: tuple[tuple[str, bool], ...],
    numbers: tuple[float | None, ...],
    device: str,
) -> bool:
    pools = [_Pool(op.name, dict(attrs), kinds, numbers, device, size) for size in POOLS]
    pool = next((pool for pool in pools if pool.run(kernel, ROW) is not None), None)
    return pool is not None and pool.keeps_bits(kernel)


class _Pool:
    """Thousands of numbers of all kinds for each operand, or one where it has just one.

    POOL numbers as rows of 3, with a gap behind each:   ▓▓▓·▓▓▓·▓▓▓·▓▓▓·…
    """

    def __init__(
        self,
        op: str,
        attrs: Attrs,
        kinds: Sequence[tuple[str, bool]],
        numbers: Sequence[float | None],
        device: str,
        size: int,
    ) -> None:
        self.op, self.attrs, self.device, self.size = op, attrs, device, size
        self.dtypes = [dtype for dtype, _ in kinds]
        self.single = [is_single for _, is_single in kinds]
        rng = np.random.default_rng(0)
        self.flat = [
            (_one(dtype, number, rng) if is_single else _mixed(dtype, size, rng)).to(device)
            for (dtype, is_single), number in zip(kinds, numbers, strict=True)
        ]

    def keeps_bits(self, kernel: Kernel) -> bool:
        """Whether rows of all lengths, in all the layouts that a kernel takes, agree."""
        first = self.run(kernel, ROW)
        return first is not None and all(
            found is None or agree(found, first[: len(found)])
            for width in WIDTHS
            for turned in (False, True)
            for found in (self.run(kernel, width, turned),)
        )

    def run(self, kernel: Kernel, width: int, turned: bool = False) -> torch.Tensor | None:
        """The results as one line; None where the kernel does not take such rows."""
        shape = (self.size // width, width)
        shapes = [() if is_single else shape for is_single in self.single]
        call = twin_call(self.op, self.attrs, shapes, self.dtypes)
        if call is None or call.out.shape != shape:
            return None
        buffers: dict[tuple[Any, str], torch.Tensor] = {}
        ins = [self._placed(i, type_, turned, buffers) for i, type_ in enumerate(call.inputs)]
        out = self._placed(OUT, call.out, turned, buffers)
        for view, numbers in zip(ins, self.flat, strict=True):
            place = tensor_of(view, buffers)
            place.copy_(numbers[: view.elements].view_as(place))
        boxes = tuple(Box.full(type_.shape) for type_ in call.inputs)
        site = Site(call, Box.full(shape), boxes, out, tuple(ins), self.device)
        if not kernel.takes(site):
            return None
        function, arguments = bound(kernel, site, buffers, self.device)
        function(*arguments)
        return tensor_of(out, buffers).reshape(-1)

    def _placed(
        self,
        key: Any,
        type_: TensorType,
        turned: bool,
        buffers: dict[tuple[Any, str], torch.Tensor],
    ) -> View:
        gaps = (type_.shape[0] + 1, type_.shape[1] + 1) if type_.rank else ()
        strides = () if not gaps else (1, gaps[0]) if turned else (gaps[1], 1)
        flat = torch.full((prod(gaps),), GARBAGE, dtype=TORCH_DTYPES[type_.dtype])
        buffers[key, type_.dtype] = flat.to(self.device)
        return View(key, type_.dtype, type_.shape, strides, 0)


def _one(dtype: str, number: float | None, rng: np.random.Generator) -> torch.Tensor:
    if number is not None:
        return torch.tensor([number], dtype=TORCH_DTYPES[dtype])
    one = TensorType((1,), dtype)
    return drawn_of(one, one, 0, rng)


def _mixed(dtype: str, size: int, rng: np.random.Generator) -> torch.Tensor:
    """Numbers of all kinds."""
    each = TensorType((-(-size // len(KINDS)),), dtype)
    found = torch.cat([drawn_of(each, each, kind, rng) for kind in range(len(KINDS))])
    return found[torch.from_numpy(rng.permutation(len(found)))]
