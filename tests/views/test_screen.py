"""The screen without a browser: what is chosen, proposed, in force; what each panel hears."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from busy_session import busy_session
from places import DATA

import tgbench as tg
from tgbench.base.errors import PlanError, WidgetError
from tgbench.base.words import format_time
from tgbench.plans.decisions import PlanPath
from tgbench.views import show
from tgbench.views.draw.columns import unpack
from tgbench.views.pages.screen_page import page
from tgbench.views.panels.parts import PARTS, differences, size_words
from tgbench.views.values.pareto import curve
from tgbench.views.values.paths import kernels_of
from tgbench.views.values.search import optimize_async

pytest.importorskip("anywidget")

from tgbench.views import explore
from tgbench.views.panels.scripts import folder, module

NAMESPACE = "http://www.w3.org/2000/svg"  # a name, and never fetched
PLAN = DATA / "decode.plan.json"
PATIENCE_S = 60.0


def session_of() -> tg.GraphSession:
    g = tg.GraphBuilder()
    x = g.input("x", (8, 4))
    up = g.name(tg.ops.tanh(x), "up")
    g.output("y", tg.ops.softmax(up @ g.parameter("w", (4, 8)) @ up))
    session = tg.GraphSession(g.build(), weights={"w": np.ones((4, 8), np.float32)})
    for row in range(3):
        run(session, row)
    return session


def run(session: tg.GraphSession, row: int) -> None:
    value = np.zeros((8, 4), np.float32)
    value[row] = row + 1
    session.run({"x": value}, want={"y": np.s_[row]})


def seen(screen: Any, panel: str) -> dict[str, Any]:
    """What a panel is given: its columns, and small values as `facts`."""
    data = getattr(screen, panel)
    found = unpack(data) if data else {}
    return {**found, "facts": json.loads(found["facts"][0])} if found else {}


def heard(screen: Any, what: str, **request: Any) -> Any:
    """What the screen answers to its script."""
    sent: list[Any] = []
    screen.send = lambda message, buffers=None: sent.append(message)
    screen._handle_custom_msg({"ask": 7, "what": what, "with": request}, [])
    (reply,) = sent
    return reply.get("answer", reply.get("error"))


def alone(call: Any) -> None:
    """In a thread of its own: a browser that another test left open has a loop in this one."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(call).result()


# --- scripts --------------------------------------------------------------------------------------


def test_a_module_holds_what_it_imports_and_imports_nothing() -> None:
    for path in sorted(folder().glob("*.js")):
        text = module(path.name)
        assert not re.search(r"^import ", text, re.MULTILINE), path.name
        assert len(re.findall(r"^export default ", text, re.MULTILINE)) <= 1, path.name
        declared = re.findall(r"^(?:let|class|async function|function) (\w+)", text, re.M)
        for line in re.findall(r"^const .*", text, re.M):
            declared += re.findall(r"(?:^const |, )(\w+) = ", line.split("=>")[0])
        assert len(declared) == len(set(declared)), f"{path.name}: a name stands for two things"


def test_a_script_hands_over_what_it_shows_once() -> None:
    """As its default: anywidget warns of a `render` of its own beside that."""
    assert "export default {" in module("screen.js")
    assert not re.search(r"^export (async )?function render", module("screen.js"), re.MULTILINE)


def test_scripts_and_styles_use_no_network() -> None:
    for path in [*folder().glob("*.js"), *folder().glob("*.css")]:
        text = path.read_text().replace(NAMESPACE, "")
        assert "http" not in text, path.name
        assert "innerHTML" not in path.read_text(), path.name


def test_an_unknown_view_is_an_attribute_error() -> None:
    import tgbench.views

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tgbench.views.Nothing


# --- one selection --------------------------------------------------------------------------------


def test_what_is_chosen_reaches_the_panels_that_hear_it() -> None:
    screen = session_of().explore()
    assert seen(screen, "inspector")["facts"]["overview"][0] == ["last run", "edit 2 of 8 in x", ""]
    before = {name: getattr(screen, name) for name in PARTS}
    screen.selected = ["up"]
    found = seen(screen, "inspector")
    assert found["facts"]["node"] == "up"
    assert found["facts"]["why"]
    assert {name for name in PARTS if getattr(screen, name) != before[name]} == {"inspector"}
    first = str(screen.subject.plan.buckets and list(screen.subject.classes())[-1])
    screen.bucket = first
    assert seen(screen, "fates")["facts"]["bucket"] == first
    assert seen(screen, "classes")["facts"]["at_hand"] == first
    assert seen(screen, "inspector")["facts"]["bucket"] == first


