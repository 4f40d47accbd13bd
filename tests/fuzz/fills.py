"""Values of leaves, from a few words and a seed.

    ints      −3 … 3            reals     a normal distribution, rounded to the dtype
    positive  1 … 4             unit      multiples of ⅛ in −¾ … ¾
    special   zeros of both signs, denormals, large and small numbers, among ones
    index     0 … below − 1     distinct  0 … below − 1, each at most once along an axis
    band      open where low ≤ column − row ≤ high, else closed; rows and columns the last two axes
    holes     open at random, and always in the first column

`open` and `closed` of a mask are True/False, or numbers; "min" is the least of the dtype.
Python's own generator makes the numbers: its sequences stay the same from version to version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from random import Random
from typing import Any

import numpy as np
import torch

from fuzz.bounded import FLOATS, TORCH

Array = np.ndarray[Any, Any]
Fill = Mapping[str, Any]

SPECIAL = {
    "float64": (0.0, -0.0, 5e-324, 1e-310, 1e-40, 1e8, -1e8, 1e-8, 0.1, 1.0, -1.0),
    "float32": (0.0, -0.0, 1e-45, 1e-40, -1e-39, 1e-30, 1e8, -1e8, 1e-8, 0.1, 1.0, -1.0),
    "float16": (0.0, -0.0, 6e-8, 1e-5, 1000.0, -1000.0, 0.1, 1.0, -1.0),
    "bfloat16": (0.0, -0.0, 1e-40, 1e-30, 1e8, -1e8, 0.1, 1.0, -1.0),
    "int64": (0, 1, -1, 2**31, -(2**31), 2**40),
    "int32": (0, 1, -1, 2**15, 2**31 - 1, -(2**31)),
    "int16": (0, 1, -1, 127, 2**15 - 1, -(2**15)),
    "int8": (0, 1, -1, 127, -128),
    "uint8": (0, 1, 2, 127, 255),
}


def numpy_dtype(dtype: str) -> str:
    """What a leaf's array is in NumPy, which has no bfloat16."""
    return "float32" if dtype == "bfloat16" else dtype


def values(fill: Fill, shape: Sequence[int], dtype: str, seed: int) -> Array:
    """The array of a leaf, or of a box of one."""
    kind = fill["kind"]
    if kind in ("band", "holes"):
        return _mask(fill, tuple(shape), dtype, seed)
    if kind == "distinct":
        return _distinct(fill, tuple(shape), dtype, seed)
    draw, random = _DRAWS[kind], Random(seed)
    numbers = [draw(random, fill, dtype) for _ in range(prod(shape))]
    return rounded(np.array(numbers).reshape(tuple(shape)), dtype)


def rounded(numbers: Array, dtype: str) -> Array:
    """Numbers as the dtype holds them."""
    if dtype == "bfloat16":
        return torch.tensor(numbers).to(torch.bfloat16).float().numpy()
    return np.asarray(numbers).astype(dtype)


def _small(random: Random, fill: Fill, dtype: str) -> float:
    if dtype == "bool":
        return random.random() < 0.5
    return random.randint(0 if dtype == "uint8" else -3, 3)


_DRAWS = {
    "ints": _small,
    "positive": lambda random, fill, dtype: random.randint(1, 4),
    "unit": lambda random, fill, dtype: random.randint(-6, 6) / 8,
    "reals": lambda random, fill, dtype: random.gauss(0, 1),
    "special": lambda random, fill, dtype: random.choice(SPECIAL[dtype]),
    "index": lambda random, fill, dtype: random.randrange(fill["below"]),
}


def _distinct(fill: Fill, shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    axis, random = fill["axis"], Random(seed)
    count = shape[axis]
    rest = shape[:axis] + shape[axis + 1 :]
    lines = [random.sample(range(fill["below"]), count) for _ in range(prod(rest))]
    return np.moveaxis(np.array(lines).reshape((*rest, count)), -1, axis).astype(dtype)


def _mask(fill: Fill, shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    is_open = _band(fill, shape) if fill["kind"] == "band" else _holes(shape, seed)
    sides = [_side(fill[name], dtype) for name in ("open", "closed")]
    return rounded(np.where(is_open, *sides), dtype)


def _band(fill: Fill, shape: tuple[int, ...]) -> Array:
    rows, columns = np.indices(shape[-2:])
    distance = columns - rows
    return np.broadcast_to((distance >= fill["low"]) & (distance <= fill["high"]), shape)


def _holes(shape: tuple[int, ...], seed: int) -> Array:
    random = Random(seed)
    is_open = np.array([random.random() < 0.6 for _ in range(prod(shape))]).reshape(shape)
    if shape:
        is_open[..., 0] = True
    return is_open


def _side(value: Any, dtype: str) -> float:
    if value == "min":
        return torch.finfo(TORCH[dtype]).min
    return float(value) if dtype in FLOATS else value
