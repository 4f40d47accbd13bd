"""The parent's side: processes of other systems, opened, asked and ended.

    open ─→ prompt ─→ step, step, …      or      open ─→ run, run, …

A system that cannot be installed, converted or opened is not left out: `Opened.missing` says why,
and the results say so.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
CLOSE = 1e-4
LOOKED_UP = 5e-3  # llama.cpp reads GELU from a table of float16, whatever the weights are
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # each system is told by its own option


@dataclass(frozen=True)
class Peer:
    """A system to compare with.

    Fields:
        name: in the results.
        system: module of `benchmarks.peers` that runs it.
        precision: of its weights: "fp32", "bf16" or "int8".
        close: largest difference to PyTorch's output that float32 explains, over the largest value.
    """

    name: str
    label: str
    system: str
    precision: str
    close: float = CLOSE


def _each(
    name: str, label: str, system: str, precisions: Iterable[str], close: float = CLOSE
) -> Iterator[Peer]:
    for precision in precisions:
        yield Peer(f"{name}-{precision}", label, system, precision, close)


DECODE = (
    *_each("without-numba", "tgbench without numba", "without_numba", ("fp32",)),
    *_each("onnxruntime", "ONNX Runtime", "onnx_runtime", ("fp32", "int8")),
    *_each("openvino", "OpenVINO", "open_vino", ("fp32", "bf16", "int8")),
    *_each("jax", "JAX", "jax_step", ("fp32",)),
    *_each("ctranslate2", "CTranslate2", "translate2", ("fp32", "int8")),
    *_each("llama.cpp", "llama.cpp", "llama", ("fp32", "bf16", "int8"), LOOKED_UP),
)
FORWARD = (
    *_each("onnxruntime", "ONNX Runtime", "onnx_runtime", ("fp32",)),
    *_each("openvino", "OpenVINO", "open_vino", ("fp32", "bf16")),
)
BESIDE_OTHERS = (*_each("pytorch", "PyTorch", "pytorch", ("fp32",)), *FORWARD)


class PeerError(Exception):
    """What a system's process said, or its last words."""


class Process:
    """A system in a process of its own; what it prints goes to a file."""

    def __init__(self, log: Path) -> None:
        self.log = log
        environment = {name: value for name, value in os.environ.items() if name not in THREADS}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "benchmarks.peers.child"],
                cwd=ROOT,
                env=environment | {"PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            print(json.dumps({"do": do, **request}), file=self.process.stdin, flush=True)
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line or "{}")
        if not line or "error" in answer:
            raise PeerError(answer.get("error") or self.last_words())
        return answer

    def last_words(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
        said = [line for line in lines if line.strip()]
        return f"its process ended: {said[-1] if said else 'without a word'}"

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Opened:
    """A peer, and its process; without one, why."""

    peer: Peer
    process: Process | None = None
    missing: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.peer), "missing": self.missing, **self.facts}


@contextmanager
def opened(
    peers: Iterable[Peer], begin: Callable[[Process], None], **job: Any
) -> Iterator[list[Opened]]:
    """Every peer with its process, which ends with the block; `begin` is the first to ask it."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield [_opened(peer, stack, folder, begin, job) for peer in peers]


def _opened(
    peer: Peer, stack: ExitStack, folder: Path, begin: Callable[[Process], None], job: Any
) -> Opened:
    if not PYTHON.exists():
        return Opened(peer, missing="its environment is not there: make peers")
    process = Process(folder / f"{peer.name}.log")
    stack.callback(process.end)
    try:
        facts = process.ask("open", system=peer.system, precision=peer.precision, **job)
        begin(process)
    except PeerError as error:
        process.end()
        return Opened(peer, missing=str(error))
    return Opened(peer, process, facts=facts)
