"""Convolutions in strips, where the library has no code for the width of a result.

    12 columns     ├───── 7 ─────┤
                             ├───── 7 ─────┤      two images of a batch; two columns are in both

For some widths the library wants weights in one layout, for others in another one, and a layout of
ours serves all parts of a call. So a part that is as wide as it has no code for is computed as
images that are less wide, all as wide, in one call of a batch: they are copied to where they lie
without gaps, and what is computed to where it belongs.

The costs are a model of one machine; records replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from tgbench.base.coords import Coord, moves_freely, same
from tgbench.kernels.onednn.direct import (
    CPU,
    LAYOUT,
    POSTS,
    WIDE,
    Factors,
    Operands,
    computation_of,
    in_room,
    operands_of,
    own_room,
    posts_of,
    way_of,
    weight_of,
    window_of,
)
from tgbench.kernels.onednn.library import Computation, Description, compute, described
from tgbench.kernels.registry import Kernel, Scratch, Site, View, once_a_site, register
from tgbench.kernels.torch.conv import padded_space, within
from tgbench.kernels.torch.packed import conv_cost, takes_conv
from tgbench.kernels.views import Bound, dense

FACTORS = Factors(WIDE)
MOST_STRIPS, MOST_WIDER = 3, 2  # of how many, and by how many columns wider than they need be
IMAGES = (1,)  # any window: of images, not of rows


@dataclass(frozen=True, slots=True)
class Strips:
    """A convolution as one of strips.

    Fields:
        whole: what is computed, and strips of it.
        image: what is read, without what is around it, and
        margins: how wide zeros are on both sides of its lines and columns.
        starts: the first column of each strip of the result.
    """

    whole: Operands
    strips: Operands
    found: Description
    image: View
    margins: tuple[tuple[Coord, Coord], ...]
    starts: tuple[int, ...]

    @property
    def columns(self) -> int:
        """How many are computed."""
        return len(self.starts) * int(self.strips.out.shape[-1])

    @property
    def is_padded(self) -> bool:
        """Somewhere, if it moves: a program is right where it is, and where it is not."""
        margins = [margin for sides in self.margins for margin in sides]
        return any(moves_freely(margin) or not same(margin, 0) for margin in margins)


@once_a_site
def _strips(site: Site) -> Strips | None:
    if not takes_conv(site) or way_of(site, FACTORS) is not None:
        return None
    whole = operands_of(site)
    posts = posts_of(site, whole)
    if posts is None or any(post.form for post in posts[0]):
        return None
    image = whole.inside or whole.x
    margins = whole.margins or tuple(zip(*whole.window[2:], strict=True))
    lines, none = padded_space(image, margins)[0], (0,) * len(site.call.attrs["stride"])
    window, width = window_of(site, none, none), int(whole.out.shape[-1])
    reach = (int(whole.weight.shape[-1]) - 1) * (window[1][-1] + 1) + 1
    for count, wide in _cuts(width):
        read = (wide - 1) * window[0][-1] + reach
        batch = count * int(image.shape[0])
        x, out = (
            _images(batch, one.shape[1], *space)
            for one, space in ((image, (lines, read)), (whole.out, (whole.out.shape[2], wide)))
        )
        strips = replace(whole, x=x, out=out, window=window, inside=None, margins=())
        found = described(computation_of(site, strips, FACTORS, x, out, posts[0]))
        if found is not None:
            starts = tuple(min(i * wide, width - wide) for i in range(count))
            return Strips(whole, strips, found, image, margins, starts)
    return None


def _cuts(width: int) -> Iterator[tuple[int, int]]:
    """How many strips, and how wide: least columns in all first.

    >>> list(_cuts(7))
    [(2, 4), (3, 3), (2, 5), (2, 6), (3, 4), (3, 5)]
    """
    found = [
        (count, -(-width // count) + wider)
        for count in range(2, MOST_STRIPS + 1)
        for wider in range(MOST_WIDER + 1)
    ]
    fit = (one for one in found if one[1] < width)
    return iter(sorted(fit, key=lambda one: (one[0] * one[1], one[0])))


def _images(batch: Coord, channels: Coord, lines: Coord, columns: Coord) -> View:
    return in_room(dense((batch, lines, columns, channels), WIDE), IMAGES)


def _rooms(found: Strips) -> Iterator[Scratch]:
    """Scratch memory: for an image with zeros around it, for strips of it, and of the result."""
    if found.is_padded:
        batch, channels, *_ = found.image.shape
        yield (batch, *padded_space(found.image, found.margins), channels), WIDE
    for view in (found.strips.x, found.strips.out):
        batch, channels, *space = view.shape
        yield (batch, *space, channels), WIDE


def _scratch(site: Site) -> tuple[Scratch, ...]:
    found = _strips(site)
    assert found is not None
    return (*own_room(found.found), *_rooms(found))


def _cost(site: Site) -> float:
    found = _strips(site)
    assert found is not None
    return conv_cost(site) * found.columns / int(found.whole.out.shape[-1])


def _bind(site: Site, scratch: tuple[View, ...]) -> Bound:
    found = _strips(site)
    assert found is not None
    pieces = list(scratch)
    own = pieces.pop(0) if found.found.scratch_bytes else None
    image, padded, inside = found.image, None, None
    if found.is_padded:
        padded = in_room(pieces.pop(0), IMAGES)
        inside = within(padded, found.margins, image.shape)
    x, out = (in_room(piece, IMAGES) for piece in pieces)
    seen, stride = image if padded is None else padded, found.strips.window[0][-1]
    copied = _pairs(x, seen, [start * stride for start in found.starts])
    given = [pair[::-1] for pair in _pairs(out, found.whole.out, found.starts)]
    bias = () if found.whole.bias is None else (found.whole.bias,)
    operands = x, weight_of(site, found.strips, FACTORS), *bias, out
    ends = [view for pair in (*copied, *given) for view in pair]
    zeros = padded, inside, None if padded is None else image
    return computed_in_strips, (found.found.computation, len(copied), own, *zeros, *ends, *operands)


def _pairs(strips: View, whole: View, starts: Sequence[int]) -> list[tuple[View, View]]:
    """Each strip of a batch, and which columns of the whole it is."""
    batch, wide = whole.shape[0], strips.shape[-1]
    return [
        (strips.narrow(0, i * batch, batch), whole.narrow(-1, start, wide))
        for i, start in enumerate(starts)
    ]


def computed_in_strips(
    what: Computation, count: int, scratch: Tensor | None, padded: Tensor | None,
    inside: Tensor | None, image: Tensor | None, *rest: Tensor,
) -> None:  # fmt: skip
    """Copy strips, compute them, and copy results: pairs (target, source) before all operands."""
    if padded is not None and inside is not None and image is not None:
        padded.zero_()
        inside.copy_(image)
    ends = 2 * count
    for i in range(0, ends, 2):
        rest[i].copy_(rest[i + 1])
    compute(what, scratch, *rest[2 * ends :])
    for i in range(ends, 2 * ends, 2):
        rest[i].copy_(rest[i + 1])


def register_strips(is_others: Callable[[Site], bool]) -> None:
    """Register this kernel; called where the library is there: see `register_direct`."""

    def accepts(site: Site) -> bool:
        return not is_others(site) and _strips(site) is not None

    register(
        Kernel(
            "conv_strips_direct", "conv", accepts, _cost, _bind, _scratch, CPU,
            prepares=(1,), layout=LAYOUT, by_size=True, posts=POSTS,
        )
    )  # fmt: skip
