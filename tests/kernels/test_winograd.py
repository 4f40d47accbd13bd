"""Convolutions of 3 × 3 by fewer multiplications: exact on whole numbers, wherever tiles begin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import tgbench as tg
from tgbench.kernels.numba import filters
from tgbench.kernels.registry import KERNELS, prepared_bytes

blocks = pytest.importorskip("tgbench.kernels.numba.blocks", reason="numba is not installed")
winograd = pytest.importorskip("tgbench.kernels.numba.winograd")

Floats = NDArray[np.float32]
POISON = np.float32(1e30)
# one vector, two, a panel that holds more than there are columns, and two panels
COLUMNS = [n * blocks.LANES for n in (1, 2, 3, blocks.VECTORS + 1, 2 * blocks.VECTORS)]


def whole_numbers(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.integers(-3, 4, shape).astype(np.float32)


@dataclass
class Case:
    """A convolution of images [count, lines, points, depth], which lie in larger ones."""

    x: Floats
    w: Floats
    bias: Floats | None = None
    more: Floats | None = None
    bounds: tuple[float, float] = (-np.inf, np.inf)
    low: tuple[int, int] = (1, 1)
    sizes: tuple[int, int] = (1, 1)  # of the result
    gap: int = 0
    threads: int = 1
    group: int = winograd.MOST_TILES
    gaps: tuple[int, int] = (1, 1)
    turned: bool = False  # whether channels of x are planes

    def compute(self) -> Floats:
        (count, *x_sizes, depth), columns = self.x.shape, len(self.w)
        order = (0, 1, 3, 2) if self.turned else (0, 1, 2, 3)
        x, x_flat = self._apart(self.x.transpose(order))
        x = x.transpose(order)
        copied = np.full(self.x.size if self.turned else 0, POISON)
        nothing = np.full((count, *self.sizes, columns), np.nan, np.float32)
        out, out_flat = self._apart(nothing)
        more, more_flat = (out, winograd.NONE) if self.more is None else self._apart(self.more)
        strides = [one.strides[axis] // 4 for one in (x, out, more) for axis in range(3)]
        strides.insert(3, x.strides[3] // 4)
        room = winograd.room_of(self.group, depth, columns)
        words = winograd.JOB + self.threads * room
        memory = np.full(words + 16, -1, np.int64)  # NaN, as numbers
        winograd.convolve(
            memory[:words], x_flat, copied, winograd.laid_out(self.w),
            winograd.NONE if self.bias is None else self.bias, out_flat, more_flat, blocks.ZEROS,
            *strides, *x_sizes, count, *self.sizes, *self.gaps, *self.low, depth, columns,
            *self.bounds, self.group, self.threads, room, *blocks.runtime_addresses(),
            *winograd.computing(),
        )  # fmt: skip
        assert (memory[words:] == -1).all()
        found = np.array(out)
        out[...] = POISON
        assert (out_flat == POISON).all()  # nothing was written besides
        return found

    def _apart(self, image: Floats) -> tuple[Floats, Floats]:
        """The same numbers, with poison between lines and points; and all of it, flat."""
        count, lines, points, channels = image.shape
        shape = count, lines + self.gap, points + self.gap, channels + self.gap
        room = np.full(shape, POISON)
        seen = room[:, :lines, :points, :channels]
        seen[...] = image
        return seen, room.reshape(-1)

    def expected(self) -> NDArray[Any]:
        """By PyTorch in float64, of the whole image and cut to what was asked for."""
        x = torch.from_numpy(self.x).double().permute(0, 3, 1, 2)
        pads = []
        for axis in (1, 0):
            low, reach = self.low[axis], 2 * self.gaps[axis]
            pads += [low, self.sizes[axis] + reach - low - x.shape[2 + axis]]
        bias = None if self.bias is None else torch.from_numpy(self.bias).double()
        weight = torch.from_numpy(self.w).double()
        found = torch.nn.functional.conv2d(
            torch.nn.functional.pad(x, pads), weight, bias, dilation=self.gaps
        )
        found = found.permute(0, 2, 3, 1)
        if self.more is not None:
            found = found + torch.from_numpy(self.more).double()
        return np.asarray(found.clamp(*self.bounds).numpy())


@st.composite
def cases(draw: Any) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def pick(low: int, high: int) -> int:
        return int(draw(st.integers(low, high)))

    count, lines, points = pick(1, 2), pick(1, 8), pick(1, 11)
    depth, columns = blocks.LANES * pick(1, 3), draw(st.sampled_from(COLUMNS))
    sizes = pick(1, 9), pick(1, 12)
    has = [draw(st.booleans()) for _ in range(2)]
    return Case(
        whole_numbers(rng, count, lines, points, depth),
        whole_numbers(rng, columns, depth, 3, 3),
        whole_numbers(rng, columns) if has[0] else None,
        whole_numbers(rng, count, *sizes, columns) if has[1] else None,
        draw(st.sampled_from([(-np.inf, np.inf), (0.0, np.inf), (-40.0, 60.0)])),
        (pick(-1, 2), pick(-1, 2)),
        sizes,
        pick(0, 2),
        pick(1, 3),
        draw(st.sampled_from([1, 5, winograd.MOST_TILES])),
        (pick(1, 3), pick(1, 3)),
        draw(st.booleans()),
    )


@given(cases())
def test_whole_numbers_are_exact(case: Case) -> None:
    """Any place and border, of images that lie anywhere, by several threads; memory holds NaN."""
    np.testing.assert_array_equal(case.compute(), case.expected())


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("side", "depth"), [(29, 2), (12, 20)])
def test_tiles_or_panels_are_shared(side: int, depth: int, threads: int) -> None:
    """Many tiles are shared; where weights are more than a cache holds, panels are."""
    rng, depth, columns = np.random.default_rng(0), depth * blocks.LANES, 6 * blocks.PANEL
    case = Case(
        whole_numbers(rng, 1, side, side, depth), whole_numbers(rng, columns, depth, 3, 3),
        sizes=(side, side), threads=threads,
    )  # fmt: skip
    np.testing.assert_array_equal(case.compute(), case.expected())


@settings(max_examples=20)
@given(st.data())
def test_bits_depend_on_nothing_but_where_tiles_begin(data: st.DataObject) -> None:
    """A window that begins where a tile of the image does, computed alone, by other threads."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = rng.normal(size=(1, 13, 14, 2 * blocks.LANES)).astype(np.float32)
    w = rng.normal(size=(blocks.PANEL + blocks.LANES, x.shape[-1], 3, 3)).astype(np.float32)
    whole = Case(x, w, low=(1, 1), sizes=x.shape[1:3], threads=2).compute()
    first = [2 * data.draw(st.integers(0, (size - 1) // 2)) for size in x.shape[1:3]]
    last = [data.draw(st.integers(a + 1, n)) for a, n in zip(first, x.shape[1:3], strict=True)]
    window = np.s_[:, first[0] : last[0], first[1] : last[1]]
    low = 1 - first[0], 1 - first[1]
    sizes = last[0] - first[0], last[1] - first[1]
    part = Case(x, w, low=low, sizes=sizes, group=data.draw(st.sampled_from([1, 4, 12])))
    np.testing.assert_array_equal(part.compute(), whole[window])


def test_sums_are_as_near_as_others_are() -> None:
    """Rounding is no more than that of sums over as many products."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1, 24, 24, 16 * blocks.LANES)).astype(np.float32)
    w = rng.normal(size=(blocks.PANEL, x.shape[-1], 3, 3)).astype(np.float32)
    case = Case(x, w, sizes=(24, 24))
    expected, lies = case.expected(), torch.from_numpy(x).permute(0, 3, 1, 2)
    plain = torch.nn.functional.conv2d(lies, torch.from_numpy(w), padding=1).permute(0, 2, 3, 1)
    far = np.abs(case.compute() - expected).max()
    assert 0 < far < 2 * np.abs(plain.numpy() - expected).max()


# --- who is taken, and what that takes -----------------------------------------------------------


def network(size: int, window: int = 3, **attrs: Any) -> tuple[tg.Graph, dict[str, Floats]]:
    g, wide = tg.GraphBuilder(), 2 * blocks.LANES
    weight = whole_numbers(np.random.default_rng(0), wide, wide, window, window)
    x = g.input("x", (1, wide, size, size))
    y = tg.ops.relu(tg.ops.conv(x, g.parameter("w", weight.shape), padding=1, **attrs))
    g.output("y", tg.ops.max_(y, (2, 3)))
    return g.build(), {"w": weight}


def made_by(graph: tg.Graph, weights: dict[str, Floats], **options: Any) -> tuple[str, Any]:
    """The kernel of the convolution, and the session; the result is right."""
    session = tg.GraphSession(graph, weights, calibrate=False, making="always", **options)
    (node,) = graph.inputs.values()
    x = whole_numbers(np.random.default_rng(1), *node.shape)
    found = session.run({"x": x})["y"]
    conv = next(one for one in graph.nodes if one.op == "conv")
    window = {name: conv.attrs[name] for name in ("stride", "dilation", "padding")}
    pads = [n for pair in reversed(window.pop("padding")) for n in pair]
    expected = torch.nn.functional.conv2d(
        torch.nn.functional.pad(torch.from_numpy(x), pads), torch.from_numpy(weights["w"]), **window
    )
    np.testing.assert_array_equal(found, expected.relu().amax((2, 3)).numpy())
    assert session.last is not None
    (made,) = (one for one in session.last.program.instructions if one.node.op == "conv")
    return made.kernel, session


def with_costs(monkeypatch: pytest.MonkeyPatch, winograd_ns: float) -> None:
    others = [replace(one, cost_ns=lambda site: 1e5) for one in KERNELS["conv"]]
    own = replace(filters.WINOGRAD, cost_ns=lambda site: winograd_ns)
    kernels = [own if one.name == own.name else one for one in others]
    monkeypatch.setitem(KERNELS, "conv", kernels)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize(("winograd_ns", "is_taken"), [(1.0, True), (1e9, False)])
def test_who_takes_less_computes(
    winograd_ns: float, is_taken: bool, dilation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_costs(monkeypatch, winograd_ns)
    kernel, _ = made_by(*network(9, dilation=dilation))
    assert (kernel == "conv_winograd") is is_taken


@pytest.mark.parametrize("attrs", [{"stride": 2}, {"window": 2}])
def test_other_windows_are_not_taken(
    attrs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_costs(monkeypatch, 1.0)
    kernel, _ = made_by(*network(9, **attrs))
    assert kernel != "conv_winograd"


def test_the_bound_on_second_layouts_counts_what_they_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """16 places instead of 9 elements: what has no room so is read as it lies."""
    with_costs(monkeypatch, 1.0)
    graph, weights = network(9)
    (conv,) = (one for one in graph.nodes if one.op == "conv")
    size = prepared_bytes(conv.call, 1, "cpu")
    assert size == weights["w"].nbytes * 16 // 9
    kernel, session = made_by(graph, weights, packed_bytes=size)
    assert kernel == "conv_winograd"
    assert session.estimate_memory()["cpu"].packed_bytes == size
    kernel, session = made_by(graph, weights, packed_bytes=size - 1)
    assert kernel != "conv_winograd"
    assert session.estimate_memory()["cpu"].packed_bytes == 0


def test_images_whose_size_moves_find_room_in_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of the first lines reaches to the end: programs for any number of lines left."""
    with_costs(monkeypatch, 1.0)
    size, wide = 12, 2 * blocks.LANES
    weight = whole_numbers(np.random.default_rng(0), wide, wide, 3, 3)
    g = tg.GraphBuilder()
    total = tg.ops.cumsum(g.input("x", (1, wide, size, size)), axis=2)
    g.output("y", tg.ops.max_(tg.ops.conv(total, g.parameter("w", weight.shape), padding=1), 1))
    x = np.zeros((1, wide, size, size), np.float32)
    session = tg.GraphSession(g.build(), {"w": weight}, calibrate=False, making="always")
    session.run({"x": x})
    kernels = set()
    for first in (3, 7, 5):
        x = x.copy()
        x[0, :, first, 2] += 1
        found = session.run({"x": x})["y"]
        expected = torch.nn.functional.conv2d(
            torch.from_numpy(np.cumsum(x, axis=2)), torch.from_numpy(weight), padding=1
        )
        np.testing.assert_array_equal(found, expected.amax(1).numpy())
        kernels |= {
            made.kernel
            for _, _, program in session.programs
            for made in program.instructions
            if made.node.op == "conv" and made.box.moves
        }
    assert kernels == {"conv_winograd"}
