"""Weight files: safetensors headers read alone, tensors mapped, or streamed straight to a device.

    byte 0       8                      8 + header length                       end of file
         | u64 LE | JSON, one object     | tensor a | tensor b |      ...       |
         | length | name -> dtype, shape, [start, stop) in the data section     |

A header is checked against the file before anything uses it: the tensors must tile the data section
exactly, so a damaged, truncated or hostile file is a `WeightsError`, never a read out of bounds.
Nothing here executes what a file holds. Source: github.com/huggingface/safetensors, "Format"; left
out are the dtypes that tgbench has no kernels for (8-bit floats, complex, unsigned above 8 bits).
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import mmap
import os
import stat
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import Repr
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import TgbenchError, WeightsError
from tgbench.base.files import open_regular
from tgbench.base.strict_json import parsed
from tgbench.base.words import LONGEST_NAME, counted, is_name, printable

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors package
MAX_RANK = 64  # NumPy's limit; also keeps the product of a hostile shape small
MAX_COUNT = 2**63 - 1
CHUNK_BYTES = (
    1 << 24
)  # the host memory that a conversion, an upload or a check may use; whole pages
INDEX_NAME = "model.safetensors.index.json"
OF_TORCH = (b"PK\x03\x04", b"\x80\x02")  # a zip, or a pickle of before
DAMAGED = "the file is damaged or not safetensors: download it again"

CODES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
TORCH_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in CODES.values()}
DTYPE_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
ITEM_BYTES = {name: dtype.itemsize for name, dtype in TORCH_DTYPES.items()}

_BRIEF = Repr()
_BRIEF.maxstring = _BRIEF.maxother = _BRIEF.maxlong = 120
_show = _BRIEF.repr  # a hostile name or number must not make a message of 100 MB


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """What a header says of one tensor; `start` and `stop` count from the data section's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int  # exclusive

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """The checked header of one file, its tensors in the order of the header."""

    path: Path
    file_bytes: int
    data_start: int  # byte of the file at which the data section begins
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]

    def __str__(self) -> str:
        rows = (f"  {printable(t.name)}  {t.dtype}{list(t.shape)}" for t in self.tensors.values())
        title = (
            f"{self.path}: {counted(len(self.tensors), 'tensor')}, "
            f"{counted(self.file_bytes, 'byte')}"
        )
        return "\n".join((title, *rows))


# --- reading a header ---------------------------------------------------------------------------


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of one safetensors file; no tensor byte is read.

    Raises `WeightsError` naming the file, the field and the mend, whatever the file holds.

    >>> read_header("model.safetensors").tensors["model.norm.weight"]  # doctest: +SKIP
    TensorInfo(name='model.norm.weight', dtype='float32', shape=(640,), start=0, stop=2560)
    """
    with _opened(Path(path)) as file:
        return _parse_header(file, Path(path))


def fingerprint(source: Source) -> str:
    """The SHA-256, in hex, of the headers and sizes of a file, its shards or a directory.

    It tells checkpoints of other layouts apart and costs no read of the data; weights changed in
    place, under the same names and shapes, keep it. Raises `WeightsError` like `read_header`.
    """
    digest = hashlib.sha256()
    for path in _locate(source).paths:
        with _opened(path) as file:
            header, file_bytes = _header_bytes(file, path)
        digest.update(file_bytes.to_bytes(8, "little") + len(header).to_bytes(8, "little"))
        digest.update(header)
    return digest.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file unbuffered: a buffered one would read tensor bytes ahead."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
            raise WeightsError(f"{path}: not a regular file; give a .safetensors file")
        file = open_regular(path)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be opened ({error}); check the path") from error
    with file:
        try:
            yield file
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error}); check the disk") from error


def _header_bytes(file: BinaryIO, path: Path) -> tuple[bytes, int]:
    """The header's JSON bytes and the size of the file in bytes."""
    file_bytes = os.fstat(file.fileno()).st_size
    if file_bytes < LENGTH_BYTES:
        raise WeightsError(
            f"{path}: {file_bytes} bytes are too few for the 8-byte header length; {DAMAGED}"
        )
    first = file.read(LENGTH_BYTES)
    length = int.from_bytes(first, "little")
    if length < 2:
        raise WeightsError(f"{path}: header length {length} is below 2, the least JSON; {DAMAGED}")
    if length > MAX_HEADER_BYTES and first.startswith(OF_TORCH):
        raise WeightsError(
            f"{path}: written by torch.save, whose files may run code where they are read; write "
            "the tensors with safetensors.torch.save_file(torch.load(path, weights_only=True), "
            "'model.safetensors')"
        )
    if length > MAX_HEADER_BYTES:
        raise WeightsError(
            f"{path}: header length {length} is over the limit of {MAX_HEADER_BYTES}; {DAMAGED}"
        )
    if length > file_bytes - LENGTH_BYTES:
        raise WeightsError(
            f"{path}: header length {length} exceeds the file ({file_bytes} bytes); {DAMAGED}"
        )
    raw = file.read(length)
    if len(raw) != length:
        raise WeightsError(f"{path}: the header ended while it was read; wait for its writer")
    return raw, file_bytes


