"""The process of one system: a line of JSON asks, a line of JSON answers.

    {"do": "open", "task": "decode", "system": "jax_step", "precision": "fp32", "threads": 1, …}
    {"do": "prompt", "ids": […]}
    {"do": "step", "token": 7, "at": 128, "save": null}   →  {"wall_ns": …, "cpu_ns": …, …}
    {"do": "run", "save": "/tmp/output.npy"}              →  the same, of a full forward

Runs with the Python of `.venv-peers` and imports nothing of tgbench. Whatever a system prints goes
to standard error. Clocks run around the system's own call; the greedy choice and the file that is
asked for come after. Processor time is that of all threads of the process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
Request = Mapping[str, Any]


@dataclass(frozen=True)
class Job:
    """What a system is opened for.

    Fields:
        model: a checkpoint's folder, to decode with; a file of `torch.export`, to run forward.
        work: a folder for what conversion makes; it is kept.
        tokens: positions that there is room for.
        inputs: a file with the input of a full forward.
    """

    precision: str
    threads: int
    model: Path
    work: Path
    tokens: int = 0
    inputs: Path | None = None


class Decoder(Protocol):
    """Decodes a token at a time."""

    def prompt(self, ids: Sequence[int]) -> None:
        """Take in the first ids."""

    def step(self, token: int, at: int) -> Array:
        """The logits after this token."""


class Forward(Protocol):
    """Computes everything."""

    def run(self) -> Array:
        """The output."""


class Child:
    """Answers requests; the first one opens the system."""

    def __init__(self) -> None:
        self.system: Any = None

    def answer(self, request: Request) -> dict[str, Any]:
        found: dict[str, Any] = getattr(self, f"do_{request['do']}")(request)
        return found

    def do_open(self, request: Request) -> dict[str, Any]:
        began = time.perf_counter()
        module = importlib.import_module(f"benchmarks.peers.{request['system']}")
        self.system = getattr(module, request["task"])(_job(request))
        versions = {name: metadata.version(name) for name in module.PACKAGES}
        return {"opened_s": time.perf_counter() - began, "versions": versions}

    def do_prompt(self, request: Request) -> dict[str, Any]:
        self.system.prompt(request["ids"])
        return {}

    def do_step(self, request: Request) -> dict[str, Any]:
        token, at = int(request["token"]), int(request["at"])
        logits, clocks = clocked(lambda: self.system.step(token, at))
        return {**clocks, **_kept(logits, request), "choice": int(logits.argmax())}

    def do_run(self, request: Request) -> dict[str, Any]:
        output, clocks = clocked(self.system.run)
        return {**clocks, **_kept(output, request)}


def _job(request: Request) -> Job:
    paths = {name: Path(request[name]) for name in ("model", "work", "inputs") if request.get(name)}
    return Job(request["precision"], request["threads"], tokens=request.get("tokens", 0), **paths)


def clocked(call: Callable[[], Array]) -> tuple[Array, dict[str, int]]:
    """What a call returns, and its time by the wall's clock and by the processor's."""
    cpu, began = time.process_time_ns(), time.perf_counter_ns()
    found = call()
    wall = time.perf_counter_ns() - began
    return found, {"wall_ns": wall, "cpu_ns": time.process_time_ns() - cpu}


def _kept(output: Array, request: Request) -> dict[str, Any]:
    if request.get("save"):
        np.save(request["save"], np.asarray(output, dtype=np.float32))
    return {"saved": request.get("save")}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    child = Child()
    for line in sys.stdin:
        try:
            answer = child.answer(json.loads(line))
        except Exception as error:  # the parent reports it
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
