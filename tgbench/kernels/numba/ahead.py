"""How far ahead of reading weights are asked for, so that caches have them: measured here.

A processor's own prefetchers follow streams, some to the end of a page and some beyond; asking
besides helps the ones and costs the others. Reading weights beside one row, bytes ahead and GB/s
(one core, in turns):

    AMD EPYC, Zen 2      0: 24.8    512: 23.7                               2048: 20.5
      bfloat16           0: 22.2    512: 24.4                               2048: 20.8
    AMD EPYC, Zen 5      0: 33.6    512: 37.5    1024: 39.1    1536: 40.0   2048: 37.5    3072: 36.9
      bfloat16           0: 37.1    512: 34.6    1024: 34.9    1536: 37.8   2048: 40.0    3072: 38.5
      int8               0: 36.0    512: 30.2    1024: 32.4    1536: 36.4   2048: 40.3    3072: 42.9

So it is an argument of the loops, and what is quickest is found out when a matrix that caches may
not hold is first bound, once a process, in 0.2 s. No result depends on it.
"""

from __future__ import annotations

import itertools
import mmap
import time
from functools import cache

import numpy as np

from tgbench.kernels.numba import loops
from tgbench.kernels.registry import View

DISTANCES = (0, 512, 1024, 1536, 2048, 3072)  # bytes; the nearest one where several are as quick
AS_QUICK = 1.02
MOST_BYTES = 1 << 20  # of a matrix that is not asked for: models of such lie in caches
PART_BYTES = 32 << 20
PARTS = 7  # more than caches hold, also larger ones than they say; each distance reads each part
OFFSET = 8  # bytes from where a cache's line begins, as weights in files are
DEPTH = 1024
ONES = {"bfloat16": 0x3F80, "float16": 0x3C00}  # their bits: numbers that are no slower than others


def ahead_of(weight: View) -> int:
    """How many bytes ahead a matrix is asked for."""
    return measured_ahead(weight.dtype) if weight.size_bytes > MOST_BYTES else 0


@cache
def measured_ahead(dtype: str) -> int:
    """The distance with which weights of a dtype are read quickest."""
    kind = str(loops.scalar(dtype))
    weights = np.frombuffer(_small_pages(OFFSET + PARTS * PART_BYTES), kind, offset=OFFSET)
    weights[:] = ONES.get(dtype, 1)
    other = "float64" if dtype == "float64" else "float32"
    parts = itertools.cycle(np.split(weights, PARTS))
    columns, x = len(weights) // PARTS // DEPTH, np.ones(DEPTH, other)
    y = np.empty(columns, other)
    kinds = other, "int", dtype, "int", other, *("int",) * 5
    product = loops.compiled(loops.linear, *kinds)
    took = dict.fromkeys(DISTANCES, 1 << 62)
    for _ in range(PARTS):
        for distance in DISTANCES:
            cold = next(parts)
            began = time.perf_counter_ns()
            product(x, DEPTH, cold, DEPTH, y, columns, 1, columns, DEPTH, distance)
            took[distance] = min(took[distance], time.perf_counter_ns() - began)
    least = min(took.values())
    return next(one for one in DISTANCES if took[one] <= AS_QUICK * least)


def _small_pages(size: int) -> mmap.mmap:
    """Memory as weights have it: of files that are mapped, and of tensors, pages are small ones."""
    made = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        made.madvise(mmap.MADV_NOHUGEPAGE)
    return made
