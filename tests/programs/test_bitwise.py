"""Bit-exact mode: after any history a run has the bits of a run from nothing in a fresh session."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzz.choosing import serve_any
from hypothesis import given, settings
from hypothesis import strategies as st
from session.test_session import histories
from session_cases import HUGE, PoisonedSession
from strategies import Array, Maker, edited, graphs

import tgbench.session.opening
from tgbench import ops
from tgbench.base.coords import origin_symbol, record
from tgbench.base.errors import BudgetError, ExactnessError, PlanError, RecordsError
from tgbench.base.regions import Box, Region
from tgbench.base.tiles import Tiling
from tgbench.costs.model import plain_site
from tgbench.costs.records import Records
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.op_table import Call
from tgbench.kernels.copied import copied
from tgbench.kernels.registry import KERNELS, OUT, Kernel, Site
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.tables import tabulate
from tgbench.plans.retention.workload import Workload
from tgbench.programs.exact import findings as exactness
from tgbench.programs.exact.findings import Exactness, tiles
from tgbench.programs.exact.trials import BOXES, LATER_DRAWS, orders_of
from tgbench.runs.buckets import Bucket
from tgbench.runs.rules import Rules
from tgbench.session import profile as profiler
from tgbench.session.session import GraphSession
from tgbench.sources.models.bert import bert
from tgbench.sources.models.checkpoints import find_minilm, gemma3_checkpoint, gemma3_reduced
from tgbench.sources.models.gemma3 import gemma3
from tgbench.sources.torch import from_torch

Case = tuple[Graph, Maker]
FLOATS = ("float32", "float64")


def few(part: int) -> settings:
    return settings(max_examples=max(settings().max_examples // part, 5))


def numbers(maker: Maker, seed: int) -> dict[str, Array]:
    """Floats that round everywhere, some zeros among them, where the maker gives small integers."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, value in maker(seed).items():
        if value.dtype.name in FLOATS:
            drawn = rng.standard_normal(value.shape) * (rng.random(value.shape) < 0.9)
            value = np.asarray(drawn, value.dtype)
        found[name] = value
    return found


def differing(found: Any, right: Array, index: Any) -> bool:
    """Whether any bit of a result differs from that part of the whole output."""
    parts = [found] if not isinstance(found, list) else found
    if isinstance(index, Region):
        indices: list[Any] = [box.slices() for box in index]
    else:
        indices = index if isinstance(index, list) else [index]
    return any(
        np.asarray(part).tobytes() != np.ascontiguousarray(right[at]).tobytes()
        for part, at in zip(parts, indices, strict=True)
    )


def check(session: GraphSession, fresh: GraphSession, inputs: Any, want: Any = None) -> None:
    """One run of a session with a past, and one of a session that has none."""
    found = session.run(inputs, want)
    right = fresh.run(inputs)
    for name, index in (want or dict.fromkeys(found, ...)).items():
        assert not differing(found[name], right[name], index), (name, index, str(session.last))


def play(graph: Graph, make: Maker, history: Any, **options: Any) -> None:
    values = numbers(make, 0)
    weights = {name: values[name] for name in graph.parameters}
    session = PoisonedSession(graph, weights, exact="bitwise", **options)
    session.runner.poison = HUGE
    inputs = {name: values[name] for name in graph.inputs}
    for i, (change, want, _) in enumerate(history):
        inputs = edited(inputs, change, numbers(make, i))
        inputs = {name: inputs[name] for name in graph.inputs}
        try:
            check(session, GraphSession(graph, weights, exact="bitwise"), inputs, want)
        except BudgetError:
            return


# --- random graphs --------------------------------------------------------------------------------


@few(6)
@given(graphs(most_ops=8), st.data(), st.booleans())
def test_no_history_changes_a_bit(case: Case, data: Any, keep_all: bool) -> None:
    graph, make = case
    history = data.draw(histories(graph, most=4))
    play(graph, make, history, retain="all" if keep_all else "auto")


