"""The cheapest way of a cluster as an integer program, as if its options cost what each does alone.

    1 = of an entry, one option        q ─→ {q alone, slice of qkv}
    a class as much as what reads it   qkv ≥ slice of qkv, by each class that may read it

No option reads what is made of it, so nothing has to keep circles out. What options cost among
others is no less, so what no solution costs less, no way does; the solution is a way to look at.

Solver: HiGHS, through `scipy.optimize.milp`. Its rounding of cuts finds the optimum at the root of
its tree where the relaxation alone is at half of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from typing import TypeAlias

import numpy as np

Option: TypeAlias = "tuple[float, Set[int]]"  # what it costs alone, and the classes it reads
MOST_NODES = 1_000  # of the solver's tree
SECONDS = 10.0  # of the solver, which cannot be interrupted; its bound until then counts
SLACK = 1e-5  # of a bound, for the solver's tolerances


def exact(
    options: Sequence[Sequence[Option]], entries: Set[int]
) -> tuple[tuple[int, ...] | None, float]:
    """The number of each class's option, −1 where it is not needed; and what no way costs less.

    Args:
        options: of each class; classes come before what they read.
        entries: the classes of which each is needed.

    Without a solution within the limits it is None, and the bound what was shown until then.

    >>> exact([[(1.0, {1}), (7.0, set())], [(5.0, set())]], {0})[0]
    (0, 0)
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    first = np.cumsum([0, *map(len, options)])
    costs = np.array([cost for trees in options for cost, _ in trees])
    scale = float(costs.max()) or 1.0
    sums = list(_sums(options, entries))
    cells = [(factor, row, first[i] + j) for row, sum_ in enumerate(sums) for factor, i, j in sum_]
    factors, rows, places = zip(*cells, strict=True)
    matrix = csr_array((factors, (rows, places)), shape=(len(sums), len(costs)))
    least = [1.0] * len(entries) + [0.0] * (len(sums) - len(entries))
    result = milp(
        costs / scale,
        integrality=np.ones(len(costs)),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, least, np.inf),
        options={"node_limit": MOST_NODES, "time_limit": SECONDS, "mip_rel_gap": 0.0},
    )
    shown = result.mip_dual_bound
    bound = 0.0 if shown is None or not math.isfinite(shown) else max(shown * scale, 0.0)
    way = None if result.x is None else _way(options, entries, result.x, first)
    return way, bound * (1 - SLACK)


def _sums(
    options: Sequence[Sequence[Option]], entries: Set[int]
) -> Iterator[list[tuple[float, int, int]]]:
    """Sums of factors times options: for each entry one that is 1 at least, then such that are 0
    at least.
    """
    for name in sorted(entries):
        yield [(1.0, name, number) for number in range(len(options[name]))]
    for reader, trees in enumerate(options):
        for name in sorted(set[int]().union(*(inner for _, inner in trees))):
            reads = [number for number, (_, inner) in enumerate(trees) if name in inner]
            yield [
                *((1.0, name, number) for number in range(len(options[name]))),
                *((-1.0, reader, number) for number in reads),
            ]


def _way(
    options: Sequence[Sequence[Option]],
    entries: Set[int],
    taken: np.ndarray[tuple[int], np.dtype[np.float64]],
    first: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> tuple[int, ...]:
    """A solution without what it takes and does not need."""
    needed, way = set(entries), list[int]()
    for place, trees in enumerate(options):
        number = int(np.argmax(taken[first[place] : first[place + 1]]))
        way.append(number if place in needed else -1)
        if place in needed:
            needed |= trees[number][1]
    return tuple(way)
