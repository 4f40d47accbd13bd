"""A trace survives crashes, other processes and full disks, and counts what follows what."""

from __future__ import annotations

import doctest
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import ROOT

import tgbench.graph.ops  # noqa: F401  registers the op table
from tgbench.base.errors import TraceError
from tgbench.base.regions import Box, Region
from tgbench.base.words import is_name
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.runs import entry as calls
from tgbench.runs import log as tracefile
from tgbench.runs import trace
from tgbench.runs.buckets import Bucket
from tgbench.runs.trace import LoggedCall, Trace, TraceWarning

TOKENS = 16
NAMES = st.text(max_size=4).filter(is_name)
NOW = 1_700_000_000.25


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.jsonl"


@pytest.fixture(autouse=True)
def no_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "LINGER_S", 0.001)
    monkeypatch.setattr(tracefile, "RETRY_S", 0.001)


@pytest.fixture(scope="module")
def graph() -> Graph:
    g = GraphBuilder()
    g.output("logits", g.input("ids", (1, TOKENS)) * 2.0)
    return g.build()


def row(at: int, rows: int = 1) -> Region:
    return Region((Box(((0, 1), (at, at + rows))),))


def step(at: int, hit: bool = True, ns: int = 1_000_000, time: float = NOW) -> LoggedCall:
    """One more token at a position."""
    return LoggedCall(Bucket.of({"ids": row(at)}, {"logits": row(at)}), hit, ns, time)


def ask(at: int) -> LoggedCall:
    return LoggedCall(Bucket.of({}, {"logits": row(at)}), True, 500_000, NOW)


COLD = LoggedCall(
    Bucket.of({"ids": Region.full((1, TOKENS))}, {"logits": row(3)}), False, 9_000_000, NOW
)
EDIT = "ids[:, u0:+1] → logits[:, u0:+1]"
ASK = "nothing → logits[:, u0:+1]"
START = "ids[:, :] → logits[:, u0:+1]"

intervals = st.tuples(st.integers(0, 9), st.integers(1, 4)).map(lambda p: (p[0], p[0] + p[1]))


@st.composite
def regions(draw: st.DrawFn) -> Region:
    rank = draw(st.integers(0, 3))
    boxes = st.lists(intervals, min_size=rank, max_size=rank).map(Box)
    return Region.of(*draw(st.lists(boxes, min_size=1, max_size=4)))


some_calls = st.builds(
    LoggedCall,
    st.builds(
        Bucket.of,
        st.dictionaries(NAMES, regions(), max_size=3),
        st.dictionaries(NAMES, regions(), max_size=3),
    ),
    st.booleans(),
    st.integers(0, 2**63 - 1),
    st.floats(0, 2**33, exclude_max=True),
)


# --- lines --------------------------------------------------------------------------------------


def test_the_line_is_as_documented() -> None:
    assert step(7).to_json() == (
        '{"v":1,"changed":{"ids":[[[0,1],[7,8]]]},"demand":{"logits":[[[0,1],[7,8]]]},'
        '"hit":true,"ns":1000000,"t":1700000000.25}'
    )
    assert step(7).to_json().encode().startswith(tracefile.HEAD)


@settings(deadline=None)
@given(some_calls)
def test_a_call_survives_its_line(call: LoggedCall) -> None:
    line = call.to_json()
    assert line.isascii()
    assert "\n" not in line
    assert LoggedCall.from_json(line) == LoggedCall.from_json(line.encode()) == call


def test_numpy_numbers_become_json() -> None:
    box = Box(((np.int64(2), np.int64(5)),))  # type: ignore[arg-type]
    bucket = Bucket.of({"x": Region((box,))}, {})
    call = LoggedCall(bucket, np.bool_(True), np.int64(5), np.float64(2))  # type: ignore[arg-type]
    plain = Bucket.of({"x": Region((Box(((2, 5),)),))}, {})
    assert LoggedCall.from_json(call.to_json()) == LoggedCall(plain, True, 5, 2.0)


