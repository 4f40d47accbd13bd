"""Products and convolutions by oneDNN itself, over memory of ours.

    conv_direct          the box and its halo; the library adds the padding
    conv_points_direct   windows of one element: every point is a row of a product
    linear_direct        rows times a matrix; gated_linear_direct: times two

What lies as the library reads and writes it fast (rows side by side, images channels-last without
gaps) is read and written where it is; anything else by way of scratch memory. Weights are laid out
once, in the layout that the whole call wants; calls for parts of it read the same. Element-wise
calls on the result (`Site.posts`) are computed before it is written.

Where a call allows it (its attribute `arithmetic`), the kernels whose names end in `_bf16` round
both factors of each product to bfloat16, and sum in float32: weights when they are laid out, the
rest into scratch memory. Weights that are held in bfloat16 are laid out like others, where the pool
allows that (`_bf16`), or read as they lie (`_bf16_there`).

The costs are a model of one machine; records replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from tgbench.base.coords import Coord, same, value_of
from tgbench.graph.op_table import Call
from tgbench.kernels.onednn.library import (
    Computation,
    Description,
    Post,
    TensorForm,
    compute,
    described,
    laid_out,
    multiplies,
)
from tgbench.kernels.registry import Kernel, Prepared, Scratch, Site, View, once_a_site, register
from tgbench.kernels.torch.conv import is_ragged, overhang, padded_space, within
from tgbench.kernels.torch.packed import (
    SPATIAL,
    conv_cost,
    points_of,
    rows_cost,
    takes_conv,
    takes_points,
    takes_rows,
)
from tgbench.kernels.torch.products import product_of
from tgbench.kernels.views import Bound, dense, inputs, is_one, reshaped, split

MOST_WIDER = 3  # columns that are computed besides
USUAL_ROWS = 128  # of the product whose layout of weights serves for any number of them
ADD, MULTIPLY, CLIP = 0x1FFF0, 0x1FFF1, 0x2E
ROWS = 2  # dimensions of the operands of a product
WIDE, NARROW = "float32", "bfloat16"
FUNCTIONS: Mapping[str, tuple[int, float, float]] = {  # its number, and parameters
    "relu": (0x20, 0.0, 0.0), "tanh": (0x21, 0.0, 0.0), "sigmoid": (0x29, 0.0, 0.0),
    "silu": (0x2C, 1.0, 0.0), "gelu_none": (0x31, 0.0, 0.0), "gelu_tanh": (0x2B, 0.0, 0.0),
    "hardswish": (0x34, 1 / 6, 0.5), "hardsigmoid": (0x28, 1 / 6, 0.5),
}  # fmt: skip
LAYOUT = "onednn"  # of weights in float32, for all kernels of the library's
GATES = {"gelu": "gelu_none"}  # the others are called alike


class Factors(NamedTuple):
    """How both factors of products are read; a tuple, as it is part of what a kernel's hash tells.

    Fields:
        dtype: that they have, or are rounded to.
        laid_out: whether weights are in a layout of the library's; else they are as they lie.
    """

    dtype: str
    laid_out: bool = True


@dataclass(frozen=True, slots=True)
class Operands:
    """What a site computes, in the library's terms.

    Fields:
        x, out: [..., n] of a product, images of a convolution.
        weight: [depth, columns], or [groups, outputs, inputs, *window] with one group left out.
        bias: [1, columns], or [outputs].
        window: as `Computation` has it; none of a product.
        inside: of an image that is copied to where zeros are around it, what there is of it.
        margins: how wide these are, on both sides of every dimension.
        part: of a result that is computed wider than it is asked for, what is.
    """

    x: View
    weight: View
    bias: View | None
    out: View
    window: tuple[tuple[int, ...], ...] = ()
    inside: View | None = None
    margins: tuple[tuple[Coord, Coord], ...] = ()
    part: View | None = None


class Means(NamedTuple):
    """How the library computes a site, and in which terms."""

    of: Operands
    found: Description


# --- what a site computes ------------------------------------------------------------------------


@once_a_site
def operands_of(site: Site) -> Operands:
    if site.call.op.name != "conv":
        p = product_of(site)
        return _product(p.x, p.weights[0], p.bias, p.out)
    return _product(*points_of(site)) if takes_points(site) else _convolution(site)


def _product(x: View, weight: View, bias: View | None, out: View) -> Operands:
    flat = weight.flatten(1, weight.rank)
    assert flat is not None
    return Operands(x, flat.transpose(), None if bias is None else bias.insert(0), out)


def _convolution(site: Site) -> Operands:
    x, weight, *bias = inputs(site)
    image, margins = as_image(x), overhang(site)
    given = bias[0] if bias else None
    weights, out = _grouped(site, weight), as_image(site.out)
    if not is_ragged(margins):
        low, high = zip(*margins, strict=True)
        return Operands(image, weights, given, out, window_of(site, low, high))
    around = ((0, 0),) * (SPATIAL - len(margins)) + tuple(margins)
    return _copied(site, Operands(image, weights, given, out, (), image, around))


def _copied(site: Site, of: Operands) -> Operands:
    """The same with an image that is copied to where its margins are zeros."""
    assert of.inside is not None
    none = (0,) * len(site.call.attrs["stride"])
    padded = unlaid(of.inside, padded_space(of.inside, of.margins))
    return replace(of, x=padded, window=window_of(site, none, none))


def unlaid(image: View, space: Sequence[Coord]) -> View:
    """An image of this size that lies nowhere yet."""
    return replace(image, shape=(*image.shape[:2], *space), strides=(0,) * image.rank)


def _wider(site: Site, of: Operands) -> Iterator[Operands]:
    """The same, and some columns more of the result, of which zeros are read: the library has no
    code for some widths in the layout of weights that it wants for the whole.
    """
    if not of.window:
        return
    image, stride = of.inside or of.x, site.call.attrs["stride"][-1]
    low, high = zip(*of.margins, strict=True) if of.margins else of.window[2:]
    *lines, (left, right) = zip(low, high, strict=True)
    *space, width = of.out.shape[2:]
    for more in range(1, MOST_WIDER + 1):
        margins = (*lines, (left, right + more * stride))
        out = unlaid(of.out, (*space, width + more))
        yield _copied(site, replace(of, inside=image, margins=margins, out=out, part=of.out))


def as_image(view: View) -> View:
    while view.rank < 2 + SPATIAL:
        view = view.insert(2)
    return view


def window_of(site: Site, low: Sequence[int], high: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    attrs, lines = site.call.attrs, SPATIAL - len(low)
    gaps = tuple(dilation - 1 for dilation in attrs["dilation"])
    none = (0,) * lines
    return (1,) * lines + tuple(attrs["stride"]), none + gaps, none + tuple(low), none + tuple(high)


def _grouped(site: Site, weight: View) -> View:
    groups, seen = site.call.attrs["groups"], as_image(weight)
    return seen if groups == 1 else split(seen, 0, (groups, seen.shape[0] // groups))


# --- how operands lie ----------------------------------------------------------------------------


def form_of(view: View) -> TensorForm:
    """How a view lies; along a dimension of one element, as if there were no gaps.

    Rows are as many as there are now: code for another number of them is found when it is called.
    """
    shape = (*map(value_of, view.shape[:1]), *map(int, view.shape[1:]))
    if view.rank != ROWS:
        shape = tuple(map(int, view.shape))
    strides, step = [0] * len(shape), 1
    for axis in _from_inside(view):
        strides[axis] = int(view.strides[axis]) if shape[axis] > 1 else step
        step = strides[axis] * shape[axis]
    return TensorForm(shape, tuple(strides), view.dtype)


def _from_inside(view: View) -> Sequence[int]:
    """Dimensions, those that run fastest first: rows' last one, images' channels."""
    return range(view.rank)[::-1] if view.rank <= 2 else (1, *range(view.rank - 1, 1, -1), 0)


def _as_it_lies(view: View, window: Sequence[object], dtype: str = WIDE) -> View | None:
    """An operand as the library takes it where it lies: rows, or an image; None if it does not."""
    if view.dtype != dtype:
        return None
    if window:
        return view if _is_image(view) else None
    flat = view.rows()
    if flat is None or not flat.is_row_contiguous:
        return None
    return flat if is_one(flat.shape[0]) or flat.shape[1] <= flat.strides[0] else None


def _is_image(view: View) -> bool:
    """Whether an image lies channels-last without gaps."""
    step: Coord = 1
    for axis in _from_inside(view):
        if not (is_one(view.shape[axis]) or same(view.strides[axis], step)):
            return False
        step = step * view.shape[axis]
    return True


def _room(view: View, window: Sequence[object], dtype: str = WIDE) -> Scratch:
    """Scratch memory for a copy of an operand that lies in another way, or is of another dtype."""
    if window:
        batch, channels, *space = view.shape
        return (batch, *space, channels), dtype
    rows: Coord = 1
    for size in view.shape[:-1]:
        rows = rows * size
    return (rows, view.shape[-1]), dtype


def in_room(room: View, window: Sequence[object]) -> View:
    """The copy, as the library sees it."""
    return room.permute(0, -1, *range(1, room.rank - 1)) if window else room


# --- what is done to each number -----------------------------------------------------------------


def posts_of(site: Site, of: Operands) -> tuple[tuple[Post, ...], tuple[View, ...]] | None:
    """Posts and their second operands; None if there is one that the library does not have."""
    posts: list[Post] = []
    others: list[View] = []
    for there in site.posts:
        name, given = _function(there.call), there.read
        if name in FUNCTIONS:
            posts.append(Post(*FUNCTIONS[name]))
            continue
        if there.call.op.name == "clamp":
            posts.append(Post(CLIP, there.call.attrs["low"], there.call.attrs["high"]))
            continue
        other = _like_result(given[0], site, of) if name == "add" and given else None
        if other is None:
            return None
        is_there = other.buffer == of.out.buffer and same(other.offset, of.out.offset)
        posts.append(Post(ADD, form=form_of(other), is_there=is_there))
        if not is_there:
            others.append(other)
    return tuple(posts), tuple(others)


def _function(call: Call) -> str:
    return "_".join((call.op.name, *map(str, call.attrs.values())))


def _like_result(view: View, site: Site, of: Operands) -> View | None:
    """Another operand of the result's shape, if it lies as the result does."""
    if len(view.shape) != len(site.out.shape) or not all(map(same, view.shape, site.out.shape)):
        return None
    if not of.window and site.call.op.name == "conv":
        view = view.permute(0, *range(2, view.rank), 1)
    return _as_it_lies(as_image(view) if of.window else view, of.window)


