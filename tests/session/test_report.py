"""The memory timeline's payload and the HTML report, without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tgbench import ops
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.plans.plan import Plan
from tgbench.runs.buckets import BucketClass
from tgbench.session.session import GraphSession
from tgbench.views.draw.svg import log_ticks, ticks
from tgbench.views.draw.tables import TextTable
from tgbench.views.pages.report import (
    Run,
    Study,
    agreement,
    embedded,
    medians,
    ms,
    page,
    share,
)
from tgbench.views.values.timeline import (
    Rectangle,
    Timeline,
    describe,
    timeline,
    timeline_of_plan,
    to_svg,
)

HOSTILE = '</script><img src=x onerror="alert(1)"><!--'


def chain(first: str = "first") -> Graph:
    g = GraphBuilder()
    x = g.input("x", (8, 16))
    a = g.name(ops.exp(x), first)
    b = g.name(ops.exp(a + 1.0), "second")
    g.output("y", b + a)
    return g.build()


@pytest.fixture(scope="module")
def session() -> GraphSession:
    s = GraphSession(chain())
    s.run({"x": np.zeros((8, 16), np.float32)})
    changed = np.zeros((8, 16), np.float32)
    changed[3] = 1
    s.run({"x": changed}, want={"y": np.s_[3]})
    return s


def shown(session: GraphSession) -> Timeline:
    assert session.last is not None
    computed = {"the edit": list(session.last.compute)}
    return timeline(session.scheduled, session.placement, session.budget_bytes, computed)


# --- the payload --------------------------------------------------------------------------------


def test_rectangles_are_the_slots_of_the_plan(session: GraphSession) -> None:
    plan = session.plan
    drawn = {r.name: r for r in shown(session).rectangles if r.kind != "scratch"}
    assert {slot.node for slot in plan.slots} == set(drawn)
    for slot in plan.slots:
        r = drawn[slot.node]
        assert (r.offset_bytes, r.retained) == (slot.offset_bytes, slot.retained)
        node = session.graph.node(slot.node)
        assert r.size_bytes == int(np.prod(slot.extents)) * node.type.itemsize
    scratch = {r.name: r.size_bytes for r in shown(session).rectangles if r.kind == "scratch"}
    assert scratch == {s.node: s.scratch_bytes for s in plan.slots if s.scratch_bytes}


def test_live_ranges_are_the_scheduled_graph_s(session: GraphSession) -> None:
    result = shown(session)
    live = {node.name: span for node, span in session.scheduled.live.items()}
    for r in result.rectangles:
        if r.kind in ("input", "retained"):
            assert (r.start, r.stop) == (0, result.steps)
        elif r.kind == "slice":
            assert (r.start, r.stop) == (live[r.name].start, live[r.name].stop)
        else:
            assert r.stop == r.start + 1
        assert r.offset_bytes + r.size_bytes <= result.size_bytes


def test_a_saved_plan_gives_the_same_picture(session: GraphSession) -> None:
    of_plan = timeline_of_plan(session.plan, session.graph)
    assert of_plan.rectangles == shown(session).rectangles
    assert of_plan.size_bytes == session.placement.size_bytes


def test_bytes_in_use_count_what_is_taken_over_in_place_once() -> None:
    #        a ████          a's bytes become b's at step 1; c lies above
    #        b   ██████
    #        c     ██
    result = Timeline(
        (
            Rectangle("a", "slice", 0, 64, 0, 2, False, "a"),
            Rectangle("b", "slice", 0, 64, 1, 4, False, "a"),
            Rectangle("c", "slice", 64, 32, 2, 3, False, "c"),
        ),
        steps=4, size_bytes=96, bound_bytes=96,
    )  # fmt: skip
    assert result.live_bytes == (64, 64, 96, 64)
    assert (result.peak_bytes, result.peak_step) == (96, 2)
    assert result.bytes_of("slice") == 96
    assert result.bytes_of("retained") == 0


@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(0, 4), st.integers(1, 3)),
        max_size=6,
    )
)
def test_bytes_in_use_are_those_that_some_rectangle_covers(
    found: list[tuple[int, int, int, int]],
) -> None:
    """Counted byte by byte, whatever overlaps."""
    rectangles = tuple(
        Rectangle(str(i), "partial", offset, size, start, min(start + length, 5), False, str(i))
        for i, (offset, size, start, length) in enumerate(found)
    )
    covered = [
        {
            byte
            for r in rectangles
            if r.start <= step < r.stop
            for byte in range(r.offset_bytes, r.offset_bytes + r.size_bytes)
        }
        for step in range(5)
    ]
    shown = Timeline(rectangles, steps=5, size_bytes=11, bound_bytes=11)
    assert shown.live_bytes == tuple(map(len, covered))


@pytest.fixture(scope="module")
def partly() -> tuple[Plan, Graph]:
    """y_in is there after questions for y, on the bytes that z_in has in questions for z.

    The schedule takes z's branch first, though y's nodes were made first.
    """
    g = GraphBuilder()
    x = g.input("x", (4, 16))
    for output, factor in (("y", 2.0), ("z", 3.0)):
        g.output(output, g.name(g.name(x * factor, f"{output}_in") + 1.0, f"{output}_out"))
    session = GraphSession(g.build(), retain="all")
    for name in ("y", "z"):
        session.run({"x": np.zeros((4, 16), np.float32)}, {name: ...})
    offsets = {"x": 0, "y_in": 256, "z_in": 256, "y_out": 512, "z_out": 768}
    slots = tuple(
        replace(
            slot, offset_bytes=offsets[slot.node], donor="", scratch_bytes=0,
            retained=slot.node in ("x", "y_in"), start=(0, 0),
            through=(0,) if slot.node == "y_in" else None,
        )
        for slot in session.plan.slots
    )  # fmt: skip
    plan = replace(
        session.plan, slots=slots, retained=("y_in",), kept_bytes=256, size_bytes=1024,
        schedule=("z_in", "z_out", "y_in", "y_out"),
    )  # fmt: skip
    return plan, session.graph


def test_the_plan_s_schedule_is_drawn(partly: tuple[Plan, Graph]) -> None:
    shown = {r.name: r for r in timeline_of_plan(*partly).rectangles}
    assert (shown["z_in"].start, shown["z_in"].stop) == (0, 2)
    assert (shown["z_out"].start, shown["y_out"].start) == (1, 3)


def test_what_is_kept_after_some_runs_is_shown_as_that(partly: tuple[Plan, Graph]) -> None:
    plan, graph = partly
    shown = timeline_of_plan(plan, graph)
    first = shown.rectangles[0]
    assert (first.name, first.kind, first.retained) == ("y_in", "partial", False)
    assert (first.start, first.stop) == (0, shown.steps)
    kind = plan.buckets[0]
    there = f"there after {BucketClass(kind.changed, kind.demand, kind.bounds)}"
    assert there in first.detail
    assert shown.bytes_of("partial") == 256
    assert shown.peak_bytes <= shown.size_bytes, "bytes that two share count once"
    assert f"always, while it is there ({first.detail})" in describe(first)
    text = page("A page", [study(shown)], {})
    assert "<td>always, while it is there</td>" in text
    assert "on bytes that others use meanwhile" in text
    assert 'class="tg-partial"' in to_svg(shown)
    made = plan.placement_for(graph, "cpu")
    assert timeline(made.scheduled, made.placement).rectangles[0].kind == "partial"


def test_the_payload_says_what_each_run_computed(session: GraphSession) -> None:
    assert session.last is not None
    data = shown(session).payload()
    stored = {node.name for node in session.scheduled.stored}
    computed = {data["name"][i].removesuffix(" (scratch)") for i in data["computed"]["the edit"]}
    assert computed == set(session.last.compute) & stored
    columns = ("name", "kind", "offset", "size", "start", "stop", "group", "detail")
    assert {len(data[column]) for column in columns} == {len(data["name"])}
    assert len(data["live"]) == data["steps"]
    json.dumps(data, allow_nan=False)


def test_a_timeline_without_rectangles() -> None:
    empty = Timeline((), steps=0, size_bytes=0, bound_bytes=0)
    assert empty.live_bytes == ()
    assert empty.peak_bytes == 0
    ElementTree.fromstring(to_svg(empty))
    assert "0 rectangles" in str(empty)


def test_the_static_picture_is_whole_and_names_every_rectangle(session: GraphSession) -> None:
    result = shown(session)
    root = ElementTree.fromstring(to_svg(result))
    titles = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    for r in result.rectangles:
        assert any(title.startswith(f"{r.label}:") for title in titles)
    assert result._repr_mimebundle_()["text/plain"] == str(result)


# --- the page -----------------------------------------------------------------------------------


class Reader(HTMLParser):
    """Collects tags, attributes and the text of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


