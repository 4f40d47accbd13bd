"""Pools and resampling, channels side by side: any window, stride and border, beside PyTorch's; and
that sessions compute by them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import tgbench as tg
from tgbench.kernels.registry import KERNELS

stencils = pytest.importorskip("tgbench.kernels.numba.stencils")
Floats = NDArray[np.float32]
POISON = 9e9


def apart(images: int, lines: int, points: int, channels: int, gap: int) -> Floats:
    """[images, lines, points, channels] in a larger array, so that all of them have gaps."""
    whole = np.full((images, lines, points + gap, channels + gap), POISON, np.float32)
    return whole[:, :, :points, :channels]


def places(image: Floats) -> tuple[Any, ...]:
    base = image.base if image.base is not None else image
    return (np.asarray(base).reshape(-1), *(step // 4 for step in image.strides[:3]))


@given(st.data())
def test_pools_are_pytorchs(data: st.DataObject) -> None:
    def pick(low: int, high: int) -> int:
        return int(data.draw(st.integers(low, high)))

    rng = np.random.default_rng(pick(0, 2**32 - 1))
    images, channels = pick(1, 2), pick(1, 40)
    kernel, stride, dilation = ((pick(1, 3), pick(1, 3)) for _ in range(3))
    low = pick(0, kernel[0] // 2), pick(0, kernel[1] // 2)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = [max(1, pick(1, 9), r - 2 * n) for r, n in zip(reach, low, strict=True)]
    x = apart(images, *sizes, channels, pick(0, 2))
    x[...] = rng.integers(-9, 10, x.shape)
    if data.draw(st.booleans()):
        x[0, 0, 0, 0] = np.nan
    given_x = torch.from_numpy(x.copy()).permute(0, 3, 1, 2)
    shape = [(n + 2 * p - r) // s + 1 for n, p, r, s in zip(sizes, low, reach, stride, strict=True)]
    for is_largest in (True, False):
        out = apart(images, *shape, channels, pick(0, 2))
        stencils.pool(
            *places(x), *places(out), *sizes, images, channels, *shape, *kernel, *stride,
            *dilation, *low, int(is_largest), -np.inf if is_largest else 0.0,
        )  # fmt: skip
        if is_largest:
            found = torch.nn.functional.max_pool2d(given_x, kernel, stride, low, dilation)
        else:
            ones = torch.ones(channels, 1, *kernel)
            found = torch.conv2d(given_x, ones, None, stride, low, dilation, channels)
        expected = found.permute(0, 2, 3, 1).numpy()
        if not is_largest and np.isnan(x).any():
            assert np.isnan(out).sum() == np.isnan(expected).sum()
            continue
        np.testing.assert_array_equal(out, expected)


def network(mode: str) -> tuple[torch.nn.Module, torch.Tensor]:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
            self.last = torch.nn.Conv2d(48, 16, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.first(x))
            pooled = torch.nn.functional.max_pool2d(h, 3, 2, 1)
            means = torch.nn.functional.avg_pool2d(h, 3, 2, 1)
            less = torch.nn.functional.interpolate(
                pooled, size=h.shape[2:], mode=mode,
                **({"align_corners": False} if mode == "bilinear" else {}),
            )  # fmt: skip
            more = torch.nn.functional.interpolate(means, scale_factor=2.0, mode="nearest")
            return self.last(torch.cat([h, less, more], 1))

    torch.manual_seed(0)
    return Net().eval(), torch.randn(1, 3, 24, 20)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_sessions_compute_by_them_wherever_a_patch_is(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of PyTorch are made expensive; any patch gives what a full run does."""
    for op in ("max_pool", "sum_pool", "upsample"):
        slow = [
            one if one.name.endswith("_numba") else replace(one, cost_ns=lambda site: 1e9)
            for one in KERNELS[op]
        ]
        monkeypatch.setitem(KERNELS, op, slow)
    module, x = network(mode)
    imported = tg.from_torch(module, (x,))
    (name,) = imported.graph.inputs
    session = tg.GraphSession(imported, calibrate=False, making="always")
    rng, used = np.random.default_rng(0), set[str]()
    with torch.no_grad():
        for _ in range(12):
            found = next(iter(session.run({name: x.numpy()}).values()))
            np.testing.assert_allclose(found, module(x).numpy(), rtol=1e-4, atol=1e-5)
            assert session.last.program is not None
            used |= {made.kernel for made in session.last.program.instructions}
            top, left = rng.integers(0, 20), rng.integers(0, 16)
            x[:, :, top : top + 4, left : left + 4] = torch.randn(3, 4, 4)
    assert {"max_pool_numba", "sum_pool_numba", "upsample_numba"} <= used
    assert used.isdisjoint({"max_pool", "sum_pool", "upsample", "upsample_slice"})


@given(st.data())
def test_means_are_of_all_points(data: st.DataObject) -> None:
    def pick(low: int, high: int) -> int:
        return int(data.draw(st.integers(low, high)))

    rng = np.random.default_rng(pick(0, 2**32 - 1))
    images, lines, points, channels = pick(1, 2), pick(1, 5), pick(1, 13), pick(1, 40)
    x = apart(images, lines, points, channels, pick(0, 2))
    x[...] = rng.integers(-9, 10, x.shape)
    out = apart(images, 1, 1, channels, pick(0, 2))
    flat, step, *_ = places(out)
    stencils.mean(*places(x), flat, step, images, channels, lines, points, 4)
    np.testing.assert_array_equal(out[:, 0, 0], x.sum((1, 2)) / 4)


@pytest.mark.parametrize("keep", [True, False])
def test_sessions_take_means_of_images_wherever_a_patch_is(
    keep: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel's mean scales it, as networks that squeeze and excite have it."""
    (plain,) = (one for one in KERNELS["mean"] if one.name == "mean")
    others = [one for one in KERNELS["mean"] if one is not plain]
    slow = [replace(plain, cost_ns=lambda site: 1e9), *others]
    monkeypatch.setitem(KERNELS, "mean", slow)
    g, rng = tg.GraphBuilder(), np.random.default_rng(0)
    weight = rng.integers(-1, 2, (16, 8, 1, 1)).astype(np.float32)
    image = tg.ops.conv(g.input("x", (2, 8, 8, 8)), g.parameter("w", weight.shape))
    means = tg.ops.mean(image, (2, 3), keepdims=keep)
    g.output("y", image * (means if keep else means.reshape(2, 16, 1, 1)))
    session = tg.GraphSession(g.build(), {"w": weight}, calibrate=False, making="always")
    x = rng.integers(-4, 5, (2, 8, 8, 8)).astype(np.float32)
    used = set[str]()
    for _ in range(8):
        rows = np.einsum("oi,nilp->nolp", weight[:, :, 0, 0], x)
        expected = rows * rows.mean((2, 3), keepdims=True)  # of 64: exact
        np.testing.assert_array_equal(session.run({"x": x})["y"], expected)
        assert session.last is not None
        used |= {made.kernel for made in session.last.program.instructions}
        x, (top, left) = x.copy(), rng.integers(0, 6, 2)
        x[0, :, top : top + 2, left : left + 2] += 1
    assert "mean_numba" in used
    assert "mean" not in used
