"""Taking a candidate: only after its checks, under the hash of its source, for who asks for it."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import KernelError
from tgbench.base.files import is_there, open_regular, read_bytes
from tgbench.base.machine import cache_folder
from tgbench.base.processes import environment, python
from tgbench.base.words import printable, shorten
from tgbench.costs.admission.candidate import kernel_of, read
from tgbench.kernels.registry import known_as, register

SECONDS, MEMORY_BYTES = 120.0, 1 << 30
MOST_BYTES = 1 << 20  # of a source
MOST_WORDS = 1 << 16  # of what its process says, the last ones
NAME = re.compile(r"([A-Za-z][A-Za-z0-9_]{0,60})@([0-9a-f]{64})")


class Admitted(NamedTuple):
    """A kernel that was taken.

    Fields:
        name: `name@hash`, as sessions ask for it.
        path: where its source lies.
        cases: how many it stood.
    """

    name: str
    path: Path
    cases: int


def kernel_folder() -> Path:
    """Where admitted kernels lie."""
    return cache_folder() / "kernels"


def admit(
    file: str | Path,
    task: str | Path | None = None,
    *,
    seconds: float = SECONDS,
    memory_bytes: int = MEMORY_BYTES,
) -> Admitted:
    """Check a candidate in a process of its own, and keep its source.

    Args:
        task: the graph of the task; `task.json` beside the file if left out.

    Raises KernelError with the case that it fails: wrong numbers, other bits for a part, writes
    where it may not, an exception, a crash, or more time or memory than is allowed.
    """
    path = Path(file)
    source = _source(path)
    read(source)
    name = f"{_word(path.stem)}@{hashlib.sha256(source.encode()).hexdigest()}"
    given = Path(task) if task is not None else path.with_name("task.json")
    if not is_there(given):
        raise KernelError(f"{given}: there is no such task; pass the task.json of `kernel task`")
    cases = _checked(path, given, seconds, memory_bytes)
    kept = kernel_folder() / f"{name}.py"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if _source(path) != source:
        raise KernelError(f"{path} was changed while it was checked; admit it again")
    with atomic_path(kept) as temporary:
        temporary.write_bytes(source.encode())
    return Admitted(name, kept, cases)


def _source(path: Path) -> str:
    try:
        return read_bytes(path, MOST_BYTES).decode()
    except (OSError, ValueError) as error:
        raise KernelError(f"{path}: cannot be read ({error}); check the path") from None


def _word(text: str) -> str:
    found = re.sub(r"[^A-Za-z0-9_]", "_", text)[:60]
    return found if found[:1].isalpha() else f"k{found}"


def _checked(path: Path, task: Path, seconds: float, memory_bytes: int) -> int:
    """How many cases a candidate stands."""
    with TemporaryDirectory(prefix="tgbench-admit-") as folder:
        told, said = Path(folder, "told"), Path(folder, "said")
        command = python(
            "-m", "tgbench.costs.admission.checks", str(path), str(task), str(told),
            str(memory_bytes),
        )  # fmt: skip
        try:
            status = _status(command, said, seconds)
        except OSError as error:
            raise KernelError(f"{path}: cannot be checked ({error})") from None
        lines, last_words = _end(told).splitlines(), _end(said).strip()[-300:]
    last = next((line[5:] for line in reversed(lines) if line.startswith("case ")), "before any")
    verdict, _, what = lines[-1].partition(" ") if lines else ("", "", "")
    if status is None:
        raise KernelError(f"{path}: refused: it takes more than {seconds:g} s\ncase: {last}")
    if verdict == "done" and what.isdecimal():
        return int(what)
    if verdict == "refused":
        raise KernelError(f"{path}: refused: {what}\ncase: {last}")
    how = f"signal {-status}" if status < 0 else f"status {status}: {last_words}"
    raise KernelError(f"{path}: refused: its process ended ({how})\ncase: {last}")


def _status(command: list[str], said: Path, seconds: float) -> int | None:
    """How a process ended, with all that it started; None for one that took too long.

    What it says goes into a file, whose size it has a limit for: a pipe would be read into memory
    without an end, and as long as any process that it left behind holds the other side.
    """
    with said.open("wb") as errors:
        child = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            env=environment(),
        )
    try:
        return child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _end(path: Path) -> str:
    """The last words of a file that may be missing, as a terminal may have them."""
    try:
        with open_regular(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - MOST_WORDS, 0))
            return printable(file.read(MOST_WORDS).decode(errors="replace"))
    except OSError:
        return ""


def load(name: str) -> str:
    """Have an admitted kernel in the table, for sessions that ask for it by this name.

    Raises KernelError for a name that is none, a kernel that was not admitted here, and a source
    that is not the one that was.
    """
    if not NAME.fullmatch(name):
        raise KernelError(f"{shorten(name)} is no admitted kernel; give name@hash, as `admit` does")
    path = kernel_folder() / f"{name}.py"
    source = _source(path)
    if hashlib.sha256(source.encode()).hexdigest() != name.partition("@")[2]:
        raise KernelError(f"{path}: is not what was admitted; admit the file again")
    candidate = read(source)
    if known_as(candidate.op, name) is None:
        register(kernel_of(candidate, name))
    return name
