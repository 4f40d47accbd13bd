"""Programs survive: what was saved is used as if it had been made, and nothing else is used.

A session that loads programs runs in poisoned memory, beside the references (`session_cases`): a
program that was read wrong gives wrong results, or calls something valid that is not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from session.test_session import histories, play, share_of_examples
from session_cases import CheckedSession, smallest_budget
from strategies import Maker, graphs

import tgbench as tg
from tgbench import ops
from tgbench.base import signing
from tgbench.base.errors import PlanError, ProgramsError
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.programs import program_file
from tgbench.programs.program import Program
from tgbench.session.session import GraphSession
from tgbench.views.values.programs import listing

SIZE = 8


def causal(window: int = SIZE) -> Graph:
    """Rows that see the rows before them, with weights, a table and a state."""
    g = GraphBuilder()
    ids = g.input("ids", (SIZE,), "int64")
    x = ops.embedding(g.parameter("table", (5, 4)), ids)
    y = g.name(x @ g.parameter("w", (4, 4)), "y")
    seen = g.constant((np.tri(SIZE) - np.tri(SIZE, k=-window)).astype("float32"))
    z = g.name(seen @ y, "z")
    g.output("out", ops.maximum(z + x, 0.0))
    return g.build()


def values_of(graph: Graph) -> dict[str, Any]:
    draw = np.random.default_rng(0).integers
    leaves = {**graph.inputs, **graph.parameters}
    return {n: draw(0, 4, node.shape).astype(node.dtype) for n, node in leaves.items()}


def session_of(graph: Graph | None = None, **options: Any) -> CheckedSession:
    graph = graph if graph is not None else causal()
    return CheckedSession(graph, values_of(graph), making="always", **options)


def typed(session: CheckedSession) -> CheckedSession:
    """Everything, one token after another, an edit, a repeat."""
    session.run()
    for t in (2, 3, 4, 5):
        _set(session, t, t % 3, {"out": np.s_[t]})
    _set(session, 1, 3, {"out": np.s_[5]})
    session.run(want={"out": np.s_[5]})
    return session


def _set(session: CheckedSession, at: int, token: int, want: Any) -> None:
    ids = session.values["ids"].copy()
    ids[at] = token
    session.run({"ids": ids}, want)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The plan of a session that typed; its programs lie beside it."""
    session = typed(session_of(plan=tmp_path / "plan.json")).session
    session.save_plan()
    assert session.save_programs() == tmp_path / "plan.programs"
    return tmp_path / "plan.json"


# --- used as if they had been made ----------------------------------------------------------------


def described(program: Program) -> Any:
    """All that a program is, but for functions."""
    calls = [
        (i.node.name, i.box, i.kernel, i.arguments, i.scratch_bytes, i.allocates)
        for i in program.instructions
    ]
    steps = [
        {node.name: region for node, region in part.items()}
        for step in program.steps
        for part in (step.dirty, step.needed, step.compute, step.reused, step.valid)
    ]
    return str(calls), program.guards, program.made_at, steps


def of_session(session: GraphSession) -> list[Any]:
    patterns = session.states.patterns
    return [
        (str(patterns[state]), str(patterns[program.after]), str(kind), described(program))
        for state, kind, program in session.programs
    ]


def test_a_program_is_read_as_it_was_written(tmp_path: Path) -> None:
    first = typed(session_of()).session
    plan, programs = first.save_plan(tmp_path / "p"), first.save_programs(tmp_path / "q")
    second = session_of(plan=plan).session
    assert second.load_programs(programs) == len(first.programs)
    assert sorted(of_session(second), key=str) == sorted(of_session(first), key=str)
    assert second.load_programs(programs) == 0, "they are there already"


def test_no_program_is_made_where_all_were_loaded(saved: Path) -> None:
    session = session_of(plan=saved)
    assert session.session.load_programs() > 3
    typed(session)
    counters = session.session.counters
    assert (counters.specialised, counters.planned) == (0, 0)
    assert session.session.last.recomputed < 1  # type: ignore[union-attr]


def test_a_program_that_did_not_run_yet_can_be_looked_at(saved: Path) -> None:
    session = session_of(plan=saved).session
    session.load_programs()
    for _, _, program in session.programs:
        assert len(listing(program).lines) == len(program)


def test_what_was_loaded_is_saved_again(saved: Path, tmp_path: Path) -> None:
    session = session_of(plan=saved).session
    count = session.load_programs()
    again = session.save_programs(tmp_path / "again")
    third = session_of(plan=saved)
    assert third.session.load_programs(again) == count
    typed(third)
    assert third.session.counters.specialised == 0


def test_programs_follow_an_arena_that_others_share(saved: Path) -> None:
    arena = tg.Arena("cpu")
    other = session_of(arena=arena)
    other.run()
    session = session_of(plan=saved, arena=arena)
    assert session.session.load_programs() > 0
    typed(session)
    assert session.session.counters.specialised == 0


