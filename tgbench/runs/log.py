"""The file of a trace: JSON lines that are only ever added, from a background thread.

    append ─→ list of calls ─→ thread: gather for 0.1 s ─→ lock, mend the end, write, unlock

Several processes may append to one file: a batch of whole lines is one write at the end, under
`flock`. Where a file system has no locks, let one process write. A torn last line, left by a crash,
is cut before anything is added.

A child of `fork` writes only calls of its own; if it leaves by `os._exit`, as multiprocessing does,
it must flush first.
"""

from __future__ import annotations

import atexit
import io
import os
import threading
import time
import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from tgbench.base.errors import TraceError
from tgbench.base.files import open_regular
from tgbench.base.locks import locked
from tgbench.base.strict_json import parsed
from tgbench.base.words import counted
from tgbench.runs.buckets import Bucket
from tgbench.runs.entry import MOST_LINE_BYTES, LoggedCall

HEAD = b'{"v":1,"changed":{'  # how every line that tgbench writes begins
LINGER_S = 0.1  # the writer lets a batch gather this long
RETRY_S = 5.0  # and this long after a failure
BATCH = 1024  # calls in one write


class TraceWarning(UserWarning):
    """A trace file was usable but not whole, or could not be completed at exit."""


def read(path: str | os.PathLike[str]) -> tuple[list[LoggedCall], str | None]:
    """Every call of a file, and the torn text that it ends with, if it does."""
    calls: list[LoggedCall] = []
    buckets: dict[Bucket, Bucket] = {}  # equal ones are kept once
    for number, line in enumerate(_lines_of(path), 1):
        if not line.endswith(b"\n") and _is_torn(line):
            return calls, line.decode(errors="replace")
        try:
            call = LoggedCall.from_json(line)
        except TraceError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error
        bucket = buckets.setdefault(call.bucket, call.bucket)
        calls.append(LoggedCall(bucket, call.hit, call.duration_ns, call.time))
    return calls, None


