"""Where weights come from: arrays in every form that somebody may have them in."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import Array

from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.programs.weights import FromArrays

SIZE, COUNT = 64, 6


def graph() -> Graph:
    g = GraphBuilder()
    for i in range(COUNT):
        g.output(f"y{i}", g.parameter(f"w{i}", (SIZE, SIZE)) + 1.0)
    return g.build()


def arrays() -> dict[str, Array]:
    return {f"w{i}": np.full((SIZE, SIZE), i, np.float32) for i in range(COUNT)}


def in_a_file(folder: Path) -> Mapping[str, Any]:
    np.savez(folder / "w.npz", **arrays())
    found: Mapping[str, Any] = np.load(folder / "w.npz")
    return found


FORMS: dict[str, Callable[[Path], Mapping[str, Any]]] = {
    "arrays": lambda folder: arrays(),
    "lists": lambda folder: {name: array.tolist() for name, array in arrays().items()},
    "lists of arrays": lambda folder: {name: list(array) for name, array in arrays().items()},
    "read each time": in_a_file,
}


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_lay_at_one_place_after_each_other_are_told_apart(
    form: str, tmp_path: Path
) -> None:
    """What is made of one is let go before the next is made, often of the same bytes."""
    source, nodes = FromArrays(FORMS[form](tmp_path), "cpu", False), graph().parameters
    found = [source.tensor(name, node) for name, node in nodes.items()]
    assert [float(tensor[0, 0]) for tensor in found] == list(range(COUNT))


@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist])
def test_what_is_given_by_two_names_is_one_tensor(form: Callable[[Array], Any]) -> None:
    given = form(arrays()["w1"])
    source, nodes = FromArrays({"w0": given, "w1": given}, "cpu", False), graph().parameters
    assert source.tensor("w0", nodes["w0"]) is source.tensor("w1", nodes["w1"])


class Read(dict[str, Array]):
    """Arrays that are made anew each time, as those of a file; how many are there at once."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__(names)
        self.held: list[weakref.ref[Array]] = []
        self.most = 0

    def __getitem__(self, name: str) -> Array:
        found = super().__getitem__(name).copy()
        self.held.append(weakref.ref(found))
        self.most = max(self.most, sum(one() is not None for one in self.held))
        return found


@pytest.mark.parametrize("take", ["tensor", "rows"])
def test_what_is_read_each_time_is_let_go_once_it_is_taken(take: str) -> None:
    """An `.npz` is not in memory twice."""
    read, nodes = Read(arrays()), graph().parameters
    source = FromArrays(read, "cpu", False)
    for i, (name, node) in enumerate(nodes.items()):
        found = getattr(source, take)(name, node)
        assert float(found[0, 0] if take == "tensor" else next(found)[0, 0]) == i
        assert source.dtype(name) == "float32"
    assert read.most <= 2


def test_a_dtype_is_asked_for_without_reading_again() -> None:
    read, nodes = Read(arrays()), graph().parameters
    source = FromArrays(read, "cpu", False)
    for name, node in nodes.items():
        source.dtype(name), source.tensor(name, node), source.dtype(name)
    assert len(read.held) == COUNT
