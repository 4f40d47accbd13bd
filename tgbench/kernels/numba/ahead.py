"""How far ahead of reading weights are asked for, so that caches have them: measured here.

A processor's own prefetchers follow streams, some to the end of a page and some beyond; asking
besides helps the ones and costs the others. Reading float32 beside one row, bytes ahead and GB/s
(one core, in turns):

    AMD EPYC, Zen 2, AVX2     0: 24.8     512: 23.7                  2048: 20.5
    its bfloat16              0: 22.2     512: 24.4                  2048: 20.8
    AMD EPYC, Zen 5           0: 32.5     512: 34.5     1024: 37.7   2048: 36.5
    its last cache            0: 34.5     512: 36.7     1024: 40.5   2048: 43.4

So it is an argument of the loops, and what is quickest is found out when a matrix that caches may
not hold is first bound, once a process. No result depends on it.
"""

from __future__ import annotations

import itertools
import time
from functools import cache

import numpy as np

from tgbench.kernels.numba import loops
from tgbench.kernels.registry import View

DISTANCES = (0, 512, 1024, 2048)  # bytes; the nearest one where several are as quick
AS_QUICK = 1.02
LEAST_BYTES = 1 << 18  # of a matrix, from which on it is worth asking
COLD_BYTES = 256 << 20  # more than caches hold, also those that are larger than they say
PARTS = 8  # of it, one read after the other
DEPTH = 1024
TIMES = 4
ONES = {"bfloat16": 0x3F80, "float16": 0x3C00}  # their bits: numbers that are no slower than others


def ahead_of(weight: View) -> int:
    """How many bytes ahead a matrix is asked for."""
    return measured_ahead(weight.dtype) if weight.size_bytes >= LEAST_BYTES else 0


@cache
def measured_ahead(dtype: str) -> int:
    """The distance with which weights of a dtype are read quickest."""
    kind = str(loops.scalar(dtype))
    weights = np.full(COLD_BYTES // np.dtype(kind).itemsize, ONES.get(dtype, 1), kind)
    other = "float64" if dtype == "float64" else "float32"
    parts = itertools.cycle(np.split(weights, PARTS))
    columns, x = len(weights) // PARTS // DEPTH, np.ones(DEPTH, other)
    y = np.empty(columns, other)
    kinds = other, "int", dtype, "int", other, *("int",) * 5
    product = loops.compiled(loops.linear, *kinds)
    took = dict.fromkeys(DISTANCES, 1 << 62)
    for _ in range(TIMES):
        for distance in DISTANCES:
            cold = next(parts)
            began = time.perf_counter_ns()
            product(x, DEPTH, cold, DEPTH, y, columns, 1, columns, DEPTH, distance)
            took[distance] = min(took[distance], time.perf_counter_ns() - began)
    least = min(took.values())
    return next(one for one in DISTANCES if took[one] <= AS_QUICK * least)
