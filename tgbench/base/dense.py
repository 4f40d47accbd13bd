"""Arrays in whatever form a caller has them, as plain ones.

NumPy's may be masked, of another byte order, read-only, of a class of their own, and go backwards;
PyTorch's may ask for gradients, and say that they are conjugated or negative. Here all that ends.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]
NUMBERS = frozenset({bool, int, float})  # most of what is in lists: nobody looks at each of them


def dense(value: Any) -> tuple[Array, str]:
    """A value as an array of this machine's byte order, and the name of its dtype; of a bfloat16
    tensor in float32, as NumPy has none. It is copied only where it has to be.

    Raises TypeError, ValueError or RuntimeError, as NumPy and PyTorch do, for what is no array, and
    ValueError for what is masked in part.

    >>> dense(np.array([1, 2], ">i4"))
    (array([1, 2], dtype=int32), 'int32')
    >>> dense(torch.ones(1, dtype=torch.bfloat16))
    (array([1.], dtype=float32), 'bfloat16')
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach().resolve_conj().resolve_neg().cpu()
        is_wide = tensor.dtype == torch.bfloat16
        found: Array = (tensor.float() if is_wide else tensor).numpy()
        return found, "bfloat16" if is_wide else found.dtype.name
    if is_masked(value):
        raise ValueError("some of it is masked: call its `filled`")
    found = np.asarray(value)
    return found.astype(found.dtype.newbyteorder("="), copy=False), found.dtype.name


def is_masked(value: Any) -> bool:
    """Whether part of a value is masked, also of arrays in a list: NumPy forgets what is there.

    >>> is_masked([[1, 2], np.ma.array([1, 2], mask=[False, True])])
    True
    """
    if isinstance(value, (list, tuple)):
        return not NUMBERS.issuperset(map(type, value)) and any(map(is_masked, value))
    return isinstance(value, np.ma.MaskedArray) and bool(np.ma.is_masked(value))


def tensor_of(array: Array) -> torch.Tensor:
    """An array as a tensor, of the same bytes where PyTorch can: it takes none that go backwards,
    and warns of what is read-only.

    >>> tensor_of(np.arange(3)[::-1])
    tensor([2, 1, 0])
    """
    is_plain = array.flags.writeable and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if is_plain else array.copy())
