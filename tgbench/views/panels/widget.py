"""The base of every interactive view: small synced state, bulk data as one buffer, one selection.

    Python                                   browser
    Panel.data (columns, bytes)  ───────→     draws
    Panel.selected, step, bucket ←──────→     clicks, keys
    Panel.answers[what](request) ←── ask ──   "what if?"; the reply goes back

JavaScript draws and Python decides. Scripts are plain ES modules of the folder `widgets/` (in an
installed package, `tgbench/_widgets/`); nothing comes from a network. Beside the widget stands a
static form that needs no script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from tgbench.base.errors import TgbenchError, WidgetError

try:
    import anywidget
    import traitlets
except ModuleNotFoundError as error:
    raise WidgetError(
        f"interactive views need {error.name}; install them with: pip install 'tgbench[lab]'"
    ) from error

PACKAGED = Path(__file__).parents[2] / "_widgets"
CHECKOUT = Path(__file__).parents[3] / "widgets"
MOST_ROWS = 400  # of the text alternative
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(\w+\.js)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:const|let|function|class|async) )", re.MULTILINE)


def folder() -> Path:
    """Where the scripts are; raises WidgetError if the package came without them."""
    for place in (PACKAGED, CHECKOUT):
        if (place / "common.js").exists():
            return place
    raise WidgetError(f"the scripts of the views are missing in {PACKAGED}; install tgbench again")


@cache
def module(name: str) -> str:
    """One ES module without imports: a script with those that it imports written before it.

    Shared scripts import by `import { … } from "./name.js";` on one line, and every name at the top
    level of one stands for the same thing in all.
    """
    found: list[str] = []
    _collect(name, found)
    parts = [(folder() / part).read_text(encoding="utf-8") for part in found]
    last = IMPORT.sub("", parts[-1])
    return "\n".join([*(EXPORT.sub("", IMPORT.sub("", part)) for part in parts[:-1]), last])


def _collect(name: str, found: list[str]) -> None:
    """Append a script's imports, then the script."""
    if name not in found:
        for wanted in IMPORT.findall((folder() / name).read_text(encoding="utf-8")):
            _collect(wanted, found)
        found.append(name)


class Selection(traitlets.HasTraits):  # type: ignore[misc, unused-ignore]
    """What is chosen, shared by all views that link to it.

    Traits:
        nodes: names of the chosen nodes.
        step: a schedule step, or −1.
        bucket: a bucket class in words, or "".
    """

    nodes: Any = traitlets.List(traitlets.Unicode())
    step: Any = traitlets.Int(-1)
    bucket: Any = traitlets.Unicode("")


class Panel(anywidget.AnyWidget):  # type: ignore[misc, unused-ignore]
    """A widget over one payload; subclasses name a script and give `answers`.

    Args:
        selection: what other views share; None for one of its own.

    Traits:
        data: columns (`views.columns.pack`).
        facts: small values beside them.
        label: what a screen reader says first.
        table: {"header": […], "rows": [[…], …]}, the text alternative.
        selected, step, bucket: as in `Selection`, and linked to it.
        remark: a line below the picture, as Python puts it.
    """

    script: ClassVar[str] = ""
    answers: ClassVar[Mapping[str, str]] = {}  # what a script may ask → name of the method

    data: Any = traitlets.Bytes(b"").tag(sync=True)
    facts: Any = traitlets.Dict().tag(sync=True)
    label: Any = traitlets.Unicode("").tag(sync=True)
    table: Any = traitlets.Dict().tag(sync=True)
    selected: Any = traitlets.List(traitlets.Unicode()).tag(sync=True)
    step: Any = traitlets.Int(-1).tag(sync=True)
    bucket: Any = traitlets.Unicode("").tag(sync=True)
    remark: Any = traitlets.Unicode("").tag(sync=True)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        if "script" in cls.__dict__:
            cls._esm = module(cls.script)
            cls._css = (folder() / "widget.css").read_text(encoding="utf-8")
        super().__init_subclass__(**kwargs)

    def __init__(self, selection: Selection | None = None, **state: Any) -> None:
        super().__init__(**state)
        self.selection = selection if selection is not None else Selection()
        for mine, shared in (("selected", "nodes"), ("step", "step"), ("bucket", "bucket")):
            traitlets.link((self.selection, shared), (self, mine))
        self.on_msg(self._asked)

    # --- questions from the script ---------------------------------------------------------------

    def _asked(self, _: Any, content: Any, buffers: Any) -> None:
        """Answer one question; a fault that tgbench foresees is an answer too."""
        number = content.get("ask") if isinstance(content, dict) else None
        if not isinstance(number, int):
            return
        try:
            answer = self._method(content.get("what"))(content.get("with") or {})
            self.send({"reply": number, "answer": answer})
        except (TgbenchError, KeyError, TypeError, ValueError) as error:
            self.send({"reply": number, "error": str(error)})

    def _method(self, what: Any) -> Callable[[Mapping[str, Any]], Any]:
        if what not in self.answers:
            raise WidgetError(f"{what!r} is not one of {', '.join(self.answers) or 'no questions'}")
        found: Callable[[Mapping[str, Any]], Any] = getattr(self, self.answers[what])
        return found

    # --- without a script ------------------------------------------------------------------------

    def static(self) -> dict[str, str]:
        """What stands where no script runs: text by MIME type."""
        return {"text/html": table_html(self.label, self.table), "text/plain": self.label}

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, and its static form beside it for exported notebooks."""
        found = super()._repr_mimebundle_(**kwargs)
        data, metadata = found if isinstance(found, tuple) else (found or {}, {})
        return {**data, **self.static()}, metadata

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.label}>"


def table_html(caption: str, table: Mapping[str, Sequence[Any]]) -> str:
    """A table as HTML, everything escaped.

    >>> table_html("sizes", {"header": ["node"], "rows": [["<b>"]]})
    '<table><caption>sizes</caption><tr><th>node</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    rows = [("th", table.get("header", ())), *(("td", row) for row in table.get("rows", ()))]
    lines = (
        "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in row) for tag, row in rows if row
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"
