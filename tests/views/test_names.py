"""Names that bite: whatever one is made of, each output stays what it is, by a parser of its own.

What a terminal would obey is no name at all, wherever names come from; what is left may hold the
signs that DOT, XML, HTML and JSON are made of.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tgbench as tg
from tgbench.base.errors import GraphError, PlanError, TgbenchError, TraceError
from tgbench.base.words import LONGEST_NAME, is_name, printable
from tgbench.commands.cli import main
from tgbench.costs.records import Record, Records
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import graph_from_json, graph_to_json, save_graph
from tgbench.plans import reader
from tgbench.views.pages.screen_page import page as page_of
from tgbench.views.values.paths import kernels_of
from tgbench.views.values.programs import listing
from tgbench.views.values.ways import ways_of

SIGNS = (
    'a"; b -> c; "', "back\\", '\\"', "\\N\\G\\l", "<b>&amp;</b>", "]]>", "<!--", "</title>",
    "</script><script>alert(1)</script>", "' onload='x", "{{7*7}}", "${x}", "a, b: c", "'; DROP --",
    "%s%n{0}", "é→µ", "<TABLE>", "n0", "digraph", "`x`",
)  # fmt: skip
BITE = (
    "\x1b[2J", "\x07", "a\nb", "\r", "\0", "\x7f", "\x9b31m", "\u202eabc", "\u2066", "\u200f",
    "\u2028", "\ufeff", "\ud800", "\ufffe", "", "x" * (LONGEST_NAME + 1),
)  # fmt: skip


def graph_of(name: str) -> Graph:
    """Everything that has a name has that one in its name; it can be computed in several ways."""
    g = GraphBuilder()
    x, s = g.input(f"x{name}", (4, 3)), g.state(f"s{name}", (4, 3))
    with g.scope(f"in {name}"):
        y = g.name(x @ g.parameter(f"w{name}", (3, 3)), name)
        y = y + g.name(x @ g.parameter(f"v{name}", (3, 3)), f"other{name}")
    g.update(s, g.name(s + y, f"sum{name}"))
    g.output(f"out{name}", g.name(y * 2.0, f"twice{name}"))
    g.output(name, s * 1.0)
    return g.build()


def session_of(name: str, **options: Any) -> tg.GraphSession:
    graph = graph_of(name)
    weights = {f"{w}{name}": np.ones((3, 3), np.float32) for w in "wv"}
    session = tg.GraphSession(graph, weights, calibrate=False, **options)
    x = np.ones((4, 3), np.float32)
    for row in range(3):
        x = x.copy()
        x[row] += 1
        session.run({f"x{name}": x})
    return session


def pairs_of(session: tg.GraphSession) -> Any:
    """What a session gives, as if it were another framework's."""
    values = {name: np.ones(node.shape, "float32") for name, node in session.graph.inputs.items()}
    session.forget()
    return [(values, session.run(values))]