RUNS = (
    Run("embed it", "x[:] → y[:]", 1.0, 5_000_000, 1024, True, 4_000_000, 1e-6, True),
    Run("edit it", "x[u0:+1] → y[:]", 0.1, 500_000, 1024, False, 4_100_000, 1e-6, True),
    Run("edit it", "x[u0:+1] → y[:]", 0.1, 700_000, 1024, False, 4_300_000, 2e-6, False),
)


def study(
    memory_map: Timeline | None, name: str = "A study", runs: tuple[Run, ...] = RUNS
) -> Study:
    return Study(
        name, "What was done.", "the other 1.0", runs, medians({"edit": runs[1:]}),
        (("arena", 1024, "all of it"),), "plan …", memory_map,
        (TextTable("more", ("a", "b"), (("1", "2"),)),),
    )  # fmt: skip


def test_the_page_needs_no_network(session: GraphSession) -> None:
    text = page("A page", [study(shown(session))], {"cores": "2"}, ["do this"])
    own = text.replace("http://www.w3.org/2000/svg", "")  # a name, never fetched
    assert not re.search(r"https?:|//[a-z]+\.|@import|url\(", own)
    for tag, attributes in Reader(text).tags:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert not {"src", "href", "data", "action"} & set(attributes)


def test_the_data_in_the_page_is_the_payload(session: GraphSession) -> None:
    result = shown(session)
    reader = Reader(page("A page", [study(result), study(None)], {}))
    assert json.loads(reader.scripts[0]) == [json.loads(json.dumps(result.payload())), None]
    assert "pointermove" in reader.scripts[1]


