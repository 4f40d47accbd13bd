"""Numba kernels for few rows on the CPU: no torch call, no dispatcher, nothing allocated.

A torch call costs 1 to 10 µs before it computes anything, and `mv` uses less than half of the
memory bandwidth; these loops cost 0.3 µs and stream weights at the speed of one core. Without
numba (the extra `cpu`) this module registers nothing.

A kernel hands over flat arrays and strides (`span`, see `numba_functions`), so one compiled
function serves every layout whose rows are contiguous. It is compiled, or loaded from the folder
`__pycache__`, when it is first bound; never in the middle of a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tgbench.base.coords import Coord, same, value_of
from tgbench.kernels.numba.chain import loop
from tgbench.kernels.registry import (
    KERNELS,
    ONE,
    TEAM,
    Host,
    Kernel,
    Prepared,
    Scratch,
    Site,
    View,
    once_a_site,
    register,
)
from tgbench.kernels.torch import layout as layout
from tgbench.kernels.torch.elementwise import copy_
from tgbench.kernels.torch.fused import Heads, heads_of
from tgbench.kernels.torch.products import Rows, rows_of
from tgbench.kernels.views import (
    Bound,
    first_row,
    inputs,
    is_complete,
    is_flat,
    is_one,
    merged,
    same_box,
)

try:
    from tgbench.kernels.numba import ahead, entries, sums, tiles
    from tgbench.kernels.numba import loops as loops
    from tgbench.kernels.numba.team import LEAST_BYTES
    from tgbench.kernels.numba.team import gain as gain
    from tgbench.kernels.numba.team import measure_gain as measure_gain
except ImportError:
    loops = None  # type: ignore[assignment]

TYPES = ("float32", "float64")
SINGLE = ("float32",)  # where an exponential is taken
CALL_NS = 350.0  # alone; less in a chain
STREAM = 45.0  # bytes of a weight matrix a nanosecond
DOTS = 70.0  # multiplications a nanosecond beside that, one core
CACHED = 250.0  # of keys and values, which the last cache holds
PRODUCTS = 80.0  # multiplications a nanosecond, one core
MOST_PARTS = 8  # of a weight, that threads share: what they add is added up at the end
SMALL = 1 << 19  # elements, up to which one core is worth considering for element-wise work


# --- views as flat arrays ------------------------------------------------------------------------


def span(view: View) -> Host:
    """From the first element of a view to its last, as a flat array."""
    size: Coord = 1
    for extent, stride in zip(view.shape, view.strides, strict=True):
        size = size + (extent - 1) * stride
    return Host(View(view.buffer, view.dtype, (size,), (1,), view.offset))


def _lines(view: View | None) -> View | None:
    """[rows, n] with contiguous rows; a single number has no lines."""
    flat = view.rows() if view is not None and view.rank else None
    return flat if flat is not None and is_flat(flat) else None


def _rows(view: View) -> tuple[Host, Coord]:
    """The arguments that stand for a view [rows, n]: its elements, and the stride of its rows."""
    return span(view), view.strides[0]


NAMES: set[str] = set()  # of kernels that are loops


def load() -> None:
    """Load what the first kernel of this kind needs, ahead of it."""
    if loops is not None:
        loops.load()


def compile_chains() -> None:
    """Compile, or load, what executes loops one behind the other, and what a team's helpers do."""
    if loops is not None:
        entries.compile_all()
        gain(2)


def compiled(function: Any, arguments: tuple[Any, ...], by_team: bool = False) -> Bound:
    """A loop, compiled for the kinds of these arguments."""
    return loop(function, tuple(map(_kind, arguments)), by_team), arguments


def _kind(argument: Any) -> str:
    if isinstance(argument, (Host, Prepared)):
        return argument.view.dtype
    if isinstance(argument, np.ndarray):
        return str(argument.dtype)
    return "float" if isinstance(argument, float) else "int"


def ahead_of(weight: View) -> int:
    """How many bytes ahead a matrix is asked for."""
    return ahead.ahead_of(weight)


