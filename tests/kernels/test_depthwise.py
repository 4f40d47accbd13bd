"""Convolutions channel by channel: exact, the same bits wherever, and nothing else written."""

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
from tgbench.kernels.numba import depthwise
from tgbench.kernels.registry import KERNELS, prepared_bytes

blocks = pytest.importorskip("tgbench.kernels.numba.blocks", reason="numba is not installed")
taps = pytest.importorskip("tgbench.kernels.numba.taps")
windows = pytest.importorskip("tgbench.kernels.numba.windows")

Floats = NDArray[np.float32]
POISON = np.float32(1e30)
ALL = -np.inf, np.inf
FUNCTIONS = {
    windows.ACTIVATIONS["silu"]: torch.nn.functional.silu,
    windows.ACTIVATIONS["gelu"]: torch.nn.functional.gelu,
    windows.ACTIVATIONS["hardswish"]: torch.nn.functional.hardswish,
    windows.ACTIVATIONS["hardsigmoid"]: torch.nn.functional.hardsigmoid,
}
# fewer than a vector holds, one, one and a part, as many as registers hold, and that and a part
CHANNELS = [
    2, blocks.LANES - 1, blocks.LANES, blocks.LANES + 3, taps.ACROSS * blocks.LANES,
    (taps.ACROSS + 1) * blocks.LANES + 1, (2 * taps.ACROSS + 1) * blocks.LANES,
]  # fmt: skip


def whole_numbers(rng: np.random.Generator, *shape: int) -> Floats:
    return rng.integers(-3, 4, shape).astype(np.float32)


