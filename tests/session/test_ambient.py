"""What a caller set around a call of ours, for PyTorch or for the process, changes no result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import tgbench as tg
from tgbench.graph.graph import GraphBuilder


class Net(nn.Module):
    """Convolutions, which autocast rounds; and, with `opaque`, what PyTorch computes whole."""

    def __init__(self, opaque: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.head, self.opaque = nn.Conv2d(3, 4, 3), nn.Linear(36, 5), opaque

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(torch.relu(self.conv(x)).flatten(1))
        return y + torch.fft.fft(x).abs().mean() if self.opaque else y


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


AROUND = {
    "nothing": nullcontext,
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}
around = pytest.mark.parametrize("around", AROUND.values(), ids=list(AROUND))


@around
@pytest.mark.parametrize("opaque", [False, True])
@torch.no_grad()
def test_what_is_set_around_a_session_changes_no_result(
    around: type[AbstractContextManager[None]], opaque: bool
) -> None:
    module, x = Net(opaque).eval(), torch.rand(1, 3, 5, 5, generator=torch.manual_seed(1))
    images = [x, x.clone(), x.clone()]
    images[1][..., 2:] = 0.5
    images[2][..., :2] = 0.25
    right = list(map(module, images))
    with around():
        imported = tg.from_torch(module, (x,))
        session = tg.GraphSession(imported, making="always")
        found = [session.run({"x": image})["output"] for image in images]
        told = tg.evaluate(imported, {"x": x.numpy()})["output"]
    np.testing.assert_allclose(told, right[0].numpy(), atol=1e-5)
    for one, wanted in zip(found, right, strict=True):
        torch.testing.assert_close(one, wanted, rtol=0, atol=1e-5)


@around
def test_nor_one_of_rounded_weights(around: type[AbstractContextManager[None]]) -> None:
    g = GraphBuilder()
    g.output("y", tg.ops.linear(g.input("x", (2, 4)), g.parameter("w", (3, 4))))
    graph, weights = g.build(), {"w": np.arange(12, dtype="float32").reshape(3, 4) - 6}
    x = np.ones((2, 4), np.float32)
    with around():
        y = tg.GraphSession(graph, weights, weights_dtype="int8").run({"x": x})["y"]
    np.testing.assert_allclose(y, x @ weights["w"].T, atol=0.2)
