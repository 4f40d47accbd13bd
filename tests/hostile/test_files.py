"""Files of strangers: what they once did to a machine, and some of the fuzzer's on every run."""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import socket
import sqlite3
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import tgbench as tg
from hostile.__main__ import CASES
from hostile.kinds import KINDS, decoder, values_of
from hostile.mutating import mutated
from hostile.reading import Outcome, Reader
from tgbench import ops
from tgbench.base.arrays import read_array
from tgbench.base.errors import (
    GraphError,
    InputError,
    PlanError,
    RecordsError,
    TgbenchError,
    TraceError,
)
from tgbench.base.safetensors import Weights, fingerprint, read_header
from tgbench.commands.apps.occlusion_command import read_image
from tgbench.commands.apps.stream_command import read_signal
from tgbench.commands.export import kind_of
from tgbench.costs.admission.admit import admit
from tgbench.costs.records import Records
from tgbench.graph.dims import dim
from tgbench.graph.graph import GraphBuilder
from tgbench.graph.graph_file import graph_to_json, load_graph
from tgbench.memory.packing.files import read_minimalloc
from tgbench.plans.checks import check_bucket
from tgbench.plans.decisions import PlanBucket
from tgbench.plans.plan import Plan
from tgbench.runs.entry import LoggedCall
from tgbench.runs.trace import Trace
from tgbench.session.check import load_pairs
from tgbench.sources.models.config import load_config
from tgbench.sources.torch import from_pt2
from tgbench.sources.torch.place import SourceLine

READERS: dict[str, Callable[[Path], Any]] = {
    "plan": Plan.load, "graph": load_graph, "trace": Trace.load, "a trace to write": Trace,
    "records": Records, "weights": Weights, "a header": read_header, "fingerprint": fingerprint,
    "pt2": from_pt2, "config": load_config, "packing": read_minimalloc, "pairs": load_pairs,
    "programs": lambda path: _session().load_programs(path),
    "array": lambda path: image_of(path), "signal": lambda path: signal_of(path),
    "export": lambda path: kind_of(path.with_suffix(".json")), "a kernel": admit,
}  # fmt: skip


def image_of(path: Path) -> Any:
    return read_image(str(path), 8)


def signal_of(path: Path) -> Any:
    return read_signal(argparse.Namespace(signal=str(path)))


def _weights_of() -> dict[str, Any]:
    values = values_of(decoder())
    return {name: values[name] for name in decoder().parameters}


