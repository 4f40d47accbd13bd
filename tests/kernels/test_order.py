"""The first k in order: as NumPy's stable order has them, ties and signs of 0 included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgbench as tg
from tgbench.graph.graph import GraphBuilder
from tgbench.graph.reference import evaluate

FEW = st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.0])
MANY = st.floats(-8, 8, width=32)


@pytest.mark.parametrize("op", ["top_values", "top_indices"])
@given(st.data(), st.booleans(), st.integers(1, 6), st.integers(0, 1))
def test_ties_stand_in_the_order_of_their_indices(
    op: str, data: st.DataObject, largest: bool, k: int, axis: int
) -> None:
    elements = data.draw(st.sampled_from([FEW, MANY]))
    x = np.array(data.draw(st.lists(elements, min_size=36, max_size=36)), "float32").reshape(6, 6)
    g = GraphBuilder()
    g.output("y", g.apply(op, g.input("x", (6, 6)), k=k, axis=axis, largest=largest))
    graph = g.build()
    found = tg.GraphSession(graph, calibrate=False).run({"x": x})["y"]
    right = evaluate(graph, {"x": x})["y"]
    assert found.tobytes() == right.astype(found.dtype).tobytes()