def _parse_header(file: BinaryIO, path: Path) -> Header:
    raw, file_bytes = _header_bytes(file, path)
    if raw[:1] != b"{":
        raise WeightsError(f"{path}: the header begins with {raw[:1]!r}, not '{{'; {DAMAGED}")
    entries = _parse_json(raw, path, "header")
    metadata = _parse_metadata(entries.pop("__metadata__", {}), path)
    tensors = {name: _parse_tensor(name, entry, path) for name, entry in entries.items()}
    data_start = LENGTH_BYTES + len(raw)
    _check_tiling(tensors.values(), file_bytes - data_start, path)
    return Header(path, file_bytes, data_start, tensors, metadata)


def _parse_json(raw: bytes, path: Path, field: str) -> dict[str, object]:
    """One JSON object."""
    value: object = parsed(
        raw,
        lambda fault: WeightsError(f"{path}: {field} is not JSON ({fault}); {DAMAGED}"),
        most_bytes=MAX_HEADER_BYTES,
    )
    if not isinstance(value, dict):
        raise WeightsError(f"{path}: {field} is {_show(value)}, not a JSON object; {DAMAGED}")
    return value


def _parse_metadata(value: object, path: Path) -> dict[str, str]:
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return value
    raise WeightsError(
        f"{path}: __metadata__ is {_show(value)}, not an object of strings; {DAMAGED}"
    )


def _parse_tensor(name: str, entry: object, path: Path) -> TensorInfo:
    where = f"{path}: tensor {_show(name)}"
    if len(name) > LONGEST_NAME:  # messages name tensors
        raise WeightsError(f"{where}: the name has over {LONGEST_NAME} characters; {DAMAGED}")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise WeightsError(
            f"{where}: {_show(entry)} is not an object of just dtype, shape and data_offsets; "
            f"{DAMAGED}"
        )
    dtype = _parse_dtype(entry["dtype"], where)
    shape = _parse_counts(entry["shape"], where, "shape")
    offsets = _parse_counts(entry["data_offsets"], where, "data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise WeightsError(
            f"{where}: data_offsets {_show(list(offsets))} is not [start, stop] with "
            f"start <= stop; {DAMAGED}"
        )
    _check_size(shape, dtype, offsets[1] - offsets[0], where)
    return TensorInfo(name, dtype, shape, offsets[0], offsets[1])


def _parse_dtype(code: object, where: str) -> str:
    if isinstance(code, str) and code in CODES:
        return CODES[code]
    raise WeightsError(
        f"{where}: dtype {_show(code)} is not one of {', '.join(CODES)}; convert the tensor to "
        "one of these"
    )


def _parse_counts(value: object, where: str, field: str) -> tuple[int, ...]:
    # `type(n) is int`, because True is an instance of int.
    if not isinstance(value, list) or not all(
        type(n) is int and 0 <= n <= MAX_COUNT for n in value
    ):
        raise WeightsError(
            f"{where}: {field} {_show(value)} is not a list of integers in [0, 2**63); {DAMAGED}"
        )
    if len(value) > MAX_RANK:
        raise WeightsError(f"{where}: {field} has {len(value)} entries, over {MAX_RANK}; {DAMAGED}")
    return tuple(value)


