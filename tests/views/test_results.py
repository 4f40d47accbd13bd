"""Results that show themselves, and the payloads of regions, transitions, programs, budgets."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import regions

import tgbench as tg
from tgbench.base.errors import GraphError, PlanError, WidgetError
from tgbench.base.machine import Machine
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.costs.records import Record
from tgbench.costs.signature import Signature, source_hash
from tgbench.kernels.registry import Kernel
from tgbench.runs.buckets import BucketClass
from tgbench.session.check.report import CheckReport, OutputCheck
from tgbench.session.profile import Profile
from tgbench.views import show
from tgbench.views.draw.boxes import to_svg as region_svg
from tgbench.views.draw.curves import Axis
from tgbench.views.draw.heatmap import Heatmap
from tgbench.views.draw.tables import TextTable
from tgbench.views.values import pareto, paths, transitions
from tgbench.views.values.pareto import Curve, Point, curve
from tgbench.views.values.programs import listing, listing_of_session
from tgbench.views.values.regions import (
    KINDS,
    LEFT,
    WIDE,
    NodeRegions,
    best_cut,
    columns_of,
    crossing,
    inspect_class,
    inspect_last,
)
from tgbench.views.values.regions import _legend as legend
from tgbench.views.values.regions import to_svg as inspector_svg
from tgbench.views.values.search import SearchRun

HOSTILE = '<img src=x onerror="alert(1)">'
PROFILE = Profile(
    {("k", HOSTILE): 3}, failed=frozenset({("l", "s")}), median_ns={("k", HOSTILE): 1500.0}
)
ROWS = 6
LAYER, ONES = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)


@pytest.fixture(scope="module")
def session() -> tg.GraphSession:
    """A causal product: row i of the output reads rows 0 … i of the input."""
    g = tg.GraphBuilder()
    x = g.name(g.input("x", (ROWS, 4)) * 2.0, HOSTILE)
    causal = g.constant(np.tril(np.ones((ROWS, ROWS), np.float32)))
    g.output("y", tg.ops.exp(causal @ tg.ops.tanh(x)))
    made = tg.GraphSession(g.build())
    value = np.zeros((ROWS, 4), np.float32)
    made.run({"x": value})
    for row in (2, 2, 4):
        value[row] += 1
        made.run({"x": value}, want={"y": np.s_[row]})
    return made


def imported_of(width: int) -> tg.Imported:
    layer = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Softmax(-1))
    return tg.from_torch(layer.eval(), (torch.ones(2, width),))


def test_an_imported_module_tells_sizes_and_no_weights() -> None:
    small, large = imported_of(4), imported_of(64)
    assert repr(large).splitlines() == [
        "imported module", "nodes: 5, 2 of them computed", "parameters: 2, 16.25 KiB",
        "fused ops: 1 linear, 1 softmax", "input input: float32[2, 64]",
        "output output: float32[2, 64]",
    ]  # fmt: skip
    assert "64" not in repr(small)
    assert "fused ops" in small._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]


def test_a_column_stands_to_the_right_if_all_of_it_are_numbers() -> None:
    html = TextTable(
        "t", ("what", "value", "size"), (("a", "3 of 4", "1"), ("b", "none", "2"))
    ).to_html()
    assert [part[:4] for part in html.split("text-align:")[5:]] == ["left", "left", "righ"] * 2


def test_where_there_is_no_number_a_column_may_be_empty() -> None:
    table = TextTable("t", ("more", "failure"), (("", ""), ("+350 ns", "")))
    assert [part[:4] for part in table.to_html().split("text-align:")[4:]] == ["righ", "left"] * 2
    assert str(table).splitlines()[1].startswith("   more")


def test_text_that_begins_with_a_digit_is_no_number() -> None:
    html = TextTable(
        "t", ("node", "size"), (("1.group_norm", "1.5 KiB"), ("0.conv", "-"))
    ).to_html()
    assert [part[:4] for part in html.split("text-align:")[4:]] == ["left", "righ"] * 2


def test_a_report_keeps_its_best_sentence(session: tg.GraphSession) -> None:
    g = tg.GraphBuilder()
    x = g.input("x", (4, 4))
    g.output("y", tg.ops.softmax(tg.ops.exp(x) @ g.parameter("w", (4, 4)) @ x))
    made = tg.GraphSession(g.build(), {"w": np.eye(4, dtype=np.float32)})
    value = np.zeros((4, 4), np.float32)
    made.run({"x": value})
    value[1] = 1
    made.run({"x": value})
    report = made.report()
    assert report is not None
    assert report.spread is not None
    html = report._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]
    assert "the change spreads to everything at" in html
    assert report.spread.node in html


def test_a_profile_shows_what_kernels_take() -> None:
    html = PROFILE._repr_mimebundle_()["text/html"]  # type: ignore[attr-defined]
    cells = re.findall("<t[hd](?: [^>]*)?>([^<]*)", html)
    assert cells[:8] == [
        "kernel", "median", "samples", "signature", "k", "1.5 µs", "3", escape(HOSTILE)
    ]  # fmt: skip
    assert cells[8:] == ["l", "-", "failed", "s"]


def test_a_terminal_shows_the_same_words(session: tg.GraphSession) -> None:
    assert session.last is not None
    for result in (session.plan, session.last, session.last.program):
        assert repr(result) == str(result)


NOT_FOR_PEOPLE = re.compile(
    r"(?<![\w.,±:#-])1 (?!is\b|was\b|[nµm]?s\b)[a-z-]*[a-z]s\b(?<!class)(?! =)|stopped: stopped"
    r"|Cut\(|StopReason|array\("
)


def test_what_is_not_for_people_is_found() -> None:
    for text in ("1 classes", "in 1 runs", "stopped: stopped", "Cut(input='ids', axis=0, parts=4)"):
        assert NOT_FOR_PEOPLE.search(text)
    for text in ("1 class", "21 runs", "1 ms", "0.1 s", "1.1 nodes", "1 node, 2 classes"):
        assert not NOT_FOR_PEOPLE.search(text)


def test_everything_shows_itself(session: tg.GraphSession, tmp_path: Path) -> None:
    last, imported = session.last, imported_of(4)
    assert last is not None
    records = tg.Records(tmp_path / "records.db")
    results: list[Any] = [
        session, session.graph, session.plan, session.placement, session.trace, last, last.program,
        records, Region.full((3, 4)), Region.full((3, 4)).boxes[0], EMPTY, tg.Trace(), imported,
        PROFILE, session.plan.explain(HOSTILE), tg.supported(LAYER, (ONES,)),
        session.estimate_memory()["cpu"], session.paths(),
        session.paths().paths,
        CheckReport((OutputCheck(0, HOSTILE, "f4", 0, 0, 1),)),
    ]  # fmt: skip
    assert {type(result) for result in results} == set(show.SHOWN) - {SearchRun}
    for result in results:
        bundle = result._repr_mimebundle_(include=None, exclude=None)
        assert bundle["text/plain"]
        for text in (str(result), *bundle.values()):
            assert not NOT_FOR_PEOPLE.search(text), (type(result), NOT_FOR_PEOPLE.search(text))
        assert "<img" not in bundle.get("text/html", "")
        json.dumps(bundle)
        if "image/svg+xml" in bundle:
            ElementTree.fromstring(bundle["image/svg+xml"])


def test_what_sessions_can_do_is_told() -> None:
    for name in ("explore", "timeline", "optimize_async"):
        assert getattr(tg.GraphSession, name).__doc__


def test_a_table_reads_in_a_terminal_and_in_html() -> None:
    table = TextTable("sizes", ("node", "bytes"), ((HOSTILE, "64"),))
    assert str(table).splitlines()[0] == "sizes"
    assert "<img" not in table.to_html()


# --- regions --------------------------------------------------------------------------------------


def test_the_last_run_is_what_was_decided(session: tg.GraphSession) -> None:
    found, last = inspect_last(session), session.last
    assert last is not None
    for name, region in last.compute.items():
        assert found.regions[name]["computed"] == region
    for name, kinds in found.regions.items():
        dirty, computed = kinds.get("dirty", EMPTY), kinds.get("computed", EMPTY)
        stale = EMPTY if session.graph.node(name).is_leaf else dirty.subtract(computed)
        assert kinds.get("stale", EMPTY) == stale, "an input is right as it came"
        assert kinds.get("needed", EMPTY).contains(kinds.get("reused", EMPTY))


def test_a_run_that_a_larger_one_served_is_drawn_where_that_lies(
    session: tg.GraphSession,
) -> None:
    """Its own origin may be elsewhere, and of another length."""
    last = session.last
    assert last is not None
    assert last.at != (0,)
    served = SimpleNamespace(last=replace(last, origin=(0,), served="as a wider one"))
    found = inspect_last(served)  # type: ignore[arg-type]
    computed = {name: kinds["computed"] for name, kinds in found.regions.items()
                if "computed" in kinds}  # fmt: skip
    assert computed == last.compute


def test_what_a_run_in_pieces_computes_is_not_reused_in_it() -> None:
    g = tg.GraphBuilder()
    x = g.input("x", (64, 32))
    for i in range(3):
        up = tg.ops.tanh(x @ g.parameter(f"up{i}", (32, 128)))
        x = up @ g.parameter(f"down{i}", (128, 32))
    g.output("y", x)
    graph = g.build()
    weights = {name: np.ones(node.shape, np.float32) for name, node in graph.parameters.items()}
    session = tg.GraphSession(graph, weights, memory=40_000)
    session.run({"x": np.ones((64, 32), np.float32)})
    assert session.memory.decisions.cut.parts > 1
    for name, kinds in inspect_last(session).regions.items():
        both = kinds.get("reused", EMPTY).intersect(kinds.get("computed", EMPTY))
        assert not both.boxes, name


def test_a_planned_class_is_decided_on_demand(session: tg.GraphSession) -> None:
    bucket = session.plan.buckets[-1]
    kind = BucketClass(bucket.changed, bucket.demand, bucket.bounds)
    found = inspect_class(session, kind, [1] * len(kind.bounds))
    assert any("computed" in kinds for kinds in found.regions.values())
    with pytest.raises(PlanError, match="origin="):
        inspect_class(session, BucketClass((), (), ()))
    with pytest.raises(GraphError, match="no node"):
        found.node("nobody")


def test_a_node_is_drawn_on_any_plane(session: tg.GraphSession) -> None:
    found = inspect_last(session)
    for node in session.graph.nodes:
        shown = found.node(node.name)
        svg = inspector_svg(shown, found.title)
        ElementTree.fromstring(svg)
        assert "<img" not in svg
        columns = columns_of(shown)
        assert len(columns["box"]) == 2 * node.rank * len(columns["kind"])
        assert set(columns["kind"]) <= set(range(len(KINDS)))


def test_a_legend_names_the_colours_that_are_there(session: tg.GraphSession) -> None:
    """Reused rows are valid, too; drawn one over the other they had a colour of no legend."""
    full, half = Region.full((ROWS, 4)), Region.of(Box(((0, 3), (0, 4))))
    node = next(n for n in session.graph.nodes if n.op == "tanh")
    rest = full.subtract(half)
    for reused, kinds in ((full, ["reused"]), (half, ["valid", "reused"])):
        svg = inspector_svg(NodeRegions(node, {"valid": full, "reused": reused}))
        drawn = [
            (rect.get("class"), rect.find("{*}title").text)  # type: ignore[union-attr]
            for rect in ElementTree.fromstring(svg).findall(".//{*}rect")
            if rect.find("{*}title") is not None
        ]
        assert [c for c, _ in drawn[1:]] == [f"tg-r-{kind}" for kind in kinds]
        texts = [text.text for text in ElementTree.fromstring(svg).findall(".//{*}text")]
        counts = {"valid": full.subtract(reused).elements, "reused": reused.elements}
        assert texts[-len(kinds) :] == [f"{kind} {counts[kind]}" for kind in kinds]
    assert f"valid {rest.boxes[0]}" in svg


def test_what_is_blank_has_its_words_too(session: tg.GraphSession) -> None:
    node = next(n for n in session.graph.nodes if n.op == "tanh")
    full, half = Region.full((ROWS, 4)), Region.of(Box(((0, 3), (0, 4))))
    assert "not there" not in inspector_svg(NodeRegions(node, {"valid": full, "needed": half}))
    assert "not there" in inspector_svg(NodeRegions(node, {"computed": half, "needed": full}))


def test_every_kind_has_room_in_the_legend() -> None:
    many = Region.full((3_000, 40_000))
    told, _ = legend(dict.fromkeys(KINDS, many), 0.5, 0.0, is_blank=True)
    found = re.findall(r'<text class="tg-text" x="(\d+)" y="(\d+)">(.*?)<', "".join(told))
    assert [words.split()[0] for _, _, words in found] == [*KINDS, "known", "not"]
    assert found[0][2] == "valid 120,000,000"
    for (x, y, words), after in zip(found, [*found[1:], None], strict=True):
        end = int(x) + 6 * len(words)
        assert end < (int(after[0]) if after and after[1] == y else WIDE + LEFT + 20)


def test_known_elements_are_shown(session: tg.GraphSession) -> None:
    constant = next(n for n in session.graph.nodes if n.op == "constant" and n.rank == 2)
    shown = inspect_last(session).node(constant.name)
    assert shown.known_share == 1.0
    assert 'class="tg-r-known"' in inspector_svg(shown)


@given(regions((3, 4, 5)))
def test_a_plane_shows_the_elements_that_are_in_it(region: Region) -> None:
    cut = best_cut((3, 4, 5), {"computed": region} if region.boxes else {})
    shown = np.zeros((3, 4, 5), bool)
    plane = [
        slice(None) if axis in (cut.rows, cut.columns) else at for axis, at in enumerate(cut.at)
    ]
    for box in region:
        span = crossing(box, cut)
        if span is not None:
            shown[tuple(plane)][span[0] : span[1], span[2] : span[3]] = True
    right = np.zeros((3, 4, 5), bool)
    for box in region:
        right[box.slices()] = True
    assert (shown[tuple(plane)] == right[tuple(plane)]).all()


@given(regions((3, 4)))
def test_a_region_is_drawn(region: Region) -> None:
    svg = region_svg(region)
    assert bool(svg) == bool(region.boxes)
    if svg:
        assert len(ElementTree.fromstring(svg).findall("{*}rect")) == len(region)


# --- transitions, programs, alternatives, budgets ------------------------------------------------


def test_transitions_are_the_traces(session: tg.GraphSession) -> None:
    found = transitions.matrix(session.trace, session.graph)
    frame = session.trace.transition_counts(session.graph)
    assert list(found.classes) == list(frame.index)
    assert (found.count == frame.to_numpy()).all()
    rows = found.probability.sum(axis=1)
    assert set(rows.round(9)) <= {0.0, 1.0}
    assert all(cell.example.startswith("call ") for cell in found.cells)
    ElementTree.fromstring(transitions.to_svg(found))
    alone = transitions.matrix_of_plan(session.plan)
    assert not alone.cells
    ElementTree.fromstring(transitions.to_svg(transitions.Matrix((), (), ())))
    count = transitions.MOST_DRAWN + 1
    many = transitions.Matrix(tuple(map(str, range(count))), (1.0,) * count, ())
    assert "1 rarer class left out" in transitions.to_svg(many)


def test_a_program_is_listed_as_it_runs(session: tg.GraphSession) -> None:
    found, last = listing_of_session(session), session.last
    assert last is not None
    assert [line.kernel for line in found.lines] == [i.kernel for i in last.program.instructions]
    assert found.expected_ns > 0
    assert "u0" not in str(found.table()), "boxes are at their origin"
    assert {"expected", "offset"} <= set(found.table().header)


def test_a_program_alone_tells_no_times_that_nobody_knows(session: tg.GraphSession) -> None:
    assert session.last is not None
    found = listing(session.last.program).table()
    assert not {"expected", "offset"} & set(found.header)
    assert "expected" not in found.caption
    assert all(len(row) == len(found.header) for row in found.rows)


def test_alternatives_come_fastest_first(session: tg.GraphSession) -> None:
    node = next(n for n in session.graph.nodes if n.op == "exp")
    table = paths.kernels_of(session, node.name)
    times = [one.time_ns for one in table.alternatives]
    assert times == sorted(times)
    assert len(table.to_frame()) == len(times) > 0
    with pytest.raises(GraphError, match="leaf"):
        paths.kernels_of(session, "x")


def test_the_first_alternative_is_what_would_be_taken() -> None:
    """However fast its model is, a kernel that raised is not."""
    g = tg.GraphBuilder()
    node = tg.ops.linear(g.input("x", (4, 64)), g.parameter("w", (64, 64)))
    g.output("y", node)
    made = tg.GraphSession(g.build(), {"w": np.eye(64, dtype=np.float32)})
    node = next(n for n in made.graph.nodes if n.op == "linear")
    site = made.costs.site(node.call, Box.full(node.shape))
    best, *others = made.costs.kernels(site)
    made.costs.learn([failed(made.costs.signature(site), best)])
    names = [one.name for one in paths.kernels_of(made, node.name).alternatives]
    assert names == [kernel.name for kernel in (*others, best)]


def failed(signature: Signature, kernel: Kernel) -> Record:
    """A record of a kernel that raised at a site."""
    machine = Machine.here().fingerprint
    return Record(kernel.name, source_hash(kernel), signature.text, machine, (), "ValueError: no")


def decoded() -> tg.GraphSession:
    """Two layers of a decoder that appended a few tokens, and edited one."""
    tokens, width = 24, 16
    g = tg.GraphBuilder()
    table = g.parameter("table", (64, width))
    causal = g.constant(np.tri(tokens, dtype=bool))
    x = tg.ops.embedding(table, g.input("ids", (tokens,), "int64"))
    for i in range(2):
        q, k, v = (tg.ops.linear(x, g.parameter(f"w{n}{i}", (width, width))) for n in "qkv")
        heads = [node.reshape(1, 1, tokens, width) for node in (q, k, v)]
        seen = tg.ops.attention(*heads, causal).reshape(tokens, width)
        x = x + tg.ops.linear(seen, g.parameter(f"wo{i}", (width, width)))
    g.output("logits", tg.ops.linear(x, table))
    graph = g.build()
    weights = {n: np.ones(node.shape, np.float32) for n, node in graph.parameters.items()}
    made = tg.GraphSession(graph, weights)
    ids = np.zeros(tokens, np.int64)
    for t in (8, 9, 10, 11):
        ids[t] = t
        made.run({"ids": ids}, want={"logits": np.s_[t]})
    ids[3] = 5
    made.run({"ids": ids}, want={"logits": np.s_[11]})
    return made


def test_more_memory_is_never_slower() -> None:
    session = decoded()
    before = session.plan
    found = curve(session, [8 << 10, 8960, 9344])
    times = [point.time_ns for point in found.points]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]
    assert all(p.plan.size_bytes <= p.budget_bytes for p in found.points)
    assert all(0 < p.bound_ns <= p.time_ns * 1.001 for p in found.points)
    sizes, bounds = zip(*found.bounds, strict=True)
    assert (sizes[0], sizes[-1]) == (8 << 10, 9344), "a bound is of its budget"
    assert list(sizes) == sorted(sizes)
    assert bounds[1::2] == bounds[2::2], "what is proved of a budget holds for smaller ones"
    assert "tg-dash" in found._repr_mimebundle_()["image/svg+xml"], "the bound of the caption"
    assert session.plan == before
    ElementTree.fromstring(found._repr_mimebundle_()["image/svg+xml"])


def test_a_bound_of_one_budget_alone_is_seen() -> None:
    (least,) = curve(decoded(), [8 << 10]).points
    more = Point(1 << 20, replace(least.plan, search=None))  # of which nothing is proved
    root = ElementTree.fromstring(pareto.to_svg(Curve((least, more))))
    marks = root.findall("{http://www.w3.org/2000/svg}circle[@class='tg-b']")
    (words,) = (mark.findtext("*") for mark in marks if len(mark))  # the key's says nothing
    assert str(words).startswith("no plan within 8 KiB is below ")


def test_a_curve_is_a_figure_of_plotly(session: tg.GraphSession) -> None:
    pytest.importorskip("plotly")
    found = curve(session, [1 << 20], "greedy")
    figure = found.to_plotly()
    (best,) = figure.data  # no bound is known: none is drawn
    assert figure.layout.xaxis.title.text == "memory, B", "some hundred bytes are no 0.0004 MiB"
    assert figure.layout.yaxis.title.text == "mean run, µs"
    assert list(best.x) == [point.plan.size_bytes for point in found.points]
    assert list(best.y) == [point.time_ns / 1e3 for point in found.points]
    assert list(best.text) == [str(point) for point in found.points]
    searched = session.optimize("search", steps=4)
    assert searched.search is not None
    told = replace(searched, search=replace(searched.search, bound_ns=1.0))
    bounded = Curve((Point(1 << 20, told),)).to_plotly()
    assert [one.name for one in bounded.data] == ["best plan", "bound"]


def test_more_memory_is_never_slower_whatever_a_search_says(session: tg.GraphSession) -> None:
    """A search that ended too soon may come back with something worse than what it began with."""
    less = session.optimize("search", steps=4)
    assert less.search is not None
    proved = replace(less.search, bound_ns=less.search.bound_ns / 2)
    slower = replace(less, expected_ns=less.expected_ns * 2, search=proved)
    assert pareto._no_slower(slower, less) == replace(less, search=proved)
    assert pareto._no_slower(replace(slower, search=None), less) == less
    assert pareto._no_slower(less, slower) == less
    assert pareto._no_slower(slower, None) == slower


def test_marks_of_a_chart_are_round() -> None:
    time, size = Axis("time", str), Axis("bytes", str, base=2)
    assert time.marks(5.958, 7.28) == [6.0, 6.5, 7.0]
    assert size.marks(7977, 12700) == [8192, 9216, 10240, 11264, 12288]
    for low, high in ((0.0, 33.0), (1e3, 1.0001e3), (3e-9, 1.0), (999.9, 1000.1)):
        for axis in (time, size):
            marks = axis.marks(low, high)
            assert 2 <= len(marks) <= 6
            assert all(low <= mark <= high for mark in marks)


def test_an_axis_of_time_that_passes_begins_at_zero() -> None:
    assert Axis("seconds", str, has_zero=True).range([24.5, 33.0])[0] == 0.0
    assert Axis("mean run", str).range([7.2, 7.2]) == pytest.approx((6.48, 7.92))


def test_a_heatmap_says_what_its_colours_are() -> None:
    svg = Heatmap(np.zeros((3, 8, 4)), np.array([[0.5, -0.25]]), 4, 4, "drop of <a>").to_svg()
    root = ElementTree.fromstring(svg)
    assert [text.text for text in root.findall(".//{*}text")] == ["+0.5", "-0.25", "drop of <a>"]
    above = Heatmap(np.zeros((3, 8, 4)), np.array([[0.5, 0.0]]), 4, 4, "drop").to_svg()
    assert [t.text for t in ElementTree.fromstring(above).findall(".//{*}text")] == ["+0.5", "drop"]


def test_a_figure_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(WidgetError, match="pip install 'tgbench\\[lab\\]'"):
        Curve(()).to_plotly()
