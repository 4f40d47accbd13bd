"""Arrays in files of NumPy's: one array, of numbers, and as many bytes as its header says."""

from __future__ import annotations

import io
import math
from os import PathLike
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from tgbench.base.files import read_bytes

MOST_ARRAY_BYTES = 1 << 30
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_array(path: str | PathLike[str], most_bytes: int = MOST_ARRAY_BYTES) -> NDArray[Any]:
    """The array of a .npy file; nothing is run, and nothing made that the file does not hold.

    Raises OSError, and ValueError for a file that is none, or has more bytes.
    """
    raw = read_bytes(path, most_bytes)
    file = io.BytesIO(raw)
    try:
        shape, by_columns, dtype = _HEADERS[npy.read_magic(file)](file)
    except (KeyError, TypeError, SyntaxError, TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"its header is none of a .npy file: {type(error).__name__}") from error
    if dtype.kind not in "biuf":
        raise ValueError(f"it holds {dtype}, not numbers")
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("its shape is none")
    if math.prod(shape) * dtype.itemsize != len(raw) - file.tell():
        raise ValueError("its header says another size than it has")
    flat = np.frombuffer(raw, dtype, offset=file.tell())
    return flat.reshape(shape, order="F" if by_columns else "C")
