"""Imported models: equal to PyTorch in a full run and after edits at every budget; dirty regions
hold everything that changes, and little else.

Five edits at two budgets; `TGBENCH_HYPOTHESIS=thorough` makes 200 at each of three.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from zoo import ZOO, Array, Model

from tgbench.base.errors import BudgetError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, Node
from tgbench.graph.reference import evaluate
from tgbench.runs.rules import Rules
from tgbench.session.session import GraphSession
from tgbench.sources.torch import Imported, from_torch
from tgbench.sources.torch.program import paths

pytest.importorskip("transformers")
TOLERANCE = 1e-5
EDITS = max(settings().max_examples // 10, 5)
SHARES = (0.02,) if EDITS == 5 else (0.02, 0.3)  # of the way from the lower bound to everything
EDITS_ALIKE = 6
PRODUCTS = {"conv", "conv_transpose", "linear", "matmul", "gated_linear"}


@cache
def model_of(name: str) -> tuple[Model, Imported, str]:
    """A model, its import, and the name of its one input."""
    model = ZOO[name]()
    imported = from_torch(model.module, model.args, kwargs=model.kwargs, fixed=model.fixed)
    (given,) = imported.graph.inputs
    return model, imported, given


def eager(model: Model, value: Array) -> dict[str, Array]:
    with torch.no_grad():
        result = model.module(torch.from_numpy(value), *model.args[1:], **model.kwargs)
    return {name: tensor.numpy() for name, tensor in paths(result, "")}


def check_equal(found: Mapping[str, Array], right: Mapping[str, Array], want: Any) -> None:
    for name, part in found.items():
        expected = right[name] if want is None else right[name][want[name]]
        error = np.abs(part - expected).max() / np.abs(right[name]).max()
        assert error <= TOLERANCE, (name, want, error)


def lowest(imported: Imported, given: Mapping[str, Array]) -> int:
    with pytest.raises(BudgetError) as error:
        GraphSession(imported, memory=0).run(given)
    return int(error.value.needed_bytes)


@pytest.mark.parametrize("name", ZOO)
def test_a_model_is_pytorchs_after_edits_at_every_budget(name: str) -> None:
    model, imported, given = model_of(name)
    start = model.args[0].numpy()
    ample = GraphSession(imported)
    check_equal(ample.run({given: start}), eager(model, start), None)
    most, least = ample.placement.size_bytes, lowest(imported, {given: start})
    follow_edits(model, ample, given)
    for share in SHARES:
        session = GraphSession(imported, memory=least + int(share * max(most - least, 0)))
        session.run({given: start})
        follow_edits(model, session, given)


def follow_edits(model: Model, session: GraphSession, given: str) -> None:
    random = np.random.default_rng(5)
    value = model.args[0].numpy()
    for step in range(EDITS):
        value = model.edit(value, random) if step % 6 != 5 else model.args[0].numpy()
        wants = (None, *model.wants)
        want = wants[int(random.integers(len(wants)))]
        check_equal(session.run({given: value}, want), eager(model, value), want)


# --- what changes lies in what is said to be dirty ------------------------------------------------


def dirty_regions(graph: Graph, given: str, changed: Region) -> dict[Node, Region]:
    """The forward rules over a whole graph."""
    rules, found = Rules(), {}
    for node in graph.nodes:
        if node.is_leaf:
            found[node] = changed if node.name == given else Region(())
        else:
            found[node] = rules.dirty(node.call, tuple(found[n] for n in node.inputs))
    return found


def region_of(flags: Array) -> Region:
    """The hull of what is set: edits are one box."""
    places = np.argwhere(flags)
    if not len(places):
        return Region(())
    ends = zip(places.min(0), places.max(0), strict=True)
    return Region((Box((int(a), int(b) + 1) for a, b in ends),))


def flags_of(region: Region, shape: tuple[int, ...]) -> Array:
    flags = np.zeros(shape, dtype=bool)
    for box in region:
        flags[box.slices()] = True
    return flags


@pytest.mark.parametrize("name", ZOO)
def test_what_changes_is_dirty_and_little_else(name: str) -> None:
    model, imported, given = model_of(name)
    graph = imported.graph
    before = model.args[0].numpy()
    edits, where = alike(model, before)
    weights = {name: tensor.numpy() for name, tensor in imported.weights.items()}
    changed_at = differences(graph, weights, given, before, edits)
    dirty = dirty_regions(graph, given, where)
    loose = []
    for node in graph.nodes:
        if node.is_leaf:
            continue
        changed = changed_at[node.name]
        flags = flags_of(dirty[node], node.shape)
        assert not (changed & ~flags).any(), f"{node!r} changed outside {dirty[node]}"
        if node.op in PRODUCTS and changed.any() and flags.sum() > 1.1 * changed.sum():
            loose.append((node, int(flags.sum()), int(changed.sum())))
    assert not loose, loose


def alike(model: Model, before: Array) -> tuple[list[Array], Region]:
    """Several edits of one place: where a ReLU hides one from what follows, another shows."""
    random = np.random.default_rng(3)
    drawn = [model.edit(before, random) for _ in range(40)]
    places = [region_of(value != before) for value in drawn]
    where = next(place for place in places if not place.is_empty)
    same = [value for value, place in zip(drawn, places, strict=True) if place == where]
    return same[:EDITS_ALIKE], where


def differences(
    graph: Graph, weights: Mapping[str, Array], given: str, before: Array, edits: list[Array]
) -> dict[str, Array]:
    """Where each node differs, bit by bit, from what it was, after any of the edits."""
    nodes = [node.name for node in graph.nodes if not node.is_leaf]
    first = evaluate(graph, {**weights, given: before}, nodes=nodes)
    found = {name: np.zeros(first[name].shape, bool) for name in nodes}
    for value in edits:
        second = evaluate(graph, {**weights, given: value}, nodes=nodes)
        found = {name: flags | (first[name] != second[name]) for name, flags in found.items()}
    return found
