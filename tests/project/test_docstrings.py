"""Examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tgbench

ALONE = {"__main__"}  # modules that begin to work when they are imported
MODULES = [
    one.name
    for one in pkgutil.walk_packages(tgbench.__path__, "tgbench.")
    if one.name.rpartition(".")[2] not in ALONE
]
NEEDS = {"tgbench.kernels.triton.functions": "triton"}  # which only machines with a GPU have


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module)
    assert failed == 0


def test_there_are_examples() -> None:
    found = doctest.DocTestFinder().find(importlib.import_module("tgbench.base.words"))
    assert any(one.examples for one in found)
