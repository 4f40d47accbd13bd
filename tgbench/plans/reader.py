"""Plan files, read and checked field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from tgbench.base.errors import GraphError, PlanError
from tgbench.base.stopping import StopReason
from tgbench.base.strict_json import bounded_text, parsed
from tgbench.base.words import is_name, shorten
from tgbench.graph.graph_file import graph_from_json
from tgbench.memory.placement import Turn
from tgbench.plans.decisions import (
    VERSION,
    PlanBucket,
    PlanFields,
    PlanPath,
    PlanReason,
    PlanSlot,
    SearchRecord,
)
from tgbench.runs.buckets import SIZED

# Fields that plans of before do not have.
OPTIONAL = ("again", "copied", "records", "path", "bound_of", "slides")
READ = (3, VERSION)  # a plan of version 3 has no path
LONGEST_SIGNATURE = 1 << 16
NO_PLAN = "not a plan; pass a file that `session.save_plan` wrote"


def read(path: str | Path) -> PlanFields:
    """A plan file, every field checked; raises PlanError naming the file, the field and the mend.

    The schema is `schemas/plan-4.json`; it is checked by hand, so that a damaged file is named by
    the field that is wrong.
    """
    try:
        text = bounded_text(path)
    except (OSError, ValueError) as error:
        raise PlanError(f"{path}: {_unread(error)}") from error
    try:
        return parse(text)
    except PlanError as error:
        raise PlanError(f"{path}: {error}") from error


def parse(text: str) -> PlanFields:
    """The same for a text; raises PlanError naming the field and the mend."""

    def refuse(fault: str) -> PlanError:
        cause = f"damaged ({fault}); restore a copy, or delete it to plan anew"
        return PlanError(cause if text.lstrip().startswith("{") else NO_PLAN)

    return _Reader(parsed(text, refuse)).plan()


def _unread(error: OSError | ValueError) -> str:
    """Why a file cannot be read, and the mend that fits."""
    match error:
        case FileNotFoundError():
            return "there is no such file; check the path, or write one with `session.save_plan`"
        case UnicodeDecodeError():
            return NO_PLAN
        case IsADirectoryError():
            return "a directory; pass the file in it that `session.save_plan` wrote"
        case OSError():
            return (
                f"cannot be read ({error.strerror or error}); check who may read it, and the disk"
            )
        case _:
            return f"{error}: {NO_PLAN}"


class _Reader:
    """Field by field, with the path of the field in every message."""

    def __init__(self, data: Any) -> None:
        if not isinstance(data, dict):
            raise PlanError(NO_PLAN)
        self.data = data

    def plan(self) -> PlanFields:
        version = self.data.get("version")
        if "nodes" in self.data:
            raise PlanError(f"a graph, {NO_PLAN}")
        if version is None:
            raise PlanError(f"without a version this is {NO_PLAN}")
        if type(version) is not int or version not in READ:
            raise PlanError(
                f"version: {shorten(version)} is not {VERSION}; plan anew with this release"
            )
        self._object(self.data, "", PlanFields)
        budget, turns = self.data["budget_bytes"], self._turns()
        return PlanFields(
            graph=self._text(self.data, "graph", ""),
            device=self._text(self.data, "device", ""),
            schedule=tuple(self._strings("schedule")),
            slots=tuple(
                self._slot(item, f"slots[{i}]")
                for i, item in enumerate(self._list(self.data, "slots", ""))
            ),
            retained=tuple(self._strings("retained")),
            dropped=tuple(self._strings("dropped")),
            cut=self._cut(),
            size_bytes=self._count(self.data, "size_bytes", ""),
            kept_bytes=self._count(self.data, "kept_bytes", ""),
            bound_bytes=self._count(self.data, "bound_bytes", ""),
            bound_step=self._count(self.data, "bound_step", ""),
            expected_ns=self._real(self.data, "expected_ns", ""),
            budget_bytes=None if budget is None else self._count(self.data, "budget_bytes", ""),
            buckets=tuple(
                self._bucket(item, f"buckets[{i}]")
                for i, item in enumerate(self._list(self.data, "buckets", ""))
            ),
            turns=turns,
            machine=self._machine(),
            reasons=tuple(
                self._reason(item, f"reasons[{i}]")
                for i, item in enumerate(self._list(self.data, "reasons", ""))
            ),
            price_ns=self._real(self.data, "price_ns", ""),
            search=self._search(),
            exact=self._exact(),
            copied=tuple(self._strings("copied")) if "copied" in self.data else (),
            records=self._records(),
            path=self._plan_path(),
        )

    def _plan_path(self) -> PlanPath | None:
        """The graph in it is read, and made again in the same words."""
        item, where = self.data.get("path"), "path"
        if item is None:
            return None
        self._object(item, where, PlanPath)
        tolerance = item["tolerance"]
        kernels = self._list(item, "kernels", where)
        for i, pair in enumerate(kernels):
            if not (isinstance(pair, list) and len(pair) == 2 and _is_pin(*pair)):
                raise PlanError(f"{where}.kernels[{i}]: {shorten(pair)} is not [signature, kernel]")
        return PlanPath(
            self._text(item, "given", where),
            self._graph(item, where),
            tuple(self._strings("rules", item, where)),
            tuple((signature, kernel) for signature, kernel in kernels),
            None if tolerance is None else self._real(item, "tolerance", where),
        )

    def _graph(self, item: Mapping[str, Any], where: str) -> str:
        text = item["graph"]
        if not isinstance(text, str):
            raise PlanError(f"{where}.graph: {shorten(text)} is not the text of a graph file")
        try:
            found = graph_from_json(text)
        except GraphError as error:
            raise PlanError(f"{where}.graph: {error}; delete the plan to plan anew") from error
        if found.fingerprint != self.data["graph"]:
            raise PlanError(
                f"{where}.graph: this is {found.fingerprint[:12]}, the plan is for "
                f"{shorten(self.data['graph'])}; delete the plan to plan anew"
            )
        return text

    def _records(self) -> str:
        found: object = self.data.get("records", "")
        if found != "" and not is_name(found):
            raise PlanError(f"records: {shorten(found)} is not a text that prints")
        return str(found)

    def _exact(self) -> str | None:
        found = self.data["exact"]
        if found not in (None, "bitwise"):
            raise PlanError(f'exact: {shorten(found)} is not null or "bitwise"')
        return None if found is None else "bitwise"

    def _turns(self) -> tuple[Turn, ...]:
        found = []
        count = max(len(self._list(self.data, "buckets", "")), 1)
        for i, item in enumerate(self._list(self.data, "turns", "")):
            where = f"turns[{i}]"
            self._object(item, where, Turn)
            before = None if item["before"] is None else self._count(item, "before", where)
            again = item.get("again")
            if not (again is None or isinstance(again, bool)):
                raise PlanError(f"{where}.again: {shorten(again)} is not true, false or null")
            turn = Turn(self._count(item, "of", where), before, again)
            if max(turn.of, turn.before or 0) >= count or turn in found:
                raise PlanError(f"{where}: {shorten(item)} is not a new one of {count} buckets")
            found.append(turn)
        if not found:
            raise PlanError("turns: there are none; delete the plan to plan anew")
        return tuple(found)

    def _machine(self) -> dict[str, str]:
        found = self.data["machine"]
        if not isinstance(found, dict) or not all(map(is_name, [*found, *found.values()])):
            raise PlanError(f"machine: {shorten(found)} is not an object of texts")
        return dict(found)

    def _slot(self, item: Any, where: str) -> PlanSlot:
        self._object(item, where, PlanSlot)
        retained = item["retained"]
        if not isinstance(retained, bool):
            raise PlanError(f"{where}.retained: {shorten(retained)} is not true or false")
        return PlanSlot(
            self._text(item, "node", where),
            self._count(item, "offset_bytes", where),
            self._count(item, "size_bytes", where),
            self._counts(item, "extents", where),
            self._counts(item, "start", where),
            retained,
            self._count(item, "scratch_offset_bytes", where),
            self._count(item, "scratch_bytes", where),
            self._text(item, "donor", where),
            self._through(item, where),
            self._slides(item, where),
        )

    def _through(self, item: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
        """Positions of turns, or None where a node does not share its bytes."""
        if item["through"] is None:
            return None
        found = self._counts(item, "through", where)
        count = len(self._list(self.data, "turns", ""))
        if not found or max(found) >= count or not item["retained"]:
            raise PlanError(
                f"{where}.through: {shorten(list(found))} is not some of {count} turns after "
                "which a retained node is there; delete the plan to plan anew"
            )
        return found

    def _slides(self, item: Mapping[str, Any], where: str) -> int | None:
        """Along which dimension a window is kept, or None where all of a node is."""
        if item.get("slides") is None:
            return None
        axis = self._count(item, "slides", where)
        if not item["retained"] or item["through"] is not None or axis >= len(item["extents"]):
            raise PlanError(
                f"{where}.slides: {axis} is no dimension of a node that is retained on bytes "
                "of its own; delete the plan to plan anew"
            )
        return axis

    def _reason(self, item: Any, where: str) -> PlanReason:
        self._object(item, where, PlanReason)
        return PlanReason(
            self._text(item, "node", where),
            self._count(item, "size_bytes", where),
            self._real(item, "saves_ns", where),
        )

    def _search(self) -> SearchRecord | None:
        item, where = self.data["search"], "search"
        if item is None:
            return None
        self._object(item, where, SearchRecord)
        history = self._list(item, "history", where)
        for i, entry in enumerate(history):
            if not isinstance(entry, list) or len(entry) != 2 or not _is_count(entry[0]):
                raise PlanError(f"{where}.history[{i}]: {shorten(entry)} is not [step, best_ns]")
        return SearchRecord(
            mode=self._text(item, "mode", where),
            seed=self._count(item, "seed", where),
            steps=self._count(item, "steps", where),
            stop=self._stop(item, where),
            best_ns=self._real(item, "best_ns", where),
            modelled_ns=self._real(item, "modelled_ns", where),
            warm_up_ns=self._real(item, "warm_up_ns", where),
            greedy_ns=self._real(item, "greedy_ns", where),
            bound_ns=self._real(item, "bound_ns", where),
            history=tuple(
                (entry[0], self._real({"ns": entry[1]}, "ns", f"{where}.history[{i}]"))
                for i, entry in enumerate(history)
            ),
            bound_of=self._text(item, "bound_of", where) if "bound_of" in item else "",
        )

    def _stop(self, item: Mapping[str, Any], where: str) -> StopReason:
        word = self._text(item, "stop", where)
        if word not in list(StopReason):
            raise PlanError(f"{where}.stop: {shorten(word)} is not one of {', '.join(StopReason)}")
        return StopReason(word)

    def _bucket(self, item: Any, where: str) -> PlanBucket:
        self._object(item, where, PlanBucket)
        return PlanBucket(
            self._sides(item, "changed", where),
            self._sides(item, "demand", where),
            self._counts(item, "bounds", where),
            self._real(item, "weight", where),
            self._counts(item, "origin", where),
        )

    def _sides(self, item: Mapping[str, Any], key: str, where: str) -> Any:
        symbols = len(self._counts(item, "bounds", where))
        result = []
        for side in self._list(item, key, where):
            is_pair = isinstance(side, list) and len(side) == 2
            if not (is_pair and is_name(side[0]) and isinstance(side[1], list) and side[1]):
                raise PlanError(f"{where}.{key}: {shorten(side)} is not [name, boxes]")
            result.append(
                (side[0], tuple(self._box(box, symbols, f"{where}.{key}") for box in side[1]))
            )
        return tuple(result)

    def _box(self, box: Any, symbols: int, where: str) -> tuple[tuple[int | None, int], ...]:
        spans = []
        for span in box if isinstance(box, list) else [box]:
            symbol, extent = span if isinstance(span, list) and len(span) == 2 else (-1, -1)
            is_symbol = symbol is None or (_is_count(symbol) and symbol < symbols)
            is_extent = type(extent) is int and (symbol is not None or extent > 0)
            if not (is_symbol and is_extent) or (extent == SIZED and symbol + 1 >= symbols):
                raise PlanError(f"{where}: {shorten(span)} is not [symbol or null, extent]")
            spans.append((symbol, extent))
        return tuple(spans)

    def _cut(self) -> tuple[str, int, int]:
        cut = self._list(self.data, "cut", "")
        if (
            len(cut) != 3
            or not (cut[0] == "" or is_name(cut[0]))
            or not all(map(_is_count, cut[1:]))
        ):
            raise PlanError(f"cut: {shorten(cut)} is not [input, dimension, parts]")
        return cut[0], cut[1], cut[2]

    def _strings(
        self, key: str, item: Mapping[str, Any] | None = None, where: str = ""
    ) -> list[str]:
        found = self._list(self.data if item is None else item, key, where)
        if not all(map(is_name, found)):
            raise PlanError(f"{_path(where, key)}: holds something that is not a name")
        return found

    @staticmethod
    def _object(item: Any, where: str, kind: type) -> None:
        """The fields of a dataclass, all but optional ones, and no others."""
        if not isinstance(item, dict):
            raise PlanError(f"{where}: {shorten(item)} is not an object")
        names = [field.name for field in fields(kind)]
        for name in [*names, *item]:
            if name not in item and name not in OPTIONAL:
                raise PlanError(f"{_path(where, name)}: missing; delete the plan to plan anew")
            if name not in names:
                raise PlanError(f"{_path(where, shorten(name))}: not a field of a plan")

    @staticmethod
    def _list(item: Mapping[str, Any], key: str, where: str) -> list[Any]:
        value = item.get(key)
        if not isinstance(value, list):
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not a list")
        return value

    @staticmethod
    def _text(item: Mapping[str, Any], key: str, where: str) -> str:
        value = item.get(key)
        if not isinstance(value, str) or not (value == "" or is_name(value)):
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not text that prints")
        return value

    @staticmethod
    def _count(item: Mapping[str, Any], key: str, where: str) -> int:
        value = item.get(key)
        if not _is_count(value):
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not a whole number ≥ 0")
        return int(value)  # type: ignore[arg-type]

    @staticmethod
    def _real(item: Mapping[str, Any], key: str, where: str) -> float:
        value = item.get(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e300:
            raise PlanError(f"{_path(where, key)}: {shorten(value)} is not a number ≥ 0")
        return float(value)

    def _counts(self, item: Mapping[str, Any], key: str, where: str) -> tuple[int, ...]:
        found = self._list(item, key, where)
        if not all(map(_is_count, found)):
            raise PlanError(f"{_path(where, key)}: {shorten(found)} holds more than counts")
        return tuple(found)


def _is_pin(signature: object, kernel: object) -> bool:
    is_short = isinstance(signature, str) and 0 < len(signature) <= LONGEST_SIGNATURE
    return is_short and str(signature).isprintable() and is_name(kernel)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
