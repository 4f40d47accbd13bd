"""Kernels made of other kernels: for sites that no direct kernel takes.

<op>_completed   a part of an input was left out because it is known: put it in place in scratch
<op>_widened     torch lacks the op for a dtype, or loses digits in it: compute in a wider one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from tgbench.base.memo import once_each
from tgbench.base.regions import Box
from tgbench.graph.op_table import Call, TensorType
from tgbench.kernels.registry import KERNELS, Kernel, Scratch, Site, View, candidates, register
from tgbench.kernels.views import Bound, dense, is_complete, part, whole_reads

LAST_NS = 1e12  # after every kernel that computes the op itself


# --- completed ---------------------------------------------------------------------------------


def _missing(site: Site) -> list[tuple[int, Box]]:
    """Inputs of which something is left out, with the box that is wanted."""
    reads = whole_reads(site)
    return [
        (i, want)
        for i, (have, want) in enumerate(zip(site.in_boxes, reads, strict=True))
        if want is not None and (have is None or not have.contains(want))
    ]


def _completed_site(site: Site, views: tuple[View, ...]) -> Site:
    ins, boxes = list(site.ins), list(site.in_boxes)
    missing = _missing(site)
    for (i, want), view in zip(missing, views, strict=True):
        ins[i], boxes[i] = view, want
    frozen = site.frozen.difference(i for i, _ in missing)
    return replace(site, ins=tuple(ins), in_boxes=tuple(boxes), frozen=frozen)


def _padding(site: Site) -> tuple[Scratch, ...]:
    return tuple((want.extents, site.call.inputs[i].dtype) for i, want in _missing(site))


def _completed_scratch(site: Site) -> tuple[Scratch, ...]:
    padding = _padding(site)
    inner = _completed_site(site, _placed(padding))
    return (*padding, *candidates(inner)[0].scratch(inner))


def _placed(scratch: tuple[Scratch, ...]) -> tuple[View, ...]:
    return tuple(dense(shape, dtype) for shape, dtype in scratch)


def _bind_completed(site: Site, scratch: tuple[View, ...]) -> Bound:
    missing = _missing(site)
    inner = _completed_site(site, scratch[: len(missing)])
    kernel = candidates(inner)[0]
    function, arguments = kernel.bind(inner, scratch[len(missing) :])
    fills: list[Any] = []
    for (i, want), view in zip(missing, scratch, strict=False):
        have, given = site.in_boxes[i], site.ins[i]
        fills += [view, site.call.op.absent(site.call, i)]
        if have is None or given is None:
            fills += [None, None]
            continue
        inside = want.intersect(have)
        assert inside is not None
        fills += [part(view, want, inside), part(given, have, inside)]
    return _completed(function, len(fills)), (*fills, *arguments)


@cache
def _completed(function: Callable[..., Any], count: int) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        for i in range(0, count, 4):
            whole, value, target, source = arguments[i : i + 4]
            whole.fill_(value)
            if target is not None:
                target.copy_(source)
        function(*arguments[count:])

    return run


# --- widened -----------------------------------------------------------------------------------

HALVES = {"float16": "float32", "bfloat16": "float32"}
WIDER: dict[str, Mapping[str, str]] = {}


def widen(op: str, dtypes: Mapping[str, str]) -> None:
    """Have an op's results of these dtypes computed in wider ones."""
    WIDER[op] = dtypes


def _wide_dtype(site: Site) -> str | None:
    return WIDER.get(site.call.op.name, {}).get(site.out.dtype)


def _takes_wide(site: Site) -> bool:
    return _wide_dtype(site) is not None and all(box is not None for box in site.in_boxes)


@once_each
def _wide_call(call: Call, narrow: str, wide: str) -> Call:
    def widened(type_: TensorType) -> TensorType:
        return replace(type_, dtype=wide) if type_.dtype == narrow else type_

    return replace(call, inputs=tuple(map(widened, call.inputs)), out=widened(call.out))


def _wide_scratch(site: Site) -> list[tuple[int, Scratch]]:
    """For each input in the narrow dtype, where it goes in the wide one."""
    wide, found = _wide_dtype(site), []
    assert wide is not None
    for i, view in enumerate(site.ins):
        if view is not None and view.dtype == site.out.dtype:
            found.append((i, (view.shape, wide)))
    return found


def _wide_site(site: Site, views: tuple[View, ...]) -> Site:
    wide, ins = _wide_dtype(site), list(site.ins)
    assert wide is not None
    pieces = _wide_scratch(site)
    for (i, _), view in zip(pieces, views, strict=False):
        ins[i] = view
    call = _wide_call(site.call, site.out.dtype, wide)
    frozen = site.frozen.difference(i for i, _ in pieces)
    return replace(site, call=call, ins=tuple(ins), out=views[len(pieces)], frozen=frozen)


def _widened_scratch(site: Site) -> tuple[Scratch, ...]:
    wide = _wide_dtype(site)
    assert wide is not None
    outer = (*(piece for _, piece in _wide_scratch(site)), (site.out.shape, wide))
    inner = _wide_site(site, _placed(outer))
    return (*outer, *candidates(inner)[0].scratch(inner))


def _bind_widened(site: Site, scratch: tuple[View, ...]) -> Bound:
    pieces = _wide_scratch(site)
    count = len(pieces) + 1
    inner = _wide_site(site, scratch[:count])
    function, arguments = candidates(inner)[0].bind(inner, scratch[count:])
    pairs: list[Any] = [site.out, inner.out]
    for (i, _), view in zip(pieces, scratch, strict=False):
        pairs += [view, site.ins[i]]
    return _widened(function, len(pairs)), (*pairs, *arguments)


@cache
def _widened(function: Callable[..., Any], count: int) -> Callable[..., None]:
    def run(out: Tensor, wide: Tensor, *rest: Any) -> None:
        copies = rest[: count - 2]
        for target, source in zip(copies[::2], copies[1::2], strict=True):
            target.copy_(source)
        function(*rest[count - 2 :])
        out.copy_(wide)

    return run


def _leaves_to_wider(kernel: Kernel) -> Kernel:
    """The same kernel, which takes no site whose result is to be computed in a wider dtype.

    Else it would where there is no room for the wider one's scratch, and lose the digits.
    """

    def accepts(site: Site) -> bool:
        return _wide_dtype(site) is None and kernel.accepts(site)

    return replace(kernel, accepts=accepts)


def register_adapters() -> None:
    """Adapters of every op that has kernels: called when the table is full."""
    for op in WIDER:
        KERNELS[op][:] = map(_leaves_to_wider, KERNELS[op])
    for op in list(KERNELS):
        register(
            Kernel(
                f"{op}_completed",
                op,
                lambda site: not is_complete(site),
                lambda site: LAST_NS,
                _bind_completed,
                _completed_scratch,
            )
        )
    for op in WIDER:
        register(
            Kernel(
                f"{op}_widened",
                op,
                _takes_wide,
                lambda site: LAST_NS / 2,
                _bind_widened,
                _widened_scratch,
            )
        )
