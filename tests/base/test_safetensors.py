"""Headers are checked before use, tensors equal safetensors' own, and nothing is read twice."""

from __future__ import annotations

import io
import json
import math
import os
import stat
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tgbench.base.safetensors as module_under_test
from tgbench.base.errors import WeightsError
from tgbench.base.safetensors import (
    TORCH_DTYPES,
    Weights,
    fingerprint,
    read_header,
    save,
    save_streamed,
)

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def raw_file(header: object, data_bytes: int = 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def every_dtype() -> dict[str, torch.Tensor]:
    values = torch.arange(24).reshape(2, 3, 4)
    return {name: values.to(dtype) for name, dtype in TORCH_DTYPES.items()} | {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 5),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "fuzz.safetensors"


# --- headers ------------------------------------------------------------------------------------


def test_header_of_every_dtype(path: Path) -> None:
    tensors = every_dtype()
    save_file(tensors, path, {"format": "pt"})
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert header.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        info = header.tensors[name]
        assert (TORCH_DTYPES[info.dtype], info.shape) == (tensor.dtype, tuple(tensor.shape))
        assert info.size_bytes == tensor.nbytes
    assert "bfloat16[2, 3, 4]" in str(header)


BAD_HEADERS = {
    "not an object": (b"[1, 2]", "begins with"),
    "leading space": (b' {"a": 1}', "begins with"),
    "not utf-8": (b'{"\xff": 1}', "utf-8"),
    "not json": (b"{'a': 1}", "not JSON"),
    "two values": (b"{} {}", "not JSON"),
    "NaN": (b'{"a": NaN}', "NaN is not"),
    "long integer": (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
    "repeated tensor": (b'{"a": 1, "a": 1}', "occurs twice"),
    "repeated field": (b'{"a": {"dtype": "F32", "dtype": "F32"}}', "occurs twice"),
    "lone surrogate": (b'{"\\ud800": 1}', "surrogates"),
    "depth bomb": (b'{"a":' * 200_000, "nests deeper"),
    "list bomb": (b'{"a":' + b"[" * 200_000, "nests deeper"),
    "metadata list": ({"__metadata__": []}, "__metadata__"),
    "metadata number": ({"__metadata__": {"a": 1}}, "__metadata__"),
    "long name": ({"a" * 5000: F32}, "over 1024 characters"),
    "entry is a list": ({"a": []}, "'a'"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, "just dtype"),
    "extra field": ({"a": F32 | {"code": "x"}}, "just dtype"),
    "8-bit float": ({"a": F32 | {"dtype": "F8_E4M3"}}, "'F8_E4M3' is not one of F64, F32"),
    "dtype number": ({"a": F32 | {"dtype": 3}}, "dtype 3"),
    "dtype list": ({"a": F32 | {"dtype": ["F32"]}}, "dtype"),
    "negative size": ({"a": F32 | {"shape": [-2]}}, "shape"),
    "float size": ({"a": F32 | {"shape": [2.0]}}, "shape"),
    "bool size": ({"a": F32 | {"shape": [2, True]}}, "shape"),
    "shape number": ({"a": F32 | {"shape": 2}}, "shape"),
    "size over int64": ({"a": F32 | {"shape": [2**63]}}, "shape"),
    "rank": ({"a": F32 | {"shape": [1] * 65}}, "65 entries"),
    "long rank": ({"a": F32 | {"shape": [2**62] * 10_000}}, "10000 entries"),
    "overflow": ({"a": F32 | {"shape": [2**33, 2**33]}}, "overflows"),
    "overflow by zero": ({"a": F32 | {"shape": [2**62, 2**62, 0]}}, "overflows"),
    "wrong size": ({"a": F32 | {"shape": [3]}}, "span 8 bytes"),
    "one offset": ({"a": F32 | {"data_offsets": [0]}}, "data_offsets"),
    "backwards": ({"a": F32 | {"data_offsets": [8, 0]}}, "start <= stop"),
    "negative offset": ({"a": F32 | {"data_offsets": [-8, 0]}}, "data_offsets"),
    "past the end": ({"a": F32 | {"shape": [4], "data_offsets": [0, 16]}}, "truncated"),
    "hole": (
        {"a": F32 | {"shape": [1], "data_offsets": [4, 8]}},
        "leave a hole",
    ),
    "overlap": ({"a": F32, "b": F32}, "overlap another"),
    "remainder": ({"a": F32 | {"shape": [1], "data_offsets": [0, 4]}}, "belong to none"),
}


@pytest.mark.parametrize("case", BAD_HEADERS)
def test_bad_header_names_file_field_and_mend(path: Path, case: str) -> None:
    header, message = BAD_HEADERS[case]
    path.write_bytes(raw_file(header))
    with pytest.raises(WeightsError) as caught:
        read_header(path)
    text = str(caught.value)
    assert str(path) in text
    assert message in text
    assert any(mend in text for mend in ("download it again", "convert the tensor"))
    assert len(text) < 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "too few"),
        (b"1234567", "too few"),
        (bytes(8), "below 2"),
        (b"\xff" * 16, "over the limit"),
        ((100_000_001).to_bytes(8, "little"), "over the limit"),
        ((100).to_bytes(8, "little") + b"{}", "exceeds the file (10 bytes)"),
    ],
)
def test_bad_length(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(WeightsError) as caught:
        read_header(path)
    assert message in str(caught.value)


def test_unreadable_paths(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("absent", "pipe", ".", "a\0b"):
        for use in (read_header, Weights, fingerprint):
            with pytest.raises(WeightsError):
                use(tmp_path / name)


def test_every_truncation_is_found(path: Path) -> None:
    save_file(every_dtype(), path)
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(WeightsError):
            read_header(path)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
near_entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "F16", "BOOL", "I64", "F8_E5M2", "U32"]) | json_values,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | json_values,
        "data_offsets": st.lists(st.integers(-1, 40), min_size=2, max_size=2) | json_values,
    }
)
near_headers = st.dictionaries(st.sampled_from(["a", "b", "__metadata__"]), near_entries)
good_file = raw_file({"a": F32, "b": {"dtype": "BOOL", "shape": [], "data_offsets": [8, 9]}}, 9)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    content = bytearray(good_file)
    for at in draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] = draw(st.integers(0, 255))
    return bytes(content[: draw(st.integers(0, len(content))) or None])


