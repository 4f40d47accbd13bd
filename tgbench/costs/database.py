"""Where records are kept: an SQLite file or a PostgreSQL server, asked with the same statements.

SQLite comes with Python and is opened in a millisecond; SQLAlchemy takes a third of a second to
import, and is imported where a server is asked.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from tgbench.base.errors import RecordsError, UnreadableRecordsError
from tgbench.base.files import require_regular
from tgbench.base.words import shorten

if TYPE_CHECKING:
    import sqlalchemy

Row: TypeAlias = "Mapping[str, Any]"
COUNT, REAL, TEXT = "BIGINT NOT NULL", "DOUBLE PRECISION NOT NULL", "TEXT NOT NULL"
KEY = ("kernel", "source_hash", "signature", "fingerprint")
MOST_VALUE_BYTES = 1 << 20  # of a text in a row, and of a statement
TABLES: Mapping[str, Mapping[str, str]] = {  # their names have a prefix: a server may hold others
    "tgbench_schema": {"version": "INTEGER PRIMARY KEY"},
    "tgbench_machines": {"fingerprint": "TEXT PRIMARY KEY", "machine": TEXT},
    "tgbench_records": {
        "id": "TEXT PRIMARY KEY",
        **dict.fromkeys((*KEY, "samples_ns"), TEXT),
        "failure": "TEXT",
        "max_relative_error": "DOUBLE PRECISION",
        "workspace_bytes": COUNT,
        "flops": REAL,
        "size_bytes": COUNT,
        "modelled_ns": REAL,
        "measured_at": REAL,
    },
    "tgbench_grains": {  # of tilings: databases that were written have this name
        "id": "TEXT PRIMARY KEY",
        **dict.fromkeys((*KEY, "tile", "chunk"), TEXT),
        **dict.fromkeys(("copied", "passed", "refused"), "INTEGER NOT NULL"),
        "found_at": REAL,
    },
}
INDEXES = {
    "tgbench_records_by_machine": "tgbench_records (fingerprint, kernel)",
    "tgbench_grains_by_machine": "tgbench_grains (fingerprint)",
}


def made() -> Iterator[str]:
    """The statements that make an empty database one of records."""
    for table, columns in TABLES.items():
        listed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        yield f"CREATE TABLE {table} ({listed})"
    for index, on in INDEXES.items():
        yield f"CREATE INDEX {index} ON {on}"


def added(table: str) -> str:
    """The statement that adds rows; one that is there already stays."""
    names = TABLES[table]
    values = ", ".join(f":{name}" for name in names)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) ON CONFLICT DO NOTHING"


def asked(table: str, wanted: Sequence[str], order: str) -> str:
    """The statement that reads the rows in which some columns have the values asked for."""
    where = " AND ".join(f"{name} = :{name}" for name in wanted)
    columns = ", ".join(TABLES[table])
    return f"SELECT {columns} FROM {table}{f' WHERE {where}' if where else ''} ORDER BY {order}"


class Connection(Protocol):
    """One transaction; values stand in a statement as `:name`."""

    def ask(self, statement: str, values: Row = ...) -> list[Row]:
        """The rows of an answer."""

    def tell(self, statement: str, rows: Sequence[Row] = ...) -> None:
        """Do something once for each row of values."""


class Database(Protocol):
    """A database of either kind."""

    @property
    def name(self) -> str:
        """What it is called in messages: the path, or the URL without its password."""

    def transaction(self, *, writes: bool = False) -> AbstractContextManager[Connection]:
        """A connection of its own; what is told is done wholly or, after an exception, not at all.

        Raises RecordsError for whatever the database refuses.
        """

    def tables(self, connection: Connection) -> list[str]:
        """The names of the tables that are there."""

    def alone(self, connection: Connection) -> None:
        """Wait until nobody else makes tables, until the transaction ends."""

    @property
    def is_own(self) -> bool:
        """Whether nothing but records may be there."""

    def fault(self, connection: Connection) -> str | None:
        """What is wrong with how the database lies on the disk, as far as can be told."""


def database(where: str | os.PathLike[str], timeout_s: float) -> Database:
    """The database at a path or URL; raises RecordsError for a kind that is not known."""
    text = os.fspath(where)
    kind, there, rest = text.partition("://")
    if not there:
        return SqliteFile(text, timeout_s)
    if kind == "sqlite":
        return SqliteFile(rest.removeprefix("/"), timeout_s)
    if kind in ("postgresql", "postgres", "postgresql+psycopg"):
        return PostgreSQL(f"postgresql+psycopg://{rest}", timeout_s)
    raise RecordsError(
        f"records cannot be kept in {kind!r}; give a path for SQLite or a postgresql:// URL"
    )


# --- SQLite ---------------------------------------------------------------------------------------


_REFUSED = (sqlite3.Error, UnicodeDecodeError)  # the latter of a damaged page's text


@dataclass(frozen=True)
class SqliteFile:
    """An SQLite file."""

    path: str
    timeout_s: float

    @property
    def name(self) -> str:
        return self.path

    is_own = True

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        """A writer takes the lock when it begins, so that waiting for it cannot fail half-way."""
        with explained(self.name, _REFUSED), closing(self._opened()) as connection:
            connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
            yield _SqliteConnection(connection)
            connection.execute("COMMIT")

    def _opened(self) -> sqlite3.Connection:
        found = sqlite3.connect(self._checked(), timeout=self.timeout_s, isolation_level=None)
        try:
            found.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_VALUE_BYTES)
            found.execute("PRAGMA trusted_schema = OFF")
            found.row_factory = sqlite3.Row
            self._write_ahead(found)
            found.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            found.close()
            raise
        return found

    def _write_ahead(self, connection: sqlite3.Connection) -> None:
        """Have the file written ahead of; SQLite does not wait itself where two ask for it at once.

        Each would wait for the other to let go of a lock for reading, so it refuses both. Where the
        file system cannot do it, the file stays as it is, and readers wait for writers.
        """
        until = time.monotonic() + self.timeout_s
        while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                    raise
                time.sleep(random.uniform(0, 0.01))  # not in step with who asks too

    def _checked(self) -> str:
        """The path, unless something else than a file lies there: SQLite would wait for a pipe.

        What SQLite takes for a database of its own memory is none that anybody else could read.
        """
        if self.path in ("", ":memory:"):
            raise sqlite3.OperationalError("unable to open database file: no path of a file")
        try:
            require_regular(os.stat(self.path).st_mode)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise sqlite3.OperationalError(f"unable to open database file: {error}") from error
        return self.path

    def tables(self, connection: Connection) -> list[str]:
        """Raises UnreadableRecordsError where a question would do what somebody wrote there."""
        rows = connection.ask("SELECT name, type FROM sqlite_master")
        for row in rows:
            if row["type"] not in ("table", "index"):
                raise UnreadableRecordsError(
                    f"{self.name}: holds a {shorten(row['type'])}, which no record database does; "
                    "delete it, or give another path"
                )
        names = [row["name"] for row in rows if row["type"] == "table"]
        return sorted(name for name in names if not name.startswith("sqlite_"))

    def alone(self, connection: Connection) -> None:
        """Who writes is alone already."""

    def fault(self, connection: Connection) -> str | None:
        said = str(connection.ask("PRAGMA quick_check(1)")[0][0])  # type: ignore[index]
        return None if said == "ok" else said


@dataclass(frozen=True)
class _SqliteConnection:
    connection: sqlite3.Connection

    def ask(self, statement: str, values: Row = {}) -> list[Row]:  # noqa: B006
        return self.connection.execute(statement, values).fetchall()

    def tell(self, statement: str, rows: Sequence[Row] = ({},)) -> None:
        for row in rows:
            self.connection.execute(statement, row)


# --- PostgreSQL -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PostgreSQL:
    """A PostgreSQL server, through SQLAlchemy."""

    url: str
    timeout_s: float

    @property
    def name(self) -> str:
        return str(_sqlalchemy().make_url(self.url).render_as_string(hide_password=True))

    is_own = False

    @contextmanager
    def transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        engine = _engine(self.url, self.timeout_s)
        refused = _sqlalchemy().exc.SQLAlchemyError
        with explained(self.name, refused), engine.begin() as connection:
            yield _PostgreSQLConnection(connection)

    def tables(self, connection: Connection) -> list[str]:
        rows = connection.ask(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
        return sorted(row["table_name"] for row in rows)

    def alone(self, connection: Connection) -> None:
        connection.ask("SELECT pg_advisory_xact_lock(846242011)")

    def fault(self, connection: Connection) -> str | None:
        """That is the server's business."""
        return None


