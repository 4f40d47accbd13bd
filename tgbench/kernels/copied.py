"""One kernel for a call wherever its operands lie, and always with the same bits.

    lying anywhere ─→ copies side by side in scratch ─→ the kernel ─→ copied to where it belongs

A library may round otherwise for other strides or another alignment. On copies it never sees them:
where a piece of scratch begins follows from the sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

from tgbench.base.errors import ExactnessError, KernelError
from tgbench.base.regions import Box
from tgbench.base.tiles import Tiling
from tgbench.graph.op_table import FLOATS, Call
from tgbench.kernels.registry import Kernel, Scratch, Site, View, candidates, kernel_named
from tgbench.kernels.views import Bound, dense, is_dense, part, same_box, whole_reads


def of_tiling(site: Site, tiling: Tiling) -> Kernel:
    """The kernel of a tiling, in the form that takes this site; where elements are only moved, any
    other that does.
    """
    kernel = formed(_named(site.call.op.name, tiling.kernel), site, tiling)
    if site.call.op.moves and not kernel.takes(site):
        kernel = formed(candidates(site)[0], site, replace(tiling, copied=False))
    if not kernel.takes(site):
        raise ExactnessError(
            f"{site.call.op.name}: {kernel.name} does not take {site.out_box} of {site.call.out}, "
            "and another kernel would give other bits; leave out exact='bitwise', or "
            "register a kernel that takes all of the op"
        )
    return kernel


def formed(kernel: Kernel, site: Site, tiling: Tiling) -> Kernel:
    """The kernel as it is, or over copies: as its tiling has it, or where it cannot read a site."""
    if tiling.copied:
        kernel = copied(kernel, tiling.stays)
    elif not kernel.takes(site):
        kernel = gathered(kernel)
    kernel = settled(kernel) if computes_known(site.call) else kernel
    return with_one_nan(kernel) if tiling.hands_out and site.out.dtype in FLOATS else kernel


def _named(op: str, name: str) -> Kernel:
    try:
        return kernel_named(op, name)
    except KernelError as error:
        raise ExactnessError(str(error)) from None


# --- copies ---------------------------------------------------------------------------------------


@cache
def copied(kernel: Kernel, stays: tuple[int, ...] = ()) -> Kernel:
    """The kernel over whole copies of what it reads: what is known and left out is put there.

    So a site is the same wherever the same elements are computed. Inputs in `stays` are read where
    they lie, if nothing of them is left out.
    """
    return _over(kernel, "copied", _wanted, lambda view: True, stays)


@cache
def gathered(kernel: Kernel) -> Kernel:
    """The kernel over copies of those operands that do not lie side by side already."""
    return _over(kernel, "gathered", _given, lambda view: not is_dense(view))


Boxes = tuple[Box | None, ...]


def _wanted(site: Site) -> Boxes:
    return whole_reads(site)


def _given(site: Site) -> Boxes:
    return site.in_boxes


def _over(
    kernel: Kernel,
    form: str,
    boxes: Callable[[Site], Boxes],
    is_moved: Callable[[View], bool],
    stays: tuple[int, ...] = (),
) -> Kernel:
    def moves(site: Site, i: int) -> bool:
        view, have, want = site.ins[i], site.in_boxes[i], boxes(site)[i]
        if want is None or view is None or have is None:
            return want is not None
        return is_moved(view) if i not in stays else not same_box(have, want)

    def pieces(site: Site) -> tuple[Scratch, ...]:
        """Where the operands go, then the result."""
        found: list[Scratch] = [
            (box.extents, site.call.inputs[i].dtype)
            for i, box in enumerate(boxes(site))
            if box is not None and moves(site, i)
        ]
        return (*found, (site.out.shape, site.out.dtype)) if is_moved(site.out) else tuple(found)

    def inner(site: Site, views: tuple[View, ...]) -> Site:
        left = list(views)
        ins = tuple(left.pop(0) if moves(site, i) else view for i, view in enumerate(site.ins))
        out = left[0] if left else site.out
        frozen = frozenset(i for i in site.frozen if not moves(site, i))
        return replace(site, in_boxes=boxes(site), ins=ins, out=out, frozen=frozen)

    def plain(site: Site) -> Site:
        return inner(site, tuple(dense(shape, dtype) for shape, dtype in pieces(site)))

    def scratch(site: Site) -> tuple[Scratch, ...]:
        return (*pieces(site), *kernel.scratch(plain(site)))

    def bind(site: Site, views: tuple[View, ...]) -> Bound:
        count = len(pieces(site))
        there = inner(site, views[:count])
        function, arguments = kernel.bind(there, views[count:])
        moved: list[Any] = []
        for i, view in enumerate(there.ins):
            if view is not None and moves(site, i):
                moved += _filled(site, i, view, there.in_boxes[i])
        result = (site.out, there.out) if is_moved(site.out) else (None, None)
        return _runs(function, len(moved)), (*moved, *result, *arguments)

    def accepts(site: Site) -> bool:
        return kernel.takes(plain(site))

    def cost_ns(site: Site) -> float:
        count = sum(view.size_bytes for view in site.read)
        return kernel.cost_ns(plain(site)) + 1_000.0 * len(pieces(site)) + count / 10.0

    name = f"{kernel.name} ({form})"
    return Kernel(name, kernel.op, accepts, cost_ns, bind, scratch, kernel.devices)


def _filled(site: Site, i: int, view: View, want: Box | None) -> tuple[Any, ...]:
    """(where it goes, what is known of it or None, the part that is there, its source)."""
    have, source, absent = site.in_boxes[i], site.ins[i], site.call.op.absent(site.call, i)
    assert want is not None
    if have is None or source is None:
        return view, absent, None, None
    if same_box(have, want):
        return view, None, view, source
    inside = want.intersect(have)
    assert inside is not None
    return view, absent, part(view, want, inside), part(source, have, inside)


@cache
def _runs(function: Callable[..., Any], count: int) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        for i in range(0, count, 4):
            whole, value, target, source = arguments[i : i + 4]
            if value is not None:
                whole.fill_(value)
            if target is not None:
                target.copy_(source)
        out, result = arguments[count : count + 2]
        function(*arguments[count + 2 :])
        if out is not None:
            out.copy_(result)

    return run


# --- what is known stays what it is ---------------------------------------------------------------

MOST_FILLS = 64  # lines of a box whose known elements are filled in one by one


def computes_known(call: Call) -> bool:
    """Whether elements of the result are known that a kernel computes all the same."""
    return call.out.dtype in FLOATS and call.fact is not None and _value(call) is not None


def _value(call: Call) -> float | None:
    fact = call.fact
    return fact.value if fact is not None and fact.hard else None


@cache
def settled(kernel: Kernel) -> Kernel:
    """The kernel, and then known elements of the result are put back to what they are.

    0 · x is −0 for a negative x and 0 / 0 no number: it follows from an x that nobody needs, and
    that may not be there in another run.
    """

    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        function, arguments = kernel.bind(site, scratch)
        box, value, fact = site.out_box, _value(site.call), site.call.fact
        if fact is None or value is None:  # a call like it, of which nothing is known
            return function, arguments
        if fact.open.lines(box) > MOST_FILLS:
            mask = torch.from_numpy(fact.open.closed_mask(box)).to(site.device)
            return _masks(function), (site.out, mask, value, *arguments)
        places = [part(site.out, box, piece) for piece in fact.open.closed(box)]
        return _fills(function, len(places)), (value, *places, *arguments)

    return replace(kernel, bind=bind)


@cache
def _masks(function: Callable[..., Any]) -> Callable[..., None]:
    def run(out: Tensor, mask: Tensor, value: float, *arguments: Any) -> None:
        function(*arguments)
        out.masked_fill_(mask, value)

    return run


@cache
def _fills(function: Callable[..., Any], count: int) -> Callable[..., None]:
    def run(value: float, *arguments: Any) -> None:
        function(*arguments[count:])
        for place in arguments[:count]:
            place.fill_(value)

    return run


# --- what is not a number -------------------------------------------------------------------------


@cache
def with_one_nan(kernel: Kernel) -> Kernel:
    """The kernel, and every NaN gets the same bits: which ones libraries give follows from the way
    that they take. No op tells one NaN from another, so it is done where results are handed out.
    """

    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        function, arguments = kernel.bind(site, scratch)
        return _gives_one_nan(function), (site.out, *arguments)

    return replace(kernel, bind=bind)


@cache
def _gives_one_nan(function: Callable[..., Any]) -> Callable[..., None]:
    def run(out: Tensor, *arguments: Any) -> None:
        function(*arguments)
        torch.nan_to_num(out, nan, inf, -inf, out=out)

    return run
