"""Reductions, cumulative ops, and what picks by size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tgbench.graph import ops
from tgbench.graph.graph import Node, axis_of
from tgbench.sources.torch.rows.elementwise import _as_bool
from tgbench.sources.torch.table import CallSite, Rule, lowers

Dims = int | Sequence[int] | None


def _axes(x: Node, dims: Dims) -> list[int] | None:
    if dims is None or dims == []:
        return None
    return [axis_of(x, dim) for dim in ([dims] if isinstance(dims, int) else dims)]


def _reduced(site: CallSite, x: Node, name: str, dims: Dims, keepdim: bool = False) -> Node:
    """One reduction; PyTorch lets a 0-dimensional tensor be reduced, which changes nothing."""
    if not x.rank:
        return x
    axes = _axes(x, dims) or list(range(x.rank))
    return x.builder.apply(name, x, axes=tuple(sorted(axes)), keepdims=keepdim)


def _reduction(name: str) -> Rule:
    def rule(site: CallSite, x: Node, dims: Dims = None, keepdim: bool = False, **_: Any) -> Node:
        return _reduced(site, x.cast(site.dtype), name, dims, keepdim)

    return rule


for _aten, _name in {
    "sum.default": "sum", "sum.dim_IntList": "sum", "mean.default": "mean", "mean.dim": "mean",
    "amax.default": "max", "amin.default": "min", "max.default": "max", "min.default": "min",
    "prod.default": "prod", "prod.dim_int": "prod",
}.items():  # fmt: skip
    lowers(f"aten.{_aten}")(_reduction(_name))


def _of_flags(name: str) -> Rule:
    def rule(site: CallSite, x: Node, dims: Dims = None, keepdim: bool = False) -> Node:
        return _reduced(site, _as_bool(site, x), name, dims, keepdim)

    return rule


for _aten, _name in {"any": "max", "all": "min"}.items():
    lowers(f"aten.{_aten}.default", f"aten.{_aten}.dim", f"aten.{_aten}.dims")(_of_flags(_name))


@lowers("aten.var.correction")
def _var(
    site: CallSite,
    x: Node,
    dims: Dims = None,
    *,
    correction: int | None = None,
    keepdim: bool = False,
) -> Node:
    return ops.var(x, _axes(x, dims), keepdim, 1 if correction is None else correction)


@lowers("aten.var.dim")
def _var_unbiased(
    site: CallSite, x: Node, dims: Dims, unbiased: bool = True, keepdim: bool = False
) -> Node:
    return ops.var(x, _axes(x, dims), keepdim, int(unbiased))


@lowers("aten.std.correction")
def _std(site: CallSite, x: Node, *arguments: Any, **options: Any) -> Node:
    return ops.sqrt(_var(site, x, *arguments, **options))


@lowers("aten.var_mean.correction")
def _var_mean(
    site: CallSite,
    x: Node,
    dims: Dims = None,
    *,
    correction: int | None = None,
    keepdim: bool = False,
) -> tuple[Node, Node]:
    spread = _var(site, x, dims, correction=correction, keepdim=keepdim)
    return spread, ops.mean(x, _axes(x, dims), keepdim)


@lowers("aten.logsumexp.default")
def _logsumexp(site: CallSite, x: Node, dims: Dims, keepdim: bool = False) -> Node:
    return ops.logsumexp(x, _axes(x, dims) or range(x.rank), keepdim)


@lowers("aten.linalg_vector_norm.default")
def _vector_norm(
    site: CallSite, x: Node, order: float = 2, dims: Dims = None, keepdim: bool = False, **_: Any
) -> Node:
    """(Σ |x|^order)^(1 / order), and what that goes to at 0 and at infinity."""
    size = abs(x.cast(site.dtype)) if order != 2 else x.cast(site.dtype)
    if order in (float("inf"), float("-inf")):
        return _reduced(site, size, "max" if order > 0 else "min", dims, keepdim)
    if order == 0:
        return _reduced(site, (size > 0.0).cast(site.dtype), "sum", dims, keepdim)
    powers = size if order == 1 else size * size if order == 2 else size ** float(order)
    total = _reduced(site, powers, "sum", dims, keepdim)
    return total if order == 1 else ops.sqrt(total) if order == 2 else total ** (1 / order)


# --- extremes with their places -------------------------------------------------------------------


def _with_place(name: str) -> Rule:
    def rule(site: CallSite, x: Node, dim: int, keepdim: bool = False) -> tuple[Node | None, ...]:
        value = _reduced(site, x, name, dim, keepdim) if 0 in site.used else None
        place = getattr(ops, f"arg{name}")(x, dim, keepdim) if 1 in site.used else None
        return value, place

    return rule


lowers("aten.max.dim")(_with_place("max"))
lowers("aten.min.dim")(_with_place("min"))


def _place(name: str) -> Rule:
    def rule(site: CallSite, x: Node, dim: int | None = None, keepdim: bool = False) -> Node:
        line, axis = (x.reshape(-1), 0) if dim is None else (x, dim)
        found: Node = getattr(ops, name)(line, axis, keepdim)
        return found if found.shape == site.shape else found.reshape(*site.shape)

    return rule


lowers("aten.argmax.default")(_place("argmax"))
lowers("aten.argmin.default")(_place("argmin"))


@lowers("aten.topk.default")
def _topk(
    site: CallSite, x: Node, k: int, dim: int = -1, largest: bool = True, is_sorted: bool = True
) -> Any:
    return ops.topk(x, k, dim, largest)


@lowers("aten.sort.default")
def _sort(site: CallSite, x: Node, dim: int = -1, descending: bool = False) -> Any:
    return ops.sort(x, dim, descending)


@lowers("aten.argsort.default")
def _argsort(site: CallSite, x: Node, dim: int = -1, descending: bool = False) -> Node:
    _, places = ops.sort(x, dim, descending)
    return places


@lowers("aten.cumsum.default")
def _cumsum(site: CallSite, x: Node, dim: int, **_: Any) -> Node:
    return ops.cumsum(x.cast(site.dtype), dim)