@given(
    st.binary(max_size=64)
    | st.builds(raw_file, st.binary(max_size=64), st.integers(0, 8))
    | st.builds(raw_file, near_headers | json_values, st.integers(0, 40))
    | mutations()
)
@example(good_file)
@example(good_file[:-1] + b"\x02")
@example(raw_file({}, 0))
def test_any_bytes_load_or_are_a_weights_error(fuzzed: Path, content: bytes) -> None:
    fuzzed.write_bytes(content)
    try:
        with Weights(fuzzed) as weights:
            loaded = {name: weights.tensor(name).clone() for name in weights.names()}
    except WeightsError:
        return
    with safe_open(fuzzed, "pt") as reference:  # what we accept, the reference accepts
        assert set(reference.keys()) == loaded.keys()
        for name, tensor in loaded.items():
            assert torch.equal(tensor.view(-1), reference.get_tensor(name).view(-1)) or (
                tensor.isnan().any()
            )


class CountingFile(io.FileIO):
    count = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size) or b""
        self.count += len(data)
        return data


def test_read_header_reads_only_the_header(path: Path) -> None:
    elements = 10 * 2**30 // 4  # a sparse 10 GiB
    content = raw_file(
        {"a": {"dtype": "F32", "shape": [elements], "data_offsets": [0, 40 * 2**28]}}
    )
    path.write_bytes(content[:-8])
    os.truncate(path, len(content) - 8 + 4 * elements)
    with CountingFile(path) as file:
        header = module_under_test._parse_header(file, path)
        assert file.count == header.data_start == len(content) - 8
    assert read_header(path) == header
    with Weights(path) as weights:  # larger than memory may be, and still maps
        tensor = weights.tensor("a")
        assert tensor[[0, -1]].tolist() == [0, 0]


# --- tensors ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_tensors_equal_safetensors_own(path: Path) -> None:
    save_file(every_dtype(), path)
    weights = Weights(path)
    for name, expected in load_file(path).items():
        tensor = weights.tensor(name)
        assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
        assert torch.equal(tensor, expected)


def test_tensors_are_mapped_once(path: Path) -> None:
    save({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4)}, path)
    weights = Weights(path)
    assert weights.resident_bytes() == 0
    first = weights.tensor("a")
    assert weights.tensor("a") is first
    assert weights.tensor("a", "float32", torch.device("cpu")) is first
    assert weights.resident_bytes() == 24
    half = weights.tensor("a", "float16")
    assert weights.tensor("a", "float16") is half
    assert weights.resident_bytes() == weights.resident_bytes("cpu") == 36
    weights.tensor("b")
    assert weights.resident_bytes() == 52
    assert torch.equal(half, first.half())


def test_a_mapped_tensor_is_the_file(path: Path) -> None:
    """The pages are shared, not copied: a write to the file shows."""
    save({"a": torch.zeros(4)}, path)
    tensor = Weights(path).tensor("a")
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(np.float32(7).tobytes())
    assert tensor.tolist() == [0, 0, 0, 7]


