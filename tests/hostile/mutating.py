"""Files changed a little: bytes, or what they mean, with what guards them made right again."""

from __future__ import annotations

import base64
import io
import json
import random
import sqlite3
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

from tgbench.base.signing import made_key

Mutation = Callable[[bytes, random.Random], bytes]
NUMBERS = (
    0, -1, 1, 2, 3, 63, 64, 255, 10**6, 2**31 - 1, 2**31, 2**40, 2**53, 2**62 - 1, 2**62, 2**63 - 1,
    2**63, 2**64, -(2**63), 0.0, -0.0, 0.5, 1e30, 3.5e38, 1e300, -1e308,
)  # fmt: skip
TEXTS = (
    "", "x", "y", "ids", "\0", "a\nb", "\x1b[31m", "\u202e", "é" * 40, "x" * 300, "../x", "'; --",
    "float64", "bool", "N", "inf", "constant", "matmul", "slice", "pad", "F16", "BOOL",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (None, True, False, [], {}, [[]], [0], ["**", "N", 8], {"as_int": 1})
BOMB = base64.b64encode(zlib.compress(bytes(1 << 22))).decode()


# --- bytes ----------------------------------------------------------------------------------------


def bytes_changed(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, a part gone, a part twice, an end torn."""
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at, count = rng.randrange(len(raw) + 1), rng.choice((1, 2, 4, 8, 64, 500))
        match rng.randrange(6):
            case 0 if at < len(raw):
                raw[at] ^= 1 << rng.randrange(8)
            case 1:
                del raw[at : at + count]
            case 2:
                raw[at:at] = raw[at : at + count]
            case 3:
                raw[at : at + count] = rng.randbytes(min(count, 8))
            case 4:
                raw[at : at + 8] = struct.pack("<Q", rng.choice((0, 2**31, 2**40, 2**63)))
            case _ if rng.random() < 0.2:
                del raw[at:]
    return bytes(raw)


# --- values ---------------------------------------------------------------------------------------


def value_changed(document: Any, rng: random.Random) -> Any:
    """One or some places of a JSON document changed."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(document))
        if not places:
            return deepcopy(rng.choice(OTHERS))
        holder, key = rng.choice(places)
        _change(holder, key, places, rng)
    return document


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items) if isinstance(value, (dict, list)) else ():
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)


def _change(holder: Any, key: Any, places: list[Any], rng: random.Random) -> None:
    old = holder[key]
    match rng.randrange(9):
        case 0:
            del holder[key]
        case 1 if isinstance(old, int):
            holder[key] = old + rng.choice((-1, 1, 2, -2))
        case 2 if isinstance(old, (int, float)):
            holder[key] = old * rng.choice((-1, 2, 1 << 20, 1 << 31))
        case 1 | 2 | 3:
            holder[key] = rng.choice(NUMBERS)
        case 4:
            holder[key] = rng.choice(TEXTS)
        case 5:
            holder[key] = deepcopy(rng.choice(OTHERS))
        case 6:
            other, at = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[at]))  # another part of it
        case 7 if isinstance(holder, list):
            holder[key:key] = [old] * rng.choice((1, 1, 7, 70))
        case 8 if isinstance(holder, dict) and isinstance(key, str):
            holder[rng.choice(TEXTS)] = holder.pop(key)
        case _:
            holder[key] = _nested(rng)


def _nested(rng: random.Random) -> Any:
    made: Any = rng.choice((1, "N", "x", None))
    for _ in range(rng.choice((2, 10, 20, 99, 200))):
        kind = rng.randrange(3)
        made = ["**", made, 8] if kind == 0 else [made] if kind == 1 else {"dimension": made}
    return made


def json_changed(data: bytes, rng: random.Random) -> bytes:
    """A JSON file with other values in it."""
    return json.dumps(value_changed(json.loads(data), rng)).encode()


def lines_changed(data: bytes, rng: random.Random) -> bytes:
    """One of JSON lines."""
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    lines[at] = json_changed(lines[at], rng) + b"\n"
    if rng.random() < 0.2:
        lines *= rng.choice((2, 50))
    return b"".join(lines)


def signed_again(data: bytes, rng: random.Random) -> bytes:
    """What a file of programs says of them, signed by the user's key as if it had been so."""
    lines = data.splitlines(keepends=True)[:-1]
    at = rng.choice((0, 1, 1, 1))
    lines[at] = json_changed(lines[at], rng) + b"\n"
    text = b"".join(lines)
    return text + json.dumps({"signature": made_key().signature(text)}).encode() + b"\n"