@share_of_examples(1)
@given(graphs(most_ops=7), st.data(), st.floats(0, 1))
def test_random_programs_survive(case: tuple[Graph, Maker], data: Any, share: float) -> None:
    graph, make = case
    history = data.draw(histories(graph))
    memory = smallest_budget(graph, make(0)) + int(share * 4096)
    options = {"memory": memory, "making": data.draw(st.sampled_from(["always", "measured"]))}
    first = play(CheckedSession(graph, make(0), **options), make, history).session
    if not first.is_planned:
        return
    path = Path(os.environ["XDG_CACHE_HOME"]) / "random.programs"
    first.save_programs(path)
    again = CheckedSession(graph, make(0), plan=first.plan, **options)
    assert again.session.load_programs(path) == len(first.programs)
    assert [described(p) for *_, p in again.session.programs] == [
        described(p) for *_, p in first.programs
    ]
    play(again, make, history)
    if options["making"] == "always" and first.counters.planned == 1:
        assert again.session.counters.specialised == 0


# --- in another process ---------------------------------------------------------------------------

RUNS = """
import sys
sys.path[:0] = {path!r}
from session.test_program_files import session_of, typed
session = session_of(plan={plan!r})
loaded = session.session.load_programs()
typed(session)
print(loaded, session.session.counters.specialised)
"""


def test_another_process_makes_none(saved: Path) -> None:
    text = RUNS.format(path=sys.path, plan=str(saved))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded, made = map(int, done.stdout.split())
    assert (loaded > 3, made) == (True, 0)


# --- everything else is refused, and nothing is lost ----------------------------------------------


def refused(session: CheckedSession, path: Path, match: str) -> None:
    """The programs are refused by name; the session goes on without them."""
    with pytest.raises(ProgramsError, match=match) as error:
        session.session.load_programs(path)
    assert str(path) in str(error.value)
    assert len(session.session.programs) == 0
    typed(session)
    assert session.session.counters.specialised > 0


def edited(path: Path, change: Callable[[list[Any]], None], *, signed: bool = False) -> Path:
    """A file whose lines were changed, by somebody who may have the key."""
    *lines, _ = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    text = "".join(map(program_file._line, lines)).encode()
    signature = signing.made_key().signature(text) if signed else "0" * 64
    path.write_bytes(text + program_file._line({"signature": signature}).encode())
    return path