def _session() -> tg.GraphSession:
    g = GraphBuilder()
    g.output("y", g.input("x", (2,)) * 2.0)
    session = tg.GraphSession(g.build(), calibrate=False)
    session.run({"x": np.ones(2, "float32")})
    return session


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Fail where something waits for ever."""

    def late(*_: object) -> None:
        raise AssertionError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- not files at all -----------------------------------------------------------------------------


def _put(what: str, path: Path) -> None:
    match what:
        case "a pipe":
            os.mkfifo(path)
        case "a folder":
            path.mkdir()
        case "a socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "a link to a pipe":
            os.mkfifo(path.with_name("pipe"))
            path.symlink_to("pipe")
        case "a link to itself":
            path.symlink_to(path)
        case device:
            path.symlink_to(device)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "what",
    ["a pipe", "a folder", "a socket", "a link to a pipe", "a link to itself", "/dev/zero",
     "/dev/null", "/dev/tty", "/proc/self/mem"],
)  # fmt: skip
def test_what_is_no_file_is_refused_and_not_waited_for(
    what: str, reader: str, tmp_path: Path
) -> None:
    path = tmp_path / ("file.json" if reader == "export" else "file")
    if len(str(path)) > 90 and what == "a socket":
        pytest.skip("the path is too long for a socket")
    _put(what, path)
    with at_most(60), pytest.raises(TgbenchError) as caught:
        READERS[reader](path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("reader", READERS)
def test_a_path_that_is_none_is_refused(reader: str, tmp_path: Path) -> None:
    for name in ("a\0b", "x" * 300, "no/such/folder/file"):
        with pytest.raises(TgbenchError):
            READERS[reader](tmp_path / name)


def test_a_link_to_a_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("{")
    (tmp_path / "graph.json").write_text(graph_to_json(decoder()))
    (tmp_path / "link").symlink_to("graph.json")
    assert load_graph(tmp_path / "link").fingerprint == decoder().fingerprint


# --- few bytes, and much of everything else -------------------------------------------------------


def graph_of(*nodes: Any, **more: Any) -> str:
    """A graph file of [op, type, inputs, attributes] each."""
    records = [
        {"op": op, "name": f"n{i}", "type": type_, "inputs": inputs, "attrs": attrs}
        for i, (op, type_, inputs, attrs) in enumerate(nodes)
    ]
    return json.dumps({
        "version": 1, "fingerprint": "", "dimensions": {}, "outputs": {"y": len(nodes) - 1},
        "updates": {}, "nodes": records, **more,
    })  # fmt: skip


def powers(levels: int) -> Any:
    made: Any = ["+", ["**", "T", 8], 1]
    for _ in range(levels):
        made = ["+", ["**", made, 8], 1]
    return made


def zeros(size_bytes: int) -> Any:
    raw = zlib.compressobj(9)
    parts = [raw.compress(bytes(1 << 20)) for _ in range(size_bytes >> 20)]
    return {"deflated": base64.b64encode(b"".join([*parts, raw.flush()])).decode(), "sha256": ""}


X: tuple[Any, ...] = ("input", ["float32", [4]], [], {})
BOMBS: dict[str, Callable[[], str]] = {
    "a slice without an end": lambda: graph_of(
        X, ("slice", ["float32", [4]], [0], {"starts": [0], "stops": [2**62 - 1], "steps": [1]})
    ),
    "powers of powers": lambda: graph_of(
        ("input", ["float32", [powers(14)]], [], {}), dimensions={"T": None}
    ),
    "a large constant": lambda: graph_of(
        ("constant", ["uint8", [1 << 31]], [], {"data": zeros(1 << 31)})
    ),
    "a margin": lambda: graph_of(
        X, ("pad", ["float32", [2**40 + 4]], [0], {"low": [0], "high": [2**40], "value": 0.0})
    ),
    "two constants across": lambda: graph_of(
        ("constant", ["bool", [1 << 20, 1]], [], {"data": zeros(1 << 20)}),
        ("constant", ["bool", [1, 1 << 20]], [], {"data": zeros(1 << 20)}),
        ("logical_and", ["bool", [1 << 20, 1 << 20]], [0, 1], {}),
    ),
    "many pieces": lambda: graph_of(
        X, ("concat", ["float32", [4 * 200_000]], [0] * 200_000, {"axis": 0})
    ),
    "many values": lambda: '{"version": 1, "nodes": [' + "[]," * (1 << 22) + "[]]}",
    "words beyond Latin": lambda: '{"version": 1, "nodes": "' + "x" * (50 << 20) + '🙂"}',
}  # fmt: skip


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    with Reader() as found:
        yield found


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_small_graph_file_takes_neither_time_nor_memory(bomb: str, reader: Reader) -> None:
    found = reader.read("graph", BOMBS[bomb]().encode())
    wanted = ("fine", "") if bomb == "a margin" else ("refused", "GraphError")  # it says so itself
    assert (found.outcome, found.what) == wanted, found.told


APART = {f"{d} dimensions": [[[i, 99 - i]] * d + [[i, i + 1]] for i in range(30)] for d in (3, 20)}
ACROSS = {f"{n} across": [[[i, 9 + i]] * 64 for i in range(n)] for n in (2, 5)}
LINES = {f"line {i}": [[[i, i + 1]] for i in range(i)] for i in (1025, 9000)}


@pytest.mark.parametrize("boxes", (APART | ACROSS | LINES).values(), ids=APART | ACROSS | LINES)
def test_boxes_that_a_line_of_a_trace_lists_take_no_time(boxes: Any) -> None:
    """What overlaps falls into pieces, and so do bands: by the power of the dimensions."""
    record = {
        "changed": {"x": boxes},
        "demand": {"y": [[]]},
        "hit": True,
        "ns": 1,
        "t": 1.0,
        "v": 1,
    }
    began = time.process_time()
    with pytest.raises(TraceError, match=r"overlap|are more than"):
        LoggedCall.from_json(json.dumps(record))
    assert time.process_time() - began < 2


def test_so_do_those_of_a_plan() -> None:
    """Four axes are enough: boxes there are inside of each other, and apart along a fifth."""
    g = GraphBuilder()
    g.output("y", g.input("x", (200,) * 4 + (99,), "bool"))
    boxes = [[[i, 99 - 2 * i]] * 4 + [[i, 1]] for i in range(40)]
    side = (("x", tuple(tuple(map(tuple, box)) for box in boxes)),)
    bucket = PlanBucket(side, (("y", side[0][1][:1]),), (60,) * 40, 1.0, tuple(range(40)))
    began = time.process_time()
    with pytest.raises(PlanError, match="boxes of x overlap"):
        check_bucket(bucket, g.build(), "buckets[0]")
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "trace",
    ['File "' * 300_000, 'File "a", line 1, in ' * 100_000, 'File "a", line ' + "1" * 100_000,
     'File "a", line 12345, in f\n' * 30_000],
    ids=["names", "functions", "digits", "frames"],
)  # fmt: skip
def test_where_a_node_comes_from_is_read_in_linear_time(trace: str) -> None:
    began = time.process_time()
    assert SourceLine.of({"stack_trace": trace}).line in (0, 12345)
    assert time.process_time() - began < 2


def test_an_error_is_plain_and_short_whatever_it_quotes() -> None:
    said = str(GraphError(f"no node \x1b[2J\u202e{'x' * 10**6}\n"))
    assert said.startswith(r"no node \x1b[2J\u202exxx")
    assert said.endswith("characters more)")
    assert len(said) < 5000


def test_a_compressed_archive_is_refused(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    for how in (zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        with zipfile.ZipFile(path, "w", how) as archive:
            archive.writestr("x/models/model.json", bytes(1 << 28))
        assert reader.read("pt2", path.read_bytes()) == Outcome("refused", "ImporterError")


@pytest.mark.parametrize(
    "header",
    ["{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}",
     "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}",
     "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
     "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
     "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}",
     "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "(" * 3000 + ",)}",
     "{'descr': 7, 'fortran_order': 1, 'shape': (2,)}", "__import__('os')", "{", ""],
)  # fmt: skip
def test_arrays_whose_header_is_not_what_they_hold_are_refused(header: str, tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    raw = header.encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(raw).to_bytes(2, "little") + raw + bytes(4))
    for read in (image_of, signal_of):
        with pytest.raises(InputError) as caught:
            read(path)
        assert str(path) in str(caught.value)


def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    for made in (np.arange(6.0).reshape(2, 3), np.asfortranarray(np.eye(3)[:, :2]), np.array(2)):
        np.save(tmp_path / "a.npy", made)
        assert np.array_equal(read_array(tmp_path / "a.npy"), np.load(tmp_path / "a.npy"))
    with pytest.raises(ValueError, match="more than 64 bytes"):
        read_array(tmp_path / "a.npy", 64)


def test_a_database_that_computes_is_refused(reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "records.db"
    for statement in (
        "CREATE VIEW tgbench_records AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 "
        "FROM n) SELECT r.* FROM n, real r",
        "CREATE TRIGGER t AFTER INSERT ON real BEGIN SELECT 1; END",
    ):
        path.write_bytes(KINDS["records"].samples()[0])
        with sqlite3.connect(path) as connection:
            connection.execute("ALTER TABLE tgbench_records RENAME TO real")
            connection.execute(statement)
        connection.close()
        assert reader.read("records", path.read_bytes()) == Outcome(
            "refused", "UnreadableRecordsError"
        )


def test_a_long_chain_of_writes_is_no_recursion() -> None:
    g = GraphBuilder()
    state, row = g.state("s", (4, 2)), g.input("x", (1, 2))
    value = state
    for i in range(1500):
        value = ops.update(value, row * float(i), (i % 4, 0))
    g.update(state, value)
    g.output("y", row)
    assert len(g.build().writes["s"]) == 1500


def test_an_arena_that_no_machine_has_is_a_typed_error() -> None:
    for size in (1 << 40, 1 << 44, 1 << 55):
        g = GraphBuilder()
        g.output("y", ops.exp(g.input("x", (size,))))
        with pytest.raises(TgbenchError):
            tg.GraphSession(g.build(), calibrate=False).plan_for([({}, {"y": np.s_[:1]})])


@pytest.mark.parametrize("size", [1 << 60, 1 << 62, 1 << 70])
def test_bytes_that_64_bits_do_not_count_are_a_typed_error(size: int) -> None:
    g = GraphBuilder()
    g.output("y", ops.exp(g.input("x", (dim("beyond"),))))
    with pytest.raises(GraphError, match="no machine addresses"):
        tg.GraphSession(g.build().bind(beyond=size), calibrate=False)


def test_a_path_where_no_plan_can_be_is_like_one_where_none_is(tmp_path: Path) -> None:
    for name in ("x" * 300, "a\0b"):
        session = tg.GraphSession(decoder(), _weights_of(), plan=tmp_path / name, calibrate=False)
        session.plan_for([({}, None)])
        with pytest.raises(TgbenchError):
            session.save_plan()


@pytest.mark.parametrize("where", ["", ":memory:", "sqlite://", "sqlite:///:memory:"])
def test_a_database_of_no_file_is_refused_and_not_waited_for(where: str) -> None:
    with at_most(60), pytest.raises(RecordsError, match="no path of a file"):
        Records(where)


def test_a_database_that_cannot_write_ahead_is_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system without shared memory: SQLite says so in no error."""

    class Held(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            return super().execute(statement.replace("= WAL", "= DELETE"), *values)

    plain = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: plain(*a, **k, factory=Held))
    with at_most(60):
        records = Records(tmp_path / "records.db")
        assert records.all() == ()


