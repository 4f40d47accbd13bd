"""Floats of a kind, as the mode has to take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from strategies import Array

from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import FLOATS, numpy_dtype

Rng = np.random.Generator
Draw = Callable[[Sequence[int], "np.dtype[Any]", Rng], Array]


def _special(shape: Sequence[int], dtype: np.dtype[Any], rng: Rng) -> Array:
    info = np.finfo(dtype)
    least = float(info.smallest_subnormal)
    chosen = [0.0, -0.0, least, -3 * least, float(info.tiny), 1.0, -1.0, 0.5, 1e-3]
    huge = [float(info.max), -float(info.max), float(info.max) / 2, np.sqrt(float(info.max))]
    return np.asarray(rng.choice([*chosen, *huge], shape))


def _denormals(shape: Sequence[int], dtype: np.dtype[Any], rng: Rng) -> Array:
    """Numbers below the least normal one, and some above it."""
    info = np.finfo(dtype)
    return np.asarray(rng.standard_normal(shape) * float(info.tiny) * rng.choice([0.1, 1], shape))


def _magnitudes(shape: Sequence[int], dtype: np.dtype[Any], rng: Rng) -> Array:
    """Normal numbers times powers of two, small ones beside large ones."""
    reach = np.finfo(dtype).maxexp // 3
    return np.ldexp(rng.standard_normal(shape), rng.integers(-reach, reach, shape))


KINDS: dict[str, Draw] = {
    "normal": lambda shape, dtype, rng: np.asarray(rng.standard_normal(shape)),
    "positive": lambda shape, dtype, rng: np.abs(rng.standard_normal(shape)),
    "zeros": lambda shape, dtype, rng: np.asarray(rng.choice([0.0, -0.0], shape)),
    "ties": lambda shape, dtype, rng: np.asarray(rng.choice([-1.0, -0.0, 0.0, 1.0, 2.0], shape)),
    "denormals": _denormals,
    "magnitudes": _magnitudes,
    "special": _special,
}
MIXED = 0.2  # of a leaf's elements are normal numbers, whatever the rest is
NOT_FINITE = (0x7F800000, 0xFF800000, 0x7FC00000, 0x7FC12345, 0xFFA00001)  # infinities, NaN: bits


def drawn(node: Node, kind: str, below: int, rng: Rng) -> Array:
    """Values of a leaf; integers that are indices lie below a bound."""
    dtype = numpy_dtype(node.dtype)
    if node.dtype in FLOATS:
        format_ = np.dtype("float16" if node.type.itemsize == 2 else dtype)
        found = KINDS[kind](node.shape, format_, rng)
        found = np.where(rng.random(node.shape) < MIXED, rng.standard_normal(node.shape), found)
    elif node.dtype == "bool":
        found = rng.random(node.shape) < 0.5
    else:
        found = np.asarray(rng.integers(*((0, below) if below else (-3, 4)), node.shape))
    return np.asarray(found).astype(dtype)


def numbers(graph: Graph, kind: str, below: Mapping[str, int], rng: Rng) -> dict[str, Array]:
    """Values of inputs and parameters, by name."""
    leaves = {**graph.inputs, **graph.parameters}
    return {name: drawn(node, kind, below.get(name, 0), rng) for name, node in leaves.items()}


def not_finite(array: Array, rng: Rng) -> Array:
    """The same with an infinity, or a NaN of some payload, somewhere."""
    found = array.astype(np.float32) if array.dtype.itemsize < 4 else array.copy()
    bits = np.asarray(rng.choice(NOT_FINITE), np.uint32).view(np.float32)
    with np.errstate(invalid="ignore"):
        found[tuple(int(rng.integers(n)) for n in found.shape)] = bits
    return found
