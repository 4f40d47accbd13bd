"""memory="auto": min(limit, all memory − weights − measured peak), 1 GiB where none is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tgbench.base.errors import BudgetError, GraphError
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.memory import estimate
from tgbench.memory.arena import Arena
from tgbench.memory.estimate import (
    Budget,
    container_limits,
    parse_bytes,
    resident_bytes,
    total_bytes,
)
from tgbench.session.report import taken_bytes
from tgbench.session.session import GraphSession

GIB = 1 << 30
WEIGHTS = 4 * 4 * 4  # bytes


def graph() -> Graph:
    g = GraphBuilder()
    g.output("y", g.input("x", (8, 4)) @ g.parameter("w", (4, 4)))
    return g.build()


VALUES = {"w": np.eye(4, dtype="float32")}
X = {"x": np.ones((8, 4), np.float32)}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how much the device has, and how much of it is in use."""

    def has(total: int, resident: int = 0) -> None:
        monkeypatch.setattr(estimate, "total_bytes", lambda device: total)
        monkeypatch.setattr("tgbench.memory.arena.resident_bytes", lambda device: resident)

    return has


# --- what is written ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (None, Budget(None)),
        (0, Budget(0)),
        ("256MiB", Budget(256 << 20)),
        (" 1.5 GB ", Budget(1_500_000_000)),
        ("auto", Budget(None, auto=True)),
        (" Auto ", Budget(None, auto=True)),
        ("auto:4GiB", Budget(4 * GIB, auto=True)),
        ("auto: 100", Budget(100, auto=True)),
    ],
)
def test_what_a_size_says(memory: Any, expected: Budget) -> None:
    assert Budget.parse(memory) == expected


@pytest.mark.parametrize(
    "memory",
    ["auto:", "auto:auto", "automatic", "auto 4GiB", "", "GiB", -1, "9" * 400 + "MiB", float("inf"),
     float("nan"), b"1", True],
    ids=repr,
)  # fmt: skip
def test_what_is_no_size(memory: Any) -> None:
    with pytest.raises(GraphError, match="is not a size"):
        Budget.parse(memory)


# --- what it comes to -----------------------------------------------------------------------------


