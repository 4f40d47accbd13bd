"""The trace: which runs really happened, in order, in memory and in a file.

    run ─→ append ─→ calls in memory ─→ class_counts, pairs ─→ transitions: P(next class | class)
                          └─→ background thread ─→ one JSON line a call

The latest calls stay in memory, 8 MiB of them: some ten thousand that never repeat. A file has all.
When several processes append to one file, their calls interleave there, and `pairs` sees that.
"""

from __future__ import annotations

import math
import os
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tgbench.base.errors import TraceError, check_kind
from tgbench.base.regions import Region
from tgbench.base.words import counted, format_time, shorten
from tgbench.graph.graph import Graph
from tgbench.runs.buckets import Bucket, BucketClass, Spot
from tgbench.runs.entry import CALL_BYTES, LoggedCall
from tgbench.runs.log import TraceWarning, Writer, append, explained, read

if TYPE_CHECKING:
    import pandas as pd

MOST_BYTES = 8 << 20  # of calls in memory; past this the older half of them goes

__all__ = ["LoggedCall", "Trace", "TraceWarning"]


class Trace:
    """The calls so far, and the file that they are added to; `size_bytes` of them are in memory.

    `Trace()` lives in memory. `Trace(path)` reads the file if it is there, and adds every later
    call to it from a background thread. `Trace.load(path)` only reads.

    Raises:
        TraceError: the file cannot be used, or holds a line that is no call; the message names
            the line and the field. A torn last line is cut off, kept in `torn`, and reported
            with a TraceWarning.

    >>> trace = Trace()
    >>> bucket = Bucket.of({"x": Region.full((2,))}, {})
    >>> trace.append(LoggedCall(bucket, False, 2_000_000, 1700000000.0))
    >>> print(trace)
    trace in memory: 1 call, 0% hits, mean 2 ms, 2023-11-14 22:13:20 UTC
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        check_kind(TraceError, "trace", path, (str, os.PathLike), "pass a Trace or a path")
        self.path = None if path is None else Path(path)
        self._calls: list[LoggedCall] = []
        self.size_bytes = 0
        self._torn: str | None = None
        self._writer: Writer | None = None
        if self.path is None:
            return
        with explained(self.path, "opened"):
            target = self.path.absolute()  # the working directory may change
            if target.exists():
                self._calls, self._torn = read(self.path)
                self._weigh()
            append(target, b"")
        self._writer = Writer(target, self._calls)
        weakref.finalize(self, self._writer.leave).atexit = False
        self._report("was cut off")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Trace:
        """A trace in memory with the calls of a file, which stays as it is."""
        trace = Trace()
        trace._calls, trace._torn = read(path)
        trace.path = Path(path)
        trace._weigh()
        trace._report("is left out")
        return trace

    def __reduce_ex__(self, protocol: Any) -> Any:
        """One that adds to a file is the only one that does."""
        if self._writer is not None:
            raise TraceError(
                "a trace that writes its file cannot be copied or pickled; read the file, "
                f"Trace.load({str(self.path)!r})"
            )
        return super().__reduce_ex__(protocol)

    def _report(self, what: str) -> None:
        if self._torn is not None:
            warnings.warn(
                f"{self.path}: a torn last line ({len(self._torn)} characters: "
                f"{shorten(self._torn)}) {what}; its call is lost, the others are whole",
                TraceWarning,
                stacklevel=3,
            )

    @property
    def torn(self) -> str | None:
        """The text of a torn line that was found, or None."""
        return self._writer.torn if self._writer and self._writer.torn else self._torn

    @property
    def calls(self) -> Sequence[LoggedCall]:
        """In the order they were added: the latest ones, once they take `MOST_BYTES`."""
        return self._calls

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[LoggedCall]:
        return iter(self._calls)

    def append(self, call: LoggedCall) -> None:
        """Add a call: a microsecond, no I/O, never raises for the file's sake."""
        self._calls.append(call)
        self.size_bytes += CALL_BYTES + call.bucket.size_bytes
        if self.size_bytes > MOST_BYTES:
            self._forget()
        if self._writer is not None:
            self._writer.ring()

    def _forget(self) -> None:
        """Let the older half go; of calls that a file gets, what is in it."""
        half = len(self._calls) // 2
        if self._writer is not None:
            self._writer.forget(half)
        else:
            del self._calls[:half]
        self._weigh()

    def _weigh(self) -> None:
        self.size_bytes = sum(call.size_bytes for call in self._calls)

    def flush(self) -> None:
        """Wait until every call is in the file and synced.

        Raises TraceError if that cannot be; the calls stay in memory, and are tried again.
        """
        self._ordered(stop=False)

    def close(self) -> None:
        """`flush`, and end the background thread; a later `append` starts it again."""
        self._ordered(stop=True)

    def _ordered(self, stop: bool) -> None:
        if self._writer is None:
            return
        problem = self._writer.order(stop=stop)
        if problem is not None:
            raise TraceError(
                f"{self.path}: {counted(self._writer.unwritten, 'call')} could not be written "
                f"({problem}); they are kept in memory: free space or restore the folder, and "
                "flush again"
            )

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what happened, and what follows what ----------------------------------------------------

    def class_counts(self, graph: Graph, last: int | None = None) -> Counter[BucketClass]:
        """How often each class occurred among the `last` calls (None: all).

        Raises TraceError for a call that this graph cannot have made.
        """
        return Counter(self.kinds(graph, last))

    def pairs(
        self, graph: Graph, last: int | None = None
    ) -> Counter[tuple[BucketClass, BucketClass]]:
        """How often each class came right after each other: keys are (before, after)."""
        return Counter(pairwise(self.kinds(graph, last)))

    def origins(self, graph: Graph) -> dict[BucketClass, tuple[int, ...]]:
        """Where each class was seen last.

        Raises TraceError for a call that this graph cannot have made.
        """
        return dict(self._placed(graph, None))

    def kinds(self, graph: Graph, last: int | None = None) -> list[BucketClass]:
        """The class of each of the `last` calls (None: all), in order."""
        return [kind for kind, _ in self._placed(graph, last)]

    def _placed(self, graph: Graph, last: int | None) -> list[Spot]:
        """Class and origin of each call."""
        calls = self._window(last)
        first = len(self._calls) - len(calls)
        known: dict[Bucket, Spot] = {}
        for number, call in enumerate(calls, first + 1):
            if call.bucket not in known:
                require_of(graph, call.bucket, f"{self._name}, call {number}")
                known[call.bucket] = call.bucket.classify(graph)
        return [known[call.bucket] for call in calls]

    def _window(self, last: int | None) -> list[LoggedCall]:
        if last is not None and last < 0:
            raise TraceError(f"last={last} is negative; give a number of calls, or None for all")
        return (
            self._calls[max(len(self._calls) - last, 0) :] if last is not None else self._calls[:]
        )

    def classes(self, graph: Graph, last: int | None = None) -> pd.DataFrame:
        """One row a class, the most frequent first: class, count, share, mean_ms, last (UTC)."""
        import pandas as pd

        calls = self._window(last)
        frame = pd.DataFrame({
            "class": pd.Series(list(map(str, self.kinds(graph, len(calls)))), dtype=str),
            "ms": np.array([call.duration_ns / 1e6 for call in calls], float),
            "time": _times(calls),
        })  # fmt: skip
        groups = frame.groupby("class", sort=False)
        result = groups.agg(count=("ms", "size"), mean_ms=("ms", "mean"), last=("time", "max"))
        result.insert(1, "share", result["count"] / max(len(calls), 1))
        return result.sort_values("count", ascending=False, kind="stable").reset_index()

    def transition_counts(self, graph: Graph, last: int | None = None) -> pd.DataFrame:
        """How often the class of the column came right after the class of the row."""
        import pandas as pd

        kinds = list(dict.fromkeys(self.kinds(graph, last)))
        position = {kind: i for i, kind in enumerate(kinds)}
        counts = np.zeros((len(kinds), len(kinds)), np.int64)
        for (before, after), count in self.pairs(graph, last).items():
            counts[position[before], position[after]] = count
        names = list(map(str, kinds))
        return pd.DataFrame(
            counts,
            index=pd.Index(names, dtype=str, name="class"),
            columns=pd.Index(names, dtype=str, name="next"),
        )

    def transitions(
        self, graph: Graph, smoothing: float = 0, last: int | None = None
    ) -> pd.DataFrame:
        """P(next class | class), square, in order of first occurrence; every row sums to 1.

        Args:
            smoothing: added to every count, so that what never happened is not impossible.

        A class that nothing has followed yet takes the shares of all classes.
        """
        import pandas as pd

        if not (math.isfinite(smoothing) and smoothing >= 0):
            raise TraceError(f"smoothing={smoothing} is not a number of calls, 0 or more")
        counts = self.transition_counts(graph, last)
        weights = counts.to_numpy(float) + smoothing
        unfollowed = weights.sum(axis=1) == 0
        shares = self.class_counts(graph, last)  # in order of first occurrence too
        weights[unfollowed] = [float(count) for count in shares.values()]
        rows = weights / weights.sum(axis=1, keepdims=True)
        return pd.DataFrame(rows, index=counts.index, columns=counts.columns)

    def to_frame(self) -> pd.DataFrame:
        """One row a call: bucket, hit, duration_ns, time (UTC)."""
        import pandas as pd

        return pd.DataFrame({
            "bucket": pd.Series([str(call.bucket) for call in self._calls], dtype=str),
            "hit": np.array([call.hit for call in self._calls], bool),
            "duration_ns": np.array([call.duration_ns for call in self._calls], np.int64),
            "time": _times(self._calls),
        })  # fmt: skip

    @property
    def _name(self) -> str:
        return "trace in memory" if self.path is None else f"trace {self.path}"

    def __str__(self) -> str:
        calls = self._calls[:]
        parts = [counted(len(calls), "call")]
        if calls:
            mean_ns = sum(call.duration_ns for call in calls) / len(calls)
            times = [call.time for call in calls]
            ends = dict.fromkeys(map(_clock, (min(times), max(times))))
            parts.append(f"{sum(call.hit for call in calls) / len(calls):.0%} hits")
            parts.append(f"mean {format_time(mean_ns)}")
            parts.append(f"{' to '.join(ends)} UTC")
        if self.torn is not None:
            parts.append("a torn line was found")
        if self._writer is not None and self._writer.problem is not None:
            parts.append(f"{self._writer.unwritten} not written ({self._writer.problem})")
        return f"{self._name}: {', '.join(parts)}"

    __repr__ = __str__


def _times(calls: Sequence[LoggedCall]) -> pd.DatetimeIndex:
    import pandas as pd

    microseconds = np.array([round(call.time * 1e6) for call in calls], np.int64)
    return pd.DatetimeIndex(microseconds.view("datetime64[us]")).tz_localize("UTC")


def _clock(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")


def require_of(graph: Graph, bucket: Bucket, where: str) -> None:
    """Raise TraceError unless a bucket fits a graph."""
    mend = "this trace was made with another graph; trace to another file"
    leaves = {**graph.inputs, **graph.states}
    found = [(leaves, "input", *pair) for pair in bucket.changed]
    found += [(dict(graph.outputs), "output", *pair) for pair in bucket.demand]
    for nodes, what, name, region in found:
        if name not in nodes:
            raise TraceError(f"{where}: the graph has no {what} {shorten(name)}; {mend}")
        shape = nodes[name].shape
        fits = all(len(box) == len(shape) for box in region)
        if not fits or not Region.full(shape).contains(region):
            raise TraceError(f"{where}: {name}{region} is outside {list(shape)}; {mend}")