@dataclass
class Case:
    """A convolution of images [count, lines, points, channels], which lie in larger ones."""

    x: Floats
    w: Floats  # [channels, 1, lines, points]
    bias: Floats | None = None
    function: int = -1
    bounds: tuple[float, float] = ALL
    stride: tuple[int, int] = (1, 1)
    gaps: tuple[int, int] = (1, 1)
    low: tuple[int, int] = (0, 0)
    sizes: tuple[int, int] = (1, 1)  # of the result
    gap: int = 0
    threads: int = 1
    turned: bool = False  # whether channels of x are planes

    def compute(self) -> Floats:
        (count, *x_sizes, channels) = self.x.shape
        order = (0, 1, 3, 2) if self.turned else (0, 1, 2, 3)
        x, x_flat = self._apart(self.x.transpose(order))
        x = x.transpose(order)
        copied = np.full(self.x.size if self.turned else 0, POISON)
        out, out_flat = self._apart(np.full((count, *self.sizes, channels), np.nan, np.float32))
        strides = [one.strides[axis] // 4 for one in (x, out) for axis in range(3)]
        strides.insert(3, x.strides[3] // 4)
        kinds = zip(self.w.shape[2:], self.stride, self.gaps, self.low, strict=True)
        pairs = [n for kind in zip(*kinds, strict=True) for n in kind]
        laid, taken = taps.laid_out(self.w), taps.elements_for(channels, self.w[0].size)
        assert laid.size == taken
        memory = np.full(taps.JOB + 16, -7, np.int64)
        taps.convolve(
            memory[: taps.JOB], x_flat, copied, laid,
            windows.NONE if self.bias is None else self.bias, out_flat, blocks.ZEROS, *strides,
            *x_sizes, count, *self.sizes, *pairs, channels,
            self.function, *self.bounds, self.threads, *blocks.runtime_addresses(),
            taps.computing(), windows.computing()[2],
        )  # fmt: skip
        assert (memory[taps.JOB :] == -7).all()
        found = np.array(out)
        out[...] = POISON
        assert (out_flat == POISON).all()  # nothing was written besides
        return found

    def _apart(self, image: Floats) -> tuple[Floats, Floats]:
        """The same numbers, with poison between lines and points; and all of it, flat."""
        count, lines, points, channels = image.shape
        room = np.full((count, lines + self.gap, points + self.gap, channels + self.gap), POISON)
        seen = room[:, :lines, :points, :channels]
        seen[...] = image
        return seen, room.reshape(-1)

    def expected(self) -> NDArray[Any]:
        """By PyTorch in float64, of the whole image and cut to what was asked for."""
        down, right = (max(0, -low) for low in self.low)
        x = torch.from_numpy(self.x).double().permute(0, 3, 1, 2)[:, :, down:, right:]
        pads = []
        for axis in (1, 0):
            reach = (self.w.shape[2 + axis] - 1) * self.gaps[axis] + 1
            want = (self.sizes[axis] - 1) * self.stride[axis] + reach
            low = max(0, self.low[axis])
            pads += [low, max(0, want - low - x.shape[2 + axis])]
        bias = None if self.bias is None else torch.from_numpy(self.bias).double()
        found = torch.nn.functional.conv2d(
            torch.nn.functional.pad(x, pads), torch.from_numpy(self.w).double(), bias,
            self.stride, dilation=self.gaps, groups=len(self.w),
        )[:, :, : self.sizes[0], : self.sizes[1]].permute(0, 2, 3, 1)  # fmt: skip
        if self.function >= 0:
            found = FUNCTIONS[self.function](found)
        return np.asarray(found.clamp(*self.bounds).numpy())


@st.composite
def cases(draw: Any) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def pick(low: int, high: int) -> int:
        return int(draw(st.integers(low, high)))

    count, lines, points = pick(1, 2), pick(1, 9), pick(1, 25)
    channels = draw(st.sampled_from(CHANNELS))
    return Case(
        whole_numbers(rng, count, lines, points, channels),
        whole_numbers(rng, channels, 1, pick(1, 4), pick(1, 8)),
        whole_numbers(rng, channels) if draw(st.booleans()) else None,
        -1,
        draw(st.sampled_from([ALL, (0.0, np.inf), (-4.0, 6.0)])),
        (pick(1, 3), pick(1, 3)),
        (pick(1, 2), pick(1, 2)),
        (pick(-1, 3), pick(-1, 3)),
        (pick(1, 8), pick(1, 25)),
        pick(0, 2),
        pick(1, 3),
        draw(st.booleans()),
    )


@given(cases())
def test_whole_numbers_are_exact(case: Case) -> None:
    """Any window, stride, dilation and border, of images that lie anywhere, by several threads; low
    is less than 0 where windows begin behind the first line or point.
    """
    np.testing.assert_array_equal(case.compute(), case.expected())


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("window", [3, 2 * taps.SHARED_TAPS + 1])
def test_lines_are_shared(window: int, threads: int) -> None:
    rng, channels, side = np.random.default_rng(0), 3 * blocks.LANES, 41
    assert side**2 * window**2 * channels > blocks.SHARED
    case = Case(
        whole_numbers(rng, 1, side, side, channels),
        whole_numbers(rng, channels, 1, window, window),
        low=(window // 2, window // 2),
        sizes=(side, side),
        threads=threads,
    )
    np.testing.assert_array_equal(case.compute(), case.expected())


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("channels", [3, 2 * blocks.LANES + 5])
def test_functions(function: int, channels: int) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=shape) for shape in ((1, 6, 11, channels), (channels, 1, 3, 3)))
    case = Case(
        x.astype(np.float32), w.astype(np.float32), function=function, low=(1, 1), sizes=(6, 11)
    )
    np.testing.assert_allclose(case.compute(), case.expected(), rtol=2e-5, atol=2e-6)


@settings(max_examples=40)
@given(st.data())
def test_bits_do_not_depend_on_what_is_computed_beside(data: st.DataObject) -> None:
    """Any window of a result, computed alone, by other threads: also where strips begin elsewhere,
    and where a window of an image is read without the rest.
    """
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    side, window = data.draw(st.sampled_from([(19, 3), (23, 7)]))
    channels = data.draw(st.sampled_from([5, blocks.LANES + 3, 3 * blocks.LANES]))
    x = rng.normal(size=(1, side, side, channels)).astype(np.float32)
    w = rng.normal(size=(channels, 1, window, window)).astype(np.float32)
    low = window // 2
    whole = Case(x, w, low=(low, low), sizes=(side, side), threads=2).compute()
    first = [data.draw(st.integers(0, side - 1)) for _ in range(2)]
    last = [data.draw(st.integers(a + 1, side)) for a in first]
    begins = [max(0, a - low) for a in first]
    ends = [min(side, b + low) for b in last]
    part = Case(
        x[:, begins[0] : ends[0], begins[1] : ends[1]], w,
        low=(begins[0] - first[0] + low, begins[1] - first[1] + low),
        sizes=(last[0] - first[0], last[1] - first[1]),
    )  # fmt: skip
    seen = whole[:, first[0] : last[0], first[1] : last[1]]
    np.testing.assert_array_equal(part.compute(), seen)


def test_numbers_that_are_none_stay_so() -> None:
    """NaN and infinities pass a sum and bounds; of a channel beside them nothing is changed."""
    x = np.ones((1, 1, 9, blocks.LANES), np.float32)
    x[..., 1], x[..., 2] = np.nan, np.inf
    found = Case(
        x, np.ones((blocks.LANES, 1, 1, 3), np.float32), bounds=(0.0, np.inf), sizes=(1, 7)
    )
    result = found.compute()
    assert np.isnan(result[..., 1]).all()
    assert np.isposinf(result[..., 2]).all()
    assert (np.delete(result, [1, 2], -1) == 3).all()


# --- who is taken --------------------------------------------------------------------------------


def network(channels: int, groups: int, made: int, size: int = 9) -> tuple[tg.Graph, Any]:
    g = tg.GraphBuilder()
    weight = whole_numbers(np.random.default_rng(0), made, channels // groups, 3, 3)
    x = g.input("x", (1, channels, size, size))
    w = g.parameter("w", weight.shape)
    y = tg.ops.clamp(tg.ops.conv(x, w, padding=1, groups=groups), -1.0, 6.0)
    g.output("y", tg.ops.max_(y, (2, 3)))
    return g.build(), {"w": weight}


def made_by(graph: tg.Graph, weights: dict[str, Floats]) -> Any:
    """The call of the convolution; the result is right."""
    session = tg.GraphSession(graph, weights, calibrate=False, making="always")
    (conv,) = (one for one in graph.nodes if one.op == "conv")
    x = whole_numbers(np.random.default_rng(1), *graph.inputs["x"].shape)
    found = session.run({"x": x})["y"]
    expected = torch.nn.functional.conv2d(
        torch.from_numpy(x), torch.from_numpy(weights["w"]), padding=1,
        groups=conv.attrs["groups"],
    )  # fmt: skip
    np.testing.assert_array_equal(found, expected.clamp(-1, 6).amax((2, 3)).numpy())
    assert session.last is not None
    (made,) = (one for one in session.last.program.instructions if one.node.op == "conv")
    return made


def with_cost(monkeypatch: pytest.MonkeyPatch, own_ns: float) -> None:
    others = [replace(one, cost_ns=lambda site: 1e5) for one in KERNELS["conv"]]
    own = replace(depthwise.DEPTHWISE, cost_ns=lambda site: own_ns)
    kernels = [own if one.name == own.name else one for one in others]
    monkeypatch.setitem(KERNELS, "conv", kernels)


@pytest.mark.parametrize(("own_ns", "is_taken"), [(1.0, True), (1e9, False)])
def test_who_takes_less_computes(
    own_ns: float, is_taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is done to its result: bounds are no call of their own."""
    with_cost(monkeypatch, own_ns)
    made = made_by(*network(12, 12, 12))
    assert (made.kernel == "conv_depthwise") is is_taken
    if is_taken:
        assert [node.op for node in made.posts] == ["clamp"]


@pytest.mark.parametrize(("channels", "groups", "made"), [(12, 1, 12), (12, 4, 12), (12, 12, 24)])
def test_other_groups_are_not_taken(
    channels: int, groups: int, made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_cost(monkeypatch, 1.0)
    assert made_by(*network(channels, groups, made)).kernel != "conv_depthwise"


def test_what_weights_take_that_are_laid_out_is_counted() -> None:
    """Whole vectors of channels."""
    graph, weights = network(blocks.LANES + 2, blocks.LANES + 2, blocks.LANES + 2)
    (conv,) = (one for one in graph.nodes if one.op == "conv")
    laid = taps.laid_out(weights["w"])
    assert laid.nbytes == 2 * blocks.LANES * 9 * 4
    assert prepared_bytes(conv.call, 1, "cpu") >= laid.nbytes
