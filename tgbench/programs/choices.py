"""Which kernel computes a call, and what it is bound to: remembered for operands that lie alike."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

from tgbench.base.coords import Coord
from tgbench.base.errors import ExactnessError, KernelError
from tgbench.base.regions import Region
from tgbench.base.sweeps import is_free
from tgbench.base.words import shorten
from tgbench.costs.model import CostModel
from tgbench.kernels.copied import of_tiling
from tgbench.kernels.registry import (
    KERNELS,
    Function,
    Kernel,
    Ranking,
    Scratch,
    Site,
    candidates,
    scratch_bytes,
    scratch_views,
)
from tgbench.programs.sites import half_octaves
from tgbench.runs.rules import Rules

Called: TypeAlias = "tuple[Site, str]"  # by the kernel of a name
Takes: TypeAlias = Callable[[Site, str], float]  # ns of that


@dataclass(frozen=True)
class Option:
    """A kernel that takes a site, and the scratch memory it wants there."""

    kernel: Kernel
    shapes: tuple[Scratch, ...]
    used_bytes: Coord

    def bound_at(self, site: Site) -> BoundKernel:
        """Bound over the operands of a canonical site."""
        kernel = self.kernel
        function, arguments = kernel.bind(site, scratch_views(self.shapes))
        return BoundKernel(kernel.name, function, arguments, self.used_bytes, kernel.allocates)


@dataclass(frozen=True)
class BoundKernel:
    """A kernel bound over operands at offset 0.

    Fields:
        kernel: its name.
        function, arguments: what it is called with, as views of these operands.
        scratch_bytes: of temporary memory that it is given.
        allocates: bytes the called library takes for itself at a site.
    """

    kernel: str
    function: Function
    arguments: tuple[Any, ...]
    scratch_bytes: Coord
    allocates: Callable[[Site], int]


class Choices:
    """The kernels that take each site, best first; remembered for operands that lie alike.

    Args:
        ranking: which kernels take a site, the best first; by their own models if left out.
        takes: what one takes at a site, operands lying as they do there; None if nobody knows more
            than what a call takes wherever they lie.
    """

    def __init__(
        self, rules: Rules, ranking: Ranking = candidates, takes: Takes | None = None
    ) -> None:
        self.rules = rules
        self.ranking = ranking
        self.takes = takes
        self._next = count()  # no number comes twice
        self.forget()

    @staticmethod
    def by(costs: CostModel) -> Choices:
        """As a cost model ranks kernels, and times them where operands lie otherwise."""
        return Choices(costs.rules, costs.kernels, costs.takes_ns)

    def forget(self) -> None:
        """More is known of what kernels take: they are ranked anew."""
        memo = self.rules.allowance.memo
        self._numbers, self._kernels, self._options = memo(), memo(), memo()

    def key(self, site: Site) -> int:
        """A number for what of a canonical site counts."""
        place, sizes = _place(site), moving_sizes(site)
        what = (site.call, place, site.out, site.ins, site.frozen, sizes, site.posts)
        return self._numbers.get(what, self._next.__next__)

    def at(self, key: int, site: Site) -> Iterator[Option]:
        """The kernels for a canonical site with this key, best first; few ask for the last."""
        for kernel in self._kernels.get(key, self._ranked, site):
            yield self._options.get((key, kernel.name), _option, kernel, site)

    def _ranked(self, site: Site) -> Iterable[Kernel]:
        """Where bits must agree, it is the one of the tiling: none, where that takes each place by
        itself, but no call that serves them all.
        """
        tiling = self.rules.tilings.get(site.call)
        if tiling is None:
            return self.ranking(site)
        try:
            return [of_tiling(site, tiling)]
        except ExactnessError:
            if is_free(Region((site.out_box,))):
                return []
            raise

    def named(self, site: Site, name: str) -> Option:
        """The kernel of a name, for a site; raises KernelError if it does not take that."""
        tiling = self.rules.tilings.get(site.call)
        known = KERNELS.get(site.call.op.name, ()) if tiling is None else [of_tiling(site, tiling)]
        for kernel in known:
            if kernel.name == name and kernel.takes(site):
                return _option(kernel, site)
        op, box = site.call.op.name, site.out_box
        raise KernelError(f"{op}: no kernel {shorten(name)} computes {box}; make programs anew")


class KnownBindings:
    """Kernels chosen and bound over operands at offset 0, by how these lie: it holds wherever that
    is, and over every placement of a graph.

    Args:
        choices: the kernels that take each site.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self._hows: dict[Hashable, int] = {}  # never forgotten: lowerers remember the numbers
        self.forget()

    def forget(self) -> None:
        """More is known of what kernels take."""
        memo = self.choices.rules.allowance.memo
        self.by_choice, self.by_how = memo(), memo()

    def number(self, how: Hashable) -> int:
        """One number for equal ways of how operands lie."""
        return self._hows.setdefault(how, len(self._hows))


def _option(kernel: Kernel, site: Site) -> Option:
    shapes = kernel.scratch(site)
    return Option(kernel, shapes, scratch_bytes(shapes))


def _place(site: Site) -> Hashable:
    """What of a box's place a kernel can tell; all of it where something is known, or moves.

    Guards of a choice are about the coordinates that it was made at. What is read for a box that
    moves may be numbers that are the same only here: elsewhere, it begins elsewhere in it.
    """
    call, box = site.call, site.out_box
    if any(fact is not None for fact in call.facts) or any(
        type(side) is not int for interval in box for side in interval
    ):
        return box, site.in_boxes
    return call.op.place(call, box)


def moving_sizes(site: Site) -> tuple[int, ...]:
    """About how large operands are whose sizes move, in half octaves.

    The fastest kernel may be another where they are much larger. A program serves all the sizes
    that its guards allow, so what chooses its kernels need not tell close ones apart.
    """
    return half_octaves(size for view in site.views for size in view.shape)