# --- the fuzzer -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CASES.iterdir()), ids=lambda path: path.name)
def test_files_that_once_failed_do_not(path: Path, reader: Reader) -> None:
    found = reader.read(path.name.partition("-")[0], path.read_bytes())
    assert found.is_good, (found.outcome, found.what, found.told)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_were_damaged_are_refused_or_right(kind: str, reader: Reader) -> None:
    samples = KINDS[kind].samples()
    for sample in samples:
        found = reader.read(kind, sample)
        assert found.outcome == "fine", found.told or found.what
    for seed in range(settings().max_examples * 2):
        data = mutated(kind, samples, seed)
        found = reader.read(kind, data)
        assert found.is_good, (seed, found.outcome, found.what, found.told)


HARMS = {
    "1 / 0": "untyped",
    "raise SystemExit": "untyped",
    "from tgbench.base.errors import GraphError; raise GraphError('x' * 10**6)": "untyped",
    "[0] * 10**9": "memory",
    "[0 for _ in iter(int, 1)]": "time",
    "import time; time.sleep(1000)": "time",
}


def test_the_process_that_reads_notices() -> None:
    """A limit that nothing exceeds proves nothing."""
    with Reader(seconds=2, waiting=6) as reader:
        found = {harm: reader.read("harm", harm.encode()).outcome for harm in HARMS}
        assert found == HARMS
        assert reader.read("graph", b"{}") == Outcome("refused", "GraphError")