GOOD: dict[str, Any] = json.loads(step(7).to_json())
BAD_LINES: dict[str, tuple[Any, str]] = {
    "empty": ("", "not a JSON object"),
    "a list": ([1], "not a JSON object"),
    "python": ("__import__('os')", "not a JSON object"),
    "deep": ("[" * 100_000, "not a JSON object"),
    "NaN": (json.dumps({**GOOD, "t": float("nan")}), "NaN is not JSON"),
    "long number": ('{"v":' + "9" * 5000 + "}", "not a JSON object"),
    "repeated field": ('{"v":1,"v":1}', "occurs twice"),
    "no version": ({}, "field 'v' is None"),
    "later version": ({**GOOD, "v": 2}, "field 'v' is 2"),
    "version true": ({**GOOD, "v": True}, "field 'v' is True"),
    "missing": ({k: v for k, v in GOOD.items() if k != "ns"}, "field 'ns' is missing"),
    "unknown": ({**GOOD, "extra": 1}, "field 'extra' is unknown"),
    "hit 1": ({**GOOD, "hit": 1}, "field 'hit' is 1"),
    "ns text": ({**GOOD, "ns": "1"}, "field 'ns' is '1'"),
    "ns true": ({**GOOD, "ns": True}, "field 'ns' is True"),
    "ns negative": ({**GOOD, "ns": -1}, "field 'ns' is -1"),
    "ns too large": ({**GOOD, "ns": 2**63}, "field 'ns'"),
    "t negative": ({**GOOD, "t": -0.5}, "field 't' is -0.5"),
    "t infinite": (json.dumps(GOOD).replace("1700000000.25", "1e999"), "1e999 is too large"),
    "t too large": ({**GOOD, "t": 10**400}, "has 401 digits"),
    "changed a list": ({**GOOD, "changed": []}, "field 'changed' is []"),
    "no boxes": ({**GOOD, "changed": {"ids": []}}, "field 'changed.ids'"),
    "box a number": ({**GOOD, "changed": {"ids": [3]}}, "3 is not a box"),
    "interval of 3": ({**GOOD, "demand": {"y": [[[0, 1, 2]]]}}, "field 'demand.y'"),
    "interval of floats": ({**GOOD, "demand": {"y": [[[0, 1.0]]]}}, "[0, 1.0]"),
    "interval of bools": ({**GOOD, "demand": {"y": [[[False, True]]]}}, "[False, True]"),
    "empty interval": ({**GOOD, "demand": {"y": [[[3, 3]]]}}, "[3, 3]"),
    "negative start": ({**GOOD, "demand": {"y": [[[-1, 3]]]}}, "[-1, 3]"),
    "huge stop": ({**GOOD, "demand": {"y": [[[0, 2**63]]]}}, "0 <= start < stop"),
    "two ranks": ({**GOOD, "demand": {"y": [[[0, 1]], [[3, 4], [0, 1]]]}}, "differ"),
    "rank 65": ({**GOOD, "demand": {"y": [[[0, 1]] * 65]}}, "65 dimensions"),
    "overlap": ({**GOOD, "demand": {"y": [[[0, 3]], [[2, 4]]]}}, "overlap"),
    "scalar twice": ({**GOOD, "demand": {"y": [[], []]}}, "overlap"),
}


@pytest.mark.parametrize(("line", "fault"), BAD_LINES.values(), ids=BAD_LINES)
def test_a_bad_line_is_named(path: Path, line: Any, fault: str) -> None:
    text = line if isinstance(line, str) else json.dumps(line)
    with pytest.raises(TraceError) as found:
        LoggedCall.from_json(text)
    assert fault in str(found.value)
    content = f"{step(1).to_json()}\n{text}\n{step(2).to_json()}\n".encode()
    path.write_bytes(content)
    for use in (Trace, Trace.load):
        with pytest.raises(TraceError) as found:
            use(path)
        assert f"{path}, line 2: " in str(found.value)
        assert fault in str(found.value)
        assert any(mend in str(found.value) for mend in ("delete the line", "install a tgbench"))
    assert path.read_bytes() == content


