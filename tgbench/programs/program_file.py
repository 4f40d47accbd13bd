"""A file of programs: JSON lines that are signed, and read when they are wanted.

    header      version, who signed it, and what the programs are right for
    contents    patterns and keys
    …           of every program its calls, and its steps
    signature   of all lines above

Whether a program is right cannot be found out for less than making it takes: what is read of every
node, and which comparisons held, is all that making is. So a file counts where this user's tgbench
wrote it (`base.signing`), for the same graph, plan, machine, kernels and sources.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import ProgramsError
from tgbench.base.files import read_bytes
from tgbench.base.machine import Machine
from tgbench.base.signing import made_key, user_key
from tgbench.base.strict_json import parsed
from tgbench.base.words import shorten
from tgbench.graph.graph import Graph
from tgbench.kernels.registry import known_as
from tgbench.programs.encoding import Codec, Json, LazySequence, ProgramKey
from tgbench.programs.exact.findings import sources
from tgbench.programs.program import Instruction, Program, Use
from tgbench.programs.states import States
from tgbench.runs.buckets import BucketClass
from tgbench.runs.propagate import Step
from tgbench.runs.rules import Rules

Entry: TypeAlias = "tuple[int, BucketClass, Program]"  # with the state that it counts on
Bind: TypeAlias = Callable[[Program, tuple[int, ...]], None]
Modelled: TypeAlias = Callable[[Iterable[Step], Sequence[int]], float]
VERSION = 2
MOST_BYTES = 256 << 20  # of a file; what is not signed is not taken apart
NONE = "no file of programs; pass one that `session.save_programs` wrote"
ANEW = "make programs anew (`session.prepare`), and save them"


def facts(graph: Graph, plan: str, rules: Rules, device: str) -> dict[str, str]:
    """What programs are right for, each with a digest.

    Args:
        plan: a digest of the one in force.
        rules: of a session: with the tiles of bit-exact mode, and weights that stay as they are.
    """
    nodes = [node for node in graph.nodes if not node.is_leaf]
    tilings = [(node.name, rules.tilings.get(node.call)) for node in nodes]
    unpacked = [node.name for node in nodes if node.call in rules.unpacked]
    return {
        "graph": graph.fingerprint,
        "plan": plan,
        "machine": Machine.here(device).fingerprint,
        "packing and tiles": sha256(repr((unpacked, tilings)).encode()).hexdigest(),
        "tgbench": sources(),
    }


@dataclass(frozen=True)
class ProgramFile:
    """A file of programs for one memory map.

    Fields:
        path: where it is, or will be.
        right_for: what its programs are right for, by name.
        codec: writes and reads them.
        states: number what holds values before and after them.
    """

    path: Path
    right_for: Mapping[str, str]
    codec: Codec
    states: States

    # --- writing ---------------------------------------------------------------------------------

    def save(self, entries: Iterable[Entry], modelled: Modelled) -> None:
        """Write programs atomically; `modelled` expects how long one takes that was never warm."""
        key = made_key()
        header = {"version": VERSION, "signed_by": key.name, "right_for": dict(self.right_for)}
        lines = [header, *self._contents(list(entries), modelled)]
        text = "".join(map(_line, lines)).encode()
        with atomic_path(self.path) as temporary:
            temporary.write_bytes(text + _line({"signature": key.signature(text)}).encode())

    def _contents(self, entries: list[Entry], modelled: Modelled) -> Iterator[Json]:
        states = [(state, made.start, made.after) for state, _, made in entries]
        numbers = list(dict.fromkeys(number for found in states for number in found))
        keys = []
        for state, kind, made in entries:
            use = made.use
            time_ns = use.time_ns if use.is_warm else modelled(made.steps, made.made_at)
            at = [numbers.index(number) for number in (state, made.start, made.after)]
            keys.append(ProgramKey.of(kind, at, made, time_ns).written())
        yield {
            **self.codec.patterns(self.states.patterns[number] for number in numbers),
            "keys": keys,
            "outputs": [self.codec.outputs(kind, program) for _, kind, program in entries],
            "kernels": list(self._kernels(entries)),
        }
        for _, _, program in entries:
            yield self.codec.calls(program)
            yield self.codec.steps(program)

    def _kernels(self, entries: list[Entry]) -> dict[tuple[str, str], None]:
        """Ops and the kernels that were chosen for them; those of tiles are not chosen by name."""
        tilings = self.codec.lowerer.rules.tilings
        return dict.fromkeys(
            (made.node.op, made.kernel)
            for _, _, program in entries
            for made in program.instructions
            if made.site is not None and made.node.call not in tilings
        )

    # --- reading ---------------------------------------------------------------------------------

    def load(self, bind: Bind) -> list[Entry]:
        """Its programs; each is read and bound at its first run.

        Raises ProgramsError for one that is damaged, or was made by others or for another session.
        """
        try:
            contents, *lines = _signed_lines(_read(self.path), self.right_for)
            with _sound():
                return self._entries(json.loads(contents), lines, bind)
        except ProgramsError as error:
            raise ProgramsError(f"{self.path}: {error}") from error

    def _entries(self, document: Json, lines: Sequence[bytes], bind: Bind) -> list[Entry]:
        _check_registered(document["kernels"])
        patterns = self.codec.read_patterns(document)
        numbers = [self.states.number(pattern) for pattern in patterns]
        found = []
        rows = zip(document["keys"], document["outputs"], lines[::2], lines[1::2], strict=True)
        for written, outputs, calls, steps in rows:
            key = ProgramKey.read(written)
            key.check(self.codec.graph)
            unread = UnreadProgram(self.codec, key, calls, steps)
            found.append((numbers[key.state], key.kind, unread.program(outputs, numbers, bind)))
        return found


@contextmanager
def _sound() -> Iterator[None]:
    """What is read inside was signed, and may all the same be none that was written."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        told = f"{type(error).__name__}: {shorten(error)}"
        raise ProgramsError(f"signed, and damaged ({told}); {ANEW}") from error