def _check_size(shape: tuple[int, ...], dtype: str, size_bytes: int, where: str) -> None:
    # The product without the zeros: what a library that multiplies in 64 bits must not overflow.
    if math.prod(n for n in shape if n) * ITEM_BYTES[dtype] > MAX_COUNT:
        raise WeightsError(f"{where}: shape {_show(list(shape))} overflows 64 bits; {DAMAGED}")
    expected = math.prod(shape) * ITEM_BYTES[dtype]
    if size_bytes != expected:
        raise WeightsError(
            f"{where}: data_offsets span {size_bytes} bytes, but {dtype}{_show(list(shape))} has "
            f"{expected}; {DAMAGED}"
        )


def _check_tiling(tensors: Iterable[TensorInfo], data_bytes: int, path: Path) -> None:
    """The tensors cover the data section without overlap, hole or remainder."""
    reached = 0
    for tensor in sorted(tensors, key=lambda t: (t.start, t.stop)):
        where = f"{path}: tensor {_show(tensor.name)}: data_offsets"
        if tensor.stop > data_bytes:
            raise WeightsError(
                f"{where} end at {tensor.stop}, past the {data_bytes} bytes of data; the file is "
                "truncated or damaged: download it again"
            )
        if tensor.start != reached:
            kind = "overlap another tensor" if tensor.start < reached else "leave a hole"
            raise WeightsError(
                f"{where} start at {tensor.start}, expected {reached}: they {kind}; {DAMAGED}"
            )
        reached = tensor.stop
    if reached != data_bytes:
        raise WeightsError(
            f"{path}: {data_bytes - reached} bytes after the last tensor belong to none; {DAMAGED}"
        )


# --- finding the files --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Files:
    paths: tuple[Path, ...]
    shard_of: Mapping[str, str] | None  # tensor -> file name, where an index says so


def _locate(source: Source) -> _Files:
    """The files behind a path, a directory, an index or a list of shards."""
    if not isinstance(source, (str, os.PathLike)):
        if not source:
            raise WeightsError("the list of weight files is empty; name at least one shard")
        return _Files(tuple(Path(path) for path in source), None)
    path = Path(source)
    if _is(path, stat.S_ISDIR):
        path = _pick(path)
    return _read_index(path) if path.name.endswith(".index.json") else _Files((path,), None)


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return kind(path.stat().st_mode)
    except (OSError, ValueError):  # ValueError: a null byte in the path
        return False


def _pick(directory: Path) -> Path:
    for name in (INDEX_NAME, "model.safetensors"):
        if _is(directory / name, stat.S_ISREG):
            return directory / name
    found = sorted(directory.glob("*.safetensors"))
    if len(found) != 1:
        raise WeightsError(
            f"{directory}: neither {INDEX_NAME} nor model.safetensors, and {len(found)} other "
            ".safetensors files; give the file, or the list of its shards"
        )
    return found[0]


def _read_index(path: Path) -> _Files:
    """A Hugging Face index: {"metadata": ..., "weight_map": {tensor: file beside the index}}."""
    with _opened(path) as file:
        raw = file.read(MAX_HEADER_BYTES + 1)
    if len(raw) > MAX_HEADER_BYTES:
        raise WeightsError(f"{path}: over {MAX_HEADER_BYTES} bytes; not a safetensors index")
    shard_of = _parse_json(raw, path, "index").get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise WeightsError(
            f"{path}: weight_map {_show(shard_of)} is not an object from tensor to file; "
            "download the index again, or give the list of shards"
        )
    for name, shard in shard_of.items():
        if not isinstance(shard, str) or not _is_plain(shard):
            raise WeightsError(
                f"{path}: weight_map[{_show(name)}] is {_show(shard)}, not the plain name of a "
                "file beside the index; an index may not point elsewhere"
            )
    return _Files(
        tuple(path.parent / shard for shard in dict.fromkeys(shard_of.values())), shard_of
    )


