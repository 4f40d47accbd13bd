"""Widgets without a browser: scripts, questions, selection, static forms, missing packages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import tgbench

ROOT = Path(tgbench.__file__).parents[1]
NAMESPACE = "http://www.w3.org/2000/svg"  # a name, and never fetched
PLAN = ROOT / "data" / "decode.plan.json"


def test_an_unknown_view_is_an_attribute_error() -> None:
    import tgbench.views

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tgbench.views.Nothing


@pytest.fixture(scope="module")
def views() -> Any:
    pytest.importorskip("anywidget")
    import tgbench.views

    return tgbench.views


def test_a_module_holds_what_it_imports_and_imports_nothing(views: Any) -> None:
    from tgbench.views.panels.widget import folder, module

    for path in sorted(folder().glob("*.js")):
        text = module(path.name)
        assert not re.search(r"^import ", text, re.MULTILINE), path.name
        assert len(re.findall(r"^export default ", text, re.MULTILINE)) <= 1, path.name
        declared = re.findall(r"^(?:const|let|class|async function|function) (\w+)", text, re.M)
        assert len(declared) == len(set(declared)), f"{path.name}: a name stands for two things"


def test_scripts_and_styles_use_no_network(views: Any) -> None:
    from tgbench.views.panels.widget import folder

    for path in [*folder().glob("*.js"), *folder().glob("*.css")]:
        text = path.read_text().replace(NAMESPACE, "")
        assert "http" not in text, path.name
        assert "innerHTML" not in path.read_text(), path.name


def test_one_selection_for_all_views(views: Any) -> None:
    selection = views.Selection()
    timeline = views.MemoryTimeline(PLAN, selection=selection)
    listing = views.Listing(["layer_0.k"], selection)
    listing.selected = ["layer_0.k"]
    timeline.step = 3
    assert timeline.selected == selection.nodes == ["layer_0.k"]
    assert listing.step == selection.step == 3


def heard(widget: Any, content: Any) -> list[Any]:
    """What a widget sends when it hears a message."""
    sent: list[Any] = []
    widget.send = lambda message, buffers=None: sent.append(message)
    widget._handle_custom_msg(content, [])
    return sent


def test_questions_are_answered_or_refused(views: Any) -> None:
    timeline = views.MemoryTimeline(PLAN)
    ask = {"ask": 7, "what": "move", "with": {"node": "logits", "offset_bytes": 0}}
    assert heard(timeline, ask) == [
        {"reply": 7, "error": "this view has a plan alone; pass a session, or the plan's graph"}
    ]
    assert "is not one of move, pin" in heard(timeline, {"ask": 8, "what": "__init__"})[0]["error"]
    assert heard(timeline, {"ask": "x"}) == heard(timeline, "hello") == []


def test_a_plan_opens_without_model_and_weights(views: Any) -> None:
    timeline = views.MemoryTimeline(str(PLAN))
    assert timeline.facts["is_bound"]
    assert not timeline.facts["can_change"]
    assert timeline.table["rows"]
    assert views.AliasMap(PLAN).facts["classes"] == []


def test_an_exported_notebook_has_the_picture(views: Any) -> None:
    """Offline, with no widget state, as nbconvert writes it."""
    nbformat = pytest.importorskip("nbformat")
    exporters = pytest.importorskip("nbconvert").exporters
    data, metadata = views.MemoryTimeline(PLAN)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    shown = nbformat.v4.new_output("display_data", data=data, metadata=metadata)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("", outputs=[shown])])
    page, _ = exporters.HTMLExporter().from_notebook_node(notebook)
    assert "data:image/svg+xml;base64," in page
    assert len(data["image/svg+xml"]) < 100_000


def test_a_table_stands_for_the_picture(views: Any) -> None:
    from tgbench.views.panels.widget import Panel

    shown = Panel(label="<l>", table={"header": ["<h>"], "rows": [["<c>"]]})
    assert shown.static()["text/html"] == (
        "<table><caption>&lt;l&gt;</caption><tr><th>&lt;h&gt;</th></tr>"
        "<tr><td>&lt;c&gt;</td></tr></table>"
    )
