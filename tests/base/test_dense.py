"""Arrays in every form that a caller may have them in, wherever one is taken."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from strategies import Array

import tgbench as tg
from tgbench.base.dense import dense, tensor_of
from tgbench.base.errors import GraphError, InputError, TgbenchError, WeightsError
from tgbench.graph.graph import Graph, GraphBuilder


class OfItsOwn(np.ndarray):
    """A class of arrays with which NumPy computes nothing."""

    def __array_ufunc__(self, *arguments: Any, **keywords: Any) -> Any:
        raise TypeError("not computed with")


def frozen(array: Array) -> Array:
    array = array.copy()
    array.flags.writeable = False
    return array


def mapped(array: Array, folder: Path) -> Array:
    path = folder / f"{len(list(folder.iterdir()))}.npy"
    np.save(path, array)
    found: Array = np.load(path, mmap_mode="r")
    return found


def askew(array: Array) -> Array:
    """At an odd address."""
    whole = np.zeros(array.nbytes + 1, np.uint8)
    found = whole[1:].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


FORMS: dict[str, Callable[[Array, Path], Any]] = {
    "another byte order": lambda array, _: array.astype(array.dtype.newbyteorder()),
    "backwards": lambda array, _: np.ascontiguousarray(array[::-1])[::-1],
    "every other one": lambda array, _: np.repeat(array, 2, axis=0)[::2],
    "columns side by side": lambda array, _: np.asfortranarray(array),
    "read-only": lambda array, _: frozen(array),
    "mapped": mapped,
    "askew": lambda array, _: askew(array),
    "of its own class": lambda array, _: array.view(OfItsOwn),
    "maskable": lambda array, _: np.ma.array(array),
    "a parameter": lambda array, _: torch.nn.Parameter(torch.tensor(array)),
    "negated": lambda array, _: torch._neg_view(torch.tensor(-array)),
}
X, W = np.arange(12, dtype=np.float32).reshape(4, 3), np.arange(6, dtype=np.float32).reshape(2, 3)
S = np.float32([5, -7])


def graph() -> Graph:
    g = GraphBuilder()
    state = g.state("s", (2,))
    g.update(state, state + 1.0)
    g.output("y", tg.ops.linear(g.input("x", (4, 3)), g.parameter("w", (2, 3))) + state)
    return g.build()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_taken_everywhere(form: str, tmp_path: Path) -> None:
    def as_form(array: Array) -> Any:
        return FORMS[form](array, tmp_path)

    right = X @ W.T + S
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = tg.GraphSession(graph(), {"w": as_form(W)}, calibrate=False)
        session.set_state("s", as_form(S))
        first = session.run({"x": as_form(X)})["y"]
        session.run({"x": X + 1})
        session.set_state("s", as_form(S))
        again = session.run({"x": as_form(X)})["y"]
        values = {"x": as_form(X), "w": as_form(W), "s": as_form(S)}
        told = tg.evaluate(graph(), values)["y"]
        built = GraphBuilder()
        built.output("y", built.constant(as_form(W)))
        constant = tg.evaluate(built.build(), {})["y"]
        report = tg.check(session, [({"x": as_form(X)}, {"y": as_form(X @ W.T)})])
    for found in (first, again, told):
        np.testing.assert_array_equal(found, right)
    np.testing.assert_array_equal(constant, W)
    assert report.passed


def masked_in_part(array: Array) -> Any:
    return np.ma.array(array, mask=array == array.flat[1])


@pytest.mark.parametrize(
    "form", [lambda array: array, list, tuple, lambda array: [*map(list, array)]]
)
def test_what_is_masked_in_part_is_refused_everywhere(form: Callable[[Any], Any]) -> None:
    def masked(array: Array) -> Any:
        found = masked_in_part(array)
        return form(found) if array.ndim > 1 else list(found)

    session = tg.GraphSession(graph(), {"w": W}, calibrate=False)
    values = {"x": X, "w": W, "s": S}
    takes: list[tuple[type[TgbenchError], Callable[[], Any]]] = [
        (InputError, lambda: session.run({"x": masked(X)})),
        (InputError, lambda: session.set_state("s", masked(S))),
        (InputError, lambda: tg.evaluate(graph(), {**values, "x": masked(X)})),
        (InputError, lambda: tg.check(session, [({"x": masked(X)}, {"y": X @ W.T})])),
        (WeightsError, lambda: tg.GraphSession(graph(), {"w": masked(W)})),
        (GraphError, lambda: GraphBuilder().constant(masked(W))),
    ]
    for error, take in takes:
        with pytest.raises(error, match="some of it is masked: call its `filled`"):
            take()


@pytest.mark.parametrize("value", [torch.ones(4, 3, device="meta"), torch.ones(4, 3).to_sparse()])
def test_a_tensor_without_numbers_is_refused_by_a_typed_error(value: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"input 'x' is no array \(.*\); pass a dense array"):
        tg.evaluate(graph(), {"x": value, "w": W})


def test_what_is_plain_is_not_copied() -> None:
    array, dtype = dense(X)
    assert array is X
    assert dtype == "float32"
    assert tensor_of(X).data_ptr() == X.ctypes.data
