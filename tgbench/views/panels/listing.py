"""Names in a list: the smallest view, and a second one to link a selection to."""

from __future__ import annotations

from collections.abc import Sequence

from tgbench.base.words import counted
from tgbench.views.draw.columns import pack
from tgbench.views.panels.widget import MOST_ROWS, Panel, Selection


class Listing(Panel):
    """Names; a click selects one in every view of the same selection."""

    script = "listing.js"

    def __init__(self, names: Sequence[str], selection: Selection | None = None) -> None:
        super().__init__(
            selection,
            data=pack({"name": list(names)}),
            label=f"{counted(len(names), 'name')}",
            table={"header": ["name"], "rows": [[name] for name in names[:MOST_ROWS]]},
        )
