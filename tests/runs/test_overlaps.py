"""What lies over what in a map, and when runs write there, beside loops over all pairs."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from tgbench import ops
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.runs.overlaps import Overlaps, WrittenOver


def some_nodes(count: int) -> list[Node]:
    g = GraphBuilder()
    found = [g.input("x", (2,))]
    for _ in range(count - 1):
        found.append(ops.tanh(found[-1]))
    return found


NODES = some_nodes(7)


@given(st.data())
def test_writes_over_nodes_are_those_that_loops_find(data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.sampled_from(NODES), unique=True))
    scratch = data.draw(st.lists(st.sampled_from(NODES), unique=True))
    writers = [*nodes, *scratch]
    cells = st.lists(st.booleans(), min_size=len(writers), max_size=len(writers))
    meets = [data.draw(cells) for _ in nodes]
    over = np.array(meets, bool).reshape(len(nodes), len(writers))
    overlaps = Overlaps(nodes, writers, over)
    assert list(overlaps) == nodes
    assert len(overlaps) == len(nodes)
    for node, row in zip(nodes, meets, strict=True):
        others = dict.fromkeys(w for w, is_met in zip(writers, row, strict=True) if is_met)
        others.pop(node, None)
        assert overlaps[node] == tuple(others)
    scheduled = data.draw(st.permutations(NODES))[: data.draw(st.integers(0, len(NODES)))]
    position = {node: i for i, node in enumerate(scheduled)}
    known = WrittenOver(overlaps, position)
    for _ in range(2):
        written = set(data.draw(st.lists(st.sampled_from(NODES))))
        later = known.later(written)
        for node in NODES:
            over = overlaps.get(node, ())
            at = [position[one] for one in over if one in written and one in position]
            assert known.ever(node, written) == bool(at)
            for step in range(len(NODES)):
                assert known.before(node, step, written) == any(one < step for one in at)
            if node in known.rows:
                own = position.get(node, -1)
                assert later[known.rows[node]] == any(one > own for one in at)
