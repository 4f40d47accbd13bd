"""Views of views: what kernels need to say about strides and boxes before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tgbench.base.coords import Coord, same
from tgbench.base.memo import Allowance, once_each
from tgbench.base.regions import Box, Interval, row_major
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import ARENA, Function, Site, View, once_a_site
from tgbench.runs.rules import Rules

Bound: TypeAlias = "tuple[Function, tuple[Any, ...]]"
READS_BYTES = 1 << 18  # of boxes that are remembered of a call


def dense(shape: Sequence[Coord], dtype: str) -> View:
    """A row-major view; its place is not decided yet."""
    return View(ARENA, dtype, tuple(shape), row_major(shape), 0)


def reshaped(view: View, shape: Sequence[Coord]) -> View:
    """The same bytes of a row-major view in another shape of equal size."""
    return replace(dense(shape, view.dtype), buffer=view.buffer, offset=view.offset)


def split(view: View, axis: int, sizes: Sequence[Coord]) -> View:
    """One dimension as several, the last of them running fastest."""
    axis %= view.rank
    steps: list[Coord] = []
    step = view.strides[axis]
    for size in reversed(sizes):
        steps.append(step)
        step = step * size
    return replace(
        view,
        shape=(*view.shape[:axis], *sizes, *view.shape[axis + 1 :]),
        strides=(*view.strides[:axis], *reversed(steps), *view.strides[axis + 1 :]),
    )


def part(view: View, have: Box, want: Box) -> View:
    """Of a view of the box `have`, the part at `want`."""
    for axis, ((start, _), (low, high)) in enumerate(zip(have, want, strict=True)):
        view = view.narrow(axis, low - start, high - low)
    return view


def line(view: View) -> View:
    """The only row of a view whose leading dimensions are all 1 wide."""
    while view.rank > 1:
        view = view.select(0, 0)
    return view


def same_interval(a: Interval, b: Interval) -> bool:
    return a is b or (same(a[0], b[0]) and same(a[1], b[1]))


def same_box(a: Sequence[Interval], b: Sequence[Interval]) -> bool:
    return len(a) == len(b) and all(map(same_interval, a, b))


def is_one(size: Coord) -> bool:
    return same(size, 1)


def is_single(view: View) -> bool:
    """Whether all dimensions but the last are 1 wide: one row."""
    return all(map(is_one, view.shape[:-1]))


def is_dense(view: View) -> bool:
    """Whether the elements lie side by side, in row-major order."""
    step: Coord = 1
    for size, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if is_one(size):
            continue
        if not same(stride, step):
            return False
        step = step * size
    return True


def is_flat(view: View) -> bool:
    """Whether rows lie one way, each without gaps."""
    forward = all(not stride < 0 for stride in view.strides)
    return forward and view.is_row_contiguous


def merged(views: list[View], least: int = 3) -> tuple[View, ...]:
    """The same elements in as few dimensions as all of these views allow, but `least`."""
    axis = 0
    while axis < views[0].rank:
        if views[0].rank > 1 and is_one(views[0].shape[axis]):
            views = [view.select(axis, 0) for view in views]
            continue
        whole = [view.flatten(axis - 1, axis + 1) for view in views] if axis else [None]
        flat = [view for view in whole if view is not None]
        if len(flat) == len(views):
            views = flat
        else:
            axis += 1
    while views[0].rank < least:
        views = [view.insert(0) for view in views]
    return tuple(views)


def is_matrix(view: View) -> bool:
    """Whether BLAS takes the last two dimensions as they lie: one unit stride, no overlap."""
    rows, columns = view.shape[-2:]
    over, along = view.strides[-2:]
    if same(along, 1) or is_one(columns):
        return is_one(rows) or columns <= over
    return same(over, 1) and rows <= along


@once_each
def _bare(call: Call) -> Call:
    """The call less what is known, but for constants that name what kernels read."""
    picks, facts = call.op.picks, call.facts or (None,) * len(call.inputs)
    kept = tuple(fact if picks and i not in picks else None for i, fact in enumerate(facts))
    return Call(call.op, call.attrs, call.inputs, call.out, kept, None)


def whole_reads(site: Site) -> tuple[Box | None, ...]:
    """The boxes a kernel would read if nothing of the inputs were known."""
    call = site.call
    if not (site.out_box.moves or _is_known(call)):
        return site.in_boxes
    return _rules(call).reads(_bare(call), site.out_box)


@once_each
def _rules(call: Call) -> Rules:
    """What is read of a call is remembered with it."""
    return Rules(allowance=Allowance(READS_BYTES))


def _has_facts(call: Call) -> bool:
    return any(fact is not None for fact in call.facts)


def _is_known(call: Call) -> bool:
    """Whether anything of what a call reads or gives is known."""
    return call.fact is not None or _has_facts(call)


@once_a_site
def is_complete(site: Site) -> bool:
    """Whether nothing that the op reads was left out for being known."""
    if not _has_facts(site.call):
        return True
    for have, want in zip(site.in_boxes, whole_reads(site), strict=True):
        if want is not None and (have is None or not have.contains(want)):
            return False
    return True


def inputs(site: Site) -> tuple[View, ...]:
    """The views of exactly what the op reads at a complete site."""
    if not _has_facts(site.call):
        return tuple(map(site.operand, range(len(site.ins))))
    result = []
    wanted = whole_reads(site)
    for i, (have, want) in enumerate(zip(site.in_boxes, wanted, strict=True)):
        view = site.operand(i)
        assert have is not None
        result.append(view if want is None else part(view, have, want))
    return tuple(result)


def first_row(site: Site) -> Coord:
    """The first row of the table that a gather reads: constant indices need a part of it."""
    box = whole_reads(site)[0]
    assert box is not None
    return box[site.call.attrs["axis"]][0]
