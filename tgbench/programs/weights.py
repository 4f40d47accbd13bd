"""Where a session's weights come from: a mapped file, or arrays; rounded, where that is allowed.

A tensor in the dtype that the graph holds it in is the file itself. Arrays that somebody may write
into are copied.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from tgbench.base.dense import dense, tensor_of
from tgbench.base.errors import WeightsError
from tgbench.base.safetensors import CHUNK_BYTES, DTYPE_NAMES, TORCH_DTYPES, Weights
from tgbench.graph.graph import Node


class Source(Protocol):
    """Tensors by the names of parameters.

    Fields:
        file: what is mapped, if they are of files; it is all that a pool keeps of its source, for
            arrays are somebody's, who may want their memory back.
    """

    file: Weights | None

    def names(self) -> tuple[str, ...]: ...

    def dtype(self, name: str) -> str:
        """What it is stored in."""
        ...

    def rows(self, name: str, node: Node) -> Iterator[torch.Tensor]:
        """The rows of a matrix as it is stored, some at a time; raises like `tensor`."""
        ...

    def tensor(self, name: str, node: Node) -> torch.Tensor:
        """A parameter: in its dtype, on the session's device.

        Raises WeightsError unless it is finite and of its shape.
        """
        ...

    def is_mapped(self, name: str, node: Node) -> bool:
        """Whether that is the file itself, neither converted nor moved."""
        ...


def source_of(
    weights: Any, device: str, *, as_they_lie: bool = False, copied: bool = False
) -> Source:
    """A safetensors file, a checkpoint directory, an open `Weights`, or arrays by name.

    Args:
        as_they_lie: whether arrays are taken without a copy, as nobody will write into them.
        copied: whether what would be a file itself is copied, as somebody may write into that.

    Raises WeightsError for anything else.
    """
    if weights is None or isinstance(weights, Mapping):
        return FromArrays(weights or {}, device, as_they_lie)
    if isinstance(weights, Weights):
        return FromFile(weights, device, copied)
    paths = weights if isinstance(weights, Sequence) else [weights]
    if all(isinstance(path, (str, os.PathLike)) for path in paths):
        return FromFile(Weights(weights), device, copied)
    raise WeightsError(
        f"weights are a {type(weights).__name__}; pass a safetensors file, a checkpoint directory, "
        "or arrays by parameter name"
    )


class FromFile:
    """Tensors of a file: the file itself where that may be, or copies."""

    def __init__(self, weights: Weights, device: str, copied: bool = False) -> None:
        self.weights, self.device, self.copied = weights, device, copied
        self.file: Weights | None = None if copied else weights
        self._copies: dict[tuple[str, str], torch.Tensor] = {}

    def names(self) -> tuple[str, ...]:
        return self.weights.names()

    def dtype(self, name: str) -> str:
        return self.weights.info(name).dtype

    def rows(self, name: str, node: Node) -> Iterator[torch.Tensor]:
        self._check(name, node)
        return self.weights.rows(name)

    def tensor(self, name: str, node: Node) -> torch.Tensor:
        self._check(name, node)
        found = self.weights.tensor(name, node.dtype, self.device)
        check_holds(name, TORCH_DTYPES[self.weights.info(name).dtype], found)
        if not (self.copied and self._lies_in_file(name, node)):
            return found
        if (name, node.dtype) not in self._copies:
            self._copies[name, node.dtype] = found.clone()
        return self._copies[name, node.dtype]

    def is_mapped(self, name: str, node: Node) -> bool:
        return self._lies_in_file(name, node) and not self.copied

    def _lies_in_file(self, name: str, node: Node) -> bool:
        return self.device == "cpu" and self.weights.info(name).dtype == node.dtype

    def _check(self, name: str, node: Node) -> None:
        info = self.weights.info(name)
        if tuple(info.shape) != node.shape:
            raise WeightsError(
                f"weight {name!r} has shape {list(info.shape)} in the file, the graph has "
                f"{list(node.shape)}; check the configuration that the graph was built with"
            )
        self.weights.check_finite(name)


class FromArrays:
    """Arrays by name, as they lie or copied; of those that are the same bytes there is one copy."""

    file: Weights | None = None

    def __init__(self, arrays: Mapping[str, Any], device: str, as_they_lie: bool) -> None:
        self.arrays, self.device, self.as_they_lie = arrays, device, as_they_lie
        # of what is given, which is asked whether it is there: where bytes lie says which till then
        self._copies: dict[tuple[Any, ...], tuple[Callable[[], Any], torch.Tensor]] = {}
        self._given: dict[str, Any] = {}
        self._dtypes: dict[str, str] = {}

    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def dtype(self, name: str) -> str:
        if name not in self._dtypes:
            self._dense(name)
        return self._dtypes[name]

    def rows(self, name: str, node: Node) -> Iterator[torch.Tensor]:
        count = max(1, CHUNK_BYTES // (4 * node.shape[1]))
        found = self._checked(name, node)
        self._given.pop(name)
        return iter(found.split(count))

    def _value(self, name: str) -> Any:
        """What is given, asked for once and held until it is taken: some mappings read it from a
        file each time.
        """
        if name not in self._given:
            self._given[name] = self.arrays[name]
        return self._given[name]

    def _place(self, name: str) -> tuple[Any, ...]:
        """Which bytes a weight is."""
        value = self._value(name)
        if isinstance(value, torch.Tensor):
            return value.data_ptr(), value.stride(), value.dtype, value.shape
        if isinstance(value, np.ndarray):
            return value.ctypes.data, value.strides, value.dtype, value.shape
        return (id(value),)

    def _dense(self, name: str) -> torch.Tensor:
        """An array as a tensor of numbers that are all there."""
        value = self._value(name)
        try:
            is_tensor = isinstance(value, torch.Tensor)
            found = value.detach() if is_tensor else tensor_of(dense(value)[0])
            if all(found.shape):
                found[(0,) * found.ndim].item()  # raises where there are no numbers to be had
        except (TypeError, ValueError, RuntimeError) as error:
            raise _no_array(name, value, str(error)) from error
        if found.layout != torch.strided or found.is_meta or found.dtype not in DTYPE_NAMES:
            raise _no_array(name, value, f"{found.dtype}, {found.layout}, {found.device}")
        self._dtypes[name] = DTYPE_NAMES[found.dtype]
        return found

    def _checked(self, name: str, node: Node) -> torch.Tensor:
        value = self._dense(name)
        if tuple(value.shape) != node.shape:
            raise WeightsError(
                f"weight {name!r} has shape {list(value.shape)}, the graph has "
                f"{list(node.shape)}; check the sizes that the graph was built with"
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise WeightsError(f"weight {name!r} holds NaN or infinity; mend it before use")
        return value

    def tensor(self, name: str, node: Node) -> torch.Tensor:
        value, dtype = self._checked(name, node), TORCH_DTYPES[node.dtype]
        if self.as_they_lie:
            return held_as(name, value, dtype).to(self.device).contiguous()
        place, given = (*self._place(name), dtype), self._given.pop(name)
        of, copy = self._copies.get(place, (_nothing, value))
        if of() is None:
            copy = torch.empty(value.shape, dtype=dtype, device=self.device)
            copy.copy_(held_as(name, value, dtype))
            self._copies[place] = _there(given), copy
        return copy

    def is_mapped(self, name: str, node: Node) -> bool:
        return False


def _nothing() -> None:
    """What is there of what was never given."""


def _there(value: Any) -> Callable[[], Any]:
    """Gives an array while somebody else has it, and a list, which does not tell, always."""
    is_array = isinstance(value, (np.ndarray, torch.Tensor))
    return weakref.ref(value) if is_array else lambda: value


def held_as(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A weight in the graph's dtype; raises WeightsError where that does not hold its values."""
    found = value.to(dtype)
    check_holds(name, value.dtype, found, value)
    return found