def assert_plain(text: str, where: str) -> None:
    """Nothing that a terminal obeys: control characters, bidirectional ones, halves of pairs."""
    bad = {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {"\n"}
    assert not bad, (where, bad)


class Page(HTMLParser):
    """The elements of a page, and whether each that was opened was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        self.attributes |= {key for key, _ in attrs}


@pytest.mark.parametrize("name", SIGNS)
def test_every_output_stays_what_it_is(name: str, tmp_path: Path, capsys: Any) -> None:
    session = session_of(name, plan=tmp_path / "plan.json", trace=tmp_path / "t.jsonl")
    session.optimize("greedy", steps=1)
    plain = session_of("plain")
    plain.optimize("greedy", steps=1)
    session.trace.flush()
    session.prepare()
    plain.prepare()
    programs, others = list(session.programs), list(plain.programs)
    ways, usual_ways = session.paths(), plain.paths()
    shown = {
        "graph": (session.graph, plain.graph), "plan": (session.plan, plain.plan),
        "session": (session, plain), "trace": (session.trace, plain.trace),
        "report": (session.last, plain.last),
        "program": (programs[0][2], others[0][2]),
        "estimate": tuple(s.estimate_memory()["cpu"] for s in (session, plain)),
        "explanation": tuple(s.plan.explain(s.plan.slots[0].node) for s in (session, plain)),
        "placement": (session.placement, plain.placement),
        "check": tuple(tg.check(s, pairs_of(s)) for s in (session, plain)),
        "ways": (ways_of(ways, 10), ways_of(usual_ways, 10)),
        "paths": (ways.paths, usual_ways.paths),
        "kernels": tuple(kernels_of(s, s.plan.retained[0]) for s in (session, plain)),
    }  # fmt: skip
    for what, (one, other) in shown.items():
        assert_plain(str(one), what)
        bundle, usual = one._repr_mimebundle_(), other._repr_mimebundle_()
        assert bundle.keys() == usual.keys(), what
        for kind, text in bundle.items():
            if kind == "image/svg+xml":
                tags = [element.tag for element in ET.fromstring(text).iter()]
                assert tags == [e.tag for e in ET.fromstring(usual[kind]).iter()], what
            elif kind == "text/html":
                page, usual_page = Page(text), Page(usual[kind])
                assert page.attributes == usual_page.attributes, what
                assert set(page.seen) == set(usual_page.seen), what
            assert_plain(text, f"{what} as {kind}")
    assert_plain(str(listing(programs[0][2])), "listing")
    assert_plain(str(session.plan.explain(session.plan.slots[0].node)), "explain")
    report, usual_report = (Page(page_of(s.plan, s.graph)) for s in (session, plain))
    assert report.attributes == usual_report.attributes
    assert report.seen.count("script") == usual_report.seen.count("script")
    _commands(session, tmp_path, capsys)


def _commands(session: tg.GraphSession, folder: Path, capsys: Any) -> None:
    """Plans, graphs and traces through the command line."""
    plan, graph = folder / "plan.json", save_graph(session.graph, folder / "graph.json")
    session.save_plan(plan)
    for arguments in (
        ["plan", plan], ["plan", plan, "--json"], ["export", "--page", plan],
        ["export", plan, "--to", folder / "p.svg"], ["export", graph, "--to", folder / "g.svg"],
        ["export", graph, "--to", folder / "g.dot"],
        ["export", folder / "t.jsonl", "--graph", graph, "--to", folder / "t.csv"],
    ):  # fmt: skip
        assert main(list(map(str, arguments))) == 0, arguments
        assert_plain(capsys.readouterr().out, str(arguments))
    for picture in ("p.svg", "g.svg"):
        ET.parse(folder / picture)
    _assert_dot(session.graph, folder / "g.dot")


def _assert_dot(graph: Graph, path: Path) -> None:
    """Graphviz finds the nodes and edges that are there, and the labels."""
    if shutil.which("dot") is None:
        return
    found = subprocess.run(["dot", "-Tdot_json", path], capture_output=True, check=True)
    read = json.loads(found.stdout)
    edges = sum(len(node.inputs) for node in graph.nodes) + len(graph.outputs)
    assert len(read["objects"]) == len(graph) + len(graph.outputs)
    assert len(read["edges"]) == edges
    drawn = subprocess.run(["dot", "-Tsvg", path], capture_output=True, check=True)
    texts = {e.text for e in ET.fromstring(drawn.stdout).iter() if e.tag.endswith("}text")}
    assert {node.name for node in graph.nodes} <= {text.replace("\xa0", " ") for text in texts}


# --- texts that are no names ----------------------------------------------------------------------


def texts_of(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any, str]]:
    """Where a JSON document has texts: the path to what holds one, its key, and which of both."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        if isinstance(document, dict):
            yield at, key, "key"
        if isinstance(value, str):
            yield at, key, "value"
        elif isinstance(value, (dict, list)):
            yield from texts_of(value, (*at, key))


def replaced(document: Any, at: tuple[Any, ...], key: Any, which: str, text: str) -> Any:
    """A document with another text at a place."""
    made = json.loads(json.dumps(document))
    holder = made
    for part in at:
        holder = holder[part]
    if which == "key":
        holder[text] = holder.pop(key)
    else:
        holder[key] = text
    return made


@pytest.mark.parametrize("text", ["\x1b[2J\u202e", "</script><script>x]]>&<b onload=x>"], ids=ascii)
def test_every_text_of_a_plan_is_refused_or_shown_as_it_is(text: str, tmp_path: Path) -> None:
    session, path = session_of("plain"), tmp_path / "plan.json"
    session.optimize("greedy", steps=1)
    usual = Page(page_of(session.plan, session.graph)).seen.count("script")
    document, seen = json.loads(session.plan.to_json()), set()
    accepted = told = 0
    for at, key, which in texts_of(document):
        place = (*(part for part in at if isinstance(part, str)), key, which)
        if place in seen:
            continue
        seen.add(place)
        path.write_text(json.dumps(replaced(document, at, key, which, text)))
        try:
            plan = tg.Plan.load(path)
            page = page_of(plan, session.graph)
        except TgbenchError as error:
            assert_plain(str(error), str(place))
            told = max(told, len(str(error)))
            continue
        accepted += 1
        assert Page(page).seen.count("script") == usual, place
        bundle = plan._repr_mimebundle_()
        ET.fromstring(bundle["image/svg+xml"])
        for shown in (str(plan), repr(plan), page, *bundle.values()):
            assert_plain(shown, str(place))
    assert len(seen) > 40
    assert told < 600
    assert accepted == 0 or text.isprintable()


# --- what is no name ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BITE, ids=ascii)
def test_what_a_terminal_would_obey_is_no_name(name: str) -> None:
    g = GraphBuilder()
    x = g.input("x", (2,))
    for make in (
        lambda: g.input(name, (2,)), lambda: g.parameter(name, (2,)), lambda: g.state(name, (2,)),
        lambda: g.output(name, x), lambda: g.name(x + 1.0, name or "\n"),
    ):  # fmt: skip
        with pytest.raises(GraphError, match="is no name") as caught:
            make()
        assert_plain(str(caught.value), "the error")
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", BITE, ids=ascii)
def test_no_file_brings_one(name: str, tmp_path: Path) -> None:
    session = session_of("plain", trace=tmp_path / "t.jsonl")
    session.optimize("greedy", steps=1)
    session.trace.close()
    texts = {
        graph_from_json: graph_to_json(session.graph),
        reader.parse: session.plan.to_json(),
        tg.Trace.load: (tmp_path / "t.jsonl").read_text(),
    }
    for read, text in texts.items():
        for old in ("xplain", "splain", "outplain"):
            changed = text.replace(json.dumps(old), json.dumps(name))
            if changed == text:
                continue
            given: Any = changed
            if read is tg.Trace.load:
                given = tmp_path / "changed.jsonl"
                given.write_text(changed)
            with pytest.raises((GraphError, PlanError, TraceError)) as caught:
                read(given)
            assert_plain(str(caught.value), "the error")
            assert len(str(caught.value)) < 400


def test_a_database_says_nothing_raw(tmp_path: Path) -> None:
    records = Records(tmp_path / "r.db")
    raw = "\x1b[2J\u202e</td><script>"
    records.add([Record(raw, raw, raw, raw, (), f"Error: {raw}\nmore")])
    assert_plain(str(records), "records")
    assert_plain(str(records.all()[0]), "a record")
    bundle = records._repr_mimebundle_()  # type: ignore[attr-defined]
    assert_plain(bundle["text/plain"], "text")
    assert "script" not in Page(bundle["text/html"]).seen


def test_a_command_says_nothing_raw(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "\x1b[31mplan.json"
    path.write_text("{")
    assert main(["plan", str(path)]) == 1
    told = capsys.readouterr().err
    assert_plain(told, "the error")
    assert "\\x1b[31m" in told


def test_a_module_with_such_a_name_is_refused() -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"a\x1b[2J": x["y"] * 2}

    with pytest.raises(TgbenchError) as caught:
        tg.from_torch(Net().eval(), ({"y": torch.zeros(2)},))
    assert_plain(str(caught.value), "the error")


def test_printable_leaves_nothing_and_changes_nothing_else() -> None:
    assert printable("a é → \n b") == "a é → \n b"
    for name in BITE[:-2]:
        assert_plain(printable(name), repr(name))
    assert all(map(is_name, SIGNS))
    assert not any(map(is_name, BITE))
