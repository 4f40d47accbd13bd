"""What may be switched on from outside: each level tells of its own, and of what is below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from tgbench import ops
from tgbench.base.errors import InputError
from tgbench.base.switches import DEBUG, LEVELS, debug_level, tell
from tgbench.graph.graph import GraphBuilder
from tgbench.session.session import GraphSession

TELLS = {
    1: r"a plan is needed for x\[|planned in .* retained|searched in ",
    2: r"run \d: x\[.*: program (found|moved|made), ",
    3: r"program for x\[.*: \d instructions? in \d calls? and 1 piece, .*; .*1 × softmax",
    4: r"candidate|weighing|bounding|integer program|best ",
}


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    debug_level.cache_clear()
    yield
    debug_level.cache_clear()


def a_few_runs() -> None:
    g = GraphBuilder()
    x = g.input("x", (8, 4))
    g.output("y", ops.softmax(ops.cumsum(x + 1.0, 0) * x))
    session = GraphSession(g.build(), memory="1KiB")
    rows = np.ones((8, 4), np.float32)
    for i in range(4):
        rows[i + 4] += 1.0
        session.run({"x": rows}, want={"y": np.s_[i + 4]})
    session.optimize(steps=16)


@pytest.mark.parametrize("level", [0, *LEVELS])
def test_each_level_tells_of_its_own(
    level: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(DEBUG, str(level))
    a_few_runs()
    lines = capsys.readouterr().err.splitlines()
    for one, words in TELLS.items():
        told = [line for line in lines if line.startswith(f"tgbench {one}: ")]
        assert bool(told) == (one <= level), lines
        assert all(re.search(words, line) for line in told), told
    assert level or not lines


def test_it_is_set_from_outside() -> None:
    code = (
        "from tgbench.base.switches import tell\n"
        "for level in range(1, 5): tell(level, lambda: 'something')"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, DEBUG: "2"},
    )  # fmt: skip
    assert told.stderr.splitlines() == ["tgbench 1: something", "tgbench 2: something"]
    assert told.stdout == ""


def test_lines_that_nobody_reads_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def line() -> str:
        raise AssertionError("made")

    monkeypatch.delenv(DEBUG, raising=False)
    tell(1, line)


def test_what_is_no_level_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG, "loud")
    with pytest.raises(InputError, match="give a level from 1 to 4"):
        debug_level()