@few(12)
@given(graphs(most_ops=8), st.data(), st.floats(0, 1), st.sampled_from(["exact", "pow2", "full"]))
def test_nor_does_a_budget_or_rounding(case: Case, data: Any, share: float, rounding: str) -> None:
    graph, make = case
    values = numbers(make, 0)
    weights = {name: values[name] for name in graph.parameters}
    try:
        GraphSession(graph, weights, memory=0, exact="bitwise").run(
            {name: values[name] for name in graph.inputs}
        )
        least = 0
    except BudgetError as error:
        least = error.needed_bytes
    history = data.draw(histories(graph, most=4))
    buckets = dict.fromkeys(graph.inputs, rounding)
    play(graph, make, history, memory=least + int(share * 2 * least), buckets=buckets)


def any_tilings(scheduled: ScheduledGraph, seed: int) -> Exactness:
    """Any tiles and any kernels, each tile computed alone: equal bits follow without any trial."""
    rng = np.random.default_rng(seed)
    tilings: dict[Call, Tiling] = {}
    for call in dict.fromkeys(node.call for node in scheduled.stored):
        ladder = tiles(call)
        tile = ladder[int(rng.integers(len(ladder)))]
        if rng.random() < 0.5:
            tile = tuple(
                int(rng.integers(least, n + 1))
                for least, n in zip(ladder[0], call.out.shape, strict=True)
            )
        tilings[call] = Tiling(_any_kernel(call, tile, rng), tile, tile, copied=True)
    return Exactness(tilings, {call: (call.op.name,) for call in tilings}, torch.get_num_threads())


def _any_kernel(call: Call, tile: tuple[int, ...], rng: np.random.Generator) -> str:
    """One that takes every tile."""
    whole, rules = Box.full(call.out.shape), Rules()
    sites = [
        plain_site(call, box, rules.reads(call, box), "cpu")
        for box in Tiling("", tile, tile).calls(whole)
    ]
    names = [k.name for k in KERNELS[call.op.name] if all(map(copied(k).accepts, sites))]
    return names[int(rng.integers(len(names)))]


@few(6)
@given(graphs(most_ops=8), st.data(), st.integers(0, 10**6))
def test_any_tiles_computed_alone_keep_their_bits(case: Case, data: Any, seed: int) -> None:
    graph, make = case
    with pytest.MonkeyPatch.context() as patch:
        found = lambda scheduled, *_: any_tilings(scheduled, seed)  # noqa: E731
        patch.setattr(tgbench.session.opening, "find", found)
        play(graph, make, data.draw(histories(graph, most=4)))


def test_a_product_with_zeros_has_one_sign() -> None:
    """0 · x is −0 for a negative x, which nobody needs: whoever made it, it is 0."""
    g = GraphBuilder()
    x = g.input("x", (4, 6))
    g.output("y", x * g.constant(np.float32([[1, 0, 1, 0, 0, 1]])) + g.input("z", (4, 6)))
    graph, zeros = g.build(), np.zeros((4, 6), np.float32)
    session = GraphSession(graph, exact="bitwise")
    check(session, GraphSession(graph, exact="bitwise"), {"x": zeros - 1, "z": zeros})
    check(session, GraphSession(graph, exact="bitwise"), {"x": zeros - 2, "z": -zeros})
    assert not np.signbit(session.run({"x": zeros - 2})["y"][:, 1]).any()


# --- tilings --------------------------------------------------------------------------------------


def test_a_region_grows_to_whole_tiles_and_falls_into_chunks() -> None:
    tiling = Tiling("any", (4, 1, 6), (8, 3, 6))
    found = tiling.rounded(Region.of(Box(((5, 6), (1, 2), (0, 1)))), (11, 3, 6))
    assert found == Region.of(Box(((4, 8), (1, 2), (0, 6))))
    whole = Box.full((11, 3, 6))
    parts = list(tiling.calls(whole))
    assert parts == [Box(((0, 8), (0, 3), (0, 6))), Box(((8, 11), (0, 3), (0, 6)))]
    assert tiling.rounded(Region((whole,)), (11, 3, 6)) == Region((whole,))


def test_a_tile_holds_wherever_its_edges_are_the_same() -> None:
    tiling = Tiling("any", (16,), (64,))
    with record([130]) as guards:
        at = origin_symbol(0)
        (box,) = tiling.rounded(Region((Box(((at, at + 1),)),)), (512,))
    assert box == Box(((128, 144),))
    holds = [u for u in range(512) if all(guard.holds((u,)) for guard in guards)]
    assert holds == list(range(128, 144))


# --- kernels --------------------------------------------------------------------------------------


