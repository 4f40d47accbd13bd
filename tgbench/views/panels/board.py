"""The paths of a session as the screen has them: a table that grows, one chosen, some measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from tgbench.base.errors import WidgetError
from tgbench.base.words import counted, format_time
from tgbench.costs.users_records import users_records
from tgbench.plans.paths.paths import Path
from tgbench.session.paths import SessionPaths
from tgbench.views.values.ways import PathMap, row, summary

if TYPE_CHECKING:
    from tgbench.session.session import GraphSession

MORE = 50  # rows that are added when the table is scrolled to its end, paths of a sweep
LOOKED_AT = 20  # graphs for a row more, as many take the same time
DRAWN = 12  # paths on the map
THROUGHOUT = "timed throughout"  # and not in part, as the table tells of each
LOOKING = "looking for other ways"
COLUMNS = ("place", "time", "more", "measured", "calls", "kept", "by")


def _unheard(words: str) -> None:
    """Nobody waits for what is under way."""


@dataclass
class PathsBoard:
    """See the module's first line.

    Fields:
        paths: None until somebody asked for them.
        found: the first graphs that differ in time, by their places.
        looked_at: how many graphs these are the first of.
        is_all: whether there are no graphs besides.
        chosen: one of these places.
        doing: what is under way, in words.
    """

    session: GraphSession
    paths: SessionPaths | None = None
    found: dict[int, Path] = field(default_factory=dict)
    looked_at: int = 0
    is_all: bool = False
    chosen: int = 0
    doing: str = ""
    _rows: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _stop: Event = field(default_factory=Event)
    _tell: Callable[[str], None] = _unheard

    def known(self) -> SessionPaths:
        """Raises WidgetError before anybody looked for them."""
        if self.paths is None:
            raise WidgetError("nobody looked for other ways yet; press “find the ways” first")
        return self.paths

    def find(self, tell: Callable[[str], None] = _unheard) -> str:
        """Look for them, until the first rows are found or `stop`."""
        with self._telling(tell):
            try:
                self._find()
            except KeyboardInterrupt:
                return "stopped: no other ways are known yet"
        return summary(self.known())

    def _find(self) -> None:
        """Whoever is told meanwhile sees rows once there are some."""
        paths = SessionPaths.of(self.session, self.session.tolerance, progress=self._progress)
        paths.paths.different(MORE, LOOKED_AT * MORE)
        self.paths, self.found, self.looked_at = paths, {}, 0
        self._look(MORE, {})

    @contextmanager
    def _telling(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Somebody is told what is looked for, and may stop it."""
        self._stop.clear()
        self._tell = tell
        try:
            yield
        finally:
            self._tell = _unheard
            self._stop.clear()

    def _progress(self, done: int, of: int, what: str) -> None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        self._tell(f"{LOOKING}: {done:,} of {of:,} {what}")

    def grow(self) -> str:
        """Some more rows; of graphs further on, where those at hand have none."""
        before = len(self.found)
        self._look(before + MORE, self._rows)
        if len(self.found) > before:
            return f"{counted(len(self.found) - before, 'row')} more"
        return self.end()

    def end(self) -> str:
        """What comes behind the last row."""
        if self.is_all:
            return "these are all that were found; others take as long as one of them"
        return f"the first {counted(self.looked_at, 'graph')} take as long as one of these"

    def _look(self, count: int, rows: Mapping[int, tuple[str, ...]]) -> None:
        """So many rows, of which some are made; as they were where something stops it."""
        paths = self.known().paths
        if count > len(self.found):
            self.looked_at += LOOKED_AT * MORE
        self.found = paths.different(count, self.looked_at)
        best_ns = next(iter(self.found.values())).time_ns
        self.is_all = len(self.found) < count and not paths.has(self.looked_at)
        self._rows = {
            place: rows.get(place) or row(place, path, best_ns)
            for place, path in self.found.items()
        }
        self.chosen = self.chosen if self.chosen in self.found else next(iter(self.found))

    def choose(self, place: int) -> str:
        """Look at a path: in words, what it decides otherwise than the given graph."""
        if place not in self.found:
            raise WidgetError(f"there is no row of graph {place}")
        self.chosen = place
        return self.difference()

    def difference(self) -> str:
        """What the chosen path decides otherwise than the given graph."""
        differs = self.found[self.chosen].differs(self.known().given)
        told = [f"{name}: {there} → {here}" for name, (here, there) in differs.items()]
        return "; ".join(told) or "the graph as it was given"

    def measure(self, tell: Callable[[str], None]) -> str:
        """Measure the first paths that are not measured, until they are or `stop`."""

        def progress(done: int, of: int, _: str) -> None:
            if self._stop.is_set():
                raise KeyboardInterrupt
            tell(f"measuring: {done:,} of {of:,} paths {THROUGHOUT}")

        with self._telling(tell):
            found = self.known().sweep(users_records(), MORE, progress=progress)
            self._stop.clear()  # what was measured until then counts
            with suppress(KeyboardInterrupt):
                self._look(len(self.found), {})
        begin = "stopped: " if found.stopped else ""
        timed = f"{begin}{counted(found.measured, 'kernel')} timed"
        return f"{timed}; {found.paths or 'none'} of the first {MORE} paths {THROUGHOUT}"

    def stop(self) -> str:
        """End what is looked for, or what is measured after the path at hand."""
        self._stop.set()
        return "stops" if self.doing.startswith(LOOKING) else "stops after this path"

    def take(self) -> str:
        """Let the session compute by the chosen path, with a plan for it."""
        path = self.found[self.chosen]
        self.known().take(path)
        plan = self.session.optimize("greedy")
        rules = ", ".join(path.rules) or "as it was given"
        return f"in force: {format_time(plan.expected_ns)} a run, {rules}"

    @property
    def in_force(self) -> int:
        """The place of the path that the session computes by; −1 where it is in no row."""
        now = self.session.graph.fingerprint
        places = (p for p, path in self.found.items() if path.graph.fingerprint == now)
        return next(places, -1)

    def columns(self) -> dict[str, list[str]]:
        """The table, a column each; places are plain numbers, which rows are asked for by."""
        rows = [(str(place), *cells[1:]) for place, cells in self._rows.items()]
        return {name: [cells[i] for cells in rows] for i, name in enumerate(COLUMNS)}

    def map(self) -> PathMap:
        """The decisions of the first paths, and of the chosen one, which comes last."""
        return PathMap.of([*list(self.found.values())[:DRAWN], self.found[self.chosen]])
