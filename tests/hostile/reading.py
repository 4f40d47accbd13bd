"""The process that reads files that may be hostile: little memory, little time, every outcome told.

    parent   {"kind": "graph", "path": "…", "seed": 3}  a line on its standard input
    child    {"outcome": "refused", "what": "GraphError"}  a line on its standard output

Outcomes: fine (it was read, and what came of it is right), refused (a typed error), untyped (any
other exception), wrong (a result), memory (over the limit), time (killed by the parent). Time is
what the process computed: others may have the processors. Who waits is given longer.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOM_BYTES = 1 << 30  # over what the process takes once everything is loaded
SECONDS = 5.0  # of a processor
WAITING = 60.0  # by the clock
LOOK = 0.1  # seconds between two looks at what the process computed
FILES = 500  # that one process reads: the limit is meant for a file, not for what memos keep
GOOD = ("fine", "refused")
OUTCOMES = (*GOOD, "wrong", "untyped", "memory", "time")
TYPE = re.compile(r"nodes\[(\d+)\]\.type: \w+ gives (\w+)\[([\d, ]*)\], not")
MOST_MENDS = 40
LARGEST_MENDED = 1 << 20  # of a file, in bytes
MOST_SAID = 2000  # characters of a refusal


@dataclass(frozen=True)
class Outcome:
    """What became of a file: one of the words above, and which exception.

    Fields:
        took_s: of a processor, for reading and using it.
        taken_bytes: that the process had at most, over what it takes once everything is loaded.
    """

    outcome: str
    what: str = ""
    told: str = field(default="", compare=False)
    took_s: float = field(default=0.0, compare=False)
    taken_bytes: int = field(default=0, compare=False)

    @property
    def is_good(self) -> bool:
        return self.outcome in GOOD

    def is_like(self, other: Outcome) -> bool:
        return (self.outcome, self.what) == (other.outcome, other.what)


# --- the parent -----------------------------------------------------------------------------------


class Reader:
    """A process that reads files, started again when it had to be killed."""

    def __init__(self, seconds: float = SECONDS, waiting: float = WAITING) -> None:
        self.seconds, self.waiting = seconds, waiting
        self._folder = tempfile.TemporaryDirectory(prefix="tgbench-hostile-")
        self._errors = Path(self._folder.name, "errors")
        self._process: subprocess.Popen[str] | None = None
        self._read = 0  # by this process

    def read(self, kind: str, data: bytes) -> Outcome:
        """What becomes of a file."""
        from hostile.kinds import HARM, KINDS

        path = Path(self._folder.name, f"file{KINDS.get(kind, HARM).suffix}")
        for stray in path.parent.iterdir():
            if stray != self._errors:
                stray.unlink()
        path.write_bytes(data)
        return self._asked({"kind": kind, "path": str(path)})

    def close(self) -> None:
        """End the process."""
        self._end()
        self._folder.cleanup()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _asked(self, question: Any) -> Outcome:
        self._read += 1
        if self._read > FILES:
            self._end()
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(question) + "\n")
        process.stdin.flush()
        answer = self._line(process, self.seconds, self.waiting)
        if answer is None:
            ended = process.poll()
            self._end()
            if ended is None:
                return Outcome("time", *self._standing())
            return Outcome("untyped", f"the process ended with {ended}")
        return Outcome(**json.loads(answer))

    def _standing(self) -> tuple[str, str]:
        """Where the process stood when its time was nearly over."""
        text = self._errors.read_text()
        found = re.search(r'File ".*?/tgbench/([\w/]+\.py)", line (\d+)', text)
        return f"at {found[1]}:{found[2]}" if found else "", text[:2500]

    def _start(self) -> subprocess.Popen[str]:
        environment = os.environ | {
            "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path),
        }  # fmt: skip
        with self._errors.open("w") as errors:
            self._process = process = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "hostile.reading", f"{self.seconds}",
                 f"{self.waiting}"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment,
            )  # fmt: skip
        if self._line(process, 300, 600) is None:
            raise RuntimeError("the process that reads files did not start")
        return process

    def _line(self, process: subprocess.Popen[str], seconds: float, waiting: float) -> str | None:
        """What it says, before it computed or waited for so long."""
        assert process.stdout is not None
        most_s, end = _computed_s(process.pid) + seconds, time.monotonic() + waiting
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not selector.select(LOOK):
                if _computed_s(process.pid) > most_s or time.monotonic() > end:
                    return None
            return process.stdout.readline() or None

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._process = None
        self._read = 0


def _computed_s(process: int) -> float:
    """Seconds of processors that a process had."""
    try:
        words = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# --- the child ------------------------------------------------------------------------------------


def main() -> None:
    """Load everything, take a limit, and answer."""
    import torch

    from hostile.kinds import KINDS

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed besides is no answer
    with tempfile.TemporaryDirectory() as folder:
        for name, kind in KINDS.items():  # what is loaded late is loaded now
            for number, sample in enumerate(kind.samples()):
                path = Path(folder, f"{name}{number}{kind.suffix}")
                path.write_bytes(sample)
                kind.used(path)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM_BYTES, taken + ROOM_BYTES))
    resident = _most_resident()
    print("ready", file=answers, flush=True)
    faulthandler.register(signal.SIGPROF)
    computing, waiting = (0.9 * float(text) for text in sys.argv[1:])
    for line in sys.stdin:
        question = json.loads(line)
        faulthandler.dump_traceback_later(waiting)
        signal.setitimer(signal.ITIMER_PROF, computing)
        Path("/proc/self/clear_refs").write_text("5")  # the most that is resident from here on
        since = time.process_time()
        found = outcome_of(question["kind"], Path(question["path"]))
        took_s = time.process_time() - since
        signal.setitimer(signal.ITIMER_PROF, 0)
        faulthandler.cancel_dump_traceback_later()
        found = replace(found, took_s=took_s, taken_bytes=max(_most_resident() - resident, 0))
        print(json.dumps(vars(found)), file=answers, flush=True)


def _most_resident() -> int:
    """Bytes, since they were last counted anew."""
    text = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", text)
    return int(found[1]) << 10 if found else 0


def outcome_of(kind: str, path: Path) -> Outcome:
    """What becomes of a file, in this process."""
    from hostile.kinds import HARM, KINDS, Wrong
    from tgbench.base.errors import TgbenchError

    try:
        if kind == "graph" and path.stat().st_size < LARGEST_MENDED:
            _mend_graph(path)
        KINDS.get(kind, HARM).used(path)
    except Wrong as error:
        return Outcome("wrong", str(error))
    except BaseException as error:
        if _lacked_memory(error):
            return Outcome("memory", *_told(error))
        if isinstance(error, TgbenchError):
            if len(str(error)) <= MOST_SAID:
                return Outcome("refused", type(error).__name__, str(error))
            return Outcome("untyped", "says much", str(error)[:1000])
        return Outcome("untyped", *_told(error))
    return Outcome("fine")


def _told(error: BaseException) -> tuple[str, str]:
    """Type and place, and the end of the traceback."""
    places = [f for f in traceback.extract_tb(error.__traceback__) if "tgbench/" in f.filename]
    inner = [place for place in places if "/hostile/" not in place.filename]
    place = (
        f" at {inner[-1].filename.rpartition('tgbench/')[2]}:{inner[-1].lineno}" if inner else ""
    )
    return f"{type(error).__name__}{place}", "".join(traceback.format_exception(error))[-2500:]


def _lacked_memory(error: BaseException | None) -> bool:
    """Whether an exception, or one behind it, says that there was not enough memory."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _mend_graph(path: Path) -> None:
    """Types that follow from others, and the fingerprint: with them a graph is read to its end."""
    from tgbench.base.errors import TgbenchError
    from tgbench.graph import graph_file

    made: list[Any] = []
    plain = graph_file.Graph.of

    def kept(*arguments: Any) -> Any:
        made.append(plain(*arguments))
        return made[-1]

    graph_file.Graph.of = staticmethod(kept)
    try:
        for _ in range(MOST_MENDS):
            try:
                graph_file.graph_from_json(path.read_text())
                return
            except TgbenchError as error:
                data = json.loads(path.read_text()) if _is_json(path) else None
                if found := TYPE.search(str(error)):
                    sizes = [int(size) for size in found[3].split(", ")] if found[3] else []
                    data["nodes"][int(found[1])]["type"] = [found[2], sizes]
                elif str(error).startswith("fingerprint") and made:
                    data["fingerprint"] = made[-1].fingerprint
                else:
                    return
                path.write_text(json.dumps(data))
            except Exception:
                return  # what it is, reading it again tells
    finally:
        graph_file.Graph.of = plain


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_text())
    except ValueError:
        return False
    return True


if __name__ == "__main__":
    main()
