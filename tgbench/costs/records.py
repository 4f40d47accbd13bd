"""Measured times of kernels, and tilings of bit-exact mode, in a database that is shared.

    one row = one sample set of (kernel, source hash, signature, fingerprint)
              or the tiling that was found for a call, under the same four

    kernel       its name in the registry
    source hash  of its compiled functions: a changed kernel is measured anew
    signature    what of a site its time depends on, positions left out
    fingerprint  of the machine: a record of another one is never taken for a measurement here

Many processes and machines may use one. Rows are only ever added; several sets of one key are
merged when they are read. The database is an SQLite file, or PostgreSQL through a URL; what is read
from it is checked and never executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tgbench.base.errors import RecordsError, UnreadableRecordsError
from tgbench.base.machine import Machine
from tgbench.base.words import counted, printable, shorten
from tgbench.costs.database import KEY, Connection, added, asked, database, made

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 2
TIMEOUT_S = 30.0  # how long a process waits for another one to finish writing
MOST_SAMPLES = 200  # of one set; more are thinned out evenly
LEAST, MOST = 1e-9, 1e30  # of work and modelled times: their ratios stay numbers
_COUNTS = re.compile(r"\[(?:[1-9][0-9]{0,18}(?:, [1-9][0-9]{0,18})*)?\]")
_ID = re.compile("[0-9a-f]{24}")  # anything else might be a statement of its own
Key = tuple[str, str, str, str]  # kernel, source hash, signature, fingerprint


# --- a record -------------------------------------------------------------------------------------


def failure_of(error: Exception) -> str:
    """What a record says of an exception: its type and message."""
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True)
class Record:
    """One sample set, or several merged ones.

    Fields:
        samples_ns: raw times of single calls, in the order they were taken; empty after a failure.
        failure: type and message of what the kernel raised; None if it ran.
        max_relative_error: the largest difference from the float64 reference over the reference's
            largest magnitude; None where no reference was computed.
        workspace_bytes: scratch memory, and what the library underneath allocates.
        flops, size_bytes: of the signature, for interpolation.
        modelled_ns: what the kernel's own cost model says.
        measured_at: seconds since 1970, of the last set.
    """

    kernel: str
    source_hash: str
    signature: str
    fingerprint: str
    samples_ns: tuple[int, ...]
    failure: str | None = None
    max_relative_error: float | None = None
    workspace_bytes: int = 0
    flops: float = 0.0
    size_bytes: int = 0
    modelled_ns: float = 0.0
    measured_at: float = field(default_factory=time.time)

    @property
    def key(self) -> Key:
        return self.kernel, self.source_hash, self.signature, self.fingerprint

    @property
    def median_ns(self) -> float:
        """The median sample; raises RecordsError after a failure."""
        if not self.samples_ns:
            raise RecordsError(f"{self.kernel} at {self.signature} has no samples: {self.failure}")
        return float(statistics.median(self.samples_ns))

    @property
    def spread_ns(self) -> float:
        """The interquartile range of the samples; 0 for one."""
        if len(self.samples_ns) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_ns, n=4, method="inclusive")
        return high - low

    def merge(self, other: Record) -> Record:
        """Both sets as one: all samples; of what was found out, the worse."""
        first, last = sorted((self, other), key=lambda r: (r.measured_at, r.samples_ns))
        errors = [r.max_relative_error for r in (first, last) if r.max_relative_error is not None]
        return replace(
            last,
            samples_ns=first.samples_ns + last.samples_ns,
            max_relative_error=max(errors, default=None),
            workspace_bytes=max(first.workspace_bytes, last.workspace_bytes),
        )

    def __str__(self) -> str:
        told = self.failure or f"{self.median_ns / 1e3:.3g} µs ± {self.spread_ns / 2e3:.2g}"
        return printable(f"{self.kernel} at {self.signature}: {told}")


@dataclass(frozen=True)
class TilingRecord:
    """Which kernel computes a call in bit-exact mode, in what tiles, and what speaks for it.

    Fields:
        signature: of the whole call, its weights' layout and all that chose among its kernels; the
            fingerprint holds the thread count.
        tile, chunk, copied: as in `tilings.Tiling`.
        passed: boxes of tiles that were compared with the whole and had its bits.
        refused: candidates that were to be tried before this one and did not pass.
        found_at: seconds since 1970.
    """

    kernel: str
    source_hash: str
    signature: str
    fingerprint: str
    tile: tuple[int, ...]
    chunk: tuple[int, ...]
    copied: bool
    passed: int
    refused: int
    found_at: float = field(default_factory=time.time)

    @property
    def key(self) -> Key:
        return self.kernel, self.source_hash, self.signature, self.fingerprint

    @property
    def id(self) -> str:
        """Of its row: one for each key."""
        return hashlib.sha256(repr(self.key).encode()).hexdigest()[:24]

    def __str__(self) -> str:
        how = " on copies" * self.copied
        return printable(
            f"{self.kernel}{how} in tiles of {list(self.tile)} at {self.signature}: "
            f"{self.passed} boxes had the bits of the whole"
        )


def thinned(samples: Sequence[int]) -> tuple[int, ...]:
    """At most `MOST_SAMPLES` of the samples, evenly spread over the time they were taken."""
    step = max(1, math.ceil(len(samples) / MOST_SAMPLES))
    return tuple(samples[::step])


# --- the database ---------------------------------------------------------------------------------


class Records:
    """A record database: an SQLite file, or a PostgreSQL URL.

    Safe for many processes at once. Connections are opened for each question and closed again, so
    an object may be pickled and may cross a fork.

    Args:
        where: a path, or a URL such as "postgresql://user@host/database".
        timeout_s: how long to wait for other writers.

    Raises RecordsError, here and in every method, for a database that is locked or unreachable;
    UnreadableRecordsError for one that is damaged, foreign or of an older release.

    >>> import tempfile, pathlib
    >>> records = Records(pathlib.Path(tempfile.mkdtemp()) / "records.db")
    >>> records.add([Record("add", "1f", "add() …", "aa", (1200, 1100, 1300))])
    >>> records.all()[0].median_ns
    1200.0
    """

    def __init__(self, where: str | os.PathLike[str], *, timeout_s: float = TIMEOUT_S) -> None:
        self.database = database(where, timeout_s)
        self._prepare()

    @property
    def name(self) -> str:
        """The path, or the URL without its password."""
        return self.database.name

    # --- writing

    def add(self, records: Iterable[Record], machine: Machine | None = None) -> None:
        """Add sample sets, all or none; a set that is there already is not added twice."""
        rows = [_row(record) for record in records]
        self._insert({"tgbench_machines": _descriptions(machine), "tgbench_records": rows})

    def add_tilings(self, tilings: Iterable[TilingRecord], machine: Machine | None = None) -> None:
        """Add tilings, all or none; what is there of a key stays."""
        self._insert(
            {
                "tgbench_machines": _descriptions(machine),
                "tgbench_grains": [_tiling_row(record) for record in tilings],
            }
        )

    def include(self, other: Records) -> int:
        """Add what another database holds and this one does not; returns how many sets that was."""
        before = len(self)
        about = [
            {"fingerprint": fingerprint, "machine": text}
            for fingerprint, text in other._descriptions()
        ]
        self._insert(
            {
                "tgbench_machines": about,
                "tgbench_records": [_row(record) for record in other._sets({})],
                "tgbench_grains": [_tiling_row(record) for record in other.tilings()],
            }
        )
        return len(self) - before

    def _insert(self, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        with self.database.transaction(writes=True) as connection:
            for table, some in rows.items():
                if some:
                    connection.tell(added(table), some)

    # --- reading

    def all(self, fingerprint: str | None = None, kernel: str | None = None) -> tuple[Record, ...]:
        """Records by key, of one machine or kernel if named; several sets of a key are merged."""
        wanted = {"fingerprint": fingerprint, "kernel": kernel}
        return merged(self._sets({k: v for k, v in wanted.items() if v is not None}))

    def of(self, fingerprint: str, kernels: Iterable[str]) -> tuple[Record, ...]:
        """Records of some kernels on one machine; no others are read."""
        found: list[Record] = []
        with self.database.transaction() as connection:
            for kernel in kernels:
                found += self._read(connection, {"fingerprint": fingerprint, "kernel": kernel})
        return merged(_by_age(found))

    def find(self, key: Key) -> Record | None:
        """The record of a key, or None."""
        found = merged(self._sets(dict(zip(KEY, key, strict=True))))
        return found[0] if found else None

    def tilings(self, fingerprint: str | None = None) -> tuple[TilingRecord, ...]:
        """Tilings by key, of one machine if named."""
        wanted = {} if fingerprint is None else {"fingerprint": fingerprint}
        with self.database.transaction() as connection:
            rows = _rows(connection, "tgbench_grains", wanted)
        return tuple(sorted(map(self._tiling, rows), key=lambda record: record.key))

    def machines(self) -> dict[str, Machine]:
        """The machines that were measured, by fingerprint."""
        return {fingerprint: self._machine(text) for fingerprint, text in self._descriptions()}

    def to_frame(self) -> pd.DataFrame:
        """One row a record, the samples summed up."""
        import pandas as pd

        found = self.all()
        columns = {
            "kernel": [r.kernel for r in found],
            "signature": [r.signature for r in found],
            "median_us": [r.median_ns / 1e3 if r.samples_ns else math.nan for r in found],
            "spread_us": [r.spread_ns / 1e3 for r in found],
            "samples": [len(r.samples_ns) for r in found],
            "max_relative_error": [r.max_relative_error for r in found],
            "workspace_bytes": [r.workspace_bytes for r in found],
            "failure": [r.failure for r in found],
            "fingerprint": [r.fingerprint for r in found],
        }
        return pd.DataFrame(columns)

    def __len__(self) -> int:
        """How many sample sets there are."""
        with self.database.transaction() as connection:
            (row,) = connection.ask("SELECT count(*) AS count FROM tgbench_records")
            return int(row["count"])

    def __repr__(self) -> str:
        return f"Records({self.name!r})"

    def __str__(self) -> str:
        lines = [f"{self.name}: {counted(len(self), 'sample set')}"]
        for fingerprint, machine in self.machines().items():
            found = self.all(fingerprint)
            failed = sum(record.failure is not None for record in found)
            kernels = len({record.kernel for record in found})
            lines.append(
                f"  {printable(fingerprint)}  {machine}: {counted(len(found), 'signature')} of "
                f"{counted(kernels, 'kernel')}" + (f", {failed} failed" if failed else "")
            )
        return "\n".join(lines)

    def _sets(self, wanted: Mapping[str, str]) -> list[Record]:
        with self.database.transaction() as connection:
            return _by_age(self._read(connection, wanted))

    def _read(self, connection: Connection, wanted: Mapping[str, str]) -> Iterable[Record]:
        return map(self._record, _rows(connection, "tgbench_records", wanted))

    def _descriptions(self) -> list[tuple[str, str]]:
        with self.database.transaction() as connection:
            found = connection.ask(asked("tgbench_machines", (), "fingerprint"))
            return [(str(row["fingerprint"]), str(row["machine"])) for row in found]

    def _record(self, row: Mapping[str, Any]) -> Record:
        """A row, checked: whatever else may stand in it, it is numbers and text."""
        values = {name: value for name, value in row.items() if name != "id"}
        values["samples_ns"] = self._counts(row, "samples_ns", "tgbench_records")
        for name, check in _CHECKS.items():
            if not check(values[name]):
                raise self._wrong(row, name, "tgbench_records")
        if not values["samples_ns"] and values["failure"] is None:
            raise self._wrong(row, "samples_ns", "tgbench_records")
        return Record(**values)

    def _tiling(self, row: Mapping[str, Any]) -> TilingRecord:
        values = {name: value for name, value in row.items() if name != "id"}
        for name in ("tile", "chunk"):
            values[name] = self._counts(row, name, "tgbench_grains")
        for name, check in _TILING_CHECKS.items():
            if not check(values[name]):
                raise self._wrong(row, name, "tgbench_grains")
        if len(values["tile"]) != len(values["chunk"]):
            raise self._wrong(row, "chunk", "tgbench_grains")
        return TilingRecord(**values | {"copied": bool(values["copied"])})

    def _counts(self, row: Mapping[str, Any], name: str, table: str) -> tuple[int, ...]:
        """A JSON list of positive integers, as it is written here."""
        text = row[name]
        if not isinstance(text, str) or not _COUNTS.fullmatch(text):
            raise self._wrong(row, name, table)
        return tuple(map(int, text[1:-1].split(", "))) if len(text) > 2 else ()

    def _wrong(self, row: Mapping[str, Any], name: str, table: str) -> UnreadableRecordsError:
        is_ours = isinstance(row["id"], str) and bool(_ID.fullmatch(row["id"]))
        mend = f"that row (DELETE FROM {table} WHERE id = '{row['id']}')" if is_ours else "the file"
        return UnreadableRecordsError(
            f"{self.name}: {name} of record {shorten(row['id'])} is {shorten(row[name])}; delete "
            f"{mend} and profile again"
        )

    def _machine(self, text: str) -> Machine:
        try:
            return Machine.from_json(text)
        except ValueError:
            raise UnreadableRecordsError(
                f"{self.name}: tgbench_machines holds {shorten(text)}, no description of a "
                "machine; delete that row and profile again"
            ) from None

    # --- the tables

    def _prepare(self) -> None:
        """Make the tables in an empty database; refuse one of another kind or version."""
        with self.database.transaction() as connection:
            version = self._version(connection)
        if version is None:
            with self.database.transaction(writes=True) as connection:
                self.database.alone(connection)
                if self._version(connection) is None:  # no other process was quicker
                    for statement in made():
                        connection.tell(statement)
                    connection.tell(added("tgbench_schema"), [{"version": SCHEMA_VERSION}])

    def _version(self, connection: Connection) -> int | None:
        """The version of the tables, if it is this one; None where there are none."""
        there = self.database.tables(connection)
        if "tgbench_schema" not in there:
            if there and self.database.is_own:
                named = shorten(", ".join(there[:3]))
                raise UnreadableRecordsError(
                    f"{self.name}: holds tables of something else ({named}); give a path "
                    "of its own to the records"
                )
            return None
        rows = connection.ask("SELECT version FROM tgbench_schema")
        version = rows[0]["version"] if rows else 0
        if type(version) is not int or not 0 <= version < 1 << 31:
            version = 0
        if version != SCHEMA_VERSION:
            raise self._refused(version, self.database.fault(connection))
        return version

    def _refused(self, version: int, fault: str | None) -> RecordsError:
        """Why another version is not read: a damaged page may say any number."""
        if fault is not None:
            return UnreadableRecordsError(
                f"{self.name}: malformed ({' '.join(fault.split())[:80]}); the file is damaged: "
                "delete it, or restore a copy, then profile again"
            )
        said = f"{self.name}: has schema {version}, this tgbench reads {SCHEMA_VERSION}"
        if version > SCHEMA_VERSION:
            return RecordsError(f"{said}; update tgbench, or give another path")
        return UnreadableRecordsError(f"{said}; delete it, or give another path")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_amount(value: Any) -> bool:
    """Whether it is 0, or a number by which others can be divided."""
    return _is_number(value) and (value == 0 or LEAST <= value <= MOST)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(KEY, _is_text),
    "failure": lambda value: value is None or _is_text(value),
    "max_relative_error": lambda value: value is None or _is_number(value),
    "workspace_bytes": _is_count,
    "flops": _is_amount,
    "size_bytes": _is_count,
    "modelled_ns": _is_amount,
    "measured_at": _is_number,
}


_TILING_CHECKS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(KEY, _is_text),
    "copied": lambda value: type(value) in (int, bool) and value in (0, 1),
    "passed": lambda value: _is_count(value) and value > 0,
    "refused": _is_count,
    "found_at": _is_number,
}


def _rows(connection: Connection, table: str, wanted: Mapping[str, str]) -> list[dict[str, Any]]:
    return [dict(row) for row in connection.ask(asked(table, list(wanted), "id"), wanted)]


def _by_age(sets: Iterable[Record]) -> list[Record]:
    return sorted(sets, key=lambda record: record.measured_at)


def merged(sets: Iterable[Record]) -> tuple[Record, ...]:
    """One record a key, by key."""
    found: dict[Key, Record] = {}
    for record in sets:
        found[record.key] = found[record.key].merge(record) if record.key in found else record
    return tuple(found[key] for key in sorted(found))


def _row(record: Record) -> dict[str, Any]:
    row = asdict(record) | {"samples_ns": json.dumps(record.samples_ns)}
    for name, check in _CHECKS.items():
        if not check(row[name]):
            raise RecordsError(f"{name} of {record.kernel} is {row[name]!r}; measure it again")
    if not all(type(n) is int and n > 0 for n in record.samples_ns):
        raise RecordsError(f"a sample of {record.kernel} is no positive number of nanoseconds")
    if not record.samples_ns and record.failure is None:
        raise RecordsError(f"{record.kernel} has neither a sample nor a failure; measure it again")
    return row | {"id": hashlib.sha256(repr(sorted(row.items())).encode()).hexdigest()[:24]}


def _tiling_row(record: TilingRecord) -> dict[str, Any]:
    row = asdict(record) | {"tile": json.dumps(record.tile), "chunk": json.dumps(record.chunk)}
    return row | {"copied": int(record.copied), "id": record.id}


def _descriptions(machine: Machine | None) -> list[dict[str, str]]:
    if machine is None:
        return []
    return [{"fingerprint": machine.fingerprint, "machine": machine.to_json()}]