@dataclass(frozen=True)
class _PostgreSQLConnection:
    connection: sqlalchemy.Connection

    def ask(self, statement: str, values: Row = {}) -> list[Row]:  # noqa: B006
        found = self.connection.execute(_sqlalchemy().text(statement), values)
        return [dict(row) for row in found.mappings()]

    def tell(self, statement: str, rows: Sequence[Row] = ({},)) -> None:
        self.connection.execute(_sqlalchemy().text(statement), list(rows))


def _sqlalchemy() -> Any:
    import sqlalchemy

    return sqlalchemy


@cache
def _engine(url: str, timeout_s: float) -> sqlalchemy.Engine:
    """Connections are opened for each question, so that nothing is held across a fork."""
    from sqlalchemy import create_engine
    from sqlalchemy.pool import NullPool

    seconds = max(2, round(timeout_s))
    try:
        return create_engine(url, poolclass=NullPool, connect_args={"connect_timeout": seconds})
    except ImportError as error:
        raise RecordsError(
            "PostgreSQL needs the package psycopg; install it: pip install 'tgbench[cluster]'"
        ) from error


# --- what a database says -------------------------------------------------------------------------


@dataclass(frozen=True)
class Mend:
    """What to do about something that a database says.

    Fields:
        words: a regular expression of what it says.
    """

    words: str
    mend: str
    error: type[RecordsError] = RecordsError


MENDS = (
    Mend(
        "database is locked",
        "another process has been writing for longer than the timeout: let it finish or stop it, "
        "then run the same command again",
    ),
    Mend(
        "not a database|disk image|unsupported file format|no such table|no such column|"
        "no column named|Could not decode|can't decode|string or blob too big|malformed",
        "the file is damaged or no record database: delete it, or restore a copy, "
        "then profile again",
        UnreadableRecordsError,
    ),
    Mend(
        "unable to open|readonly|permission denied|disk I/O",
        "check that the folder exists and that file and folder may be written",
    ),
    Mend("disk is full|No space left", "free some disk space, then run the same command again"),
    Mend(
        "connection|could not translate|password|authentication|does not exist",
        "check the URL (postgresql://user:password@host:port/database), the server, and that the "
        "user may create tables",
    ),
    Mend("", "check the database with its own tools, or give another path"),
)


@contextmanager
def explained(name: str, refused: type[Exception] | tuple[type[Exception], ...]) -> Iterator[None]:
    """What a database says, as a RecordsError with the mend."""
    try:
        yield
    except refused as error:
        told = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        mend = next(mend for mend in MENDS if re.search(mend.words, told))
        raise mend.error(f"{name}: {told}; {mend.mend}") from error
