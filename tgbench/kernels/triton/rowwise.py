"""The kernel of rowwise ops on a GPU: one launch, written from the op's steps (`written`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

from tgbench.base.coords import value_of
from tgbench.graph.ops.rowwise import reduces
from tgbench.kernels.passes import passes_of, planes
from tgbench.kernels.registry import Kernel, Site, View, register
from tgbench.kernels.triton import written
from tgbench.kernels.views import Bound

DTYPES = ("float32", "float16", "bfloat16")
LAUNCH_NS = 20_000.0  # from Python; ranks only what nothing is known of
BYTES_PER_NS = 500.0
MOST_COLUMNS = 4096  # of a block; a longer row is walked
BLOCK = 2048  # elements of a block of several rows
WARP_ELEMENTS, MOST_WARPS = 512, 8  # of a block, that a warp of 32 threads computes


def _planes(site: Site) -> tuple[View, ...] | None:
    return planes(site, DTYPES)


def _launch(function: Any, rows: int, columns: int, is_whole: bool, *arguments: Any) -> None:
    """A program for every few rows; for every block of them, where that is whole."""
    *_, outer, inner, n = arguments
    blocks = -(-n // columns)
    grid = -(-outer * inner // rows), blocks if is_whole else 1
    warps = min(MOST_WARPS, max(1, rows * columns // WARP_ELEMENTS))
    walked = 1 if is_whole else blocks
    function[grid](*arguments, ROWS=rows, COLUMNS=columns, BLOCKS=walked, num_warps=warps)


def block_of(columns: int) -> tuple[int, int]:
    """Rows and columns of a block, for rows of so many columns: powers of two.

    >>> block_of(640), block_of(5), block_of(10_000)
    ((2, 1024), (256, 8), (1, 4096))
    """
    wide = min(MOST_COLUMNS, 1 << (columns - 1).bit_length())
    return max(1, BLOCK // wide), wide


def _bind(site: Site, scratch: Sequence[View]) -> Bound:
    views = _planes(site)
    assert views is not None
    columns = value_of(views[-1].shape[-1])
    rows, wide = block_of(columns)
    is_whole = wide >= columns or not reduces(site.call)
    passes = passes_of(site, keeps=is_whole)
    assert passes is not None
    logical = tuple(view.dtype == "bool" for view in views[:-1])
    arguments = [part for view in views for part in (view, *view.strides)]
    function = written.function(passes, logical, is_whole)
    return partial(_launch, function, rows, wide, is_whole), (*arguments, *views[-1].shape)


def _cost(site: Site) -> float:
    return LAUNCH_NS + sum(view.size_bytes for view in site.views) / BYTES_PER_NS


@cache
def is_there() -> bool:
    """Whether Triton is installed; it is not imported for the answer."""
    return find_spec("triton") is not None


def _takes(site: Site) -> bool:
    return is_there() and _planes(site) is not None


register(Kernel("rowwise_triton", "rowwise", _takes, _cost, _bind, devices=("cuda",)))
