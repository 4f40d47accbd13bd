"""The paths of a screen: found, looked at, more of them, measured, stopped, taken."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import numpy as np
import pytest
from plans.paths.test_chosen import LIMITS, inputs, session_of
from plans.paths.test_paths import layers

from tgbench.base import pace
from tgbench.base.errors import PlanError, WidgetError
from tgbench.costs.records import Records
from tgbench.session.paths import SessionPaths
from tgbench.views.draw.columns import unpack
from tgbench.views.panels import board as boards

pytest.importorskip("anywidget")

from tgbench.views import explore


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Any:
    """Of a session with few paths; what is measured goes into a database of its own."""
    of = SessionPaths.of
    monkeypatch.setattr(SessionPaths, "of", lambda *a, **k: of(*a, **k, limits=LIMITS))
    monkeypatch.setattr(boards, "MORE", 6)
    monkeypatch.setattr(boards, "users_records", lambda: Records(tmp_path / "records.db"))
    session = session_of(layers(1))
    values = inputs()
    for row in (0, 3, 5):
        values["x"] = values["x"].copy()
        values["x"][row] += 1
        session.run(values)
    return explore(session)


def shown(screen: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    columns = unpack(screen.paths)
    return columns, json.loads(columns["facts"][0])


def test_paths_are_found_looked_at_and_taken(screen: Any) -> None:
    assert "paths" in screen.panels
    assert not shown(screen)[1]["is_found"]
    with pytest.raises(WidgetError, match="find the ways"):
        screen._measure({})
    assert "graphs" in screen._ways({})
    columns, facts = shown(screen)
    assert len(columns["place"]) == 6
    assert facts["chosen"] == int(columns["place"][0])
    assert len(facts["lines"]) == 7  # the chosen one comes last, again
    assert facts["lines"][-1] == facts["lines"][0]
    screen._more_ways({})
    assert 6 < len(shown(screen)[0]["place"]) <= 12
    place = int(columns["place"][2])
    assert "→" in screen._way({"place": place})
    assert shown(screen)[1]["chosen"] == place
    before = screen.session.run({})["y"]
    assert screen._take({}).startswith("in force")
    with pytest.raises(PlanError, match="nothing has run since another path was taken; call `run`"):
        screen.session.report()
    assert shown(screen)[1]["in_force"] == place
    assert screen.subject.graph is screen.session.graph
    np.testing.assert_allclose(screen.session.run({})["y"], before, rtol=1e-4, atol=1e-5)
    assert f"graph_at({place})" in screen.code()
    with pytest.raises(WidgetError, match="no row"):
        screen._way({"place": 10**6})


def test_there_are_more_rows_until_it_says_that_there_are_none(
    screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where graphs that follow each other take the same time."""
    monkeypatch.setattr(boards, "LOOKED_AT", 1)
    screen._ways({})
    rows = len(shown(screen)[0]["place"])
    told = ""
    for _ in range(2_000):
        looked_at = screen.board.looked_at
        if shown(screen)[1]["is_all"]:
            break
        told = screen._more_ways({})
        assert screen.board.looked_at > looked_at
        now = len(shown(screen)[0]["place"])
        assert (now > rows) is told.endswith("more")
        rows = now
    assert shown(screen)[1]["is_all"]
    times = {round(path.time_ns, 1) for path in screen.board.known().paths.graphs()}
    assert rows == len(times)
    assert "these are all that were found" in screen._more_ways({}) == shown(screen)[1]["end"]


def test_what_is_measured_may_be_stopped(screen: Any) -> None:
    async def both() -> None:
        screen._ways({})
        await screen._working
        screen._measure({})
        with pytest.raises(WidgetError, match="measuring"):
            screen._measure({})
        screen._halt({})
        await screen._working

    asyncio.run(both())
    assert re.search(r"\d kernels? timed; (none|\d) of the first 6 paths timed", screen.remark)
    assert shown(screen)[1]["doing"] == ""
    told = screen.board.measure(lambda words: None)
    assert "stopped" not in told
    assert any(cell != "0%" for cell in screen.board.columns()["measured"])


def test_looking_for_paths_tells_how_far_it_is_and_may_be_stopped(
    screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "EVERY_S", 0.0)
    told = list[str]()
    screen.board.find(told.append)
    whats = dict.fromkeys(words.split(" ", 7)[-1] for words in told)
    assert [*whats] == [
        "forms found", "runs followed through them", "forms weighed", "choices put in order"
    ]  # fmt: skip
    screen.board.paths = None
    for when in (told[0], told[-1]):

        def stops_then(words: str, when: str = when) -> None:
            if words == when:
                screen.board.stop()

        assert screen.board.find(stops_then) == "stopped: no other ways are known yet"
        assert not shown(screen)[1]["is_found"]
    assert "graphs" in screen._ways({}), "it can be looked for again"


def test_what_is_stopped_while_paths_are_put_in_order_loses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pace, "EVERY_S", 0.0)
    session = session_of(layers(1))
    session.run(inputs())
    right = [path.time_ns for path in session.paths(limits=LIMITS).paths.first(20)]
    stops = [False]

    def progress(_done: int, _of: int, what: str) -> None:
        if what == "choices put in order" and stops[0]:
            stops[0] = False
            raise KeyboardInterrupt

    paths = session.paths(limits=LIMITS, progress=progress)
    stops[0] = True
    with pytest.raises(KeyboardInterrupt):
        paths.paths.first(20)
    assert [path.time_ns for path in paths.paths.first(20)] == right
    with pytest.raises(PlanError, match="progress"):
        session.paths(progress=1)


def test_who_listens_to_a_session_hears_how_far_its_paths_are() -> None:
    told = list[str]()
    session = session_of(layers(1), progress=told.append)
    session.run(inputs())
    told.clear()
    session.paths(limits=LIMITS).paths.first(1)
    assert any(words.startswith("looking for other ways: forms found ") for words in told)


def test_a_plan_alone_has_no_paths(screen: Any) -> None:
    other = explore(screen.session.plan, screen.session.graph)
    assert "paths" not in other.panels
    with pytest.raises(WidgetError, match="a plan alone"):
        other._ways({})
