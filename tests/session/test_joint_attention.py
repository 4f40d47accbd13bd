"""An image and a text that attend to each other, of which the last layer hands out one alone.

Rows of the other one's queries are then never computed, beside rows that are: whoever thinks about
more rows than are computed meets what has no bytes (diffusion transformers end like that).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch


class JointAttention(nn.Module):
    """Two layers, of which only the image is handed out."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, 8, 2, 2)
        self.keys = nn.Linear(6, 8)
        self.queries = nn.Linear(6, 8)

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        rows = self.patches(image).flatten(2).transpose(1, 2)
        found = self.layer(rows, rows, text)
        image, text = found[:, : rows.shape[1]], found[:, rows.shape[1] :] @ self.queries.weight
        return self.layer(image + rows, image, text)[:, : rows.shape[1]]

    def layer(self, asking: Tensor, image: Tensor, text: Tensor) -> Tensor:
        asks = torch.cat([asking, self.queries(text)], 1)
        seen = torch.cat([image, self.keys(text)], 1)
        return nn.functional.scaled_dot_product_attention(asks, seen, seen)


def test_what_is_handed_out_in_part_is_planned_for_in_part() -> None:
    torch.manual_seed(0)
    module = JointAttention().eval()
    image, text = torch.randn(1, 4, 16, 16), torch.randn(1, 5, 6)
    session = GraphSession(from_torch(module, (image, text)), making="measured")
    for row in range(0, 16, 4):
        image[:, :, row : row + 2, 3:5] += 1
        given = dict(zip(session.graph.inputs, (image.numpy(), text.numpy()), strict=True))
        [found] = session.run(given).values()
        with torch.inference_mode():
            right = module(image, text).numpy()
        np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