def _is_plain(name: str) -> bool:
    return is_name(name) and name not in (".", "..") and not set(name) & set("/\\:")


# --- tensors ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Entry:
    """One tensor and the map of the file that holds it."""

    info: TensorInfo
    path: Path
    map: mmap.mmap
    offset: int  # first byte of the tensor in the file

    @property
    def is_aligned(self) -> bool:  # maps begin at a page, so the file offset decides
        return self.offset % ITEM_BYTES[self.info.dtype] == 0

    def view(self, start: int, count: int) -> torch.Tensor:
        """Elements `[start, start + count)`, count > 0, flat and read-only, without a copy."""
        with warnings.catch_warnings():  # torch warns of every buffer that it must not write to
            warnings.filterwarnings("ignore", message=".*not writable")
            return torch.frombuffer(
                self.map,
                dtype=TORCH_DTYPES[self.info.dtype],
                count=count,
                offset=self.offset + start * ITEM_BYTES[self.info.dtype],
            )

    def copy(self, start: int, count: int) -> torch.Tensor:
        """The same elements copied, for a tensor at an odd offset."""
        item_bytes = ITEM_BYTES[self.info.dtype]
        first = self.offset + start * item_bytes
        data = bytearray(self.map[first : first + count * item_bytes])
        return torch.frombuffer(data, dtype=TORCH_DTYPES[self.info.dtype])

    def chunks(self, elements: int | None = None) -> Iterator[tuple[int, torch.Tensor]]:
        """(first element, flat elements) over the tensor, `CHUNK_BYTES` or so many at a time.

        A chunk's pages leave this process when the next one is asked for, so that a pass over a
        large tensor stays small; the page cache and tensors that share them are not disturbed.
        """
        step = elements or CHUNK_BYTES // ITEM_BYTES[self.info.dtype]
        total = math.prod(self.info.shape)
        for start in range(0, total, step):
            count = min(step, total - start)
            yield start, (self.view if self.is_aligned else self.copy)(start, count)
            self.drop_pages(start, count)

    def drop_pages(self, start: int, count: int) -> None:
        item_bytes = ITEM_BYTES[self.info.dtype]
        first = (self.offset + start * item_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if hasattr(mmap, "MADV_DONTNEED"):
            length = self.offset + (start + count) * item_bytes - first
            self.map.madvise(mmap.MADV_DONTNEED, first, length)


_Key: TypeAlias = tuple[str, str, torch.device]  # tensor, dtype, device


class Weights:
    """The tensors of a checkpoint, mapped from its files and made at most once each.

    `source` is a safetensors file, a list of shards, a directory or a `*.index.json` in the Hugging
    Face layout. Opening reads and checks the headers and maps the files; data is read when a tensor
    is used. A mapped tensor shares the pages of the file, which are read-only: writing to it in
    place is a segmentation fault, so `clone()` first. The same (name, dtype, device) gives the
    identical tensor object each time, so ask for the same name wherever a checkpoint is tied.

    Raises `WeightsError` for a file that is missing, damaged or foreign, a tensor that two shards
    hold, and an index that names a tensor its shard does not hold.

    >>> with Weights("model.safetensors") as weights:  # doctest: +SKIP
    ...     weights.tensor("model.norm.weight", dtype="bfloat16", device="cuda")
    """

    def __init__(self, source: Source) -> None:
        files = _locate(source)
        self._entries: dict[str, _Entry] = {}
        self._made: dict[_Key, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._mapped: dict[Path, tuple[int, tuple[int, int]]] = {}  # descriptor; size and time
        self.headers = tuple(self._map(path, files) for path in files.paths)
        _check_index(files, self._entries)

    def _map(self, path: Path, files: _Files) -> Header:
        with _opened(path) as file:
            header = _parse_header(file, path)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            held = os.dup(file.fileno())
            self._mapped[path] = held, _size_and_time(held)
            weakref.finalize(self, os.close, held)
        for name, info in header.tensors.items():
            # The index decides: a tensor that it places elsewhere, or nowhere, is not ours.
            if files.shard_of is not None and files.shard_of.get(name) != path.name:
                continue
            if name in self._entries:
                raise WeightsError(
                    f"{path}: tensor {_show(name)} is also in {self._entries[name].path}; leave "
                    "one of the two files out"
                )
            self._entries[name] = _Entry(info, path, mapped, header.data_start + info.start)
        return header

    def __reduce_ex__(self, protocol: Any) -> Any:
        """The files are closed with the one that has opened them."""
        raise WeightsError(
            "open weights cannot be copied or pickled; open the files again where they are wanted, "
            "tg.Weights(path)"
        )

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{self.resident_bytes()} bytes resident"
        first = self.headers[0].path
        more = f" and {len(self.headers) - 1} more" if len(self.headers) > 1 else ""
        return f"Weights({str(first)!r}{more}: {counted(len(self._entries), 'tensor')}, {state})"

    def close(self) -> None:
        """Forget the tensors. One that is still held elsewhere keeps its memory and stays valid."""
        self._closed = True
        self._made.clear()
        self._entries.clear()
        self._mapped.clear()

    def check_unchanged(self) -> None:
        """Raise `WeightsError` if a mapped file was written into, or cut, since it was opened.

        A file that took its place under the same name is another one, and changes nothing here.
        """
        for path, (held, before) in self._mapped.items():
            if _size_and_time(held) != before:
                raise WeightsError(
                    f"{path}: was changed while it was in use; open it again, and write weights "
                    "beside the old ones and rename them, or pass weights_copy=True to a session"
                )

    def names(self) -> tuple[str, ...]:
        """The names of the tensors, in the order of the files."""
        return tuple(self._entries)

    def info(self, name: str) -> TensorInfo:
        """What the header says of a tensor; raises `WeightsError` for a name it does not have."""
        return self._entry(name).info

    def tensor(
        self, name: str, dtype: str | None = None, device: str | torch.device = "cpu"
    ) -> torch.Tensor:
        """The tensor `name`, in its own dtype or `dtype`, on `device`.

        On the CPU and in its own dtype it is the mapped file, without a copy (unless it lies at an
        offset that is no multiple of its item size). Otherwise it is an owned tensor, filled
        `CHUNK_BYTES` at a time from the map, so that no second copy exists on the host.

        Raises `WeightsError` for an unknown name, dtype or device, for a conversion that changes
        the kind (float to int, anything to bool) or the value of an integer, and for a bool that
        is neither 0 nor 1.
        """
        entry = self._entry(name)
        key = (name, dtype or entry.info.dtype, device_of(device))
        with self._lock:
            if key not in self._made:
                self._made[key] = _make(entry, key[1], key[2])
            return self._made[key]

    def rows(self, name: str) -> Iterator[torch.Tensor]:
        """The rows of a matrix in its own dtype, some at a time, which are not kept.

        Raises `WeightsError` for a name it does not have.
        """
        entry = self._entry(name)
        columns = entry.info.shape[1]
        count = max(1, CHUNK_BYTES // (columns * ITEM_BYTES[entry.info.dtype]))
        for _, flat in entry.chunks(count * columns):
            yield flat.view(-1, columns)

    def check_finite(self, name: str) -> None:
        """Raise `WeightsError` with the count and first index if a float tensor has NaN or Inf."""
        entry = self._entry(name)
        if not TORCH_DTYPES[entry.info.dtype].is_floating_point:
            return
        count, first = 0, 0
        for start, chunk in entry.chunks():
            if bool(torch.isfinite(torch.stack(torch.aminmax(chunk))).all()):
                continue  # NaN and Inf show in the extremes, with no temporary of the chunk's size
            bad = ~torch.isfinite(chunk)
            found = int(bad.sum())
            if found and not count:
                first = start + int(bad.to(torch.uint8).argmax())
            count += found
        if count:
            index = tuple(int(i) for i in np.unravel_index(first, entry.info.shape))
            raise WeightsError(
                f"{entry.path}: tensor {_show(name)} has {count} NaN or Inf of "
                f"{math.prod(entry.info.shape)} values, the first at {index}; download the file "
                "again, or export it from a checkpoint before training diverged"
            )

    def resident_bytes(self, device: str | torch.device | None = None) -> int:
        """Bytes of the tensors made so far, owned or mapped, on one device or on all of them."""
        where = None if device is None else device_of(device)
        with self._lock:
            return sum(t.nbytes for k, t in self._made.items() if where is None or k[2] == where)

    def let_go(self, name: str) -> None:
        """Take a mapped tensor's pages from this process: they come back when somebody reads them.

        Tensors that share them stay as they are, and so does the page cache.
        """
        entry = self._entry(name)
        if entry.is_aligned:
            entry.drop_pages(0, math.prod(entry.info.shape))

    def _entry(self, name: str) -> _Entry:
        if self._closed:
            raise WeightsError("the weights are closed; open them again, or leave `with` later")
        if name not in self._entries:
            near = difflib.get_close_matches(name, self._entries, n=3)
            hint = f"did you mean {', '.join(map(repr, near))}?" if near else "see names()"
            raise WeightsError(f"{self.headers[0].path}: no tensor {_show(name)}; {hint}")
        return self._entries[name]


def _size_and_time(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_size, found.st_mtime_ns


def _check_index(files: _Files, entries: Mapping[str, _Entry]) -> None:
    for name, shard in (files.shard_of or {}).items():
        if name not in entries:
            raise WeightsError(
                f"{files.paths[0].parent / shard}: holds no tensor {_show(name)}, which the index "
                "places there; the index and the shards are of different checkpoints: download "
                "both again"
            )


def device_of(device: str | torch.device, error: type[TgbenchError] = WeightsError) -> torch.device:
    """The device with its index, so that "cuda" and "cuda:0" are one; raises for one not there."""
    try:
        found = torch.device(device)
    except RuntimeError as unknown:
        raise error(f"no device {device!r}; use 'cpu' or 'cuda:0'") from unknown
    if found.type != "cuda":
        return found
    if not torch.cuda.is_available():
        raise error(f"device {device!r}: torch finds no CUDA here; use device='cpu'")
    count = torch.cuda.device_count()
    if found.index is not None and found.index >= count:
        raise error(f"device {device!r}: torch finds {count} of them; use 'cuda:{count - 1}'")
    return torch.device("cuda", torch.cuda.current_device() if found.index is None else found.index)


def _make(entry: _Entry, dtype: str, device: torch.device) -> torch.Tensor:
    _check_conversion(entry, dtype)
    _check_bools(entry)
    as_is = dtype == entry.info.dtype and device.type == "cpu" and entry.is_aligned
    total = math.prod(entry.info.shape)
    if as_is and total:
        return entry.view(0, total).view(entry.info.shape)
    made = torch.empty(entry.info.shape, dtype=TORCH_DTYPES[dtype], device=device)
    for start, chunk in entry.chunks():
        made.view(-1)[start : start + len(chunk)].copy_(_convert(entry, chunk, dtype))
    return made


def _check_conversion(entry: _Entry, dtype: str) -> None:
    if dtype not in TORCH_DTYPES:
        raise WeightsError(f"dtype {_show(dtype)} is not one of {', '.join(TORCH_DTYPES)}")
    if not torch.can_cast(TORCH_DTYPES[entry.info.dtype], TORCH_DTYPES[dtype]):
        raise WeightsError(
            f"{entry.path}: tensor {_show(entry.info.name)} is {entry.info.dtype}, which {dtype} "
            "cannot stand for; ask for its own dtype and convert it yourself"
        )


def _check_bools(entry: _Entry) -> None:
    """A bool of another byte than 0 or 1 is undefined behaviour in torch's kernels."""
    if entry.info.dtype != "bool":
        return
    for _, chunk in entry.chunks():
        if int(chunk.view(torch.uint8).max()) > 1:
            raise WeightsError(
                f"{entry.path}: tensor {_show(entry.info.name)} is bool but has a byte that is "
                f"neither 0 nor 1; {DAMAGED}"
            )


def _convert(entry: _Entry, chunk: torch.Tensor, dtype: str) -> torch.Tensor:
    converted = chunk.to(TORCH_DTYPES[dtype])
    # Rounding a float is what the caller asked for; an integer that changes is a wrong index.
    if not chunk.is_floating_point() and not torch.equal(converted.to(chunk.dtype), chunk):
        raise WeightsError(
            f"{entry.path}: tensor {_show(entry.info.name)} holds {entry.info.dtype} values that "
            f"{dtype} cannot represent; ask for a wider dtype"
        )
    return converted


# --- writing ------------------------------------------------------------------------------------


def save(
    tensors: Mapping[str, torch.Tensor | npt.NDArray[np.generic]],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write tensors, of any shape and a tgbench dtype, to one safetensors file, atomically.

    Raises `WeightsError` for a dtype or name that the format cannot hold, tensors that share memory
    (save a tied weight once, and ask for its one name twice), and a path that cannot be written; a
    file that was there before is then unchanged.

    >>> save({"w": torch.ones(2, 3)}, "w.safetensors", {"format": "pt"})  # doctest: +SKIP
    """
    owned = {name: _saveable(name, value) for name, value in tensors.items()}
    with atomic_path(path) as temporary:
        mode = temporary.stat().st_mode
        try:
            save_file(owned, temporary, dict(metadata or {}))
        except OSError:
            raise
        except Exception as error:  # the package raises its own type, RuntimeError and TypeError
            raise WeightsError(
                f"{path}: cannot be saved: {' '.join(str(error).split())}"
            ) from error
        temporary.chmod(mode)  # the package makes its file private, whatever the umask


def save_streamed(
    layout: Mapping[str, tuple[str, tuple[int, ...]]],
    chunks: Callable[[str], Iterable[torch.Tensor]],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a file larger than memory: `layout` is {name: (dtype, shape)}, known beforehand.

    `chunks(name)` yields the tensor's elements in row-major order, in pieces of any shape. Atomic
    like `save`. Raises `WeightsError` if the pieces of a tensor are not of its dtype and size.
    """
    names = sorted(layout, key=lambda name: (-ITEM_BYTES[layout[name][0]], name))  # keeps alignment
    with atomic_path(path) as temporary, open(temporary, "wb") as file:
        file.write(_header_of({name: layout[name] for name in names}, metadata))
        for name in names:
            dtype, shape = layout[name]
            written = 0
            for chunk in chunks(name):
                if chunk.dtype != TORCH_DTYPES[dtype]:
                    raise WeightsError(f"{path}: tensor {name!r} is {dtype}, not {chunk.dtype}")
                raw = chunk.contiguous().view(-1).view(torch.uint8).numpy()
                written += file.write(raw.data)
            if written != math.prod(shape) * ITEM_BYTES[dtype]:
                raise WeightsError(
                    f"{path}: tensor {name!r} got {written} bytes, but {dtype}{list(shape)} has "
                    f"{math.prod(shape) * ITEM_BYTES[dtype]}"
                )


def _saveable(name: str, value: torch.Tensor | npt.NDArray[np.generic]) -> torch.Tensor:
    if name == "__metadata__":
        raise WeightsError("'__metadata__' is reserved by the format; give the tensor another name")
    if isinstance(value, np.ndarray):
        native = value.dtype.newbyteorder("=")
        try:  # torch needs native bytes, and warns of a read-only array
            value = torch.from_numpy(np.require(value, native, ["C", "W"]))
        except TypeError as error:
            raise WeightsError(f"tensor {name!r} is {native}; {error}") from error
    if value.dtype not in DTYPE_NAMES:
        raise WeightsError(
            f"tensor {name!r} is {value.dtype}, not one of {', '.join(TORCH_DTYPES)}; convert it"
        )
    return value.detach().cpu().contiguous()


def _header_of(
    layout: Mapping[str, tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None
) -> bytes:
    codes = {dtype: code for code, dtype in CODES.items()}
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    start = 0
    for name, (dtype, shape) in layout.items():
        stop = start + math.prod(shape) * ITEM_BYTES[dtype]
        header[name] = {"dtype": codes[dtype], "shape": shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data section begins at a multiple of 8
    return len(text).to_bytes(LENGTH_BYTES, "little") + text
