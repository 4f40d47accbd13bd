"""JSON of somebody else is read as it stands or refused by name, whatever kind of file it is in."""

from __future__ import annotations

import json
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from costs.test_records import MACHINE, record, tiling
from hypothesis import given
from hypothesis import strategies as st

from tgbench.base.errors import (
    ExportError,
    GraphError,
    ImporterError,
    PlanError,
    RecordsError,
    TgbenchError,
    TraceError,
    WeightsError,
)
from tgbench.base.safetensors import Weights, read_header
from tgbench.base.strict_json import MOST_DEPTH, MOST_VALUES, bounded_text, parsed
from tgbench.commands.export import kind_of
from tgbench.costs.records import Records
from tgbench.graph.graph_file import load_graph
from tgbench.plans.plan import Plan
from tgbench.runs.trace import Trace
from tgbench.sources.models.config import load_config
from tgbench.sources.torch.pt2 import read_pt2

HOSTILE = {
    "nothing": b"",
    "a beginning": b'{"a": [1, ',
    "a list bomb": b"[" * 200_000,
    "an object bomb": b'{"a":' * 200_000,
    "deep, and whole": b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}",
    "a name twice": b'{"a": 1, "a": 2}',
    "NaN": b'{"a": NaN}',
    "infinity": b'{"a": -Infinity}',
    "a large number": b'{"a": 1e999}',
    "a long integer": b'{"a": ' + b"9" * 400 + b"}",
    "a longer integer": b'{"a": ' + b"9" * 5000 + b"}",
    "half a pair": b'{"a": "\\ud800"}',
    "another encoding": b'{"a": "\xff"}',
    "two values": b"{} {}",
}


def plan(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    Plan.load(path)


def graph(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    load_graph(path)


def trace(path: Path, text: bytes) -> None:
    path.write_bytes(text + b"\n")
    len(Trace(path))


def config(path: Path, text: bytes) -> None:
    path.write_bytes(text)
    load_config(path)


def header(path: Path, text: bytes) -> None:
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    read_header(path)


def index(path: Path, text: bytes) -> None:
    named = path.with_name("model.safetensors.index.json")
    named.write_bytes(text)
    Weights(named)


def program(path: Path, text: bytes) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x/models/model.json", text)
    read_pt2(path)


def exported(path: Path, text: bytes) -> None:
    named = path.with_suffix(".json")
    named.write_bytes(text)
    kind_of(named)


def tilings(path: Path, text: bytes) -> None:
    is_new, records = not path.exists(), Records(path)
    if is_new:
        records.add_tilings([tiling()])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tgbench_grains SET tile = ?", (text.decode("latin-1"),))
    records.tilings()


def machines(path: Path, text: bytes) -> None:
    is_new, records = not path.exists(), Records(path)
    if is_new:
        records.add([record()], MACHINE)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE tgbench_machines SET machine = ?", (text.decode("latin-1"),))
    records.machines()


READERS: dict[Callable[[Path, bytes], None], type[TgbenchError]] = {
    plan: PlanError, graph: GraphError, trace: TraceError, config: GraphError,
    header: WeightsError, index: WeightsError, program: ImporterError, exported: ExportError,
    tilings: RecordsError, machines: RecordsError,
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_kind_of_file_refuses_what_is_no_json_of_ours_by_name(
    reader: Callable[[Path, bytes], None], tmp_path: Path
) -> None:
    for document, text in HOSTILE.items():
        with pytest.raises(READERS[reader]) as caught:
            reader(tmp_path / "file", text)
        said = str(caught.value)
        assert said.startswith(str(tmp_path)), document
        assert len(said) < 600, f"{document}: what is quoted of a file is short"


def test_a_file_that_is_longer_than_it_may_be_is_not_read(tmp_path: Path) -> None:
    (path := tmp_path / "long").write_bytes(b" " * 1001)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        bounded_text(path, 1000)
    assert len(bounded_text(path, 1001)) == 1001


def test_many_values_are_refused_before_they_are_made() -> None:
    with pytest.raises(ValueError, match="more than 2097152 values"):
        parsed("[" + "[]," * MOST_VALUES + "[]]", ValueError)


def test_brackets_in_texts_are_no_depth() -> None:
    text = json.dumps(['\\"[{' * 500, "[" * 500])
    assert parsed(text, ValueError) == json.loads(text)


def test_as_deep_as_allowed_is_read() -> None:
    assert parsed("[" * MOST_DEPTH + "]" * MOST_DEPTH, ValueError)
    with pytest.raises(ValueError, match="nests deeper"):
        parsed("[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), ValueError)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False,
    allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(values)
def test_what_python_writes_of_finite_values_is_read(value: object) -> None:
    assert parsed(json.dumps(value), ValueError) == value
    assert parsed(json.dumps(value, ensure_ascii=False).encode(), ValueError) == value


def test_pytorch_writes_infinite_numbers() -> None:
    assert parsed("[-Infinity]", ValueError, infinite=True) == [float("-inf")]