@pytest.mark.parametrize("shift", range(8))
def test_unaligned_offsets(path: Path, shift: int) -> None:
    """A header need not end at a multiple of 8, nor a tensor begin at one of its item size."""
    data = torch.arange(6, dtype=torch.float64)
    header = {
        "p": {"dtype": "U8", "shape": [shift], "data_offsets": [0, shift]},
        "a": {"dtype": "F64", "shape": [6], "data_offsets": [shift, shift + 48]},
    }
    path.write_bytes(raw_file(header, shift) + data.numpy().tobytes())
    weights = Weights(path)
    assert torch.equal(weights.tensor("a"), data)
    assert weights.tensor("a").data_ptr() % 8 == 0
    assert weights.tensor("a") is weights.tensor("a")
    assert torch.equal(weights.tensor("a", "float32"), data.float())
    weights.check_finite("a")
    assert weights.resident_bytes() == 48 + 24


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_under_test, "CHUNK_BYTES", 64)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_conversion_in_chunks(path: Path, dtype: str) -> None:
    source = torch.randn(5, 7, 3)
    save({"a": source}, path)
    assert torch.equal(Weights(path).tensor("a", dtype), source.to(TORCH_DTYPES[dtype]))


@pytest.mark.usefixtures("small_chunks")
def test_other_device(path: Path) -> None:
    """`meta` takes the road of every device that is not the CPU."""
    save({"a": torch.randn(5, 7)}, path)
    weights = Weights(path)
    tensor = weights.tensor("a", "bfloat16", "meta")
    assert (tensor.shape, tensor.dtype, tensor.device.type) == ((5, 7), torch.bfloat16, "meta")
    assert weights.resident_bytes("cpu") == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_file_to_cuda(path: Path, dtype: str) -> None:
    source = torch.randn(3 * module_under_test.CHUNK_BYTES // 4 + 5)
    save({"a": source}, path)
    weights = Weights(path)
    tensor = weights.tensor("a", dtype, "cuda")
    assert tensor is weights.tensor("a", dtype, "cuda:0")
    assert torch.equal(tensor.cpu(), source.to(TORCH_DTYPES[dtype]))
    assert weights.resident_bytes("cpu") == 0


def test_conversions_that_change_the_meaning_are_refused(path: Path) -> None:
    save({"f": torch.ones(2), "i": torch.tensor([1, 300]), "b": torch.ones(2).bool()}, path)
    weights = Weights(path)
    for name, dtype in (
        ("f", "int32"),
        ("i", "bool"),
        ("i", "int8"),
        ("f", "float8"),
        ("f", "F32"),
    ):
        with pytest.raises(WeightsError):
            weights.tensor(name, dtype)
    assert weights.tensor("i", "int32").tolist() == [1, 300]
    assert weights.tensor("i", "float32").tolist() == [1, 300]
    assert weights.tensor("b", "int8").tolist() == [1, 1]


def test_a_bool_of_another_byte_is_refused(path: Path) -> None:
    header = {"b": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    path.write_bytes(raw_file(header, 0) + b"\0\1\2")
    with pytest.raises(WeightsError, match="neither 0 nor 1"):
        Weights(path).tensor("b")


def test_names_devices_and_closing(path: Path) -> None:
    save({"layer.weight": torch.ones(2)}, path)
    with Weights(path) as weights:
        assert weights.names() == ("layer.weight",)
        assert "layer.weight" in weights
        assert "resident" in repr(weights)
        with pytest.raises(WeightsError, match=r"did you mean 'layer\.weight'"):
            weights.info("layer.weights")
        with pytest.raises(WeightsError, match="no device"):
            weights.tensor("layer.weight", device="toaster")
        held = weights.tensor("layer.weight")
    assert held.tolist() == [1, 1]  # the map outlives the object while a tensor needs it
    with pytest.raises(WeightsError, match="closed"):
        weights.tensor("layer.weight")
    assert weights.resident_bytes() == 0


def test_no_warning_reaches_the_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save({"a": torch.ones(2)}, path)
    torch.set_warn_always(True)  # not once in a process
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert Weights(path).tensor("a").tolist() == [1, 1]
            with pytest.raises(UserWarning, match="not writable"):
                torch.frombuffer(bytes(8), dtype=torch.float32)
    finally:
        torch.set_warn_always(False)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_check_finite_counts_and_locates(path: Path, dtype: str) -> None:
    tensor = torch.zeros(4, 50, dtype=TORCH_DTYPES[dtype])
    tensor[1, 20], tensor[1, 21], tensor[3, 49] = math.nan, math.inf, -math.inf
    save({"good": tensor.nan_to_num(0, 1, -1), "bad": tensor, "ints": torch.ones(3).int()}, path)
    weights = Weights(path)
    weights.check_finite("good")
    weights.check_finite("ints")
    with pytest.raises(WeightsError, match=r"'bad' has 3 NaN or Inf of 200 .*first at \(1, 20\)"):
        weights.check_finite("bad")
    assert weights.resident_bytes() == 0


# --- shards -------------------------------------------------------------------------------------


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save({"a": torch.ones(2), "stray": torch.ones(1)}, tmp_path / "model-1.safetensors")
    save({"b": torch.full((3,), 2.0), "stray": torch.ones(1)}, tmp_path / "model-2.safetensors")
    write_index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"})
    return tmp_path


def write_index(directory: Path, weight_map: Any) -> None:
    index = {"metadata": {"total_size": 20}, "weight_map": weight_map}
    (directory / module_under_test.INDEX_NAME).write_text(json.dumps(index))


def test_index_and_directory(sharded: Path) -> None:
    for source in (sharded, str(sharded), sharded / module_under_test.INDEX_NAME):
        weights = Weights(source)
        assert weights.names() == ("a", "b")  # the index does not list `stray`
        assert weights.tensor("b").tolist() == [2, 2, 2]
        assert fingerprint(source) == fingerprint(sharded)


def test_list_of_shards(tmp_path: Path) -> None:
    save({"a": torch.ones(2)}, tmp_path / "1.safetensors")
    save({"b": torch.ones(3)}, tmp_path / "2.safetensors")
    save({"b": torch.ones(3)}, tmp_path / "3.safetensors")
    paths = [tmp_path / f"{n}.safetensors" for n in (1, 2, 3)]
    assert Weights(paths[:2]).names() == ("a", "b")
    with pytest.raises(WeightsError, match="is also in"):
        Weights(paths)
    with pytest.raises(WeightsError, match="empty"):
        Weights([])


def test_directory_without_an_index(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="0 other"):
        Weights(tmp_path)
    save({"a": torch.ones(2)}, tmp_path / "only.safetensors")
    assert Weights(tmp_path).names() == ("a",)
    save({"a": torch.ones(2)}, tmp_path / "other.safetensors")
    with pytest.raises(WeightsError, match="2 other"):
        Weights(tmp_path)
    save({"b": torch.ones(2)}, tmp_path / "model.safetensors")
    assert Weights(tmp_path).names() == ("b",)


@pytest.mark.parametrize(
    "weight_map",
    [
        None,
        {},
        [],
        {"a": 1},
        {"a": ""},
        {"a": ".."},
        {"a": "../model-1.safetensors"},
        {"a": "/etc/passwd"},
        {"a": "..\\model-1.safetensors"},
        {"a": "model-1.safetensors\0"},
        {"a": "\x1b[31mmodel-1.safetensors"},
        {"a": "x" * 5000},
        {"a": "absent.safetensors"},
        {"b": "model-1.safetensors"},
    ],
)
def test_bad_index(sharded: Path, weight_map: Any) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(WeightsError) as caught:
        Weights(sharded)
    assert str(sharded) in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


@given(st.binary(max_size=64) | st.builds(lambda v: json.dumps(v).encode(), json_values))
def test_any_index_is_a_weights_error(fuzzed: Path, content: bytes) -> None:
    index = fuzzed.with_name("fuzz.index.json")
    index.write_bytes(content)
    with pytest.raises(WeightsError):
        Weights(index)


# --- writing ------------------------------------------------------------------------------------


def test_save_round_trip(path: Path) -> None:
    tensors = every_dtype()
    save(tensors, path, {"made": "here"})
    assert read_header(path).metadata == {"made": "here"}
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    plain = path.with_name("plain")
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode  # readable by whom the umask says


def test_save_takes_any_layout(path: Path) -> None:
    array = np.arange(6, dtype=">f4").reshape(2, 3)[:, ::2]
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save({"t": torch.arange(6.0).reshape(2, 3).t(), "n": array, "z": np.array(2.5)}, path)
    weights = Weights(path)
    assert weights.tensor("t").tolist() == [[0, 3], [1, 4], [2, 5]]
    assert weights.tensor("n").tolist() == [[0, 2], [3, 5]]
    assert weights.tensor("z").shape == ()


def test_a_failed_save_leaves_the_old_file(path: Path) -> None:
    save({"a": torch.ones(2)}, path)
    before = path.read_bytes()
    shared = torch.ones(3)
    bad: list[dict[str, Any]] = [
        {"a": shared, "b": shared},
        {"a": torch.ones(2, dtype=torch.complex64)},
        {"a": np.array(["text"])},
        {"a": np.array([object()])},
        {"a": np.ones(2, np.uint64)},
        {"__metadata__": torch.ones(2)},
        {"\ud800": torch.ones(2)},
    ]
    for tensors in bad:
        with pytest.raises(WeightsError):
            save(tensors, path)
    with pytest.raises(WeightsError):
        save({"a": shared}, path, {"n": 1})  # type: ignore[dict-item]
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    for target in (path / "below", path.parent, path.with_name("a\0b"), ""):
        with pytest.raises(WeightsError):
            save({"a": shared}, target)


def test_save_streamed_equals_save(path: Path) -> None:
    tensors = every_dtype()

    def chunks(name: str) -> Iterator[torch.Tensor]:
        return iter(tensors[name].reshape(-1).split(5))

    layout = {name: (name if name in TORCH_DTYPES else "float32", tuple(t.shape))
              for name, t in tensors.items()}  # fmt: skip
    save_streamed(layout, chunks, path, {"format": "pt"})
    other = path.with_name("other.safetensors")
    save_file(tensors, other, {"format": "pt"})
    assert {n: t.tolist() for n, t in load_file(path).items()} == {
        n: t.tolist() for n, t in load_file(other).items()
    }
    assert read_header(path).data_start % 8 == 0
    assert all(weights_entry.is_aligned for weights_entry in Weights(path)._entries.values())


@pytest.mark.parametrize("pieces", [[], [torch.ones(3)], [torch.ones(2, dtype=torch.float64)]])
def test_save_streamed_checks_the_pieces(path: Path, pieces: list[torch.Tensor]) -> None:
    with pytest.raises(WeightsError):
        save_streamed({"a": ("float32", (2,))}, lambda _: pieces, path)
    assert not list(path.parent.iterdir())


def test_an_error_in_a_piece_passes_and_leaves_nothing(path: Path) -> None:
    def chunks(_: str) -> Iterator[torch.Tensor]:
        yield torch.ones(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        save_streamed({"a": ("float32", (2,))}, chunks, path)
    assert not list(path.parent.iterdir())


def test_fingerprint_sees_layout_and_size(path: Path) -> None:
    seen = set()
    for tensors in ({"a": torch.ones(2)}, {"b": torch.ones(2)}, {"a": torch.ones(3)}):
        save(tensors, path)
        seen.add(fingerprint(path))
        moved = path.with_name("moved.safetensors")
        moved.write_bytes(path.read_bytes())
        assert fingerprint(moved) == fingerprint([moved]) == fingerprint(path)
    assert len(seen) == 3


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "to").mkdir()
    link = tmp_path / "w.safetensors"
    link.symlink_to("to/real.safetensors")
    for value in (1.0, 2.0):
        save({"w": torch.full((2,), value)}, link)
        assert link.is_symlink()
        assert Weights(tmp_path / "to/real.safetensors").tensor("w")[0] == value
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(WeightsError, match="cannot be written"):
        save({"w": torch.ones(1)}, tmp_path / "loop")


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """A device that was written over once was gone, for everybody."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "link", "folder"):
        with pytest.raises(WeightsError, match="cannot be written"):
            save({"w": torch.ones(1)}, tmp_path / name)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link", "pipe"]


@pytest.mark.parametrize("name", ["a\0b", "\ud800", ""], ids=ascii)
def test_what_no_file_can_be_called_is_refused(name: str) -> None:
    with pytest.raises(WeightsError, match="names no file"):
        save({"w": torch.ones(1)}, name)


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_who_could_read_a_file_can_read_the_next_one(mode: int, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    for value in (1.0, 2.0):
        save({"w": torch.full((1,), value)}, path)
        assert Weights(path).tensor("w")[0] == value
        path.chmod(mode)
    save({"w": torch.ones(1)}, path)
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_what_killed_writers_left_is_cleared(tmp_path: Path) -> None:
    old, new, other = (tmp_path / name for name in (".tgbench-1.tmp", ".tgbench-2.tmp", "mine.tmp"))
    for path in (old, new, other):
        path.write_text("")
    os.utime(old, (0, 0))
    os.utime(other, (0, 0))
    save({"w": torch.ones(1)}, tmp_path / "w.safetensors")
    assert not old.exists()
    assert new.exists()
    assert other.exists(), "somebody may be writing the one, and the other is not ours"


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_of_torch_save_is_told_with_what_to_do(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "model.pt"
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(WeightsError, match=r"written by torch\.save.*save_file"):
        Weights(path)