def exponentials(rows: int = 40, columns: int = 6) -> Graph:
    g = GraphBuilder()
    g.output("y", ops.exp(g.input("x", (rows, columns))))
    return g.build()


def only(patch: pytest.MonkeyPatch, op: str, run: Any) -> None:
    """One kernel alone computes the op: `run(x, out)`."""

    def accepts(site: Site) -> bool:
        return site.ins[0] is not None

    kernel = Kernel("made", op, accepts, lambda s: 100.0, lambda s, _: (run, (s.operand(0), s.out)))
    patch.setitem(KERNELS, op, [kernel])
    patch.setattr(exactness, "_remembered", {})


def by_rows(least: int) -> Any:
    """Fewer rows than so many come out otherwise."""

    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.exp(x, out=out)
        if len(x) < least:
            out.mul_(1 + 1e-6)

    return run


def by_shape(x: torch.Tensor, out: torch.Tensor) -> None:
    torch.exp(x, out=out)
    out.mul_(1 + 1e-6 * len(x))


def by_place(x: torch.Tensor, out: torch.Tensor) -> None:
    """As a library that takes another way for operands that are not aligned."""
    torch.exp(x, out=out)
    if x.storage_offset() % 16 or not x.is_contiguous():
        out.mul_(1 + 1e-6)


def test_rows_are_computed_as_many_at_a_time_as_keep_their_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only(monkeypatch, "exp", by_rows(8))
    session = GraphSession(exponentials(), exact="bitwise")
    assert session.exactness is not None
    (tiling,) = session.exactness.tilings.values()
    assert tiling.tile[0] == 8
    assert "tiles of [8," in str(session.exactness)
    name = session.graph.outputs["y"].name
    x = np.random.default_rng(0).standard_normal((40, 6)).astype("float32")
    for row in (3, 17, 39):
        check(session, GraphSession(exponentials(), exact="bitwise"), {"x": x})
        x = x.copy()
        x[row] += 1
    assert not session.exactness.spread
    assert session.last is not None
    words = session.last.tiles[name]
    assert "computed in tiles of [8," in words
    assert f"\n  {words}" in str(session.plan.explain(name, session.graph, session.exactness))