def test_the_page_reads_without_a_script(session: GraphSession) -> None:
    result = shown(session)
    text = page("A page", [study(result)], {})
    for r in result.rectangles:
        assert f"<td>{r.label}</td>" in text
    assert "<noscript><svg" in text
    assert "yes 1e-06" in text
    assert "NO 2e-06" in text


def test_names_cannot_break_out_of_the_page() -> None:
    hostile = GraphSession(chain(HOSTILE))
    hostile.run({"x": np.zeros((8, 16), np.float32)})
    result = timeline(hostile.scheduled, hostile.placement, None, {HOSTILE: [HOSTILE]})
    runs = (*RUNS, Run(HOSTILE, HOSTILE, 0.5, 10_000, 64))
    names = {HOSTILE: HOSTILE}
    reader = Reader(page(HOSTILE, [study(result, HOSTILE, runs)], names, [HOSTILE]))
    assert [tag for tag, _ in reader.tags if tag == "img"] == []
    assert len(reader.scripts) == 2
    data = json.loads(reader.scripts[0])[0]
    assert HOSTILE in data["name"]
    assert HOSTILE in data["computed"]
    ElementTree.fromstring(to_svg(result))


@pytest.mark.parametrize("text", ["</script>", "<!--", "]]>", "&amp;", "\u2028", HOSTILE])
def test_embedded_json_is_inert(text: str) -> None:
    made = embedded({"name": text})
    assert json.loads(made) == {"name": text}
    assert not set("<>&") & set(made)
    assert made.isascii()


def test_medians_leave_first_runs_out() -> None:
    found = medians({"all": RUNS, "first": RUNS[:1]})
    assert [(m.group, m.runs, m.time_ns, m.other_ns) for m in found] == [
        ("all", 2, 600_000, 4_200_000)
    ]
    alone = medians({"all": (Run("a", "", 1.0, 10, 0), *RUNS)})
    assert alone[0].other_ns is None  # a median over other runs would not compare


def test_a_page_without_anything_beside() -> None:
    runs = tuple(Run(r.step, r.kind, r.recomputed, r.time_ns, r.arena_bytes) for r in RUNS)
    text = page("Alone", [Study("A", "w", "", runs, medians({"g": runs}), (), "")], {})
    assert "equal" not in text
    assert page("Nothing", [Study("A", "w", "", (), (), (), "")], {})


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [(None, "-"), (412_000, "0.412 ms"), (9_999_999, "10.00 ms"), (57_312_000, "57.3 ms"),
     (2_500_000_000, "2.50 s"), (123, "0.0001 ms")],
)  # fmt: skip
def test_times_for_people(time_ns: int | None, text: str) -> None:
    assert ms(time_ns) == text


def test_shares_for_people() -> None:
    assert [share(x) for x in (0, 0.0004, 0.019, 0.9999, 1)] == [
        "0 %", "0.04 %", "1.9 %", ">99.9 %", "100 %",
    ]  # fmt: skip
    assert agreement(Run("", "", 1, 1, 1)) == "-"


@pytest.mark.parametrize("most", [1, 63, 1024, 25 << 20, 3 << 40])
def test_byte_ticks_are_few_and_round(most: int) -> None:
    found = ticks(most, 5)
    assert found[0] == 0
    assert 2 <= len(found) <= 6
    assert found[-1] <= most


def test_time_ticks() -> None:
    assert log_ticks(0.4, 3) == [0.5, 1, 2]


def test_a_session_prints_what_it_runs_and_in_how_much_memory() -> None:
    g = GraphBuilder()
    g.output("y", ops.linear(g.input("x", (4, 8)), g.parameter("w", (16, 8))))
    session = GraphSession(g.build(), {"w": np.ones((16, 8), np.float32)}, "4KiB", calibrate=False)
    assert str(session).splitlines() == [
        "session on cpu: x → y, 3 nodes",
        "arena not planned yet, budget 4 KiB, weights 512 B",
        "0 runs, 0 plans and 0 programs made",
    ]
    session.run({"x": np.ones((4, 8), np.float32)})
    arena = session.placement.size_bytes
    assert str(session).splitlines()[1:] == [
        f"arena {arena} B, budget 4 KiB, weights 512 B",
        "1 run, 1 plan and 1 program made",
    ]
