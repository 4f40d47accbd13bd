"""From what a kernel binds to what its function is called with: one place for all who do so.

View      → a tensor over the buffer's memory
Host      → a NumPy array over the same
Prepared  → what is made once of weights
other     → itself
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from numpy.typing import NDArray

from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.kernels.registry import (
    SCRATCH,
    Host,
    Kernel,
    Prepared,
    Site,
    View,
    scratch_bytes,
    scratch_views,
)
from tgbench.kernels.views import Bound

BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}
SLACK_BYTES = 64  # behind the scratch memory, so that every dtype divides it

Buffers: TypeAlias = Mapping[tuple[Any, str], torch.Tensor]  # (buffer, dtype) → its memory, flat


def tensor_of(view: View, buffers: Buffers) -> torch.Tensor:
    """The tensor that a view of plain numbers describes."""
    flat = buffers[view.buffer, view.dtype]
    place: Callable[..., torch.Tensor] = flat.as_strided
    return place(view.shape, view.strides, flat.storage_offset() + view.offset)


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A NumPy array over a tensor's memory; of half floats, which loops lack, over their bits."""
    bits = BITS.get(tensor.dtype)
    found: NDArray[Any] = (tensor if bits is None else tensor.view(bits)).numpy()
    return found


def argument_of(
    given: Any,
    tensor: Callable[[View], torch.Tensor],
    prepared: Callable[[Prepared], Any],
) -> Any:
    """What a function is called with for an argument that a kernel bound.

    Args:
        tensor: the tensor of a view.
        prepared: what is made once.
    """
    if isinstance(given, View):
        return tensor(given)
    if isinstance(given, Host):
        return array_of(tensor(given.view))
    return prepared(given) if isinstance(given, Prepared) else given


def made_of(wanted: Prepared, buffers: Buffers) -> Any:
    """What is made once of a view, made now."""
    return wanted.make(tensor_of(wanted.view, buffers), *wanted.details)


def once(made: dict[Prepared, Any], buffers: Buffers) -> Callable[[Prepared], Any]:
    """What is made once of a view: looked up there, and left there."""

    def found(wanted: Prepared) -> Any:
        if wanted not in made:
            made[wanted] = made_of(wanted, buffers)
        return made[wanted]

    return found


def bound(
    kernel: Kernel,
    site: Site,
    buffers: Buffers,
    device: str,
    prepared: dict[Prepared, Any] | None = None,
    rooms: dict[int, torch.Tensor] | None = None,
) -> Bound:
    """A kernel's function and its arguments at a site of plain numbers, with scratch of its own.

    Args:
        prepared: where what is made once of weights is looked up, and left.
        rooms: scratch memory that calls share which are made one after the other, by its bytes.
    """
    shapes = kernel.scratch(site)
    size = (int(scratch_bytes(shapes)) + SLACK_BYTES) // 16 * 16
    room = None if rooms is None else rooms.get(size)
    if room is None:
        room = torch.zeros(size, dtype=torch.uint8, device=device)
        if rooms is not None:
            rooms[size] = room
    scratch = {(SCRATCH, name): room.view(dtype) for name, dtype in TORCH_DTYPES.items()}
    memory = {**buffers, **scratch}
    made = once({} if prepared is None else prepared, memory)

    def tensor(view: View) -> torch.Tensor:
        return tensor_of(view, memory)

    function, arguments = kernel.bind(site, scratch_views(shapes))
    return function, tuple(argument_of(given, tensor, made) for given in arguments)