@given(
    st.one_of(st.none(), st.integers(0, 20 * GIB)),
    st.integers(0, 20 * GIB),
    st.one_of(st.none(), st.integers(0, 20 * GIB)),
    st.integers(0, GIB),
)
def test_the_formula(limit: int | None, total: int, peak: int | None, packed: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(estimate, "total_bytes", lambda device: total)
        memory = "auto" if limit is None else f"auto:{limit}"
        found = parse_bytes(memory, graph(), "cpu", peak, packed)
    assert found is not None
    left = total - WEIGHTS - packed - (GIB if peak is None else peak)
    assert found == max(min(left, left if limit is None else limit), 0)


def test_a_session_keeps_a_gibibyte_free_until_something_is_measured(machine: Any) -> None:
    machine(2 * GIB, resident=1000)
    session = GraphSession(graph(), VALUES, memory="auto")
    assert session.budget_bytes == GIB - WEIGHTS
    session.run(X)
    taken = taken_bytes(session.last.program)  # type: ignore[union-attr]
    assert taken >= 8 * 4 * 4, "the result is handed out"
    assert session.arena.compute_peak_bytes == 1000 + taken
    session.optimize(budget="auto")
    assert session.budget_bytes == 2 * GIB - WEIGHTS - 1000 - taken
    session.optimize(budget="auto:1MiB")
    assert session.budget_bytes == 1 << 20
    assert session.estimate_memory()["cpu"].budget_bytes == 1 << 20


def test_a_run_of_a_program_that_was_made_ahead_is_in_the_peak(machine: Any) -> None:
    machine(2 * GIB, resident=1000)
    session = GraphSession(graph(), VALUES, making="always")
    session.prepare()
    session.run(X)
    taken = taken_bytes(session.last.program)  # type: ignore[union-attr]
    assert not session.last.specialised  # type: ignore[union-attr]
    assert session.arena.compute_peak_bytes == 1000 + taken


def test_the_largest_peak_of_any_run_counts(machine: Any) -> None:
    machine(2 * GIB)
    session = GraphSession(graph(), VALUES)
    session.run(X)
    most = session.arena.compute_peak_bytes
    session.run({"x": X["x"] * 2}, {"y": np.s_[0]})
    assert session.arena.compute_peak_bytes == most


def test_what_libraries_allocate_in_a_call_is_in_the_peak() -> None:
    session = GraphSession(graph(), VALUES)
    session.run(X)
    program = session.last.program  # type: ignore[union-attr]
    before, made = taken_bytes(program), program.instructions[0]
    object.__setattr__(made, "allocates", made.allocates + 4096)
    assert taken_bytes(program) == before + 4096


def test_a_machine_that_is_too_small_says_so(machine: Any) -> None:
    machine(GIB)
    with pytest.raises(BudgetError, match="budget 0 B is too small"):
        GraphSession(graph(), VALUES, memory="auto").run(X)


def test_an_arena_counts_the_weights_of_all_its_sessions(machine: Any) -> None:
    machine(GIB + 4096)
    arena = Arena("cpu", "auto")
    first = GraphSession(graph(), VALUES, arena=arena)
    assert arena.limit_bytes == 4096 - WEIGHTS
    second = GraphSession(graph(), VALUES, arena=arena)
    assert arena.limit_bytes == 4096 - 2 * WEIGHTS
    for session in (first, second):
        session.run(X)
    assert arena.used_bytes == arena.size_bytes <= 4096
    del second, session
    assert arena.limit_bytes == GIB + 4096 - WEIGHTS - (arena.compute_peak_bytes or 0)
    assert Arena("cpu", "auto:1KiB").limit_bytes == 1024
    assert "of 1 KiB" in str(Arena("cpu", "auto:1KiB"))


# --- what there is --------------------------------------------------------------------------------


def groups(folder: Path, own: str, **limits: str) -> list[int]:
    """The limits found when /proc/self/cgroup says `own`, and these files are there."""
    for path, text in limits.items():
        file = folder / path.replace("__", "/").replace("DOT", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    (folder / "own").write_text(own)
    return container_limits(folder, folder / "own")


def test_a_containers_limit_counts(tmp_path: Path) -> None:
    assert groups(tmp_path, "0::/\n", memoryDOTmax="4096") == [4096]


def test_the_limits_of_outer_groups_count_too(tmp_path: Path) -> None:
    found = groups(
        tmp_path, "0::/a/b\n", a__b__memoryDOTmax="max", a__memoryDOTmax="512", memoryDOTmax="2048"
    )
    assert sorted(found) == [512, 2048]


def test_version_1_names_its_controllers(tmp_path: Path) -> None:
    own = "5:cpu,cpuacct:/b\n4:hugetlb,memory:/a\n1:name=systemd:/\n0::/\n"
    name = "limitDOTplaceholder"
    found = groups(
        tmp_path,
        own,
        **{
            f"memory__a__{name}": "1",
            "memory__a__memoryDOTlimit_in_bytes": "1024",
            "memory__memoryDOTlimit_in_bytes": "9223372036854771712",
            "b__memoryDOTlimit_in_bytes": "7",
        },
    )
    assert sorted(found) == [1024, 9223372036854771712]


def test_no_groups_no_limits(tmp_path: Path) -> None:
    assert container_limits(tmp_path, tmp_path / "none") == []
    assert groups(tmp_path, "0::/gone\n") == []


def test_the_machine_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "container_limits", lambda: [1 << 62])
    whole = total_bytes("cpu")
    assert 0 < resident_bytes("cpu") < whole
    monkeypatch.setattr(estimate, "container_limits", lambda: [1 << 62, 1 << 20])
    assert total_bytes("cpu") == 1 << 20


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_at_hand() -> None:
    session = GraphSession(graph(), VALUES, memory="auto", device="cuda:0")
    session.run(X)
    assert 0 < resident_bytes("cuda:0") < total_bytes("cuda:0")
    assert session.budget_bytes == total_bytes("cuda:0") - WEIGHTS - GIB
