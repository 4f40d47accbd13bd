"""Code compiled ahead: what kernels of a few rows would need, before a run needs it.

The first time that a loop is needed on a machine it is compiled, which takes up to seconds; later
processes load it in milliseconds. In the middle of a history that would be a run that takes as long
as a hundred others, so it is done with the first answer, which compiles what it needs itself.

A library compiles for each number of rows, in every process, for a good part of what a run takes
that computes so many. What any number is put together from is few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress

from tgbench.base.coords import Moving
from tgbench.base.errors import TgbenchError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Node
from tgbench.kernels import beside
from tgbench.kernels.numba import rows
from tgbench.kernels.onednn.library import Computation
from tgbench.kernels.registry import KERNELS, Site, scratch_views
from tgbench.programs.lowering import Lowerer
from tgbench.programs.program import Program
from tgbench.programs.sites import Addresser, site_of
from tgbench.runs.propagate import widened


def compile_loops(lowerer: Lowerer) -> None:
    """Compile or load what kernels written as loops need for one row of every kind of call."""
    if not beside.is_there():
        return
    rows.load()
    for site in _single_rows(lowerer):
        for kernel in KERNELS.get(site.call.op.name, ()):
            if kernel.name in rows.NAMES and kernel.takes(site):
                kernel.bind(site, scratch_views(kernel.scratch(site)))


def compile_pieces(program: Program) -> Iterator[None]:
    """Compile what products of numbers of rows that move are put together from, one at a time, for
    as long as somebody asks for the next one.
    """
    for made in program.instructions:
        if made.site is None or not any(type(n) is Moving for n in made.site.out.shape):
            continue
        most = math.prod(made.node.shape[:-1])
        for what in made.arguments:
            for count in what.lengths(most) if isinstance(what, Computation) else ():
                yield
                what.code(count)


def compile_sizes(program: Program) -> Iterator[None]:
    """Compile what a program's calls of one size need, one at a time: else its first run would,
    which takes ten times as long where there are many.
    """
    for made in program.instructions:
        if made.site is None or any(type(n) is Moving for n in made.site.out.shape):
            continue
        for what in made.arguments:
            if isinstance(what, Computation) and what.awaits(rows := what.source.shape[0]):
                yield
                what.code(rows)


def _single_rows(lowerer: Lowerer) -> Iterator[Site]:
    """The last row of every call, where its operands lie somewhere; of equal calls, of one."""
    scheduled, rules = lowerer.scheduled, lowerer.rules
    starts = {node: (0,) * node.rank for node in lowerer.placement.slots}
    addresser, seen = Addresser(lowerer.layout_of, starts), set()
    there = scheduled.frozen | starts.keys()
    for node in scheduled.schedule:
        bases = {scheduled.base[one] for one in (node, *node.inputs)}
        if node.is_leaf or node in scheduled.views or node.call in seen or not bases <= there:
            continue
        seen.add(node.call)
        for box in widened(node.call, Region((_last_row(node),))):
            with suppress(TgbenchError):
                site = site_of(node, box, addresser, rules, lowerer.device)
                yield lowerer.canonical(node, site)


def _last_row(node: Node) -> Box:
    """All of a result but for its rows, of which it is the last: no dimension but the last two has
    more than that one, unless kernels compute it whole.
    """
    axis = max((i for i, size in enumerate(node.shape[:-1]) if size > 1), default=0)
    return Box((size - 1 if i == axis else 0, size) for i, size in enumerate(node.shape))