def header_changed(data: bytes, rng: random.Random) -> bytes:
    """The header of a safetensors file, with its length made right."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json_changed(data[8 : 8 + length], rng)
    rest = data[8 + length :]
    if rng.random() < 0.3:
        rest = bytes_changed(rest, rng)
    return struct.pack("<Q", len(header)) + header + rest


def cells_changed(data: bytes, rng: random.Random) -> bytes:
    """Cells of a table of texts."""
    lines = [line.split(b",") for line in data.splitlines()]
    for _ in range(rng.choice((1, 1, 2, 5))):
        row = rng.choice(lines)
        at, long = rng.randrange(len(row)), rng.choice((b"9" * 5000, b"x" * 200_000, b'"', b""))
        chosen = (rng.choice(NUMBERS), rng.choice(TEXTS), f"{rng.randrange(-9, 99)}-{2**62}")
        row[at] = rng.choice((*(str(one).encode() for one in chosen), row[at] * 9, long))
        if rng.random() < 0.1:
            lines += [row] * rng.choice((1, 3000))
    return b"\n".join(map(b",".join, lines)) + b"\n"


def npy_changed(data: bytes, rng: random.Random) -> bytes:
    """The header of a NumPy file, with its length made right."""
    (length,) = struct.unpack("<H", data[8:10])
    header = data[10 : 10 + length].decode()
    old = rng.choice(("<f8", "<i8", "False", "True", "4", "3", "(", ")", "descr", "shape", "'"))
    new = str(rng.choice((*NUMBERS, *TEXTS, "|O", "V8", "<U9", "(" * 200, "__import__('os')")))
    header = header.replace(old, new, 1)
    raw = header.encode()[:60_000]
    return data[:8] + struct.pack("<H", len(raw)) + raw + data[10 + length :]


def members_changed(data: bytes, rng: random.Random) -> bytes:
    """A member of a zip file, or how it is stored; checksums are right again."""
    members: list[tuple[str, bytes, int]] = []
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            members.append((info.filename, archive.read(info), zipfile.ZIP_STORED))
    named = [i for i, (name, _, _) in enumerate(members) if name.endswith(".json")]
    at = rng.choice(named) if rng.random() < 0.8 else rng.randrange(len(members))
    name, raw, how = members[at]
    match rng.randrange(10):
        case 0:
            members[at] = name, bytes(1 << 24), zipfile.ZIP_DEFLATED
        case 1:
            members[at] = name, raw, rng.choice((zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2))
        case 2:
            members.append(members[at])
        case 3:
            members[at] = name, bytes_changed(raw, rng), how
        case 4:
            members[at] = rng.choice(TEXTS) or "-", raw, how
        case _:
            changed = json_changed(raw, rng) if name.endswith(".json") else bytes_changed(raw, rng)
            members[at] = name, changed, how
    found = io.BytesIO()
    with zipfile.ZipFile(found, "w") as archive:
        for name, raw, how in members:
            archive.writestr(zipfile.ZipInfo(name.replace("\0", "")), raw, how)
    return found.getvalue()


def rows_changed(data: bytes, rng: random.Random) -> bytes:
    """Values, tables and views of an SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "f.db")
        path.write_bytes(data)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA journal_mode = DELETE")
        tables = [row[0] for row in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'")]  # fmt: skip
        table = rng.choice(tables)
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        value = rng.choice((
            rng.choice(NUMBERS[:14]), rng.choice(TEXTS), None, "[" * 200, "[1, 2]", "[0]",
            "x" * 10**6, json.dumps(_nested(rng)), b"\0\xff", -1, 0.5,
        ))  # fmt: skip
        statements = (
            (f"UPDATE {table} SET {rng.choice(columns)} = ?", (value,)),
            (f"DROP TABLE {table}", ()),
            (f"DELETE FROM {table}", ()),
            (f"ALTER TABLE {table} RENAME TO t; ", ()),
            (f"ALTER TABLE {table} RENAME COLUMN {rng.choice(columns)} TO other", ()),
            (f"ALTER TABLE {table} ADD COLUMN more TEXT DEFAULT 'x'", ()),
            (f"UPDATE {table} SET {rng.choice(columns)} = zeroblob(90000000)", ()),
        )
        try:
            if rng.random() < 0.1:
                connection.execute(f"ALTER TABLE {table} RENAME TO real_one")
                connection.execute(
                    f"CREATE VIEW {table} AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
                    f"SELECT i + 1 FROM n) SELECT r.* FROM n, real_one r"
                )
            else:
                many = (1, 1, 1, 1, 1, 1) if rng.random() < 0.95 else (0,) * 6
                connection.execute(*statements[rng.choices(range(7), (30, *many))[0]])
            connection.commit()
        except sqlite3.Error:
            pass
        connection.close()
        return path.read_bytes()


MUTATIONS: dict[str, tuple[Mutation, ...]] = {
    "graph": (json_changed, json_changed, json_changed, bytes_changed),
    "plan": (json_changed, json_changed, json_changed, bytes_changed),
    "trace": (lines_changed, lines_changed, bytes_changed),
    "programs": (signed_again, signed_again, lines_changed, bytes_changed),
    "records": (rows_changed, rows_changed, bytes_changed),
    "weights": (header_changed, header_changed, bytes_changed),
    "pt2": (members_changed, members_changed, members_changed, bytes_changed),
    "pairs": (header_changed, header_changed, bytes_changed),
    "shards": (json_changed, json_changed, bytes_changed),
    "config": (json_changed, json_changed, json_changed, bytes_changed),
    "packing": (cells_changed, cells_changed, cells_changed, bytes_changed),
    "array": (npy_changed, npy_changed, bytes_changed),
}


def mutated(kind: str, samples: tuple[bytes, ...], seed: int) -> bytes:
    """The file of a seed."""
    rng = random.Random(f"{kind} {seed}")
    sample = rng.choice(samples)
    return rng.choice(MUTATIONS[kind])(sample, rng) or b"\n"