def test_bytes_that_are_no_text_are_named(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(TraceError, match="line 1: not a JSON object"):
        Trace.load(path)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_call_or_a_typed_error(line: bytes) -> None:
    with pytest.raises(TraceError):
        LoggedCall.from_json(line)


@pytest.mark.parametrize(
    ("ns", "time"), [(-1, 0.0), (2**63, 0.0), (0, -1.0), (0, float("nan")), (0, 1e10)]
)
def test_a_call_that_no_line_can_hold_cannot_be_made(ns: int, time: float) -> None:
    with pytest.raises(TraceError):
        LoggedCall(COLD.bucket, True, ns, time)


# --- the file -----------------------------------------------------------------------------------


def test_a_trace_survives_a_restart(path: Path) -> None:
    with Trace(path) as first:
        first.append(COLD)
        first.append(step(4))
    with Trace(path) as second:
        assert list(second) == [COLD, step(4)]
        second.append(step(5))
    assert list(Trace.load(path)) == [COLD, step(4), step(5)]
    assert path.read_bytes().count(b"\n") == 3


def test_append_writes_in_the_background(path: Path) -> None:
    written = threading.Event()
    trace = Trace(path)
    trace.append(COLD)
    while not path.read_bytes().endswith(b"\n"):
        written.wait(0.001)
    assert list(Trace.load(path)) == [COLD]
    trace.close()


def test_append_does_no_work_of_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = set()
    append, to_json = tracefile.append, LoggedCall.to_json

    def watched_append(path: Path, lines: bytes) -> str | None:
        where.add(threading.current_thread().name)
        return append(path, lines)

    def watched_to_json(call: LoggedCall) -> str:
        where.add(threading.current_thread().name)
        return to_json(call)

    trace = Trace(path)
    monkeypatch.setattr(tracefile, "append", watched_append)
    monkeypatch.setattr(LoggedCall, "to_json", watched_to_json)
    for at in range(TOKENS):
        trace.append(step(at))
    trace.close()
    assert where == {"tgbench-trace"}


def test_flush_syncs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    with Trace(path) as trace:
        trace.append(COLD)
        trace.flush()
        assert synced == [path.stat().st_ino, path.parent.stat().st_ino]
        assert list(Trace.load(path)) == [COLD]


def test_the_thread_ends_with_close_and_starts_again(path: Path) -> None:
    trace = Trace(path)
    assert _threads() == 0
    for at in range(3):
        trace.append(step(at))
        trace.close()
    trace.close()
    assert list(Trace.load(path)) == [step(0), step(1), step(2)]
    for thread in [t for t in threading.enumerate() if t.name == "tgbench-trace"]:
        thread.join(10)
    assert _threads() == 0


def _threads() -> int:
    return sum(thread.name == "tgbench-trace" for thread in threading.enumerate())


def test_a_trace_that_nobody_holds_is_written_and_freed(path: Path) -> None:
    trace = Trace(path)
    trace.append(COLD)
    gone = weakref.ref(trace)
    del trace
    gc.collect()
    assert gone() is None
    for thread in [t for t in threading.enumerate() if t.name == "tgbench-trace"]:
        thread.join(10)
    assert _threads() == 0
    assert list(Trace.load(path)) == [COLD]


def test_a_relative_path_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Trace("runs.jsonl") as trace:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        trace.append(COLD)
    assert list(Trace.load(tmp_path / "runs.jsonl")) == [COLD]


@pytest.mark.usefixtures("in_no_folder")
def test_a_relative_path_in_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"runs\.jsonl: the trace cannot be opened"):
        Trace("runs.jsonl")
    with Trace(tmp_path / "runs.jsonl") as trace:
        trace.append(COLD)
    assert list(Trace.load(tmp_path / "runs.jsonl")) == [COLD]


def test_many_calls_go_out_in_several_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracefile, "BATCH", 7)
    with Trace(path) as trace:
        for at in range(100):
            trace.append(step(at % TOKENS, ns=at))
    assert [call.duration_ns for call in Trace.load(path)] == list(range(100))