def check_holds(
    name: str, stored: torch.dtype, found: torch.Tensor, value: torch.Tensor | None = None
) -> None:
    """Raise WeightsError if a weight came out infinite, or as another whole number."""
    held = found.dtype
    if held == stored:
        return
    if held.is_floating_point:
        reaches = stored.is_floating_point and torch.finfo(stored).max <= torch.finfo(held).max
        holds = reaches or bool(torch.isfinite(found).all())
    else:
        holds = value is None or torch.equal(found.to(stored), value)
    if not holds:
        raise WeightsError(
            f"weight {name!r} is {DTYPE_NAMES[stored]}, and {DTYPE_NAMES[held]}, which it is held "
            "in, does not hold its values; convert it, or hold it in another (weights_dtype=)"
        )


def _no_array(name: str, value: Any, why: str) -> WeightsError:
    return WeightsError(
        f"weight {name!r} is a {type(value).__name__} that is no array ({why}); pass a dense array "
        f"or tensor of {', '.join(TORCH_DTYPES)}"
    )


# --- rounded --------------------------------------------------------------------------------------

LARGEST = 127  # an int8 has −128 as well, which nothing is rounded to


class Rounded:
    """Weights of another source; those of which the graph holds an int8 have a scale a row.

    Args:
        parameters: of the graph, by name.
        scales: for each of those weights, the name of the parameter that holds its scales.
    """

    def __init__(
        self, source: Source, parameters: Mapping[str, Node], scales: Mapping[str, str]
    ) -> None:
        self.source, self.parameters, self.scales = source, parameters, scales
        self.file = source.file
        self._of_scale = {scale: name for name, scale in scales.items()}
        self._made: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def names(self) -> tuple[str, ...]:
        return (*self.source.names(), *self._of_scale)

    def dtype(self, name: str) -> str:
        return self.source.dtype(name)

    def rows(self, name: str, node: Node) -> Iterator[torch.Tensor]:
        return self.source.rows(name, node)

    def tensor(self, name: str, node: Node) -> torch.Tensor:
        if name in self._of_scale:
            return self._rounded(self._of_scale[name])[1]
        return self._rounded(name)[0] if name in self.scales else self.source.tensor(name, node)

    def is_mapped(self, name: str, node: Node) -> bool:
        ours = name in self._of_scale or name in self.scales
        return not ours and self.source.is_mapped(name, node)

    def _rounded(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        if name not in self._made:
            node = self.parameters[name]
            self._made[name] = rounded_rows(node.shape, self.source.rows(name, node))
        return self._made[name]


def rounded_rows(
    shape: tuple[int, ...], blocks: Iterable[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [rows, n] as int8 and a scale a row: each element is within half a scale of it.

    Args:
        blocks: its rows, some at a time, in order.

    >>> rounded_rows((2, 2), [torch.tensor([[1.0, -0.5], [0.0, 0.0]])])[0]
    tensor([[127, -64],
            [  0,   0]], dtype=torch.int8)
    """
    made = torch.empty(shape, dtype=torch.int8)
    scales = torch.ones(shape[0], dtype=torch.float32)
    start = 0
    for block in blocks:
        stop = start + len(block)
        rows = block.to(device="cpu", dtype=torch.float32)
        steps = rows.abs().amax(1) / LARGEST
        scales[start:stop] = torch.where(steps > 0, steps, 1.0)
        codes = (rows / scales[start:stop, None]).round_()
        made[start:stop] = codes.clamp_(-LARGEST, LARGEST)
        start = stop
    return made, scales