def test_the_kernel_that_computed_a_node_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first of those that could have: operands of a program may lie otherwise."""
    session = session_of()
    name = next(n.name for n in session.graph.nodes if n.op in ("linear", "matmul"))
    (made,) = (one for one in session.last.program.instructions if one.node.name == name)

    def others_first(*asked: Any) -> Any:
        found = kernels_of(*asked)
        ways = sorted(found.alternatives, key=lambda way: way.name == made.kernel)
        return replace(found, alternatives=tuple(ways))

    monkeypatch.setattr("tgbench.views.panels.parts.kernels_of", others_first)
    screen = session.explore()
    screen.selected = [name]
    kernels = seen(screen, "inspector")["facts"]["kernels"]
    assert len(kernels) > 1
    assert [kernel for kernel, _, source in kernels if "✓" in source] == [made.kernel]


def test_every_class_can_be_chosen_whether_the_plan_is_for_it_or_not() -> None:
    """Only seen, only planned, or of one input alone: none leaves the panels on the old one."""
    session = session_of()
    value = np.ones((8, 4), np.float32)
    session.run({"x": value}, want={"y": np.s_[2:5]})
    screen = session.explore()
    for name in (*screen.subject.classes(), *screen.subject.alone()):
        screen.bucket = name
        found = seen(screen, "fates")
        assert found["facts"]["bucket"] == name
        assert found["name"], name
        screen.selected = ["up"]
        assert seen(screen, "inspector")["facts"]["bucket"] == name


def test_chosen_rectangles_are_rows() -> None:
    screen = session_of().explore()
    screen.selected = ["up", "y"]
    frame = screen.to_frame()
    assert set(frame.node) <= {"up", "y"}
    assert list(frame.columns)[:4] == ["node", "kind", "offset_bytes", "size_bytes"]
    assert set(frame.fate) <= {"extended", "recomputed", "reused"}
    screen.selected = []
    assert screen.to_frame().empty


def test_questions_are_answered_or_refused() -> None:
    alone_ = explore(PLAN)
    assert heard(alone_, "move", node="logits", offset_bytes=0) == (
        "this is a plan alone; pass a session, or the plan's graph"
    )
    assert "is not one of move, pin" in heard(alone_, "__init__")
    assert "no session to steer" in heard(alone_, "start")
    assert "nothing is proposed" in heard(session_of().explore(), "use")


# --- in force, and proposed -----------------------------------------------------------------------


def test_a_change_by_hand_is_proposed_and_then_used() -> None:
    session = session_of()
    screen = session.explore()
    assert "up" in session.plan.retained
    assert heard(screen, "drop", node="up")["is_valid"]
    header = seen(screen, "header")["facts"]
    assert header["state"] == "changed by hand"
    assert header["faster"].startswith("+")
    assert "up" in session.plan.retained, "nothing is in force that was only proposed"
    assert "up" in seen(screen, "memory")["ghost"]
    assert any(row[2] == "up" for row in seen(screen, "compare")["facts"]["rows"])
    assert heard(screen, "use").startswith("in force")
    assert "up" not in session.plan.retained
    assert seen(screen, "header")["facts"]["state"] == "in force"
    assert not seen(screen, "compare")
    other = session_of()
    exec(heard(screen, "code"), {"session": other})
    assert other.plan.slots == session.plan.slots


def test_a_change_is_told_against_what_is_replayed_with_it() -> None:
    """What a plan expected when it was made is of another clock."""
    session = session_of()
    screen = session.explore()
    screen.subject.plan = replace(session.plan, expected_ns=1e9)
    screen.selected = ["up"]
    assert seen(screen, "inspector")["facts"]["of"] == ""
    words = heard(screen, "drop", node="up")["words"]
    verdict = screen.subject.proposal.what.verdict()
    slower = format_time(verdict.expected_ns - verdict.before_ns)
    assert seen(screen, "header")["facts"]["faster"] == f"+{slower}"
    assert seen(screen, "frontier")["facts"]["now"][1] == verdict.before_ns, "the chart, too"
    before = f"{format_time(verdict.before_ns)}"
    assert words.endswith(f"{before} before")
    assert seen(screen, "compare")["facts"]["sides"][0][1] == before
    assert seen(screen, "inspector")["facts"]["of"] == ", of the plan in force"


def test_a_plan_that_was_used_is_undone() -> None:
    """As long as nothing else is put in force; the code of it goes, too."""
    session = session_of()
    screen = session.explore()
    before, budget = session.plan, session.budget_bytes
    assert not seen(screen, "header")["facts"]["can_undo"]
    assert heard(screen, "drop", node="up")["is_valid"]
    heard(screen, "use")
    assert seen(screen, "header")["facts"]["can_undo"]
    assert heard(screen, "undo").startswith("in force again")
    assert session.plan.slots == before.slots
    assert session.budget_bytes == budget
    assert "WhatIf" not in heard(screen, "code")
    assert not seen(screen, "header")["facts"]["can_undo"]
    assert heard(screen, "drop", node="up")["is_valid"]
    heard(screen, "use")
    session.optimize("greedy")
    screen.refresh()
    assert not seen(screen, "header")["facts"]["can_undo"], "another cell planned since"


def test_undone_changes_propose_nothing() -> None:
    screen = session_of().explore()
    assert "nothing was changed yet" in heard(screen, "undo")
    assert heard(screen, "drop", node="up")["is_valid"]
    assert heard(screen, "undo")["is_valid"]
    assert screen.subject.proposal is None


def test_a_map_that_is_not_valid_leaves_all_as_it_was() -> None:
    screen = session_of().explore()
    before = screen.memory
    slots = [slot for slot in screen.subject.plan.slots if slot.node != "x"]
    verdict = heard(screen, "move", node=slots[0].node, offset_bytes=0)
    assert not verdict["is_valid"]
    assert "live at once" in verdict["words"]
    assert screen.memory == before


def test_a_plan_that_no_search_weighed_is_told_from_those_that_searches_replayed() -> None:
    """Their times are means of other runs, and stand on one chart."""
    screen = busy_session().explore()
    facts = seen(screen, "header")["facts"]
    assert (facts["gap"], facts["is_unsearched"]) == ("not searched", True)
    assert seen(screen, "frontier")["facts"]["is_unsearched"]
    screen.session.optimize("search", steps=8)
    again = screen.session.explore()
    assert not seen(again, "frontier")["facts"]["is_unsearched"]
    assert seen(again, "header")["facts"]["gap"] != "not searched"


def test_every_point_of_the_frontier_opens_its_plan() -> None:
    session = busy_session()
    screen = session.explore()
    screen._told(curve(session, steps=4))
    points = screen.subject.curve.points
    assert len(seen(screen, "frontier")["point_size"]) == len(points)
    assert heard(screen, "point", number=0).startswith("proposed: the plan for ")
    assert screen.subject.shown == points[0].plan
    assert seen(screen, "header")["facts"]["size"] == size_words(points[0].plan)
    heard(screen, "use")
    assert session.plan.slots == points[0].plan.slots
    assert "no point 99" in heard(screen, "point", number=99)


def test_what_stands_on_older_measurements_is_told() -> None:
    """Points, the bound and the search beside a plan that is made with more of them."""
    session = busy_session()
    session.optimize("search", steps=8)
    screen = session.explore()
    screen._told(curve(session, steps=1))
    found = seen(screen, "frontier")
    assert not found["point_old"].any()
    assert found["facts"]["bound"] > 0
    assert found["facts"]["greedy"] == [session.budget_bytes, session.plan.search.greedy_ns]
    newer = replace(session.plan, search=None, records="1,999,999 measurements 0123456789ab")
    screen.subject.plan = newer
    screen.tell("plan")
    found = seen(screen, "frontier")
    assert found["point_old"].all()
    assert found["facts"]["greedy"] is None


def test_a_greedy_plan_is_no_line_beside_itself() -> None:
    session = busy_session()
    session.optimize("greedy")
    assert seen(session.explore(), "frontier")["facts"]["greedy"] is None


def test_what_is_known_to_be_impossible_is_not_searched() -> None:
    session = busy_session()
    screen = session.explore()
    screen._told(curve(session, steps=1))
    refused, before = screen.subject.curve.refused_bytes, session.budget_bytes
    assert 0 < refused < screen.subject.curve.least_bytes <= 1.07 * refused
    assert "is the least that was found to work" in heard(screen, "budget", bytes=refused)
    assert screen.search is None
    assert session.budget_bytes == before


def test_runs_and_plans_of_other_cells_are_seen() -> None:
    session = session_of()
    screen = session.explore()
    program, memory = screen.program, screen.memory
    run(session, 5)
    screen.refresh()
    assert screen.program != program
    assert screen.memory == memory
    heard(screen, "drop", node="up")
    session.optimize(steps=1, budget=session.plan.size_bytes + 64)
    screen.refresh()
    assert screen.subject.proposal is None
    assert screen.subject.plan == session.plan
    assert seen(screen, "memory")["facts"]["size_bytes"] == session.plan.size_bytes


@pytest.mark.usefixtures("forked")
def test_a_search_shows_its_windows_and_candidates_and_stays_in_the_code() -> None:
    session = busy_session()

    async def notebook() -> Any:
        screen = session.explore(seconds=PATIENCE_S)
        heard(screen, "start")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not screen.search.windows:
            await asyncio.sleep(0.02)
        heard(screen, "stop")
        screen.search.close()
        return screen

    made: list[Any] = []
    alone(lambda: made.append(asyncio.run(notebook())))
    (screen,) = made
    found = seen(screen, "frontier")
    ends, values = found["window_end"].tolist(), found["window_value"]
    assert ends == sorted(ends)
    assert len(ends) == len(found["window_words"]) == len(found["window_gain"]) > 0
    assert (found["window_gain"] >= 0).all()
    for begin, end in pairwise([0, *ends]):
        assert values[begin:end].tolist() == sorted(set(values[begin:end].tolist()))
        assert {found["value_name"][i] for i in values[begin:end]} <= {
            node.name for node in session.graph.nodes
        }
    assert sorted(found["try_time"]) == found["try_time"].tolist()
    assert min(found["try_time"]) == pytest.approx(session.plan.expected_ns)
    assert found["phase"][-1] == "search"
    assert heard(screen, "candidate", number=0) == "proposed: candidate 0"
    assert screen.subject.shown.expected_ns == pytest.approx(found["try_time"][0])
    heard(screen, "dismiss")
    assert "session.optimize('search'" in screen.code()
    screen.use(screen.subject.shown)
    assert "session.optimize('search'" in screen.code(), "another plan does not forget it"


def test_the_mean_of_a_class_is_of_all_its_runs() -> None:
    """The first run of a session follows none, and counts."""
    session = session_of()
    session.run({"x": np.ones((8, 4), np.float32)})
    found = seen(session.explore(), "classes")
    told = session.trace.classes(session.graph).set_index("class")
    assert len(found["class"]) == len(told) > 1
    assert sum(found["times"]) == len(session.trace)
    for kind, mean in zip(found["class"], found["class_mean"], strict=True):
        assert mean / 1e6 == pytest.approx(told.mean_ms[kind])
    once = chain(("tanh",))
    once.run({"x": np.ones((8, 4), np.float32)})
    (mean,) = seen(once.explore(), "classes")["class_mean"]
    assert mean == once.trace.calls[0].duration_ns > 0
    assert not len(seen(explore(session.plan), "classes")["class_mean"]), "a plan times no class"


def chain(names: tuple[str, ...]) -> tg.GraphSession:
    g = tg.GraphBuilder()
    x = g.input("x", (8, 4))
    for name in names:
        x = g.apply(name, x)
    g.output("y", x)
    return tg.GraphSession(g.build())


def test_where_nothing_spreads_it_says_why() -> None:
    session, x = chain(("tanh", "exp")), np.zeros((8, 4), np.float32)

    def told() -> str:
        rows = seen(session.explore(), "inspector")["facts"]["overview"]
        return next(words for what, words, _ in rows if what == "spreads at")

    session.run({"x": x})
    assert told() == "nowhere: what is new is new as a whole from the start"
    session.run({"x": x + (np.arange(8) == 2).astype(np.float32)[:, None]})
    assert told() == "nowhere: each node changed in part"
    session.run({})
    assert told() == "nowhere: nothing changed"


def test_where_a_part_of_what_is_new_is_whole_it_says_so() -> None:
    g = tg.GraphBuilder()
    x, z = g.input("x", (8, 4)), g.input("z", (8, 4))
    g.output("y", tg.ops.tanh(x))
    g.output("u", tg.ops.tanh(z))
    session, x_value = tg.GraphSession(g.build()), np.zeros((8, 4), np.float32)
    session.run({"x": x_value, "z": x_value})
    part = x_value.copy()
    part[2] = 1
    session.run({"x": part, "z": x_value + 1})
    rows = seen(session.explore(), "inspector")["facts"]["overview"]
    (words,) = [words for what, words, _ in rows if what == "spreads at"]
    assert words == "nowhere: only what changed as a whole changed a node as a whole"


def test_a_released_session_has_no_plan_in_force() -> None:
    session = session_of()
    screen = session.explore()
    session.release()
    screen.refresh()
    assert not session.is_planned
    header = seen(screen, "header")["facts"]
    assert [header["state"], header["time"], header["size"]] == ["no plan in force", "", ""]
    assert not seen(screen, "memory")
    assert not seen(screen, "program")
    assert seen(screen, "classes")["class"], "what ran is still told"
    screen.selected = ["up"]
    assert not seen(screen, "inspector")
    assert "no plan" in heard(screen, "json")
    run(session, 1)
    screen.refresh()
    assert seen(screen, "header")["facts"]["state"] == "in force"
    assert seen(screen, "memory")["name"]


def test_a_plan_that_was_proposed_is_put_in_force_after_a_release() -> None:
    session = session_of()
    screen = session.explore()
    screen._told(curve(session, [session.plan.size_bytes]))
    session.release()
    screen.refresh()
    assert heard(screen, "point", number=0).startswith("proposed")
    assert heard(screen, "use").startswith("in force")
    assert session.is_planned
    assert seen(screen, "header")["facts"]["state"] == "in force"


# --- plans alone, pages, exported notebooks -------------------------------------------------------


def test_a_plan_opens_without_its_model() -> None:
    screen = explore(PLAN)
    data, _ = screen._repr_mimebundle_()
    assert data["image/svg+xml"].startswith("<svg")
    assert "graph" not in screen.panels
    assert seen(screen, "memory")["facts"]["is_bound"]
    assert screen.table["rows"]
    with pytest.raises(PlanError, match=r"none\.json"):
        explore(DATA / "none.json")
    assert tg.Plan.from_json(heard(screen, "json")["text"]) == tg.Plan.load(PLAN)


def test_two_plans_lie_side_by_side() -> None:
    session = session_of()
    before = session.plan
    after = tg.WhatIf.of(session).dropped("up").plan
    screen = explore(before, session.graph, against=after)
    found = seen(screen, "compare")
    assert {"before_offset", "after_offset"} <= set(found)
    rows = differences(before, after)
    assert any(row[0] == "− kept" and row[2] == "up" for row in rows)
    costs = [float(row[3]) for row in rows]
    assert costs == sorted(costs, reverse=True)
    assert differences(before, before) == []


def planned(graph: tg.Graph) -> tg.Plan:
    ones = {n: np.ones(p.shape, np.float32) for n, p in graph.parameters.items()}
    session = tg.GraphSession(graph, ones, calibrate=False)
    session.run({name: np.ones(i.shape, np.float32) for name, i in graph.inputs.items()})
    return session.plan


def layers(rows: int, count: int = 2, op: str = "matmul") -> tg.Graph:
    g = tg.GraphBuilder()
    x = g.input("x", (rows, 4))
    for i in range(count):
        with g.scope(f"layer_{i}"):
            weight = g.parameter(f"w{i}", (4, 4))
            x = g.name(x @ weight if op == "matmul" else tg.ops.softmax(x), op)
    g.output("y", x)
    return g.build()


def test_plans_of_one_model_lie_side_by_side_and_those_of_others_do_not() -> None:
    """With more tokens and with more layers it is the same model, also along a path."""
    plan = planned(layers(8))
    along = PlanPath(plan.graph, "", ())
    others = [planned(layers(16)), planned(layers(8, 4)), replace(plan, graph="5" * 64, path=along)]
    for other in others:
        assert seen(explore(plan, against=other), "compare")
        assert '"compare":""' not in page(plan, against=other)
    for shown in (explore, page):
        with pytest.raises(PlanError, match="the other plan: a plan of another model: it is of i"):
            shown(plan, against=tg.Plan.load(PLAN))
        with pytest.raises(PlanError, match=r"of its .* values have the names of this one's"):
            shown(plan, against=planned(layers(8, op="softmax")))
        with pytest.raises(PlanError, match=r"decode\.plan\.json: a plan of another model"):
            shown(plan, against=PLAN)


def test_nothing_ran_yet() -> None:
    g = tg.GraphBuilder()
    g.output("y", tg.ops.exp(g.input("x", (2,))))
    with pytest.raises(PlanError, match="nothing is planned yet"):
        tg.GraphSession(g.build()).explore()


def test_a_page_needs_no_server() -> None:
    text = page(PLAN)
    HTMLParser().feed(text)
    assert "http" not in text.replace(NAMESPACE, "")
    (written,) = re.findall(r'id="written">(.*)</script>', text)
    found = json.loads(written)
    plan = tg.Plan.load(PLAN)
    assert set(found["nodes"]) == {"", *(slot.node for slot in plan.slots)}
    assert len(found["classes"]) == len(plan.buckets)
    assert {"header", "memory", "fates", "frontier", "inspector"} <= set(found["state"]["panels"])
    assert not re.search(r"^import |^export default", text, re.MULTILINE)
    (title,) = re.findall("<title>(.*)</title>", text)
    assert title == "tgbench: 23.6 µs a run in 80.56 KiB", "a tab shows no more"


def test_a_plan_alone_does_not_say_that_nothing_is_computed() -> None:
    session = session_of()
    screen = explore(session.plan)
    screen.selected = [session.plan.retained[0]]
    fates = [fate for _, _, fate in seen(screen, "inspector")["facts"]["fates"]]
    assert set(fates) <= {"reused, or computed again", "destroyed"}
    assert "reused, or computed again" in fates


def test_a_plan_alone_is_in_force_nowhere() -> None:
    session = session_of()
    for shown in (PLAN, session.plan):
        screen = explore(shown)
        assert seen(screen, "header")["facts"]["state"] == "a plan alone"
        assert seen(screen, "frontier")["facts"]["now_words"] == "this plan"
    screen = explore(session.plan, session.graph, against=session.plan)
    assert seen(screen, "compare")["facts"]["sides"][0][0] == "this plan"
    assert seen(screen, "memory")["facts"]["ghost_words"] == "this plan"
    assert heard(screen, "dismiss") == "this plan again"
    (written,) = re.findall(r'id="written">(.*)</script>', page(PLAN, against=PLAN))
    for name, text in json.loads(written)["state"]["buffers"].items():
        assert b"in force" not in base64.b64decode(text), name


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda s: curve(s, []), r"budgets=\[\] names no budget; pass some numbers of bytes"),
        (lambda s: curve(s, 5), r"budgets=5 names no budget"),
        (lambda s: curve(s, "1MiB"), r"budgets='1MiB' names no budget"),
        (lambda s: curve(s, [None]), r"a budget=None is not an integer"),
        (lambda s: curve(s, ["1MiB"]), r"a budget='1MiB' is not an integer of at least 1"),
        (lambda s: s.explore(panels=("foo",)), r"panel='foo' is not known; use one of header, mem"),
        (lambda s: s.explore(panels="memory"), r"pass one, as \['memory'\]"),
        (lambda s: s.explore(panels=5), r"panels=5 is no list"),
        (lambda s: explore(None), r"None cannot be shown; pass a session, a plan or its file"),
        (lambda s: explore(s.plan, 5), r"graph=5 is no Graph"),
        (lambda s: explore(s.plan, against=s.graph), r"there is no plan in it"),
        (lambda s: page(None), r"None cannot be shown"),
        (lambda s: page(s.graph), r"there is no plan in it"),
        (lambda s: page(s.plan, against=5), r"5 cannot be shown"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(call: Any, told: str) -> None:
    with pytest.raises((PlanError, WidgetError), match=told):
        call(session_of())


def test_an_exported_notebook_has_the_picture() -> None:
    """Offline, with no widget state, as nbconvert writes it."""
    nbformat = pytest.importorskip("nbformat")
    exporters = pytest.importorskip("nbconvert").exporters
    data, metadata = explore(PLAN)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    shown = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[shown])])
    found, _ = exporters.HTMLExporter().from_notebook_node(notebook)
    assert "data:image/svg+xml;base64," in found
    assert len(data["image/svg+xml"]) < 100_000


def test_graphs_plans_and_searches_are_live_where_a_kernel_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = session_of()
    made: list[Any] = []
    alone(lambda: made.append(asyncio.run(begun(busy_session()))))
    for shown in (session.graph, session.plan, *made):
        still = shown._repr_mimebundle_()
        assert ("image/svg+xml" in still) == (shown not in made), "a search without a plan is words"
        with monkeypatch.context() as patched:
            patched.setattr(show, "_has_kernel", lambda: True)
            data, _ = shown._repr_mimebundle_()
        assert "application/vnd.jupyter.widget-view+json" in data
        assert still.items() <= data.items()


async def begun(session: tg.GraphSession) -> Any:
    search = optimize_async(session, steps=1)
    search.close()
    return search