def test_threads_may_append_together(path: Path) -> None:
    trace = Trace(path)

    def add(first: int) -> None:
        for ns in range(first, first + 200):
            trace.append(step(0, ns=ns))
            if ns % 50 == 0:
                trace.flush()

    threads = [threading.Thread(target=add, args=(1000 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    assert list(Trace.load(path)) == list(trace)
    assert len(trace) == 800


# --- torn lines ---------------------------------------------------------------------------------


@settings(max_examples=settings().max_examples // 4)  # of hundreds of bytes each
@given(st.lists(some_calls, max_size=2), some_calls, some_calls)
def test_a_crash_at_any_byte_loses_at_most_the_last_call(
    tmp_path_factory: pytest.TempPathFactory,
    before: list[LoggedCall],
    last: LoggedCall,
    after: LoggedCall,
) -> None:
    path = tmp_path_factory.mktemp("torn") / "runs.jsonl"
    whole = "".join(f"{call.to_json()}\n" for call in before).encode()
    line = last.to_json().encode()
    for length in range(len(line) + 2):
        path.write_bytes(whole + (line + b"\n")[:length])
        kept = [*before, last] if length >= len(line) else before
        torn = line[:length].decode() if 0 < length < len(line) else None
        for use in (Trace.load, Trace):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                trace = use(path)
            assert list(trace) == kept
            assert trace.torn == torn
            assert [w.category for w in caught] == [TraceWarning] * (torn is not None)
        trace.append(after)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tracefile, "_sync", lambda path: None)  # for speed
            trace.close()
        reloaded = Trace.load(path)
        assert list(reloaded) == [*kept, after]
        assert reloaded.torn is None


def test_loading_leaves_a_torn_file_as_it_is(path: Path) -> None:
    content = f"{COLD.to_json()}\n{COLD.to_json()[:30]}".encode()
    path.write_bytes(content)
    with pytest.warns(TraceWarning, match="is left out") as caught:
        loaded = Trace.load(path)
    assert caught[0].filename == __file__
    loaded.append(step(1))
    loaded.close()
    assert path.read_bytes() == content
    assert "torn" in str(loaded)


def test_zero_bytes_after_a_power_cut_are_torn(path: Path) -> None:
    for tail in (b"\0" * 40, COLD.to_json().encode()[:50] + b"\0" * 9):
        path.write_bytes(COLD.to_json().encode() + b"\n" + tail)
        with pytest.warns(TraceWarning, match="was cut off") as caught, Trace(path) as trace:
            trace.append(step(1))
        assert caught[0].filename == __file__
        assert list(Trace.load(path)) == [COLD, step(1)]


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        b'{"schema": 3, "plan": [1, 2',
        b"PK\x03\x04",
        b'{"v":2,"changed":{',
        b'{"v":1,"changed":{},"demand":{},"hit":1,"ns":0,"t":0}',
    ],
)
def test_a_file_of_another_kind_is_never_cut(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    for use in (Trace, Trace.load):
        with pytest.raises(TraceError, match="line 1"):
            use(path)
    assert path.read_bytes() == content


def test_a_line_torn_by_another_process_is_cut_before_writing(path: Path) -> None:
    trace = Trace(path)
    trace.append(step(0))
    trace.flush()
    with path.open("ab") as other:
        other.write(COLD.to_json().encode()[:40])
    trace.append(step(1))
    trace.close()
    assert trace.torn == COLD.to_json()[:40]
    assert list(Trace.load(path)) == [step(0), step(1)]


# --- other processes ----------------------------------------------------------------------------

PRELUDE = """
import os, sys
from tgbench.runs.buckets import Bucket
from tgbench.base.regions import Box, Region
from tgbench.runs.entry import LoggedCall
from tgbench.runs.trace import Trace
def step(ns):
    return LoggedCall(Bucket.of({"ids": Region((Box(((0, 1), (2, 3))),))}, {}), True, ns, 1.7e9)
trace = Trace(sys.argv[1])
"""


def _python(code: str, path: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(path), *args],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _succeeds(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out + err


def test_two_processes_append_to_one_file(path: Path) -> None:
    code = """
first = int(sys.argv[2])
for ns in range(first, first + 500):
    trace.append(step(ns))
    if ns % 10 == 0:
        trace.flush()
trace.close()
"""
    for process in [_python(code, path, first) for first in ("0", "1000")]:
        _succeeds(process)
    found = [call.duration_ns for call in Trace.load(path)]
    assert [ns for ns in found if ns < 1000] == list(range(500))
    assert [ns for ns in found if ns >= 1000] == list(range(1000, 1500))


def test_calls_are_written_at_exit(path: Path) -> None:
    assert _succeeds(_python("for ns in range(300): trace.append(step(ns))", path)) == ""
    assert [call.duration_ns for call in Trace.load(path)] == list(range(300))


def test_calls_of_exit_handlers_are_written(path: Path) -> None:
    code = "import atexit; atexit.register(lambda: trace.append(step(7)))"
    assert _succeeds(_python(code, path)) == ""
    assert [call.duration_ns for call in Trace.load(path)] == [7]


def test_calls_lost_at_exit_are_reported(path: Path) -> None:
    code = "trace.append(step(1)); trace.flush(); trace.append(step(2)); "
    code += "p = trace.path; p.unlink(); p.mkdir()"
    said = _succeeds(_python(f"import tgbench.runs.log as t; t.LINGER_S = 60\n{code}", path))
    assert "1 call lost" in said
    assert "Is a directory" in said


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_writes_its_own_calls_only(path: Path) -> None:
    code = """
import tgbench.runs.log
tgbench.runs.log.LINGER_S = 60
trace.append(step(1))  # not written yet when the child begins
child = os.fork()
if child == 0:
    assert len(trace) == 1
    trace.append(step(2))
    trace.flush()
    trace.append(step(3))
    trace.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
trace.append(step(4))
"""
    _succeeds(_python(code, path))
    assert [call.duration_ns for call in Trace.load(path)] == [2, 3, 1, 4]


# --- faults -------------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[OSError]]:
    """Writes fail while this list holds an error."""
    errors: list[OSError] = []
    append = tracefile.append

    def failing(path: Path, lines: bytes) -> str | None:
        if errors:
            raise errors[0]
        return append(path, lines)

    monkeypatch.setattr(tracefile, "append", failing)
    yield errors
    errors.clear()


def test_a_full_disk_surfaces_at_flush_and_loses_nothing(path: Path, broken: list[OSError]) -> None:
    trace = Trace(path)
    trace.append(step(0))
    trace.flush()
    broken.append(OSError(28, "No space left on device"))
    for at in range(1, 4):
        trace.append(step(at))
    for end in (trace.flush, trace.close, trace.flush):
        with pytest.raises(TraceError, match=r"runs.jsonl: 3 calls could not .* No space left"):
            end()
    assert "3 not written" in str(trace)
    assert len(trace) == 4
    broken.clear()
    trace.close()
    assert list(Trace.load(path)) == [step(at) for at in range(4)]
    assert "not written" not in str(trace)


def test_the_thread_tries_again_by_itself(path: Path, broken: list[OSError]) -> None:
    trace = Trace(path)
    broken.append(OSError(28, "No space left on device"))
    trace.append(step(0))
    with pytest.raises(TraceError):
        trace.flush()
    broken.clear()
    trace.append(step(1))
    while path.read_bytes().count(b"\n") < 2:
        threading.Event().wait(0.001)
    trace.close()
    assert list(Trace.load(path)) == [step(0), step(1)]


@pytest.mark.skipif(sys.platform == "win32", reason="no file size limits")
def test_a_write_cut_short_leaves_whole_lines(path: Path) -> None:
    code = """
import resource, signal
trace.append(step(1)); trace.flush()
limit = os.path.getsize(sys.argv[1]) + 50  # half a line
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
trace.append(step(2))
try:
    trace.flush()
except Exception as error:
    print(type(error).__name__, error)
assert Trace.load(sys.argv[1]).torn is None and len(Trace.load(sys.argv[1])) == 1
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
"""
    assert "TraceError" in _succeeds(_python(code, path))
    assert [call.duration_ns for call in Trace.load(path)] == [1, 2]


def test_paths_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for bad in (tmp_path / "none" / "x.jsonl", tmp_path / "folder", "a\0b"):
        with pytest.raises(TraceError, match="cannot be"):
            Trace(bad)
        with pytest.raises(TraceError, match="cannot be"):
            Trace.load(bad)
    with pytest.raises(TraceError, match=r"nothing.jsonl: the trace cannot be read"):
        Trace.load(tmp_path / "nothing.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device files")
def test_a_device_is_no_trace() -> None:
    for use in (Trace, Trace.load):
        with pytest.raises(TraceError, match="not a regular file"):
            use("/dev/full")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do all")
def test_an_unwritable_file_fails_at_once(path: Path) -> None:
    path.touch(0o444)
    with pytest.raises(TraceError, match="ermission"):
        Trace(path)


def test_a_missing_folder_surfaces_and_heals(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    trace = Trace(folder / "runs.jsonl")
    (folder / "runs.jsonl").unlink()
    folder.rmdir()
    trace.append(COLD)
    with pytest.raises(TraceError, match="No such file"):
        trace.flush()
    folder.mkdir()
    trace.close()
    assert list(Trace.load(folder / "runs.jsonl")) == [COLD]


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX signals")
def test_an_interrupt_in_flush_loses_and_repeats_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, guarded = threading.Event(), threading.Event(), threading.Event()
    append = tracefile.append

    def slow(path: Path, lines: bytes) -> str | None:
        torn = append(path, lines)
        begun.set()
        go_on.wait(60)
        return torn

    monkeypatch.setattr(tracefile, "append", slow)
    trace = Trace(path)
    go_on.set()
    trace.flush()
    go_on.clear()
    begun.clear()
    trace.append(step(0))

    def interrupt() -> None:
        begun.wait(60)
        guarded.wait(60)  # until an interrupt of the main thread is expected
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()

    def flush() -> None:
        guarded.set()
        trace.flush()

    # A shell may have started the tests with SIGINT ignored; then nothing would be raised.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            flush()
    finally:
        signal.signal(signal.SIGINT, handler)
    other.join()
    go_on.set()
    trace.append(step(1))
    trace.close()
    assert list(Trace.load(path)) == [step(0), step(1)]


def test_without_threads_flush_writes_itself(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    trace = Trace(path)
    trace.append(COLD)
    trace.flush()
    assert list(Trace.load(path)) == [COLD]


# --- statistics ---------------------------------------------------------------------------------


def test_what_follows_what(graph: Graph) -> None:
    trace = Trace()
    for call in (COLD, step(4), step(5), ask(2), step(6), step(7)):
        trace.append(call)
    kinds = {str(kind): kind for kind in trace.class_counts(graph)}
    edit, look, cold = kinds[EDIT], kinds[ASK], kinds[START]
    assert trace.class_counts(graph) == {edit: 4, look: 1, cold: 1}
    assert trace.class_counts(graph, last=3) == {edit: 2, look: 1}
    assert trace.class_counts(graph, last=0) == {}
    assert trace.class_counts(graph, last=99) == trace.class_counts(graph)
    expected = Counter({(cold, edit): 1, (edit, edit): 2, (edit, look): 1, (look, edit): 1})
    assert trace.pairs(graph) == expected
    assert trace.pairs(graph, last=2) == {(edit, edit): 1}

    names = [START, EDIT, ASK]
    counts = trace.transition_counts(graph)
    assert list(counts.index) == list(counts.columns) == names
    assert counts.to_numpy().tolist() == [[0, 1, 0], [0, 2, 1], [0, 1, 0]]
    chances = trace.transitions(graph)
    assert chances.loc[EDIT].tolist() == [0, 2 / 3, 1 / 3]
    assert trace.transitions(graph, smoothing=1).loc[EDIT].tolist() == [1 / 6, 3 / 6, 2 / 6]


def test_a_class_that_nothing_followed_takes_the_shares(graph: Graph) -> None:
    trace = Trace()
    for call in (step(4), step(5), ask(2)):
        trace.append(call)
    assert trace.transitions(graph).loc[ASK].tolist() == [2 / 3, 1 / 3]
    assert trace.transitions(graph, smoothing=1).loc[ASK].tolist() == [1 / 2, 1 / 2]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([COLD, step(1), step(2), ask(3)]), max_size=12),
    st.floats(0, 10),
    st.none() | st.integers(0, 14),
)
def test_rows_sum_to_one(
    graph: Graph, happened: list[LoggedCall], smoothing: float, last: int | None
) -> None:
    trace = Trace()
    for call in happened:
        trace.append(call)
    chances = trace.transitions(graph, smoothing, last)
    counts = trace.transition_counts(graph, last)
    window = happened if last is None else happened[len(happened) - min(last, len(happened)) :]
    assert chances.shape == counts.shape == (len(trace.class_counts(graph, last)),) * 2
    assert counts.to_numpy().sum() == max(len(window) - 1, 0)
    assert sum(trace.class_counts(graph, last).values()) == len(window)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert (chances.to_numpy() >= 0).all()


def test_classes_is_a_table(graph: Graph) -> None:
    trace = Trace()
    for call in (ask(1), step(4, ns=1_000_000, time=NOW + 9), step(5, ns=3_000_000), COLD):
        trace.append(call)
    table = trace.classes(graph)
    assert list(table.columns) == ["class", "count", "share", "mean_ms", "last"]
    assert table["class"].tolist() == [EDIT, ASK, START]
    assert table["count"].tolist() == [2, 1, 1]
    assert table["share"].tolist() == [0.5, 0.25, 0.25]
    assert table["mean_ms"].tolist() == [2.0, 0.5, 9.0]
    assert table["last"].tolist()[0] == pd.Timestamp(NOW + 9, unit="s", tz="UTC")
    assert trace.classes(graph, last=1)["class"].tolist() == [START]


def test_to_frame_has_a_row_a_call() -> None:
    trace = Trace()
    for call in (COLD, step(4)):
        trace.append(call)
    frame = trace.to_frame()
    assert frame["bucket"].tolist() == [str(COLD.bucket), str(step(4).bucket)]
    assert frame["hit"].tolist() == [False, True]
    assert frame["duration_ns"].tolist() == [9_000_000, 1_000_000]
    assert frame["time"].tolist() == [pd.Timestamp(NOW, unit="s", tz="UTC")] * 2


def test_an_empty_trace_has_empty_tables(graph: Graph) -> None:
    trace = Trace()
    assert trace.classes(graph).empty
    assert list(trace.classes(graph).columns) == ["class", "count", "share", "mean_ms", "last"]
    assert trace.transitions(graph).shape == trace.transition_counts(graph).shape == (0, 0)
    assert trace.to_frame().empty
    assert str(trace) == "trace in memory: 0 calls"
    assert isinstance(trace.classes(graph)["last"].dtype, pd.DatetimeTZDtype)
    trace.flush()
    trace.close()


@pytest.mark.parametrize(
    ("bucket", "fault"),
    [
        (Bucket.of({"tokens": row(1)}, {}), "no input 'tokens'"),
        (Bucket.of({}, {"probs": row(1)}), "no output 'probs'"),
        (Bucket.of({"ids": row(TOKENS)}, {}), "outside [1, 16]"),
        (Bucket.of({"ids": Region((Box(((0, 1),)),))}, {}), "outside [1, 16]"),
    ],
)
def test_a_trace_of_another_graph_is_refused(graph: Graph, bucket: Bucket, fault: str) -> None:
    trace = Trace()
    trace.append(step(1))
    trace.append(LoggedCall(bucket, True, 0, NOW))
    with pytest.raises(TraceError) as found:
        trace.class_counts(graph, last=1)
    assert "trace in memory, call 2: " in str(found.value)
    assert fault in str(found.value)
    assert "another graph" in str(found.value)


def test_bad_arguments_are_named(graph: Graph) -> None:
    with pytest.raises(TraceError, match="last=-1"):
        Trace().class_counts(graph, last=-1)
    for smoothing in (-1.0, float("nan"), float("inf")):
        with pytest.raises(TraceError, match="smoothing"):
            Trace().transitions(graph, smoothing)


def test_print_is_a_summary(path: Path) -> None:
    with Trace(path) as trace:
        trace.append(COLD)
        trace.append(step(1, time=NOW + 60))
    assert str(trace) == repr(trace) == (
        f"trace {path}: 2 calls, 50% hits, mean 5 ms, "
        "2023-11-14 22:13:20 to 2023-11-14 22:14:20 UTC"
    )  # fmt: skip


def test_equal_buckets_are_kept_once(path: Path) -> None:
    with Trace(path) as written:
        for _ in range(3):
            written.append(step(4))
    assert len({id(call.bucket) for call in Trace.load(path)}) == 1


def test_the_examples_in_the_docstrings() -> None:
    for module in (calls, tracefile, trace):
        assert doctest.testmod(module).failed == 0
