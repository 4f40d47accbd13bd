"""What a class leaves lasts through runs of another, however many: plans hold it, and runs obey."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from session_cases import CheckedSession

from tgbench.graph.graph import Graph, GraphBuilder

TRACE = "aacccacbbcccbcccba"
SIDE = 64
PRODUCT_BYTES = SIDE * SIDE * 4


def either() -> Graph:
    """Runs of a read one product, those of b the other; those of c read neither."""
    g = GraphBuilder()
    for name in "ab":
        base = g.input(f"base_{name}", (SIDE, 8))
        product = g.name(base @ g.parameter(f"w_{name}", (8, SIDE)), f"product_{name}")
        g.output(f"of_{name}", g.input(name, (1, SIDE)) @ product)
    g.output("of_c", g.input("c", (4,)) * 2.0)
    return g.build()


def values_of(graph: Graph) -> dict[str, NDArray[np.float32]]:
    leaves = {**graph.inputs, **graph.parameters}
    return {name: np.ones(node.shape, np.float32) for name, node in leaves.items()}


def computed(checked: CheckedSession) -> set[str]:
    """Names of nodes that the last run computed."""
    made = checked.session.report().program.instructions
    return {one.node.name for one in made if one.site is not None}


def made_by(checked: CheckedSession, text: str) -> list[str]:
    """Runs of these classes, and which products each of them computed."""
    found = []
    for name in text:
        inputs = checked.values | {name: checked.values[name] + 1}
        checked.run(inputs, want={f"of_{name}": ...})
        found.append("".join(n for n in "ab" if f"product_{n}" in computed(checked)))
    return found


@pytest.mark.parametrize("mode", ["search", "exact"])
def test_each_of_two_products_lasts_until_the_other_is_made(mode: Any) -> None:
    """There is room for one; what re-ran is what the plan says, and no more."""
    graph = either()
    checked = CheckedSession(graph, values_of(graph), making="always")
    made_by(checked, TRACE)
    roomy = checked.session.optimize("greedy")
    budget = roomy.size_bytes - PRODUCT_BYTES
    plan = checked.session.optimize(mode, steps=8, budget=budget)
    assert plan.size_bytes <= budget
    assert plan.search is not None
    assert plan.search.gap < 0.01
    one, other = (slot for slot in plan.slots if slot.node.startswith("product"))
    assert one.offset_bytes == other.offset_bytes
    assert one.through is not None
    assert other.through is not None
    assert not set(one.through) & set(other.through)
    made_by(checked, TRACE)
    again = made_by(checked, TRACE)
    assert again == ["", "", "", "", "", "", "", "b", *[""] * 9, "a"]