def add_kernel(
    name: str, op: str, find: Any, cost: Any, bind: Any, threads: str = ONE, **more: Any
) -> None:
    """Register a kernel that takes the sites in which `find` finds what it needs."""
    if loops is None:
        return
    NAMES.add(name)
    more |= {"devices": ("cpu",), "threads": threads, "compiles": True}
    register(Kernel(name, op, lambda site: find(site) is not None, cost, bind, **more))


def per_element(cost_ns: float) -> Callable[[Site], float]:
    return lambda site: CALL_NS + cost_ns * site.out.elements


# --- linear --------------------------------------------------------------------------------------


def _product(site: Site) -> Rows | None:
    p = rows_of(site)
    if p is None or p.dtype not in TYPES:
        return None
    if p.bias is not None and not is_flat(p.bias):
        return None
    if p.weights[0].dtype == "float16" and not sums.CONVERTS_HALVES:
        return None
    flat = _lines(p.x), _lines(p.out), *map(_lines, p.weights)
    return None if None in flat else p


def _columns(site: Site) -> Rows | None:
    """A product with a weight whose columns lie side by side, as of layers that multiply x · w."""
    p = rows_of(site)
    if p is None or p.dtype not in TYPES or p.weights[0].dtype != p.dtype:
        return None
    if p.bias is not None and not is_flat(p.bias):
        return None
    flat = _lines(p.x), _lines(p.out), _lines(p.weights[0].transpose())
    return None if None in flat else p


def _single_product(site: Site) -> Rows | None:
    return _product(site) if site.out.dtype in SINGLE else None


def _taken(site: Site) -> Rows:
    """The product of a site that is taken."""
    p = _product(site)
    assert p is not None
    return p


def _matrices(p: Rows) -> tuple[View, View, list[View]]:
    x, out, *weights = (_lines(view) for view in (p.x, p.out, *p.weights))
    assert x is not None
    assert out is not None
    return x, out, [weight for weight in weights if weight is not None]


def _linear_cost(site: Site) -> float:
    p = rows_of(site)
    assert p is not None
    count = value_of(p.rows) * value_of(p.depth) * value_of(p.columns) * len(p.weights)
    return CALL_NS + p.weight_bytes / STREAM + count / DOTS