# --- computations --------------------------------------------------------------------------------


def _usual(site: Site, of: Operands, dtype: str) -> Computation:
    """The computation that decides how weights are laid out, the same for all parts of a call."""
    if not of.window:
        return _usual_product(of.weight, dtype)
    low, high = zip(*site.call.attrs["padding"], strict=True)
    x, out = _whole(site.call.in_shapes[0], dtype), _whole(site.call.out.shape, WIDE)
    weights = TensorForm(tuple(map(int, of.weight.shape)), None, dtype)
    return Computation(
        x, weights, None, out, None, window_of(site, low, high), (), torch.get_num_threads()
    )


def _usual_product(weight: View, dtype: str) -> Computation:
    depth, columns = map(int, weight.shape)
    x = TensorForm((USUAL_ROWS, depth), (depth, 1), dtype)
    out = TensorForm((USUAL_ROWS, columns), (columns, 1))
    weights, threads = TensorForm((depth, columns), None, dtype), torch.get_num_threads()
    return Computation(x, weights, None, out, None, threads=threads)


def _whole(shape: Sequence[int], dtype: str) -> TensorForm:
    """A whole image, channels-last."""
    batch, channels, *space = shape
    lines = [1] * (SPATIAL - len(space))
    return form_of(in_room(dense((batch, *lines, *space, channels), dtype), (1,)))