def test_a_file_that_was_cut_off_is_refused(saved: Path) -> None:
    path = saved.with_suffix(".programs")
    whole = path.read_bytes()
    session = session_of(plan=saved).session
    for size in [*range(0, len(whole) - 1, max(len(whole) // 60, 1)), len(whole) - 2]:
        path.write_bytes(whole[:size])
        with pytest.raises(ProgramsError):
            session.load_programs()
    assert len(session.programs) == 0


@given(st.data())
def test_a_file_with_a_wrong_bit_is_refused(case: tuple[GraphSession, bytes], data: Any) -> None:
    session, whole = case
    at, bit = data.draw(st.integers(0, len(whole) - 2)), data.draw(st.integers(0, 7))
    path = Path(os.environ["XDG_CACHE_HOME"]) / "bits.programs"
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
    with pytest.raises(ProgramsError):
        session.load_programs(path)
    assert len(session.programs) == 0


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> tuple[GraphSession, bytes]:
    """A session, and a file that it would take."""
    folder = tmp_path_factory.mktemp("bits")
    first = typed(session_of()).session
    plan, programs = first.save_plan(folder / "plan"), first.save_programs(folder / "programs")
    return session_of(plan=plan).session, programs.read_bytes()


def test_an_edited_file_is_refused(saved: Path) -> None:
    path = saved.with_suffix(".programs")

    def fewer(lines: list[Any]) -> None:
        lines[2]["calls"].pop()

    refused(session_of(plan=saved), edited(path, fewer), "damaged, or edited")


@pytest.mark.parametrize("what", ["graph", "plan", "machine", "packing and tiles", "tgbench"])
def test_programs_of_another_origin_are_refused(saved: Path, what: str) -> None:
    """Whoever has the key may say so; the user's own files of another plan do."""

    def other(lines: list[Any]) -> None:
        lines[0]["right_for"][what] = "other"

    path = edited(saved.with_suffix(".programs"), other, signed=True)
    refused(session_of(plan=saved), path, f"for another {what}")


def test_programs_for_another_graph_or_plan_are_refused(saved: Path, tmp_path: Path) -> None:
    programs = saved.with_suffix(".programs")
    graph = causal(window=3)
    other = session_of(graph, plan=typed(session_of(graph)).session.plan)
    refused(other, programs, "for another graph")
    narrow = session_of()
    narrow.run(want={"out": np.s_[3]})
    refused(session_of(plan=narrow.session.plan), programs, "for another plan")


def test_somebody_elses_programs_are_refused(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = saved.with_suffix(".programs")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nobody"))
    refused(session_of(plan=saved), programs, "somebody else's")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    session_of(plan=saved).session.save_programs(tmp_path / "own")
    refused(session_of(plan=saved), programs, "somebody else's")
    key = tmp_path / "other" / "tgbench" / "signing.key"
    assert key.stat().st_mode & 0o77 == 0, "for the user alone"
    key.write_bytes(b"short")
    with pytest.raises(ProgramsError, match="delete it"):
        session_of(plan=saved).session.load_programs()


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]\n", b"\xff\xfe", b"[" * 1000, b'{"version": 1}']
)
def test_what_holds_no_programs_is_refused(saved: Path, tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "other"
    path.write_bytes(text)
    session = session_of(plan=saved).session
    with pytest.raises(ProgramsError, match=r"no file of programs|version 1 is not 2"):
        session.load_programs(path)
    for missing in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ProgramsError, match="cannot be read"):
            session.load_programs(missing)


def test_views_outside_of_a_node_are_refused(saved: Path) -> None:
    """Whatever a file says, a call stays inside the bytes that the plan gives a node."""

    def far(lines: list[Any]) -> None:
        for document in lines[2::2]:
            for row in document["calls"]:
                row[2] = 1 << 40

    edited(saved.with_suffix(".programs"), far, signed=True)
    session = session_of(plan=saved)
    session.session.load_programs()
    with pytest.raises(ProgramsError, match="are not its own"):
        session.run()


def no_header(lines: list[Any]) -> None:
    lines[0]["right_for"] = 7


def no_patterns(lines: list[Any]) -> None:
    lines[1]["patterns"] = [[["x", [], [0]]]]


def another_rank(lines: list[Any]) -> None:
    for _, boxes, *_ in lines[1]["patterns"][-1]:
        boxes.append([[0, 1]] * 7)


def no_class(lines: list[Any]) -> None:
    lines[1]["keys"][0][0][2] = ["far"]


def another_class(lines: list[Any]) -> None:
    name, _ = lines[1]["keys"][0][0][0][0]
    lines[1]["keys"][0][0][0][0] = [name, [[[900, 1]] * 2]]


def no_boxes(lines: list[Any]) -> None:
    name, _ = lines[1]["keys"][0][0][0][0]
    lines[1]["keys"][0][0][0][0] = [name, {}]


def no_keys(lines: list[Any]) -> None:
    del lines[1]["keys"]


def no_count(lines: list[Any]) -> None:
    lines[1]["keys"][0][7] = 1.5


def no_time(lines: list[Any]) -> None:
    lines[1]["keys"][0][9] = "soon"


def no_guard(lines: list[Any]) -> None:
    lines[1]["keys"][0][5] = [[0, 0, 0.5, 1]]


DAMAGE = (
    no_guard,
    no_count,
    no_time,
    no_header,
    no_patterns,
    another_rank,
    no_class,
    another_class,
    no_boxes,
    no_keys,
)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda one: one.__name__)
def test_what_was_signed_again_after_it_was_damaged_is_refused(saved: Path, damage: Any) -> None:
    path = edited(saved.with_suffix(".programs"), damage, signed=True)
    refused(session_of(plan=saved), path, "damaged")


def test_programs_of_a_kernel_that_is_gone_are_refused(saved: Path) -> None:
    def rename(lines: list[Any]) -> None:
        lines[1]["kernels"][0][1] = "gone"

    path = edited(saved.with_suffix(".programs"), rename, signed=True)
    refused(session_of(plan=saved), path, "kernel 'gone' of .* is not registered")


def test_programs_want_a_plan_and_a_path(tmp_path: Path) -> None:
    session = session_of().session
    for use in (session.save_programs, session.load_programs):
        with pytest.raises(PlanError, match="nothing is planned yet"):
            use(tmp_path / "p")
        with pytest.raises(PlanError, match="no path for programs"):
            use()


# --- ahead of time --------------------------------------------------------------------------------


def test_prepare_plans_where_nothing_is_planned() -> None:
    session = session_of()
    assert session.session.prepare() > 1
    counters = session.session.counters
    made = counters.specialised
    assert (counters.planned, counters.runs) == (1, 0)
    session.run()
    for t in (0, 1, 2):
        _set(session, t, 3 - int(session.values["ids"][t]), None)
    assert (counters.planned, counters.specialised) == (1, made), "all of it was there"


def test_prepare_plans_for_what_the_trace_holds(tmp_path: Path) -> None:
    trace = tmp_path / "runs.jsonl"
    typed(session_of(trace=trace)).session.trace.close()
    session = session_of(trace=trace)
    assert session.session.prepare() > 1
    planned = session.session.counters.planned
    typed(session)
    assert session.session.counters.planned == planned


def test_prepared_programs_are_met_by_the_runs_of_a_plan(saved: Path) -> None:
    session = session_of(plan=saved)
    session.session.prepare()
    made = session.session.counters.specialised
    assert session.session.prepare() == 0, "they are there already"
    session.run()
    assert session.session.counters.specialised == made, "a first run changes everything"