@pytest.mark.parametrize("run", [by_shape, by_place])
def test_what_keeps_no_bits_is_computed_tile_by_tile_on_copies(
    monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    only(monkeypatch, "exp", run)
    session = GraphSession(exponentials(), exact="bitwise")
    assert session.exactness is not None
    (tiling,) = session.exactness.tilings.values()
    assert tiling.copied
    x = np.random.default_rng(0).standard_normal((40, 6)).astype("float32")
    for row in (3, 17, 39):
        check(session, GraphSession(exponentials(), exact="bitwise"), {"x": x})
        x = x.copy()
        x[row, 2:4] += 1


@pytest.mark.parametrize("rows", [2, 3, 5, 6, 7])
def test_every_shape_of_a_small_call_is_tried_on_every_draw(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """As a library that takes another way for some rows, which seldom has other bits."""

    def seldom(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.softmax(x, -1, out=out)
        if len(x) == rows and x.abs().max() > 1e37:
            out.mul_(1 + 1e-6)

    only(monkeypatch, "softmax", seldom)
    g = GraphBuilder()
    g.output("y", ops.softmax(g.input("x", (9, 4))))
    session = GraphSession(g.build(), exact="bitwise")
    assert session.exactness is not None
    (tiling,) = session.exactness.tilings.values()
    assert tiling.copied or rows % tiling.tile[0] or rows > tiling.chunk[0]


def test_the_normal_mode_does_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "exp", by_rows(8))
    session = GraphSession(exponentials())
    x = np.random.default_rng(0).standard_normal((40, 6)).astype("float32")
    session.run({"x": x})
    x = x.copy()
    x[3] += 1
    with pytest.raises(AssertionError, match="y"):
        check(session, GraphSession(exponentials()), {"x": x})


def test_a_kernel_that_differs_from_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.rand(out.shape, out=out)

    only(monkeypatch, "exp", run)
    with pytest.raises(ExactnessError, match=r"exp \(\w+\): made gave two results.*deterministic"):
        GraphSession(exponentials(), exact="bitwise")


def test_a_node_that_is_computed_whole_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(x: torch.Tensor, out: torch.Tensor) -> None:
        torch.exp(x, out=out)
        if x.shape != (40, 6):
            raise ExactnessError("the whole, or nothing")

    only(monkeypatch, "exp", run)
    session = GraphSession(exponentials(), exact="bitwise")
    assert session.exactness is not None
    assert session.exactness.spread == (session.graph.outputs["y"].name,)
    x = np.ones((40, 6), np.float32)
    session.run({"x": x})
    x = x.copy()
    x[0, 0] = 2
    session.run({"x": x})
    assert session.last is not None
    assert session.last.recomputed == 1
    words = session.last.tiles[session.graph.outputs["y"].name]
    assert words.startswith("computed whole, by made: any change")
    assert words in str(session.last)


def test_single_lines_are_not_worth_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "exp", by_rows(1))
    session = GraphSession(exponentials(), exact="bitwise")
    session.run({"x": np.ones((40, 6), np.float32)})
    assert session.last is not None
    assert session.last.tiles == {}
    name = session.graph.outputs["y"].name
    plan = session.plan
    assert plan.explain(name, session.graph, session.exactness) == plan.explain(name)


# --- what was found is recorded -------------------------------------------------------------------


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ops of the calls that a tiling was sought for by trials."""
    found: list[str] = []
    finding = exactness._TilingSearch.finding

    def counted(search: exactness._TilingSearch) -> exactness.Finding:
        found.append(search.call.op.name)
        return finding(search)

    monkeypatch.setattr(exactness._TilingSearch, "finding", counted)
    return found


def recorded(records: Records) -> Exactness:
    """What a session in a new process finds."""
    exactness._remembered.clear()
    found = GraphSession(exponentials(), exact="bitwise", records=records).exactness
    assert found is not None
    return found


def test_a_second_session_reads_what_the_first_one_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: list[str]
) -> None:
    only(monkeypatch, "exp", by_rows(8))
    records = Records(tmp_path / "records.db")
    first = recorded(records)
    assert trials == ["exp"]
    (row,) = records.tilings()
    assert (row.kernel, row.tile, row.copied) == ("made", (8, 6), False)
    assert row.passed > LATER_DRAWS * BOXES
    assert row.refused > 0
    assert records.machines()[row.fingerprint].threads == torch.get_num_threads()
    second = recorded(records)
    assert trials == ["exp"]
    assert list(second.tilings.values()) == list(first.tilings.values())
    assert records.tilings() == (row,)


def test_what_this_process_found_already_is_recorded_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, "exp", by_rows(8))
    GraphSession(exponentials(), exact="bitwise")
    path = tmp_path / "records.db"
    GraphSession(exponentials(), exact="bitwise", records=path)
    assert len(Records(path).tilings()) == 1


def changed(records: Records, statement: str) -> None:
    with sqlite3.connect(records.name) as connection:
        connection.execute(f"UPDATE tgbench_grains SET {statement}")


@pytest.mark.parametrize(
    "statement", ["source_hash = 'old'", "kernel = 'gone'", "fingerprint = 'elsewhere'"]
)
def test_stale_and_foreign_records_are_not_trusted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: list[str], statement: str
) -> None:
    only(monkeypatch, "exp", by_rows(8))
    records = Records(tmp_path / "records.db")
    recorded(records)
    changed(records, f"{statement}, tile = '[16, 6]'")
    assert [tiling.tile for tiling in recorded(records).tilings.values()] == [(8, 6)]
    assert trials == ["exp", "exp"]


def test_operands_are_tried_as_they_lie() -> None:
    """Libraries add up otherwise where an operand is transposed: only here does a trial see it."""
    g = GraphBuilder()
    x = g.input("x", (5, 9, 4))
    pairs = ops.matmul(x, x.permute(0, 2, 1))
    split = ops.relu(pairs.reshape(5, 3, 3, 9).permute(2, 0, 3, 1))
    g.output("pairs", pairs)
    g.output("split", split)
    scheduled = ScheduledGraph.of(g.build())
    product, clipped = (
        next(n for n in scheduled.graph.nodes if n.op == op) for op in ("matmul", "relu")
    )
    assert orders_of(product, scheduled) == {0: (0, 1, 2), 1: (0, 2, 1), OUT: (0, 1, 2)}
    assert orders_of(clipped, scheduled)[0] == (1, 3, 0, 2)


def test_a_kernel_that_changed_or_joined_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: list[str]
) -> None:
    """Also one that was not chosen: without it another one might be."""
    records = Records(tmp_path / "records.db")
    only(monkeypatch, "exp", by_rows(8))
    recorded(records)
    only(monkeypatch, "exp", by_shape)
    recorded(records)
    only(monkeypatch, "exp", by_rows(8))
    other = replace(KERNELS["exp"][0], name="other", cost_ns=lambda site: 1e6)
    monkeypatch.setitem(KERNELS, "exp", [*KERNELS["exp"], other])
    recorded(records)
    assert trials == ["exp"] * 3
    assert len(records.tilings()) == 3


def test_threads_have_records_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, trials: list[str]
) -> None:
    only(monkeypatch, "exp", by_rows(8))
    records = Records(tmp_path / "records.db")
    recorded(records)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        recorded(records)
    finally:
        torch.set_num_threads(before)
    assert trials == ["exp"] * 2


@pytest.mark.parametrize("statement", ["tile = '[7, 6]'", "chunk = '[9, 6]'", "tile = '[8]'"])
def test_a_record_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statement: str
) -> None:
    only(monkeypatch, "exp", by_rows(8))
    records = Records(tmp_path / "records.db")
    recorded(records)
    changed(records, statement)
    with pytest.raises(RecordsError, match="DELETE FROM tgbench_grains WHERE id ="):
        recorded(records)


def test_a_profile_records_tilings_and_takes_bit_exact_sessions(
    tmp_path: Path, trials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(profiler, "MOST_ROUNDS", 2)
    exactness._remembered.clear()
    records = Records(tmp_path / "records.db")
    normal = GraphSession(exponentials())
    normal.run({"x": np.ones((40, 6), np.float32)})
    profiler.profile(normal, records)
    assert trials == ["exp"]
    recorded(records)
    assert trials == ["exp"]
    session = GraphSession(exponentials(), exact="bitwise", records=records)
    session.run({"x": np.ones((40, 6), np.float32)})
    profiler.profile(session, records)
    assert not profiler.profile(session, records).measured


def test_a_profile_takes_kernels_that_put_back_what_is_known(tmp_path: Path) -> None:
    """How far off they are is measured of a call like theirs, of which nothing is known."""
    g = GraphBuilder()
    half = g.constant(np.repeat([[1.0], [0.0]], 3, axis=1).astype("float32"))
    g.output("y", g.input("x", (2, 3)) * half)
    session = GraphSession(g.build(), exact="bitwise", calibrate=False)
    session.run({"x": np.ones((2, 3), np.float32)})
    assert profiler.profile(session, Records(tmp_path / "records.db")).measured


# --- the session ----------------------------------------------------------------------------------


def test_another_mode_s_plan_is_refused(tmp_path: Path) -> None:
    session = GraphSession(exponentials(), exact="bitwise")
    session.run({"x": np.ones((40, 6), np.float32)})
    path = session.save_plan(tmp_path / "plan.json")
    assert GraphSession(exponentials(), plan=path, exact="bitwise").plan.exact == "bitwise"
    with pytest.raises(PlanError, match=r"exact: the plan is for .*make the session with"):
        GraphSession(exponentials(), plan=path)
    path.write_text(path.read_text().replace('"bitwise"', '"nearly"'))
    with pytest.raises(PlanError, match="exact"):
        GraphSession(exponentials(), plan=path, exact="bitwise")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ExactnessError, match="bitwise"):
        GraphSession(exponentials(), exact="nearly")


def test_other_threads_are_refused() -> None:
    session = GraphSession(exponentials(), exact="bitwise")
    inputs = {"x": np.ones((40, 6), np.float32)}
    session.run(inputs)
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        with pytest.raises(ExactnessError, match=rf"set_num_threads\({before}\)"):
            session.run(inputs)
    finally:
        torch.set_num_threads(before)
    session.run(inputs)


@pytest.mark.usefixtures("forked")
def test_an_optimised_plan_keeps_the_bits_and_another_process_makes_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        tgbench.session.opening, "find", lambda scheduled, *_: any_tilings(scheduled, 5)
    )
    session = GraphSession(exponentials(), exact="bitwise")
    assert session.exactness is not None
    assert any(1 < tiling.tile[0] < 40 for tiling in session.exactness.tilings.values())
    inputs = {"x": np.ones((40, 6), np.float32)}
    for row in range(3):
        inputs = {"x": inputs["x"].copy()}
        inputs["x"][row] += 1
        session.run(inputs)
    with session.search() as search:
        search.start(steps=16)
        there = search.result()
    here = session.optimize(steps=16)
    assert here.exact == "bitwise"
    assert there == here
    session.adopt(there)
    check(session, GraphSession(exponentials(), exact="bitwise"), inputs)


def test_the_tables_of_a_search_count_whole_tiles() -> None:
    graph = exponentials()
    scheduled, (call,) = ScheduledGraph.of(graph), {graph.outputs["y"].call}
    row, whole = Region.of(Box(((17, 18), (0, 6)))), Region.full((40, 6))
    first = Bucket.of({"x": whole}, {"y": whole})
    buckets = [first, *[Bucket.of({"x": row}, {"y": whole})] * 3]

    def least_elements(tilings: dict[Call, Tiling] | None) -> int:
        """How many elements a changed row makes a run compute."""
        rules = Rules(tilings)
        workload = Workload.of(scheduled, rules, buckets)

        def cost(call: Call, box: Box) -> float:
            return float(box.elements)

        (table,) = tabulate(scheduled, rules, workload, cost).table
        return min(int(n) for n in table.cost_ns.ravel() if n)

    assert least_elements(None) == 6
    assert least_elements({call: Tiling("any", (8, 6), (8, 6), copied=True)}) == 48


# --- models ---------------------------------------------------------------------------------------


def test_gemma_has_the_bits_of_a_fresh_run(tmp_path: Path) -> None:
    folder = gemma3_checkpoint(tmp_path, gemma3_reduced())
    graph = gemma3(folder, 48)
    session = PoisonedSession(graph, folder, exact="bitwise", memory="600KiB")
    rng = np.random.default_rng(0)
    ids, at = rng.integers(0, 256, (1, 48)), 20
    for step in range(5):
        want = {"logits": np.s_[:, at]}
        check(session, GraphSession(graph, folder, exact="bitwise"), {"ids": ids}, want)
        ids, at = ids.copy(), (at + 1) % 48 if step % 3 else int(rng.integers(0, 48))
        ids[0, at if step % 2 else rng.integers(0, at + 1)] = rng.integers(0, 256)


def test_minilm_has_the_bits_of_a_fresh_run() -> None:
    path, options = find_minilm(), {"ignore_weights": ["pooler.*", "embeddings.position_ids"]}
    graph = bert(path, 16, batch=2)
    session = PoisonedSession(graph, path, exact="bitwise", **options)
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(1000, 20000, (2, 16)), np.ones((2, 16), np.int64)
    mask[1, 9:] = 0
    for step in range(3):
        fresh = GraphSession(graph, path, exact="bitwise", **options)
        check(session, fresh, {"ids": ids, "mask": mask})
        ids = ids.copy()
        ids[step % 2, step : step + 2] = rng.integers(1000, 20000, 2)


def test_convolutions_have_the_bits_of_a_fresh_run() -> None:
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x = g.input("x", (1, 3, 20, 20))
    h = ops.relu(ops.conv(x, g.parameter("a", (8, 3, 3, 3)), padding=1))
    h = ops.conv(h, g.parameter("b", (12, 8, 3, 3)), stride=2, padding=1)
    g.output("y", ops.mean(ops.relu(h), (2, 3)))
    g.output("map", h)
    graph = g.build()
    weights = {
        name: rng.standard_normal(node.shape).astype("float32")
        for name, node in graph.parameters.items()
    }
    session = PoisonedSession(graph, weights, exact="bitwise")
    image = rng.standard_normal((1, 3, 20, 20)).astype("float32")
    for _ in range(5):
        check(session, GraphSession(graph, weights, exact="bitwise"), {"x": image})
        image, (top, left) = image.copy(), rng.integers(0, 17, 2)
        image[:, :, top : top + 3, left : left + 3] = rng.standard_normal((3, 3, 3))


class Windows(torch.nn.Module):
    """Windows of an image side by side, and back: parts of what is moved lie in many pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return windowed(self.mixed(windowed(x)).softmax(2))


def windowed(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(2, (4, 4)).unflatten(1, (4, 4)).transpose(2, 3).flatten(1, 2).flatten(2, 3)


class Copied(torch.nn.Module):
    def forward(self, x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return x.index_copy(0, torch.tensor([0, 2, 1]), v)


def shuffled() -> torch.nn.Module:
    first, last = torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.Conv2d(4, 3, 3, padding=1)
    return torch.nn.Sequential(first, torch.nn.PixelShuffle(2), last)


@pytest.mark.parametrize(
    ("make", "shapes"),
    [(shuffled, [(1, 3, 16, 16)]), (Windows, [(1, 16, 16, 8)]), (Copied, [(6, 9), (3, 9)])],
)
def test_what_is_only_moved_is_moved_by_any_kernel(make: Any, shapes: Any) -> None:
    """One that takes the tiles it was tried on need not take a part of many of them."""
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in shapes]
    imported = from_torch(make().eval(), tuple(given))
    options: dict[str, Any] = {"exact": "bitwise", "making": "always"}
    session, rng = GraphSession(imported, **options), np.random.default_rng(0)
    values = dict(zip(session.graph.inputs, [one.numpy() for one in given], strict=True))
    for _ in range(5):
        check(session, GraphSession(imported, **options), values)
        name = next(iter(values))
        values = {**values, name: values[name].copy()}
        firsts = [int(rng.integers(size)) for size in values[name].shape]
        sides = zip(firsts, values[name].shape, strict=True)
        part = tuple(slice(at, int(rng.integers(at + 1, size + 1))) for at, size in sides)
        values[name][part] = rng.standard_normal()


def test_sweeps_compute_whole_tiles() -> None:
    """A program for any place of an image, asked for three of four columns that are one tile."""
    g = GraphBuilder()
    x = g.input("x", (8, 4))
    g.output("y", ops.elu(ops.rope(x, x, x), 1.5))
    image = ops.conv_transpose(
        g.input("image", (2, 4, 8)), g.parameter("w", (4, 2, 2)), stride=(1,), padding=(1,),
        dilation=(2,), groups=1, output_padding=(0,),
    )  # fmt: skip
    g.output("image_out", image)
    weights = {"w": np.ones((4, 2, 2), np.float32)}
    session = GraphSession(g.build(), weights, retain="all", exact="bitwise", calibrate=False)
    rules = session.planning.rules
    serve_any(session, 5)
    random, swept = np.random.default_rng(5), set[str]()
    given = {"x": np.ones((8, 4), np.float32), "image": np.ones((2, 4, 8), np.float32)}
    for _ in range(120):
        name = str(random.choice(["x", "x", "image"]))
        given[name] = given[name].copy()
        first = int(random.integers(4)) if random.random() < 0.5 else 0
        part = given[name][..., first:]
        part[...] = random.standard_normal(part.shape)
        at = int(random.integers(2))
        session.run(given, want={"y": np.s_[:, at : at + 3]})
        for _, kind, program in session.keeper.programs:
            swept |= {str(kind)} if kind.is_swept else set()
            for step in program.steps:
                for node, region in step.compute.items():
                    assert rules.rounded(node.call, region) == region, (kind, node.name)
    assert len(swept) > 2


class Blocks(torch.nn.Module):
    """A sum over parts of which other ones are known to be 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        open_ = torch.block_diag(*[torch.ones(2, 2)] * 4).bool()
        return (x * open_).reshape(2, 4, 8).transpose(0, 2).sum(-1)


def test_room_for_what_may_come_is_for_whole_tiles() -> None:
    """Kernels are asked how much scratch memory they want for parts that they may compute."""
    imported, x = from_torch(Blocks().eval(), (torch.zeros(8, 8),)), np.zeros((8, 8), np.float32)
    session = GraphSession(imported, exact="bitwise", calibrate=False)
    for at in range(8):
        x[at] += at + 0.1
        expected = Blocks()(torch.from_numpy(x)).numpy()
        np.testing.assert_allclose(session.run({"x": x})["output"], expected, 1e-6)
        np.testing.assert_array_equal(
            session.run({"x": x}, {"output": at})["output"], session.run({"x": x})["output"][at]
        )