def computation_of(
    site: Site, of: Operands, by: Factors, x: View, out: View, posts: tuple[Post, ...] = ()
) -> Computation:
    bias, threads = None if of.bias is None else form_of(of.bias), torch.get_num_threads()
    weights, usual = form_of(of.weight), None
    if by.laid_out:
        weights, usual = replace(weights, strides=None, dtype=by.dtype), _usual(site, of, by.dtype)
    return Computation(form_of(x), weights, bias, form_of(out), usual, of.window, posts, threads)


def laid(view: View, window: Sequence[object], dtype: str = WIDE) -> View:
    """An operand where it lies, or as its copy in scratch memory will."""
    lies = _as_it_lies(view, window, dtype)
    return lies or in_room(dense(*_room(view, window, dtype)), window)


@once_a_site
def way_of(site: Site, by: Factors) -> Means | None:
    """How the library would compute a site; None if it would not."""
    own = operands_of(site)
    for of in (own, *_wider(site, own)):
        found = _described(site, of, by)
        if found is not None:
            return Means(of, found)
    return None


def _described(site: Site, of: Operands, by: Factors) -> Description | None:
    found = posts_of(site, of)
    if found is None:
        return None
    reads_result = any(post.form for post in found[0])
    if reads_result and (of.part is not None or _as_it_lies(of.out, of.window) is None):
        return None
    x, out = laid(of.x, of.window, by.dtype), laid(of.out, of.window)
    return described(computation_of(site, of, by, x, out, found[0]))