def _lines_of(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """The lines of a file, with their ends; of one that is too long, the beginning."""
    with explained(path, "read"), open_regular(path) as plain, locked(plain, shared=True):
        file = io.BufferedReader(plain)
        while line := file.readline(MOST_LINE_BYTES + 1):
            yield line


def _is_torn(tail: bytes) -> bool:
    """Whether text without a line end is the beginning of a line that tgbench was writing.

    Zero bytes after it are what some file systems leave of an interrupted write. Anything else
    may be somebody's file of another kind, and is never cut.
    """
    if len(tail) > MOST_LINE_BYTES:  # of which this is a part
        return False
    written = b"".join(tail.rstrip(b"\0").split())
    if not (HEAD.startswith(written) or written.startswith(HEAD)):
        return False
    try:
        parsed(tail, ValueError)
    except ValueError:
        return True
    return False


def append(path: Path, lines: bytes) -> str | None:
    """Add whole lines at the end, all or none; returns the torn text that had to be cut first."""
    with open(path, "a+b", buffering=0) as file, locked(file):
        end, torn = _mend(file)
        rest = memoryview(lines)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                file.truncate(end)
            raise
    return torn


def _mend(file: IO[bytes]) -> tuple[int, str | None]:
    """End the file with a whole line: its size then, and the torn text that was cut."""
    end = file.seek(0, os.SEEK_END)
    if not end:
        return 0, None
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return end, None
    start = max(0, end - MOST_LINE_BYTES - 1)
    file.seek(start)
    tail = file.read(end - start).rpartition(b"\n")[2]
    if _is_torn(tail):
        file.truncate(end - len(tail))
        return end - len(tail), tail.decode(errors="replace")
    LoggedCall.from_json(tail)  # only its line end is missing, or it is no trace
    return end + file.write(b"\n"), None


def _sync(path: Path) -> None:
    """Make a file's contents and its name survive a power cut."""
    for target in (path, path.parent) if os.name == "posix" else ():
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def explained(path: str | os.PathLike[str], done: str) -> Iterator[None]:
    """Turn what the file system refuses into a TraceError."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise TraceError(
            f"{path}: the trace cannot be {done} ({error}); "
            "check the path, the rights and the free space"
        ) from error


# --- the background writer -----------------------------------------------------------------------


@dataclass(eq=False)
class _Order:
    """A request to the writer, answered by setting `done`."""

    stop: bool
    sync: bool
    done: threading.Event = field(default_factory=threading.Event)
    problem: str | None = None


class Writer:
    """Writes what is new in a list of calls to a file, from its own thread.

    All file access is in that thread, because a KeyboardInterrupt, which only the main thread
    sees, then cannot fall between a write and the note that it happened.
    """

    def __init__(self, path: Path, calls: list[LoggedCall]) -> None:
        self.path = path
        self.torn: str | None = None
        self.problem: str | None = None
        self._calls = calls
        self._written = len(calls)
        self._reset()
        _writers.add(self)

    def _reset(self) -> None:
        self._bell: SimpleQueue[_Order | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._starting = threading.Lock()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def after_fork(self) -> None:
        """In the child: there is no thread, and what was not written is the parent's."""
        self._written = len(self._calls)
        self._reset()

    @property
    def unwritten(self) -> int:
        """How many calls are not in the file yet."""
        return len(self._calls) - self._written

    def forget(self, count: int) -> None:
        """Drop so many of the oldest calls, of those that are written; none while it writes."""
        if self._writing.acquire(blocking=False):
            try:
                gone = min(count, self._written)
                self._written -= gone
                del self._calls[:gone]
            finally:
                self._writing.release()

    def ring(self) -> None:
        """There is a new call."""
        self._bell.put(None)
        if self._thread is None:
            self._start()

    def order(self, *, stop: bool = False, sync: bool = True) -> str | None:
        """Write everything now; returns what went wrong. Interrupting it harms nothing."""
        order = _Order(stop, sync)
        thread = self._start()
        self._bell.put(order)
        self._hurry.set()
        while thread is not None and not order.done.wait(1.0):
            if not thread.is_alive():  # it was ending when the order came
                thread = self._start()
        if thread is None:
            self._write(sync)
            return self.problem
        return order.problem

    def leave(self) -> None:
        """Nobody will append any more: write what there is and end, without being waited for.

        Called by the garbage collector, anywhere; a SimpleQueue is safe then, an Event is not.
        """
        if self._thread is not None:
            self._bell.put(_Order(stop=True, sync=False))

    def finish(self) -> None:
        """At exit: write what there is, and say so if that cannot be."""
        if self.unwritten:
            self.order(stop=True, sync=False)
        if self.unwritten:
            text = f"{self.path}: {counted(self.unwritten, 'call')} lost ({self.problem})"
            warnings.warn(text, TraceWarning, stacklevel=1)

    def _start(self) -> threading.Thread | None:
        """The running thread, started if need be; None where that is refused, as at exit."""
        with self._starting:
            thread = self._thread
            if thread is None or not thread.is_alive():
                thread = threading.Thread(target=self._serve, name="tgbench-trace", daemon=True)
                self._thread = thread
                with suppress(RuntimeError):
                    thread.start()
            return thread if thread.is_alive() else None

    def _serve(self) -> None:
        while True:
            first = self._bell.get()
            if first is None:
                self._hurry.wait(RETRY_S if self.problem else LINGER_S)
            self._hurry.clear()
            orders = [order for order in (first, *self._rung()) if order is not None]
            stop = any(order.stop for order in orders)
            if stop:
                self._thread = None  # from here on an append starts another thread
            self._write(sync=any(order.sync for order in orders))
            for order in orders:
                order.problem = self.problem
                order.done.set()
            if stop:
                return

    def _rung(self) -> Iterator[_Order | None]:
        with suppress(Empty):
            while True:
                yield self._bell.get_nowait()

    def _write(self, sync: bool) -> None:
        with self._writing:
            try:
                while batch := self._calls[self._written : self._written + BATCH]:
                    self.torn = append(self.path, b"".join(_lines(batch))) or self.torn
                    self._written += len(batch)
                if sync:
                    _sync(self.path)
                self.problem = None
            except Exception as error:  # kept for the next `flush`; the run goes on
                self.problem = str(error) or repr(error)


def _lines(calls: Sequence[LoggedCall]) -> Iterator[bytes]:
    """Calls as lines, letting the thread that runs the model go first now and then."""
    for number, call in enumerate(calls):
        if number % 8 == 0:
            time.sleep(0)
        yield call.to_json().encode() + b"\n"


_writers: weakref.WeakSet[Writer] = weakref.WeakSet()


@atexit.register
def _finish_all() -> None:
    for writer in list(_writers):
        writer.finish()


def _after_fork() -> None:
    for writer in list(_writers):
        writer.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
