"""How exact a kernel is: its error against the float64 reference.

A call is tried on a *twin* of itself: random operands of the same types, the largest sizes halved
until the work is bounded, and as many of its rows as the kernel takes at once. Rows run along the
longest dimension before the last one. Which slices keep their bits is for `exactness` to find out.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.errors import TgbenchError
from tgbench.base.regions import Box, row_major
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.graph.graph import GraphBuilder
from tgbench.graph.op_table import FLOATS, Attrs, Call, TensorType
from tgbench.kernels.binding import Buffers, bound
from tgbench.kernels.registry import OUT, Kernel, Site, View, prepared_inputs
from tgbench.runs.rules import Rules

MOST_ELEMENTS = 1 << 22  # of all operands and the result of a twin
MOST_FLOPS = 4e8


def relative_error(kernel: Kernel, call: Call, device: str) -> float | None:
    """The largest difference from the reference over the reference's largest magnitude.

    None where no twin can be built, or the kernel does not take it or fails there.
    """
    twin = Twin.of(call, device)
    if twin is None:
        return None
    try:
        return _found(kernel, twin)
    except TgbenchError:
        return None


def _found(kernel: Kernel, twin: Twin) -> float | None:
    """Of as many rows as the kernel takes at once, halved until it does."""
    whole, rows = Box.full(twin.call.out.shape), twin.rows
    while (found := twin.run(kernel, whole)) is None and rows > 1:
        rows //= 2
        whole = _rows(whole, twin.row_axis, 0, rows)
    return None if found is None else twin.error(found, whole)


class Twin:
    """A call with random operands."""

    def __init__(self, call: Call, device: str) -> None:
        self.call = call
        self.device = device
        self.rules = Rules()
        rng = np.random.default_rng(0)
        self.buffers = {
            (i, type_.dtype): drawn(type_, call.inputs[0], rng).to(device)
            for i, type_ in enumerate(call.inputs)
        }
        self._expected: NDArray[Any] | None = None

    @staticmethod
    def of(call: Call, device: str) -> Twin | None:
        """The largest twin whose work is bounded; None for attributes that fix the sizes."""
        shapes = [type_.shape for type_ in call.inputs]
        while True:
            twin = twin_call(
                call.op.name, call.attrs, shapes, [type_.dtype for type_ in call.inputs]
            )
            if twin is None:
                return None
            elements = sum(prod(t.shape) for t in (*twin.inputs, twin.out))
            flops = twin.op.flops(twin, Box.full(twin.out.shape))
            if elements <= MOST_ELEMENTS and flops <= MOST_FLOPS:
                return Twin(twin, device)
            largest = max(size for shape in (*shapes, twin.out.shape) for size in shape)
            if not any(largest in shape for shape in shapes):
                return None
            half = max(largest // 2, 1)
            shapes = [tuple(half if n == largest else n for n in shape) for shape in shapes]

    @property
    def row_axis(self) -> int:
        shape = self.call.out.shape
        return max(range(max(len(shape) - 1, 1)), key=lambda axis: shape[axis : axis + 1])

    @property
    def rows(self) -> int:
        """How many rows there are; 1 for a number."""
        return int(self.call.out.shape[self.row_axis]) if self.call.out.rank else 1

    @property
    def expected(self) -> NDArray[Any]:
        """The reference, in float64."""
        if self._expected is None:
            arrays = [_as_numpy(tensor) for tensor in self.buffers.values()]
            with np.errstate(all="ignore"):
                found = self.call.op.reference(self.call.attrs, *arrays)
            self._expected = np.asarray(found)
        return self._expected

    def run(self, kernel: Kernel, box: Box) -> torch.Tensor | None:
        """What the kernel makes of a box of the output; None where it does not take that."""
        site = self._site(box)
        if not kernel.takes(site):
            return None
        dtype = TORCH_DTYPES[site.out.dtype]
        out = torch.zeros(box.elements, dtype=dtype, device=self.device)
        buffers: Buffers = {**self.buffers, (OUT, site.out.dtype): out}
        function, arguments = bound(kernel, site, buffers, self.device)
        function(*arguments)
        shape: tuple[Any, ...] = box.extents
        return out.view(shape)

    def _site(self, box: Box) -> Site:
        reads = self.rules.reads(self.call, box)
        ins = tuple(
            None if read is None else _placed(i, type_, read)
            for i, (read, type_) in enumerate(zip(reads, self.call.inputs, strict=True))
        )
        out = View(OUT, self.call.out.dtype, box.extents, row_major(box.extents), 0)
        frozen = prepared_inputs(self.call, self.device)
        return Site(self.call, box, reads, out, ins, self.device, frozen)

    def error(self, found: torch.Tensor, box: Box) -> float | None:
        """The largest difference over the largest magnitude, where the reference is finite."""
        want, have = self.expected[box.slices()], _as_numpy(found)
        finite = np.isfinite(want)
        if not finite.any():
            return None
        want, have = want[finite].astype(float), have[finite].astype(float)
        worst = float(np.abs(have - want).max())
        return worst / max(float(np.abs(want).max()), 1e-30) if np.isfinite(worst) else None


def _placed(buffer: int, type_: TensorType, box: Box) -> View:
    """A box of a whole row-major tensor."""
    strides = row_major(type_.shape)
    first = sum(start * step for start, step in zip(box.starts, strides, strict=True))
    return View(buffer, type_.dtype, box.extents, strides, first)


def twin_call(
    op: str, attrs: Attrs, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]
) -> Call | None:
    """The op on plain inputs of these shapes; None for attributes that do not go with them."""
    g = GraphBuilder()
    inputs = [
        g.input(f"x{i}", shape, dtype)
        for i, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    try:
        return g.apply(op, *inputs, **attrs).call if inputs else None
    except (TgbenchError, ValueError, TypeError, IndexError):
        return None


def drawn(type_: TensorType, first: TensorType, rng: np.random.Generator) -> torch.Tensor:
    """Normal floats; indices that exist in the first operand; masks that are mostly open."""
    dtype = TORCH_DTYPES[type_.dtype]
    if type_.dtype in FLOATS:
        return torch.from_numpy(rng.standard_normal(type_.shape)).to(dtype)
    if type_.dtype == "bool":
        mask = rng.random(type_.shape) < 0.9
        if type_.rank:
            mask[..., 0] = True
        return torch.from_numpy(np.asarray(mask))
    below = max(1, min(first.shape, default=1))
    return torch.from_numpy(np.asarray(rng.integers(0, min(below, 100), type_.shape))).to(dtype)


def _as_numpy(tensor: torch.Tensor) -> NDArray[Any]:
    wide = tensor.double() if tensor.is_floating_point() else tensor
    return np.asarray(wide.cpu().numpy())


# --- bits ---------------------------------------------------------------------------------------


_AS_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one type agree in every bit, the sign of zero included.

    >>> same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    False
    """
    return torch.equal(*(x.view(_AS_INTEGERS[x.itemsize]) for x in (a, b)))


def _rows(box: Box, axis: int, start: int, stop: int) -> Box:
    if not box:
        return box
    return Box((*box[:axis], (start, stop), *box[axis + 1 :]))
