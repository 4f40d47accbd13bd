"""Pairs: inputs, and the outputs that another framework gives for them.

In a safetensors file, tensor `3.input.ids` is input `ids` of pair 3, and `3.output.logits` what
should come out. Pairs count from 0; every pair has every input, and at least one output.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.dense import dense
from tgbench.base.errors import InputError
from tgbench.base.safetensors import Weights, save
from tgbench.base.words import shorten
from tgbench.graph.graph import Graph
from tgbench.graph.op_table import FLOATS

Array: TypeAlias = NDArray[Any]
SIDES = ("input", "output")
_NUMBER = re.compile("[0-9]{1,9}")
MEND = "name tensors `<pair>.input.<name>` and `<pair>.output.<name>`, pairs from 0"


@dataclass(frozen=True)
class Pair:
    """Arrays by name: what goes in, and what should come out."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]


Pairs: TypeAlias = "Sequence[Pair | tuple[Mapping[str, Any], Mapping[str, Any]]]"


def save_pairs(path: str | os.PathLike[str], pairs: Pairs) -> Path:
    """Write pairs to a safetensors file, atomically.

    Raises InputError if there are none, WeightsError if the file cannot be written.

    >>> pair = ({"x": np.ones(2, np.float32)}, {"y": np.full(2, 2, np.float32)})
    >>> [again] = load_pairs(save_pairs("/tmp/pairs.safetensors", [pair]))
    >>> again.outputs["y"].tolist()
    [2.0, 2.0]
    """
    tensors = {
        f"{i}.{side}.{name}": _tensor(value)
        for i, pair in enumerate(as_pairs(pairs))
        for side, values in zip(SIDES, (pair.inputs, pair.outputs), strict=True)
        for name, value in values.items()
    }
    save(tensors, path)
    return Path(path)


def _tensor(value: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(value, order="C"))


def load_pairs(path: str | os.PathLike[str]) -> tuple[Pair, ...]:
    """Read pairs; raises WeightsError for a damaged file, InputError for other names in it."""
    file = Weights(path)
    found: dict[int, tuple[dict[str, Array], dict[str, Array]]] = {}
    for key in file.names():
        number, _, rest = key.partition(".")
        side, _, name = rest.partition(".")
        if not _NUMBER.fullmatch(number) or side not in SIDES or not name:
            raise InputError(f"{path}: {shorten(key)} belongs to no pair; {MEND}")
        sides = found.setdefault(int(number), ({}, {}))
        sides[SIDES.index(side)][name] = as_array(file.tensor(key, file.info(key).dtype, "cpu"))
    if sorted(found) != list(range(len(found))):
        raise InputError(f"{path}: has pairs {sorted(found)[:9]}, but no gap is allowed; {MEND}")
    return as_pairs([found[i] for i in range(len(found))])


def as_pairs(pairs: Any) -> tuple[Pair, ...]:
    """Whatever a caller calls pairs; raises InputError if that is none, or none are there."""
    if isinstance(pairs, (str, os.PathLike)):
        return load_pairs(pairs)
    if isinstance(pairs, Mapping) or not isinstance(pairs, Sequence):
        raise InputError(
            f"pairs are a {type(pairs).__name__}; pass a list of (inputs, outputs), two dicts by "
            "name, or the path of a safetensors file"
        )
    made = tuple(_pair(pair, i) for i, pair in enumerate(pairs))
    if not made:
        raise InputError("there are no pairs; pass at least one (inputs, outputs)")
    return made


def _pair(pair: Any, i: int) -> Pair:
    if isinstance(pair, Pair):
        pair = (pair.inputs, pair.outputs)
    is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
    if not is_pair or not all(isinstance(side, Mapping) for side in pair):
        raise InputError(
            f"pairs[{i}] is no pair; give (inputs, outputs), two dicts of arrays by name"
        )
    try:
        inputs, outputs = ({name: as_array(value) for name, value in side.items()} for side in pair)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"pairs[{i}] holds what is no array ({error}); pass dense arrays or tensors"
        ) from error
    return Pair(inputs, outputs)


def as_array(value: Any) -> Array:
    """NumPy; bfloat16, which it lacks, as float32."""
    return dense(value)[0]


def check_outputs(graph: Graph, pair: Pair, where: str) -> None:
    """Raise InputError for expected outputs that nothing of this graph can be compared with."""
    if not pair.outputs:
        raise InputError(f"{where} expects no output; give at least one of {_known(graph)}")
    for name, array in pair.outputs.items():
        if name not in graph.outputs:
            raise InputError(f"{where}: unknown output {name!r}; the graph gives {_known(graph)}")
        node = graph.outputs[name]
        if array.shape != node.shape:
            raise InputError(
                f"{where}: output {name!r} has shape {list(array.shape)}, the graph gives "
                f"{node.type}; check that both were made for the same sizes"
            )
        if _kind(str(array.dtype)) != _kind(node.dtype):
            raise InputError(
                f"{where}: output {name!r} is {array.dtype}, the graph gives {node.type}; convert "
                "it, or compare another output"
            )
        if array.dtype.kind == "f" and bool(np.isnan(array).any()):
            at = tuple(int(n) for n in np.argwhere(np.isnan(array))[0])
            raise InputError(
                f"{where}: output {name!r} is NaN at {at}, and nothing equals NaN; mend what "
                "computed it, or leave that output out"
            )


def _known(graph: Graph) -> str:
    return ", ".join(graph.outputs)


def _kind(dtype: str) -> str:
    if dtype in FLOATS:
        return "float"
    return "bool" if dtype == "bool" else "integer"