def _bind_linear(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = _taken(site)
    sizes = p.rows, p.columns, p.depth, ahead_of(p.weights[0])
    if p.bias is None:
        return compiled(loops.linear, (*_operands(p), *sizes))
    return compiled(loops.linear_bias, (*_operands(p, span(p.bias)), *sizes))


def _bind_columns(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = _turned(site)
    sizes = p.rows, p.columns, p.depth
    if p.bias is None:
        return compiled(loops.linear_columns, (*_operands(p), *sizes))
    return compiled(loops.linear_columns_bias, (*_operands(p, span(p.bias)), *sizes))


def _bind_columns_by_team(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = _turned(site)
    sizes = span(scratch[0]), _parts(p), p.rows, p.columns, p.depth
    return _by_team(tiles.shared_columns, "columns", p, (*_operands(p, _bias(p)), *sizes))


def _columns_scratch(site: Site) -> tuple[Scratch, ...]:
    """One thread needs none, but may stand for several."""
    if torch.get_num_threads() == 1 or _long(_columns)(site) is None:
        return ()
    return _parts_scratch(site)


def _parts_scratch(site: Site) -> tuple[Scratch, ...]:
    """Room for what parts of the weight add."""
    p = _turned(site)
    return (((p.rows, _parts(p) * p.columns), p.dtype),)


def _parts(p: Rows) -> int:
    """Into how many parts the rows of a weight are cut for a team."""
    return max(2, min(MOST_PARTS, p.weight_bytes // max(LEAST_BYTES, 1)))


def _turned(site: Site) -> Rows:
    """The product of a site that is taken, with its weight turned: a row for each number of x."""
    p = _columns(site)
    assert p is not None
    return replace(p, weights=(p.weights[0].transpose(),))


def _bind_linear_by_team(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = _taken(site)
    sizes = p.rows, p.columns, p.depth, ahead_of(p.weights[0])
    return _by_team(tiles.shared_linear, "linear", p, (*_operands(p, _bias(p)), *sizes))


def _operands(p: Rows, *besides: Any) -> tuple[Any, ...]:
    """x, weights, what a loop reads `besides`, out; strides of rows behind views."""
    x, out, weights = _matrices(p)
    read = [argument for view in (x, *weights) for argument in _rows(view)]
    return (*read, *besides, *_rows(out))


def _bias(p: Rows) -> Any:
    """What a team adds: none of no length."""
    return loops.NO_BIAS[p.dtype] if p.bias is None else span(p.bias)


def _bind_gated(site: Site, scratch: tuple[View, ...]) -> Bound:
    return compiled(loops.gated_linear, _gated(site, scratch))


def _bind_gated_by_team(site: Site, scratch: tuple[View, ...]) -> Bound:
    p = _taken(site)
    return _by_team(tiles.shared_gated_linear, "gated", p, _gated(site, scratch))


def _gated(site: Site, scratch: tuple[View, ...]) -> tuple[Any, ...]:
    p = _taken(site)
    code = loops.ACTIVATIONS[site.call.attrs["activation"]]
    sizes = p.rows, p.columns, p.depth, code, ahead_of(p.weights[0])
    return (*_operands(p), span(scratch[0]), *sizes)


def _by_team(function: Any, product: str, p: Rows, arguments: tuple[Any, ...]) -> Bound:
    """A product by several threads: the function, and what computes a tile."""
    address = tiles.computing(p.dtype, p.weights[0].dtype, product)
    return compiled(function, (address, *arguments), by_team=True)


def _long(find: Callable[[Site], Rows | None]) -> Callable[[Site], Rows | None]:
    """Products that are worth sharing."""

    def found(site: Site) -> Rows | None:
        p = find(site)
        return p if p is not None and p.weight_bytes >= 2 * LEAST_BYTES else None

    return found


def _gated_scratch(site: Site) -> tuple[Scratch, ...]:
    p = _taken(site)
    return (((p.rows, p.columns), p.dtype),)


def _add_product(
    op: str,
    find: Any,
    bind: Any,
    bind_by_team: Any,
    name: str | None = None,
    team_scratch: Any = None,
    **more: Any,
) -> None:
    name, shared = name or op, _long(find)
    add_kernel(f"{name}_numba", op, find, _linear_cost, bind, **more)
    more["alone"] = f"{name}_numba"
    if team_scratch is not None:
        more["scratch"] = team_scratch
    add_kernel(f"{name}_team_numba", op, shared, _linear_cost, bind_by_team, TEAM, **more)


_add_product("linear", _product, _bind_linear, _bind_linear_by_team)
_add_product(
    "linear", _columns, _bind_columns, _bind_columns_by_team, "linear_columns",
    scratch=_columns_scratch, team_scratch=_parts_scratch,
)  # fmt: skip
_add_product("widening_linear", _single_product, _bind_linear, _bind_linear_by_team)
_add_product(
    "gated_linear", _single_product, _bind_gated, _bind_gated_by_team, scratch=_gated_scratch
)


# --- norms, softmax, activations -----------------------------------------------------------------


def _is_read_there(site: Site, dtypes: tuple[str, ...]) -> bool:
    """Whether x is read at the output box, of such a dtype, and few enough numbers."""
    box = site.in_boxes[0]
    if site.out.dtype not in dtypes or site.out.elements > 4 * SMALL or not is_complete(site):
        return False
    return box is not None and same_box(box, site.out_box)


def _line_views(site: Site, dtypes: tuple[str, ...]) -> tuple[View, ...] | None:
    """x and out as [rows, n], then the other operands; None unless x is read at the output box."""
    if not _is_read_there(site, dtypes):
        return None
    x, *others = inputs(site)
    flat, out = _lines(x), _lines(site.out)
    if flat is None or out is None or not all(o.rank == 1 and is_flat(o) for o in others):
        return None
    return flat, out, *others


@once_a_site
def _norm_lines(site: Site) -> tuple[View, ...] | None:
    """x and out as [outer, inner, n], so that rows may be those of a window of an image; then the
    other operands. None unless rows of the output are rows of the tensor.
    """
    if not _is_read_there(site, TYPES) or site.out_box[-1] != (0, _width(site)):
        return None
    x, *others = inputs(site)
    both = x, site.out
    if not all(map(is_flat, both)) or not all(o.rank == 1 and is_flat(o) for o in others):
        return None
    leads = merged([view.select(-1, 0) for view in both], 2)
    if leads[0].rank > 2:
        return None
    end = x.shape[-1]
    rows = (replace(v, shape=(*v.shape, end), strides=(*v.strides, 1)) for v in leads)
    return *rows, *others


def _width(site: Site) -> int:
    return int(site.call.in_shapes[0][-1])


def _bind_norm(site: Site, scratch: tuple[View, ...]) -> Bound:
    views = _norm_lines(site)
    assert views is not None
    x, out, *others = views
    function = loops.rms_norm if site.call.op.name == "rms_norm" else loops.layer_norm
    read = (span(x), *x.strides[:2], *map(span, others))
    last = (span(out), *out.strides[:2], *out.shape, float(site.call.attrs["eps"]))
    return compiled(function, (*read, *last))


def _softmax_lines(site: Site) -> tuple[View, ...] | None:
    is_last = site.call.attrs["axis"] == site.out.rank - 1
    is_whole = is_last and same(site.out.shape[-1], _width(site))
    return _line_views(site, SINGLE) if is_whole else None


def _bind_softmax(site: Site, scratch: tuple[View, ...]) -> Bound:
    views = _softmax_lines(site)
    assert views is not None
    x, out = views
    return compiled(loops.softmax, (*_rows(x), *_rows(out), *out.shape))


def _activation_lines(site: Site) -> tuple[View, ...] | None:
    return _line_views(site, SINGLE)


def _bind_activation(site: Site, scratch: tuple[View, ...]) -> Bound:
    views = _activation_lines(site)
    assert views is not None
    x, out = views
    name = site.call.op.name
    if site.call.attrs.get("approximate") == "tanh":
        name = "gelu_tanh"
    code = loops.ACTIVATIONS[name]
    return compiled(loops.activate, (*_rows(x), *_rows(out), *out.shape, code))


add_kernel("rms_norm_numba", "rms_norm", _norm_lines, per_element(0.1), _bind_norm)
add_kernel("layer_norm_numba", "layer_norm", _norm_lines, per_element(0.15), _bind_norm)
add_kernel("softmax_numba", "softmax", _softmax_lines, per_element(0.25), _bind_softmax)
add_kernel("silu_numba", "silu", _activation_lines, per_element(0.25), _bind_activation)
add_kernel("gelu_numba", "gelu", _activation_lines, per_element(0.4), _bind_activation)
add_kernel("tanh_numba", "tanh", _activation_lines, per_element(0.35), _bind_activation)
add_kernel("sigmoid_numba", "sigmoid", _activation_lines, per_element(0.25), _bind_activation)
add_kernel("exp_numba", "exp", _activation_lines, per_element(0.25), _bind_activation)
add_kernel("hardswish_numba", "hardswish", _activation_lines, per_element(0.1), _bind_activation)
add_kernel(
    "hardsigmoid_numba", "hardsigmoid", _activation_lines, per_element(0.1), _bind_activation
)
add_kernel("relu_numba", "relu", _activation_lines, per_element(0.07), _bind_activation)


# --- add, sub, mul -------------------------------------------------------------------------------

Operand = tuple[View, bool]  # [rows, n], and whether it is one number


def _operand(view: View, out: View) -> Operand | None:
    if all(map(is_one, view.shape)) and not all(map(is_one, out.shape)):
        return view, True
    flat = _lines(view.expand(*out.shape))
    return None if flat is None else (flat, False)


def _pair(site: Site) -> tuple[Operand, Operand, View, bool] | None:
    """First operand, second, out; and whether the operands stand exchanged.

    The loop copies the first operand into the output, so a number, or an operand whose memory
    the output takes over, comes where that does no harm.
    """
    if site.out.dtype not in TYPES or site.out.elements > SMALL or not is_complete(site):
        return None
    out = _lines(site.out)
    a, b = (_operand(view, site.out) for view in inputs(site))
    if out is None or a is None or b is None or (a[1] and b[1]):
        return None
    turned = a[1] or (not b[1] and _is_same_place(b[0], out))
    return (b, a, out, True) if turned else (a, b, out, False)


def _is_same_place(a: View, b: View) -> bool:
    return a.buffer == b.buffer and same(a.offset, b.offset)


def _bind_pair(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _pair(site)
    assert found is not None
    (a, _), (b, is_number), out, turned = found
    code = loops.COMBINATIONS[site.call.op.name]
    if turned and code == loops.SUB:
        code = loops.SUB_FROM
    first, stride = (span(b), 0) if is_number else _rows(b)
    arguments = (*_rows(a), first, stride, int(is_number), *_rows(out), *out.shape, code)
    return compiled(loops.combine, arguments)


for _name in ("add", "sub", "mul"):
    add_kernel(f"{_name}_numba", _name, _pair, per_element(0.1), _bind_pair)


# --- rope ----------------------------------------------------------------------------------------


def _planes(site: Site) -> tuple[View, ...] | None:
    """x, cos, sin and out as [outer, inner, depth]; the other dimensions are 1 wide."""
    depth = int(site.call.in_shapes[0][-1])
    if site.out.dtype not in TYPES or site.out.elements > 4 * SMALL or not is_complete(site):
        return None
    if depth % 2 or not same(site.out.shape[-1], depth):
        return None
    wide = [axis for axis, size in enumerate(site.out.shape[:-1]) if not is_one(size)]
    views = *inputs(site), site.out
    full = all(view.rank and same(view.shape[-1], depth) and is_flat(view) for view in views)
    if len(wide) > 2 or not full:
        return None
    return tuple(_plane(view.expand(*site.out.shape), wide) for view in views)


def _plane(view: View, wide: list[int]) -> View:
    for axis in reversed(range(view.rank - 1)):
        if axis not in wide:
            view = view.select(axis, 0)
    while view.rank < 3:
        view = view.insert(0)
    return view


def _bind_rope(site: Site, scratch: tuple[View, ...]) -> Bound:
    planes = _planes(site)
    assert planes is not None
    arguments: list[Any] = []
    for view in planes:
        arguments += [span(view), *view.strides[:2]]
    return compiled(loops.rope, (*arguments, *planes[-1].shape))


add_kernel("rope_numba", "rope", _planes, per_element(0.1), _bind_rope)


# --- gather --------------------------------------------------------------------------------------


def _picked(site: Site) -> tuple[View, View, View] | None:
    """Table [rows, n], indices [count], out [count, n]."""
    if site.call.attrs["axis"] != 0 or site.out.dtype not in TYPES or not is_complete(site):
        return None
    if not same(first_row(site), 0):
        return None
    table, index = inputs(site)
    rank = index.rank
    if table.rank != 2 or rank == 0 or index.dtype not in ("int64", "int32"):
        return None
    flat, out = index.flatten(0, rank), site.out.flatten(0, rank)
    if flat is None or out is None or site.out.elements > 4 * SMALL:
        return None
    return (table, flat, out) if all(map(is_flat, (table, flat, out))) else None


def _bind_gather(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _picked(site)
    assert found is not None
    table, index, out = found
    height = int(site.call.in_shapes[0][0])
    arguments = (*_rows(table), span(index), *_rows(out), index.shape[0], height, out.shape[1])
    return compiled(loops.gather, arguments)


add_kernel("gather_numba", "gather", _picked, per_element(0.1), _bind_gather)


# --- copies --------------------------------------------------------------------------------------

COPIED = (*TYPES, "int64", "int32", "bool")
COPYING = {
    kernel.op: kernel.bind
    for op in ("permute", "expand", "slice", "reshape")
    for kernel in KERNELS[op]
    if kernel.name == op
}


@once_a_site
def _copy(site: Site) -> tuple[View, ...] | None:
    """Source and target as [outer, inner, depth], where one copy is all that there is to do."""
    if site.out.dtype not in COPIED or site.out.elements > SMALL or not is_complete(site):
        return None
    if site.call.op.name == "slice" and min(site.call.attrs["steps"], default=1) < 0:
        return None
    function, views = COPYING[site.call.op.name](site, ())
    if function is not copy_:
        return None
    found = merged([views[1].expand(*views[0].shape), views[0]])
    return found if all(map(is_flat, found)) and found[0].rank == 3 else None


def _bind_copy(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _copy(site)
    assert found is not None
    arguments: list[Any] = []
    for view in found:
        arguments += [span(view), *view.strides[:2]]
    return compiled(loops.copy, (*arguments, *found[1].shape))


for _name in COPYING:
    add_kernel(f"{_name}_numba", _name, _copy, per_element(0.1), _bind_copy)


# --- attention -----------------------------------------------------------------------------------


@once_a_site
def plain_heads(site: Site) -> Heads | None:
    """What attends to what, where keys and values are of the same rows and a mask is boolean."""
    h = heads_alike(site)
    return h if h is not None and (h.mask is None or h.mask.dtype == "bool") else None


@once_a_site
def heads_alike(site: Site) -> Heads | None:
    """The same, whatever the mask is."""
    h = heads_of(site)
    if h is None or site.out.dtype not in SINGLE or not all(map(is_flat, (h.q, h.k, h.v, h.out))):
        return None
    if h.mask is not None and any(step < 0 for step in h.mask.strides):
        return None
    return h if same(h.first, 0) and same(h.k.shape[2], h.v.shape[2]) else None


def _attention_cost(site: Site) -> float:
    h = plain_heads(site)
    assert h is not None
    rows, count = value_of(h.q.shape[2]), value_of(h.k.shape[2])
    lines = value_of(h.q.shape[0]) * value_of(h.q.shape[1]) * rows
    products = lines * count * (value_of(h.k.shape[3]) + value_of(h.v.shape[3]))
    moved = rows * (h.k.size_bytes + h.v.size_bytes)
    return 2 * CALL_NS + moved / CACHED + products / (0.75 * PRODUCTS)


def _attention_scratch(site: Site) -> tuple[Scratch, ...]:
    h = plain_heads(site)
    assert h is not None
    heads = h.q.shape[1] if _lie_together(h) else h.group
    return (((heads, h.k.shape[2] + 2 * loops.PAD), "float32"),)


def _lie_together(h: Heads) -> bool:
    """Whether keys and values that a row has for all heads lie closer than those of other rows, and
    are read once: several queries rather have those of one head in a near cache.
    """
    return is_one(h.q.shape[2]) and all(
        value_of(one.shape[1]) > 1 and value_of(one.strides[1]) < value_of(one.strides[2])
        for one in (h.k, h.v)
    )


def _bind_attention(site: Site, scratch: tuple[View, ...]) -> Bound:
    h = plain_heads(site)
    assert h is not None
    batch, heads, rows, depth = h.q.shape
    _, shared_heads, count, wide = h.v.shape
    arguments: list[Any] = []
    for view in (h.q, h.k, h.v):
        arguments += [span(view), *view.strides[:3]]
    if h.mask is None:
        arguments += [loops.NO_MASK, 0, 0, 0, -1]
    else:
        mask = h.mask.expand(batch, heads, rows, count)
        arguments += [span(mask), *mask.strides]
    arguments += [span(h.out), *h.out.strides[:3], span(scratch[0])]
    keys = site.in_boxes[1]
    assert keys is not None
    sizes = (batch, heads, shared_heads, rows, keys[2][0], count, depth, wide)
    is_together = int(_lie_together(h))
    return compiled(loops.attention, (*arguments, *sizes, ahead_of(h.k), is_together, h.scale))


add_kernel(
    "attention_numba",
    "attention",
    plain_heads,
    _attention_cost,
    _bind_attention,
    scratch=_attention_scratch,
)