def _takes_narrow(site: Site) -> bool:
    """Rows by weights that are held in what factors are rounded to."""
    return takes_rows(site) and site.operand(1).dtype == NARROW


# --- scratch memory and calls --------------------------------------------------------------------


def own_room(found: Description) -> tuple[Scratch, ...]:
    """What the library writes into while it computes."""
    return (((-(-found.scratch_bytes // 4),), "float32"),) if found.scratch_bytes else ()


def _scratch(site: Site, by: Factors) -> tuple[Scratch, ...]:
    way = way_of(site, by)
    assert way is not None
    of, found = way
    return (*own_room(found), *copies(of.x, of.out, of.window, by.dtype))


def copies(x: View, out: View, window: Sequence[object], dtype: str = WIDE) -> Iterator[Scratch]:
    """Scratch memory for what the library does not take as it is."""
    for view, wanted in ((x, dtype), (out, WIDE)):
        if _as_it_lies(view, window, wanted) is None:
            yield _room(view, window, wanted)


def placed(
    view: View, window: Sequence[object], pieces: list[View], dtype: str = WIDE
) -> tuple[View, View | None, View | None]:
    """What the library is given for an operand; and if that is a copy, the copy and the operand."""
    lies = _as_it_lies(view, window, dtype)
    if lies is not None:
        return lies, None, None
    room = pieces.pop(0)
    seen = in_room(room, window)
    return seen, seen if window else reshaped(room, view.shape), view


def _bind(site: Site, scratch: tuple[View, ...], by: Factors) -> Bound:
    way = way_of(site, by)
    assert way is not None
    of, found = way
    with_posts = posts_of(site, of)
    assert with_posts is not None
    pieces = list(scratch)
    own = pieces.pop(0) if found.scratch_bytes else None
    x, copy, source = placed(of.x, of.window, pieces, by.dtype)
    padded = None
    if of.inside is not None and copy is not None:
        padded, source = copy, of.inside
        copy = within(copy, of.margins, source.shape)
    out, result, target = placed(of.out, of.window, pieces)
    if of.part is not None and result is not None:
        result, target = result.narrow(result.rank - 1, 0, of.part.shape[-1]), of.part
    weight = weight_of(site, of, by)
    bias = () if of.bias is None else (of.bias,)
    operands = (x, weight, *bias, out, *with_posts[1])
    return computed, (found.computation, padded, copy, source, target, result, own, *operands)


def weight_of(site: Site, of: Operands, by: Factors) -> View | Prepared:
    if not by.laid_out:
        return of.weight
    return Prepared(of.weight, laid_out, (_usual(site, of, by.dtype),))


def computed(
    what: Computation, padded: Tensor | None, copy: Tensor | None, source: Tensor | None,
    target: Tensor | None, result: Tensor | None, scratch: Tensor | None, *operands: Tensor,
) -> None:  # fmt: skip
    if padded is not None:
        padded.zero_()
    if copy is not None and source is not None:
        copy.copy_(source)
    compute(what, scratch, *operands)
    if target is not None and result is not None:
        target.copy_(result)


# --- gated_linear --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gated:
    """Both products of a gated layer: the second is multiplied by what the first wrote."""

    gate: Operands
    up: Operands
    first: Description
    second: Description
    gates: Scratch


@once_a_site
def _gated(site: Site, by: Factors) -> Gated | None:
    p = product_of(site)
    gate, up = (_product(p.x, weight, None, p.out) for weight in p.weights)
    gates = _room(p.out, ())
    room, x, out = dense(*gates), laid(p.x, (), by.dtype), laid(p.out, ())
    times = Post(MULTIPLY, form=form_of(room))
    first = described(computation_of(site, gate, by, x, room, (_activation(site.call),)))
    second = described(computation_of(site, up, by, x, out, (times,)))
    return None if first is None or second is None else Gated(gate, up, first, second, gates)


def _activation(call: Call) -> Post:
    name = str(call.attrs["activation"])
    return Post(*FUNCTIONS[GATES.get(name, name)])


def _gated_scratch(site: Site, by: Factors) -> tuple[Scratch, ...]:
    found = _gated(site, by)
    assert found is not None
    own = (*own_room(found.first), *own_room(found.second))
    return (*own, found.gates, *copies(found.up.x, found.up.out, (), by.dtype))


def _bind_gated(site: Site, scratch: tuple[View, ...], by: Factors) -> Bound:
    found = _gated(site, by)
    assert found is not None
    own, pieces = _own_rooms(found, scratch)
    gates = pieces.pop(0)
    x, copy, source = placed(found.up.x, (), pieces, by.dtype)
    out, result, target = placed(found.up.out, (), pieces)
    first, second = (weight_of(site, of, by) for of in (found.gate, found.up))
    whats = found.first.computation, found.second.computation
    copied = copy, source, target, result
    return _computed_gated, (*whats, *copied, *own, x, first, gates, second, out)


def _own_rooms(found: Gated, scratch: Sequence[View]) -> tuple[list[View | None], list[View]]:
    """What the library writes into in both products, if it does; and all other scratch memory."""
    pieces = list(scratch)
    both = (found.first, found.second)
    return [pieces.pop(0) if one.scratch_bytes else None for one in both], pieces


def _computed_gated(
    gate: Computation, up: Computation, copy: Tensor | None, source: Tensor | None,
    target: Tensor | None, result: Tensor | None, own: Tensor | None, other: Tensor | None,
    x: Tensor, first: Tensor, gates: Tensor, second: Tensor, out: Tensor,
) -> None:  # fmt: skip
    if copy is not None and source is not None:
        copy.copy_(source)
    compute(gate, own, x, first, gates)
    compute(up, other, x, second, out, gates)
    if target is not None and result is not None:
        target.copy_(result)


# --- registration --------------------------------------------------------------------------------


CPU = ("cpu",)
POSTS = frozenset(
    {"relu", "clamp", "tanh", "sigmoid", "silu", "gelu", "hardswish", "hardsigmoid", "add"}
)
TIMES = 2.0  # as many products a second of factors of half the size


@dataclass(frozen=True)
class Recipe:
    """What kernels have in common that differ in how they read factors.

    Fields:
        describes: how the library would compute a site; None if it would not.
    """

    op: str
    takes: Callable[[Site], bool]
    describes: Callable[[Site, Factors], object]
    cost: Callable[[Site], float]
    bind: Callable[[Site, tuple[View, ...], Factors], Bound]
    scratch: Callable[[Site, Factors], tuple[Scratch, ...]]
    weights: tuple[int, ...] = (1,)
    posts: frozenset[str] = POSTS


RECIPES = {
    "conv_direct": Recipe("conv", takes_conv, way_of, conv_cost, _bind, _scratch),
    "conv_points_direct": Recipe("conv", takes_points, way_of, conv_cost, _bind, _scratch),
    "linear_direct": Recipe("linear", takes_rows, way_of, rows_cost, _bind, _scratch),
    "gated_linear_direct": Recipe(
        "gated_linear", takes_rows, _gated, rows_cost, _bind_gated, _gated_scratch, (1, 2),
        frozenset(),
    ),
}  # fmt: skip
WIDENING = Recipe("widening_linear", _takes_narrow, way_of, rows_cost, _bind, _scratch)


def register_direct(is_others: Callable[[Site], bool]) -> None:
    """Register these kernels; called where the library is there.

    Those that round are there where the processor does that: what may round is counted and told.

    Args:
        is_others: whether other kernels compute a call in float32, and lay its weights out.
    """
    rounds = multiplies(NARROW)
    for name, recipe in RECIPES.items():
        register(_kernel(name, recipe, Factors(WIDE), is_others))
        if rounds:
            register(_kernel(f"{name}_bf16", recipe, Factors(NARROW)))
    if rounds:
        register(_kernel("widening_linear_direct_bf16", WIDENING, Factors(NARROW)))
        there = Factors(NARROW, laid_out=False)
        register(_kernel("widening_linear_direct_bf16_there", WIDENING, there))


def nobodys(site: Site) -> bool:
    return False


def _kernel(
    name: str, recipe: Recipe, by: Factors, is_others: Callable[[Site], bool] = nobodys
) -> Kernel:
    binds, wants, rounds = recipe.bind, recipe.scratch, "" if by.dtype == WIDE else by.dtype

    def accepts(site: Site) -> bool:
        takes = not is_others(site) and recipe.takes(site)
        return takes and recipe.describes(site, by) is not None

    def cost(site: Site) -> float:
        return recipe.cost(site) / (TIMES if rounds else 1.0)

    def bind(site: Site, scratch: tuple[View, ...]) -> Bound:
        return binds(site, scratch, by)

    def scratch(site: Site) -> tuple[Scratch, ...]:
        return wants(site, by)

    return Kernel(
        name, recipe.op, accepts, cost, bind, scratch, CPU,
        prepares=recipe.weights if by.laid_out else (), layout="" if rounds else LAYOUT,
        by_size=True, posts=recipe.posts, rounds=rounds,
    )  # fmt: skip
