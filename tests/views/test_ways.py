"""Paths as a table and as a map: what is said of them, in text and as well-formed SVG."""

from __future__ import annotations

import base64
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest

import tgbench as tg
import tgbench.graph.ops as ops
from tgbench.base.words import format_time
from tgbench.graph.graph import GraphBuilder
from tgbench.graph.rewrite.saturate import SaturationLimits
from tgbench.session.session import GraphSession
from tgbench.views.values.classes import ClassPicture
from tgbench.views.values.errors import ErrorPoint
from tgbench.views.values.ways import PathMap, Stop, ways_of


@pytest.fixture
def session() -> GraphSession:
    g = GraphBuilder()
    x = g.input("x", (16, 32))
    parts = [ops.linear(x, g.parameter(name, (32, 32))) for name in "qkv"]
    g.output("y", ops.softmax(parts[0] @ parts[1].transpose()) @ parts[2])
    graph = g.build()
    weights = {name: np.ones((32, 32), np.float32) for name in graph.parameters}
    made = tg.GraphSession(graph, weights=weights, calibrate=False)
    made.run({"x": np.ones((16, 32), np.float32)})
    return made


def test_a_table_and_a_map(session: GraphSession) -> None:
    paths = session.paths(limits=SaturationLimits(nodes=400))
    found = ways_of(paths)
    assert "graphs" in str(found)
    assert str(found).splitlines()[2].split()[0] == "0"
    assert "e-node" not in found.told
    more = [cells[2] for cells in found.table().rows]
    best = found.paths[0].time_ns
    assert more == ["", *(f"+{format_time(one.time_ns - best)}" for one in found.paths[1:])]
    shown = paths._repr_mimebundle_()
    assert shown["text/plain"] == str(found)
    assert [paths.graph_at(place).time_ns for place in found.places] == sorted(
        {path.time_ns for path in found.paths}
    )
    graphs = [path for path, _ in zip(paths.paths.graphs(), range(8), strict=False)]
    picture = PathMap.of(graphs)
    assert len(picture.lines) == len(graphs)
    assert all(len(line) == len(picture.decisions) for line in picture.lines)
    assert not any(picture.lines[0])  # the cheapest runs along the first row
    root = ET.fromstring(picture.to_svg())
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == len(picture.stops)


def test_words_on_a_map_are_cut_where_others_stand_beside_them() -> None:
    first, last = "the products of layer_0", "exponentials, 2 sums, 2 products"
    stops = (Stop(0, 0, first), Stop(1, 0, last))
    root = ET.fromstring(PathMap(("a", "b"), stops, ((0, 0),)).to_svg())
    told = [one.text for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert told == ["a", "b", "the products of lay…", last]
    assert float(root.get("width", 0)) > 150 + 6 * len(last)


def test_a_map_is_an_image_that_sanitised_html_keeps() -> None:
    stops = (Stop(0, 0, "sum"), Stop(0, 1, "2 sums"))
    shown = PathMap(('a "quoted" <name>', "b"), stops, ((0, 0), (1, 0)))
    html = shown.to_html()
    assert "<svg" not in html
    image = ET.fromstring(html.removesuffix(">") + "/>")
    assert 'a "quoted" <name>' in image.get("title", "")
    kind, _, data = image.get("src", "").partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(data).decode() == shown.to_svg()
    used = set(re.findall(r"var\((--[\w-]+)\)", shown.to_svg()))
    assert all(shown.to_svg().count(f"{name}:") == 2 for name in used), "for light and for dark"


def test_what_an_error_buys_is_drawn(session: GraphSession) -> None:
    paths = session.paths(tolerance=1e-2, limits=SaturationLimits(nodes=400))
    shown, frame = paths.draw_frontier(4), paths.frontier(4)
    assert len(shown.points) == len(frame) > 1
    assert [one.digits for one in shown.points] == sorted(one.digits for one in shown.points)
    told = shown._repr_mimebundle_()
    root = ET.fromstring(told["image/svg+xml"])
    titles = [one.text for one in root.iter("{http://www.w3.org/2000/svg}title")]
    assert titles[1:] == [str(one) for one in shown.points]
    assert str(shown.points[0]) in told["text/plain"]
    assert "polyline" not in told["image/svg+xml"], "nothing lies between two paths"


def test_digits_end_where_nothing_is_off() -> None:
    points = [ErrorPoint(1.0, error, 8, "") for error in (0.0, 1e-3, 1e-300)]
    assert [one.digits for one in points] == [16.0, 3.0, 16.0]


def test_classes_of_a_small_e_graph_are_drawn(session: GraphSession) -> None:
    found = session.paths(limits=SaturationLimits(nodes=120)).paths
    shown = ClassPicture.of(found)
    every = [node for some in shown.options for node in some]
    root = ET.fromstring(shown.to_svg())
    labels = root.findall("{http://www.w3.org/2000/svg}text")
    assert len(labels) == len(every) + len(shown.classes)
    taken = root.findall("{http://www.w3.org/2000/svg}rect[@class='tg-input']")
    assert len(taken) == len(shown.taken.intersection(every)) > 0
    assert all(j < i for i, some in enumerate(shown.options) for n in some for j in shown.reads[n])
    assert str(shown).count("→") == len(taken)
    many = replace(shown, classes=shown.classes * 9, options=shown.options * 9)
    assert "image/svg+xml" not in many._repr_mimebundle_()


def test_nothing_to_decide_is_no_picture() -> None:
    assert PathMap.of([]).to_svg() == PathMap.of([]).to_html() == ""
