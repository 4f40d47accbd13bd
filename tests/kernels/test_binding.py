"""What a kernel binds becomes what its function is called with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tgbench.kernels.binding import argument_of, made_of, tensor_of
from tgbench.kernels.registry import Host, Prepared, View

MEMORY = {("w", "float32"): torch.arange(12.0)}
TURNED = View("w", "float32", (2, 3), (1, 2), 4)  # numbers 4 to 9, column by column


def bound(given: Any) -> Any:
    return argument_of(
        given, lambda view: tensor_of(view, MEMORY), lambda wanted: made_of(wanted, MEMORY)
    )


def test_a_view_is_a_tensor_over_the_same_bytes() -> None:
    tensor = bound(TURNED)
    assert tensor.tolist() == [[4, 6, 8], [5, 7, 9]]
    assert tensor.untyped_storage().data_ptr() == MEMORY["w", "float32"].data_ptr()


def test_the_first_byte_of_a_buffer_may_lie_inside_its_storage() -> None:
    inside = {("w", "float32"): torch.arange(20.0)[8:]}
    assert tensor_of(TURNED, inside).tolist() == [[12, 14, 16], [13, 15, 17]]


def test_a_host_argument_is_an_array_over_the_same_bytes() -> None:
    array = bound(Host(TURNED))
    assert isinstance(array, np.ndarray)
    assert np.shares_memory(array, MEMORY["w", "float32"].numpy())
    assert (array == bound(TURNED).numpy()).all()


def test_what_is_prepared_is_made_of_the_tensor_and_the_details() -> None:
    made = bound(Prepared(TURNED, lambda tensor, times: tensor.sum() * times, (2,)))
    assert float(made) == 2 * (4 + 5 + 6 + 7 + 8 + 9)


def test_anything_else_is_itself() -> None:
    assert bound(3) == 3
    assert bound(None) is None
