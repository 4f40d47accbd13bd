"""The graph drawn: layers folded, nodes placed, any size, names escaped."""

from __future__ import annotations

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import Maker, graphs

from tgbench.graph.dims import dim
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.views.draw.folding import Block, folded, repeats, unfolded
from tgbench.views.draw.layering import MOST_ACROSS, layout
from tgbench.views.values.graphs import MOST_DOTS, MOST_NAMED, picture, to_svg

SVG = "{http://www.w3.org/2000/svg}"


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """Up to 30 nodes in topological order, with any edges forward."""
    count = draw(st.integers(1, 30))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    return count, np.array(edges, np.int64).reshape(-1, 2)


@given(dags())
def test_edges_go_down_and_nodes_keep_their_distance(case: tuple[int, np.ndarray]) -> None:
    count, edges = case
    found = layout(count, edges)
    assert all(found.y[a] < found.y[b] for a, b in edges)
    for line in range(found.height):
        x = np.sort(found.x[found.y == line])
        assert (np.diff(x) > 0.99).all()
    assert found.x.min() == 0


def test_a_wide_rank_takes_several_lines() -> None:
    found = layout(
        3 * MOST_ACROSS + 1, np.array([[i, 3 * MOST_ACROSS] for i in range(3 * MOST_ACROSS)])
    )
    assert found.height == 4
    assert found.width <= MOST_ACROSS + 1


def longest_repeat(text: str) -> int:
    """Slow and obvious: the most letters that a block of 3 or more, repeated, covers."""
    best = 0
    for start, period in itertools.product(range(len(text)), range(3, len(text) + 1)):
        count = 1
        while text[start : start + period] == text[start + count * period :][:period]:
            count += 1
        best = max(best, period * count if count > 1 else 0)
    return best


@given(st.text("ab", max_size=20))
def test_repeats_are_equal_blocks(text: str) -> None:
    found = repeats(text)
    covered = 0
    for block in found:
        parts = [text[block.start + i * block.period :][: block.period] for i in range(block.count)]
        assert len(set(parts)) == 1
        assert block.start >= covered
        covered = block.stop
    assert bool(found) <= bool(longest_repeat(text))


def test_the_longest_repeat_is_found() -> None:
    assert repeats("xx" + "abcd" * 5 + "yabcz") == (Block(2, 4, 5),)
    assert repeats("abcdefg") == ()


def layered(layers: int, name: str = "x") -> Graph:
    g = GraphBuilder()
    x = g.input(name, (2, 2))
    for i in range(layers):
        with g.scope(f"layer_{i}"):
            x = g.apply("exp", x @ g.parameter(f"w{i}", (2, 2))) + x
    g.output("y", x)
    return g.build()


def test_equal_layers_are_drawn_once() -> None:
    graph = layered(9)
    drawn = folded(graph)
    assert drawn.blocks == (Block(0, 3, 9),)
    assert sorted(node.name for members in drawn.members for node in members) == sorted(
        node.name for node in graph.nodes
    )
    assert len(drawn) == 5  # x, and one layer of w, matmul, exp, add
    shown = picture(graph)
    assert {len(values) for values in shown.time_ns} == {1, 9}
    assert "9 layers of 3 nodes" in str(shown)


def test_what_one_node_reads_alone_stands_inside_it() -> None:
    shown = picture(layered(9))
    assert [members[0].op for members in shown.folded.members] == ["input", "matmul", "exp", "add"]
    columns = shown.columns()
    assert set(columns["inside"]) == {f"w{i}" for i in range(9)}
    assert set(columns["inside_of"].tolist()) == {1}
    assert shown.titles()[1] == "matmul float32[2, 2] · w0, ×9"


@given(graphs())
def test_nothing_is_lost_by_folding(case: tuple[Graph, Maker]) -> None:
    graph, _ = case
    for drawn in (folded(graph), unfolded(graph)):
        names = [node.name for members in drawn.members for node in members]
        assert sorted(names) == sorted(node.name for node in graph.nodes)
        assert all(a < b for a, b in drawn.edges)
    columns = picture(graph).columns()
    assert sorted([*columns["member"], *columns["inside"]]) == sorted(n.name for n in graph.nodes)
    assert columns["first"][-1] == len(columns["member"]) == len(columns["time"])
    ElementTree.fromstring(to_svg(picture(graph)))


@pytest.mark.parametrize("layers", [0, 1, MOST_NAMED // 4 + 5, MOST_DOTS // 4 + 5])
def test_graphs_of_any_size_have_a_picture(layers: int) -> None:
    svg = to_svg(picture(layered(layers), fold=False))
    ElementTree.fromstring(svg)
    assert len(svg) < 2_000_000


def test_edges_pass_behind_what_nodes_say() -> None:
    root = ElementTree.fromstring(to_svg(picture(layered(1))))
    edges, boxes = root.findall(f"{SVG}path"), root.findall(f"{SVG}g/{SVG}rect")
    assert max(map(list(root.iter()).index, edges)) < min(map(list(root.iter()).index, boxes))
    style = root.findtext(f"{SVG}style") or ""
    assert ".tg-node{fill:var(--tg-node);" in style
    assert style.count("--tg-node:#") == 2, "light and dark"


def test_names_are_escaped() -> None:
    svg = to_svg(picture(layered(1, '<script>alert("&")</script>')))
    ElementTree.fromstring(svg)
    assert "<script" not in svg


def test_a_graph_with_symbols_is_drawn() -> None:
    g = GraphBuilder()
    g.output("y", g.apply("exp", g.input("x", (dim("T"), 3))))
    ElementTree.fromstring(to_svg(picture(g.build())))