def _line(document: Json) -> str:
    return f"{json.dumps(document, separators=(',', ':'), allow_nan=False)}\n"


def _check_registered(kernels: Iterable[tuple[str, str]]) -> None:
    for op, name in kernels:
        if known_as(op, name) is None:
            raise ProgramsError(f"kernel {name!r} of {op} is not registered; {ANEW}")


@dataclass(frozen=True)
class UnreadProgram:
    """A program's lines, which nobody asked for yet."""

    codec: Codec
    key: ProgramKey
    calls_line: bytes
    steps_line: bytes

    def program(self, outputs: Json, numbers: Sequence[int], binds: Bind) -> Program:
        """The program; `numbers` are those of the file's patterns here."""
        key = self.key
        return Program(
            LazySequence(key.calls, self._calls), key.guards, numbers[key.after],
            self.codec.read_outputs(outputs, key.kind, key.made_at),
            LazySequence(key.pieces, self._steps), key.made_at, counts_on=numbers[key.state],
            start=numbers[key.start], renews=key.renews,
            use=Use(modelled_ns=key.time_ns), binds=binds,
        )  # fmt: skip

    def _calls(self) -> tuple[Instruction, ...]:
        with _sound():
            return self.codec.read_calls(json.loads(self.calls_line), self.key.made_at)

    def _steps(self) -> tuple[Step, ...]:
        with _sound():
            return self.codec.read_steps(json.loads(self.steps_line))


def _read(path: Path) -> bytes:
    try:
        return read_bytes(path, MOST_BYTES)
    except OSError as error:
        raise ProgramsError(f"cannot be read ({error.strerror or error}); {ANEW}") from error
    except ValueError as error:
        raise ProgramsError(f"{error}: {NONE}") from error


def require_programs(path: Path) -> None:
    """Raises ProgramsError for a file of something else, which is not to be written over; programs
    may be of any release, and damaged.
    """
    try:
        if "signed_by" not in _versioned(_read(path).split(b"\n", 1)[0]):
            raise ProgramsError(NONE)
    except ProgramsError as error:
        raise ProgramsError(f"{path}: {error}") from error


def _brief(value: object) -> str:
    """So much of a value that it is told apart: of a hash its beginning."""
    return shorten(value[:12] if isinstance(value, str) and len(value) == 64 else value)


def _signed_lines(raw: bytes, right_for: Mapping[str, str]) -> list[bytes]:
    """The lines between header and signature, once both are found to be right."""
    header = _header(raw.split(b"\n", 1)[0])
    key = user_key()
    if key is None or header["signed_by"] != key.name:
        raise ProgramsError(f"somebody else's, or of another machine; {ANEW}")
    text, newline, last = raw.removesuffix(b"\n").rpartition(b"\n")
    if not key.has_signed(text + newline, _signature(last)):
        raise ProgramsError(f"damaged, or edited; {ANEW}")
    for what, wanted in right_for.items():
        found = header["right_for"].get(what)
        if found != wanted:
            raise ProgramsError(
                f"for another {what} ({_brief(found)}, not {_brief(wanted)}); {ANEW}"
            )
    return text.split(b"\n")[1:]


def _versioned(line: bytes) -> Json:
    found = parsed(line, lambda fault: ProgramsError(NONE))
    if not isinstance(found, dict) or "version" not in found:
        raise ProgramsError(NONE)
    return found


def _header(line: bytes) -> Json:
    found = _versioned(line)
    if found["version"] != VERSION:
        raise ProgramsError(f"version {shorten(found['version'])} is not {VERSION}; {ANEW}")
    known = found.keys() == {"version", "signed_by", "right_for"}
    if not known or not isinstance(found["right_for"], dict):
        raise ProgramsError(f"damaged (its first line); {ANEW}")
    return found


def _signature(line: bytes) -> str:
    try:
        return str(parsed(line, ProgramsError)["signature"])
    except (ProgramsError, TypeError, KeyError):
        return ""
