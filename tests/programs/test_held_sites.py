"""Where no kernel takes sizes that move in the memory that is reserved, they are held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tgbench import GraphSession, ops
from tgbench.base.coords import Moving, origin_symbol, record
from tgbench.base.regions import Box
from tgbench.costs.model import CostModel
from tgbench.graph.graph import GraphBuilder
from tgbench.kernels.registry import Kernel, Site
from tgbench.programs.lowering import held_here

ROWS = 6


def test_a_held_site_is_in_numbers_and_guards_them() -> None:
    g = GraphBuilder()
    node = ops.softmax(g.input("x", (ROWS, 8)))
    start = origin_symbol(0)
    with record([4]):
        site = CostModel().site(node.call, Box([(4, ROWS), (0, 8)]))
    moving = replace(
        site,
        out_box=Box([(start, ROWS), (0, 8)]),
        out=replace(site.out, shape=(ROWS - start, 8)),
    )
    with record([4]) as guards:
        held = held_here(moving)
    assert held.out.shape == (2, 8)
    assert held.out_box == Box([(4, ROWS), (0, 8)])
    assert not any(type(side) is Moving for interval in held.out_box for side in interval)
    assert [at for at in range(ROWS) if all(guard.holds([at]) for guard in guards)] == [4]


def test_edits_up_to_the_end_are_incremental_by_kernels_of_standing_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No kernel takes sizes that move."""
    really = Kernel.takes

    def takes(kernel: Kernel, site: Site) -> bool:
        views: Sequence[object] = site.out.shape
        moves = any(type(size) is Moving for size in views)
        is_softmax = site.call.op.name == "softmax"
        return really(kernel, site) and not (is_softmax and moves)

    monkeypatch.setattr(Kernel, "takes", takes)
    g = GraphBuilder()
    x = g.input("x", (ROWS, 16))
    g.output("y", ops.softmax(x * 2.0) + 1.0)
    session = GraphSession(g.build(), making="always", calibrate=False)
    values = np.random.default_rng(0).standard_normal((ROWS, 16)).astype(np.float32)
    session.run({"x": values})
    for start in (1, 3, 5, 4, 2):
        values[start:] += 1
        values[start:, 0] += 1
        found = session.run({"x": values})["y"]
        whole = np.exp(2 * values - (2 * values).max(1, keepdims=True))
        np.testing.assert_allclose(found, whole / whole.sum(1, keepdims=True) + 1, 1e-5)
        assert session.report().recomputed < 0.99
