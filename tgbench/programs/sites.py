"""Where the operands of calls lie: views of boxes, and sites as kernels see them.

    ScheduledGraph + Slots ─→ Layout ─→ Addresser (a run's starts) ─→ View ─→ Site ─→ canonical Site

Canonical is a site whose operands all begin at 0: equal layers have the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from tgbench.base.coords import Coord, Moving, here, origin_symbol, same, value_of
from tgbench.base.regions import Box, row_major
from tgbench.base.swept import bases
from tgbench.graph.graph import Node
from tgbench.kernels.registry import ARENA, OUT, OnDevice, Site, Unnamed, View, frozen_inputs
from tgbench.memory.placement import SPACE_BYTES, Slot
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.program import site_at
from tgbench.runs.rules import Rules, row_before

Buffer: TypeAlias = Unnamed | OnDevice | str


@dataclass(frozen=True, slots=True)
class Layout:
    """How a node's elements are laid out, wherever its base begins in a run.

    Fields:
        base: the node whose bytes it shows, and its strides.
        steps: elements of the base per step along each dimension.
        first: offset of coordinate 0 when the base begins at its own coordinate 0.
        buffer: the arena, another device's, or a tensor of the pool.
    """

    base: Node
    strides: tuple[int, ...]
    steps: tuple[int, ...]
    first: int
    buffer: Buffer


def place_of(offset_bytes: int, scheduled: ScheduledGraph) -> tuple[Buffer, int]:
    """In which buffer something lies, and at which byte of it."""
    space, at = divmod(offset_bytes, SPACE_BYTES)
    if 0 < space <= len(scheduled.devices):
        return OnDevice(scheduled.devices[space - 1]), at
    return ARENA, offset_bytes


def layout(node: Node, scheduled: ScheduledGraph, slots: Mapping[Node, Slot]) -> Layout:
    """The layout of a node: in its slot, or whole in the pool if it is frozen."""
    base, mapped = scheduled.base[node], scheduled.maps[node]
    buffer: Buffer = base.name
    if base in scheduled.frozen:
        strides, offset = row_major(base.shape), 0
    else:
        buffer, at = place_of(slots[base].offset_bytes, scheduled)
        strides, offset = slots[base].strides, at // base.type.itemsize
    steps = tuple(0 if to is None else strides[to[0]] * to[1] for to in mapped.dims)
    first = offset + sum(a * stride for a, stride in zip(mapped.start, strides, strict=True))
    return Layout(base, strides, steps, first, buffer)


class Addresser:
    """Views of any node's boxes, given where its bytes start in this run."""

    def __init__(
        self, layouts: Callable[[Node], Layout], starts: Mapping[Node, tuple[Coord, ...]]
    ) -> None:
        self.layouts = layouts
        self.starts = starts
        self._views: dict[tuple[Node, Box], View] = {}

    def view(self, node: Node, box: Box) -> View:
        found = self._views.get((node, box))
        if found is None:
            found = self._views[node, box] = self._view(node, box)
        return found

    def _view(self, node: Node, box: Box) -> View:
        laid = self.layouts(node)
        where: Coord = laid.first
        for (start, _), step in zip(box, laid.steps, strict=True):
            if type(start) is not int or start:
                where = where + start * step
        if not isinstance(laid.buffer, str):
            for begins, stride in zip(self.starts[laid.base], laid.strides, strict=True):
                if type(begins) is not int or begins:
                    where = where - begins * stride
        return View(laid.buffer, node.dtype, box.extents, laid.steps, where)


def site_of(
    node: Node, box: Box, addresser: Addresser, rules: Rules, device: str, *, prepares: bool = False
) -> Site:
    """Where a box of a node is computed, and reads what; `prepares` if weights may be laid out."""
    reads = rules.reads(node.call, box)
    ins = tuple(
        None if read is None else addresser.view(parent, read)
        for parent, read in zip(node.inputs, reads, strict=True)
    )
    before = row_before(node.call, box)
    if before is not None:
        row = addresser.view(node, before)
        ins = tuple(row if i == node.call.op.continues else view for i, view in enumerate(ins))
    frozen = frozen_inputs(ins) if prepares else frozenset()
    return Site(node.call, box, reads, addresser.view(node, box), ins, device, frozen)


def taken(node: Node, scheduled: ScheduledGraph, donors: Mapping[Node, Node]) -> frozenset[int]:
    """The inputs whose bytes a node's result takes over."""
    donor = donors.get(node)
    if donor is None:
        return frozenset()
    return frozenset(i for i, n in enumerate(node.inputs) if scheduled.base[n] is donor)


def canonical(site: Site, taken: frozenset[int], *taken_by_posts: frozenset[int]) -> Site:
    """The site with every operand at offset 0 of a buffer of its own.

    An input that lies exactly where the output does keeps that: kernels may ask. It can only be one
    of those whose bytes are `taken`, and at other coordinates it may lie elsewhere: `same` guards.
    """
    out = site.out
    plain = View(OUT, out.dtype, out.shape, out.strides, 0)

    def put(view: View | None, key: Hashable, may_be_there: bool) -> View | None:
        if view is None:
            return None
        there = may_be_there and is_there(view, out)
        return View(OUT if there else key, view.dtype, view.shape, view.strides, 0)

    ins = tuple(put(view, i, i in taken) for i, view in enumerate(site.ins))
    posts = tuple(
        replace(
            post,
            out=plain,
            ins=tuple(put(view, (k, i), i in own) for i, view in enumerate(post.ins)),
        )
        for k, (post, own) in enumerate(zip(site.posts, taken_by_posts, strict=True))
    )
    return Site(site.call, site.out_box, site.in_boxes, plain, ins, site.home, site.frozen, posts)


def held_here(site: Site) -> Site:
    """A site in the numbers of where one stands; it is guarded that they are these."""
    origin = here()
    for i in sorted(_entries(site)):
        same(origin_symbol(i), origin[i])
    return site_at(site, origin)


def _entries(site: Site) -> set[int]:
    """The entries of an origin that a site's coordinates depend on."""
    boxes = [site.out_box, *(box for box in site.in_boxes if box is not None)]
    coords = [side for box in boxes for interval in box for side in interval]
    coords += [c for view in site.views for c in (*view.shape, *view.strides, view.offset)]
    found = {i for coord in coords if isinstance(coord, Moving) for i in bases(coord.terms)}
    return found.union(*(_entries(post) for post in site.posts))


def is_there(view: View, out: View) -> bool:
    alike = view.buffer == out.buffer and view.dtype == out.dtype
    return alike and same(view.offset, out.offset)


def half_octaves(sizes: Iterable[Coord]) -> tuple[int, ...]:
    """About how large those are that move."""
    moving = [size for size in sizes if type(size) is Moving]
    return tuple([(value_of(size) ** 2).bit_length() for size in moving])
