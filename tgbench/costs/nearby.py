"""The kernels of sizes that nobody ranked: those of sizes nearby.

To rank all kernels that take a call is half of what making a program takes, and a history that does
not repeat has sizes of its own in nearly every run. What is quickest for 48 rows is rarely not for
50, so between runs an order is taken over from where it is known; what is measured says otherwise
as soon as there is something (`CostModel.has_met`).

    sizes ranked     12 MFLOP: a, c, b                  90 MFLOP: c, a
    asked for             ├── 14 MFLOP: a, c, b …            └── 70 MFLOP: c, a …
                          └── 40 MFLOP: nearer than a factor of two to neither: ranked

A search never stands on this: what it says must not depend on what was asked before. The first plan
of a session, which a run waits for, sizes scratch memory by it, and asks one of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TypeAlias

from tgbench.base.coords import Moving
from tgbench.base.errors import KernelError
from tgbench.base.memo import Latest
from tgbench.base.regions import Box
from tgbench.costs.model import REACH, CostModel, boxes_of, position_free, work_of
from tgbench.costs.signature import Signature, numbers
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import Kernel, Site
from tgbench.runs.pausing import Pausing
from tgbench.runs.propagate import Step, rough_ns
from tgbench.runs.work import Place, Work

MOST_RANKED = 8  # sizes of calls that are alike
MOST_ALIKE = 2_000  # kinds of calls
Ranked: TypeAlias = "tuple[float, float, tuple[Kernel, ...]]"  # logarithms of flops and bytes


class Nearby:
    """Ranks kernels, and models runs, by sizes nearby; it knows what a cost model knows.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.input("x", (64, 8)) + 1.0
    >>> costs = CostModel()
    >>> site = costs.site(y.call, Box.full((48, 8)))
    >>> list(Nearby(costs).kernels(site)) == list(costs.kernels(site))
    True
    """

    def __init__(self, costs: CostModel) -> None:
        self.costs = costs
        self._begin()

    def _begin(self) -> None:
        """Nothing was ranked by what the model knows now."""
        self._version = self.costs.version
        self._ranked = Latest[tuple[object, ...], list[Ranked]](MOST_ALIKE)
        self._times = self.costs.rules.allowance.memo()

    def kernels(self, site: Site) -> Iterable[Kernel]:
        """As `CostModel.kernels`; where sizes move, exactly that: each answer has its guards."""
        order, is_own = self._order(site)
        if is_own:
            return order
        return Taking(order, site, () if site.posts else self._others(order, site))

    def common(self, site: Site) -> Iterable[Kernel]:
        """The same but for kernels that do not take calls of sizes nearby, where any of them does:
        what is left out is quickest at no size that was ranked.
        """
        order, is_own = self._order(site)
        if is_own:
            return order
        return [kernel for kernel in order if kernel.takes(site)] or self.costs.kernels(site)

    def _order(self, site: Site) -> tuple[Sequence[Kernel], bool]:
        """Kernels in the order of sizes nearby, and whether it is of this very site."""
        if self._version != self.costs.version:
            self._begin()
        if _moves(site):
            return self.costs.kernels(site), True
        signature = self.costs.signature(site)
        if self.costs.has_met(signature):
            return self.costs.kernels(site), True
        alike = self._ranked.setdefault(_alike(site, signature), [])
        order = _nearest(alike, signature)
        if order is not None:
            return order, False
        order = tuple(self.costs.kernels(site))
        alike[MOST_RANKED - 1 :] = []
        alike.insert(0, (*work_of(signature.flops, signature.size_bytes), order))
        return order, True

    def _others(self, order: Sequence[Kernel], site: Site) -> Iterator[Kernel]:
        """What takes a site besides; ranked once somebody asks for the first of them."""
        for kernel in self.costs.kernels(site):
            if kernel not in order:
                yield kernel

    def working(self, steps: Iterable[Step], here: Place, there: Place | None) -> Pausing[Work]:
        """How long some steps take at any place, asked about at two where they were decided for
        both. Equal layers compute equal boxes of equal calls, which are asked about once; it pauses
        at each of these.
        """
        work = Work()
        for (call, box), times in Counter((n.call, box) for n, box in boxes_of(steps)).items():

            def time_ns(
                place: Place, call: Call = call, box: Box = box, times: int = times
            ) -> float:
                return times * self.time_ns(call, numbers(box.at(place)))

            work.add(box.extents, time_ns, here, there)
            yield
        return work

    def time_ns(self, call: Call, box: Box) -> float:
        """What `CostModel.time_ns` is about."""
        if self._version != self.costs.version:
            self._begin()
        site = self.costs.site(call, box)
        return self._times.get((call, position_free(site)), self._time_ns, site)

    def _time_ns(self, site: Site) -> float:
        try:
            quickest = next(iter(self.kernels(site)))
        except KernelError:
            return rough_ns(site.call, site.out_box)
        return self.costs.of_site(site, quickest).time_ns


class Taking(Iterable[Kernel]):
    """Those kernels of an order that take a site, then others; looked at as they are asked for."""

    def __init__(self, order: Iterable[Kernel], site: Site, others: Iterable[Kernel]) -> None:
        self._found: list[Kernel] = []
        self._more = chain((kernel for kernel in order if kernel.takes(site)), others)

    def __iter__(self) -> Iterator[Kernel]:
        at = 0
        while at < len(self._found) or self._find():
            yield self._found[at]
            at += 1

    def _find(self) -> bool:
        """Whether there was one more."""
        for kernel in self._more:
            self._found.append(kernel)
            return True
        return False


def _moves(site: Site) -> bool:
    """Whether a size or a stride of what it touches follows an origin."""
    views = (view for one in (site, *site.posts) for view in one.views)
    return any(type(n) is Moving for view in views for n in (*view.shape, *view.strides))


def _alike(site: Site, signature: Signature) -> tuple[object, ...]:
    """What of a site counts besides sizes: its calls, and how operands lie."""
    lie = "".join(re.findall(r"\]([cprsb]o?)", signature.text))
    return (site.call, site.frozen, lie, *(post.call for post in site.posts))


def _nearest(alike: Iterable[Ranked], signature: Signature) -> tuple[Kernel, ...] | None:
    flops, size = work_of(signature.flops, signature.size_bytes)
    apart = [(max(abs(flops - a), abs(size - b)), i, o) for i, (a, b, o) in enumerate(alike)]
    least = min(apart, default=None, key=lambda one: one[:2])
    return least[2] if least is not None and least[0] <= REACH else None
