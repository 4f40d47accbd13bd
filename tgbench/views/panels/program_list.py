"""The interactive program: its calls in order, with what each is expected to take."""

from __future__ import annotations

from typing import Any

from tgbench.session.session import GraphSession
from tgbench.views.draw.columns import pack
from tgbench.views.panels.widget import MOST_ROWS, Panel, Selection
from tgbench.views.values.programs import ProgramLines, listing_of_session


class ProgramList(Panel):
    """A program's calls; a click chooses the node that a call computes.

    Args:
        shown: a session, whose last program it is, or a payload (`views.programs.listing`).
    """

    script = "program_list.js"

    def __init__(
        self, shown: GraphSession | ProgramLines, selection: Selection | None = None
    ) -> None:
        self._session = shown if isinstance(shown, GraphSession) else None
        self.listing = shown if isinstance(shown, ProgramLines) else listing_of_session(shown)
        super().__init__(selection, **_state(self.listing))

    def refresh(self) -> None:
        """The session ran again: show its last program."""
        if self._session is not None:
            self.listing = listing_of_session(self._session)
            with self.hold_sync():
                for name, value in _state(self.listing).items():
                    setattr(self, name, value)

    def static(self) -> dict[str, str]:
        return self.listing.table().bundle()


def _state(shown: ProgramLines) -> dict[str, Any]:
    table = shown.table()
    return {
        "data": pack(shown.columns()),
        "facts": {"title": shown.title, "expected": shown.expected_ns},
        "label": str(shown),
        "table": {"header": list(table.header), "rows": [list(r) for r in table.rows[:MOST_ROWS]]},
    }
