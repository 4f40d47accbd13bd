"""Graphs on several devices: the same results, each value where its graph says, and no more there
than a device may give. "cpu:1" is memory of the host apart from the arena.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from session.test_session import histories, play, share_of_examples
from session_cases import CheckedSession, smallest_budget
from strategies import Maker, graphs

import tgbench as tg
from tgbench import ops
from tgbench.base.errors import BudgetError, GraphError, PlanError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.graph_file import graph_from_json, graph_to_json
from tgbench.graph.op_table import HOME
from tgbench.graph.simplify import simplify
from tgbench.kernels.registry import OnDevice, Site, View
from tgbench.memory.placement import SPACE_BYTES
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.devices import with_copies, without_copies
from tgbench.plans.plan import Plan
from tgbench.session.session import GraphSession
from tgbench.session.what_if import WhatIf
from tgbench.views.values.programs import listing_of_session
from tgbench.views.values.timeline import timeline, timeline_from_plan

Case = tuple[Graph, Maker]
DEVICES = (HOME, "cpu:1", "cpu:2")


@st.composite
def scattered(draw: Any, most_ops: int = 8) -> Case:
    """A random graph, every op on a device of its own choice."""
    graph, make = draw(graphs(most_ops=most_ops))
    graph = simplify(graph)
    nodes = ScheduledGraph.of(graph).schedule
    return with_copies(graph, {node: draw(st.sampled_from(DEVICES)) for node in nodes}), make


@given(scattered(), st.data(), st.booleans())
def test_every_run_is_a_full_recomputation(case: Case, data: Any, keep_all: bool) -> None:
    graph, make = case
    session = CheckedSession(graph, make(0), retain="all" if keep_all else "auto")
    play(session, make, data.draw(histories(graph)))


@share_of_examples(2)
@given(scattered(), st.data(), st.floats(0, 1))
def test_under_any_budget_too(case: Case, data: Any, share: float) -> None:
    graph, make = case
    history = data.draw(histories(graph))
    low = smallest_budget(graph, make(0), history[0][1])
    roomy = CheckedSession(graph, make(0))
    roomy.run(want=history[0][1])
    room = max(roomy.session.placement.size_bytes - low, 0)
    play(CheckedSession(graph, make(0), memory=low + int(share * room)), make, history)


@share_of_examples(4)
@given(scattered(), st.data())
def test_bit_for_bit_as_well(case: Case, data: Any) -> None:
    graph, make = case
    play(CheckedSession(graph, make(0), exact="bitwise"), make, data.draw(histories(graph)))


@share_of_examples(2)
@given(scattered(), st.data())
def test_no_other_op_runs_than_on_one_device(case: Case, data: Any) -> None:
    """Of every op as many elements are computed as where nothing is kept by accident and all is
    kept by intent, which is what happens elsewhere.
    """
    graph, make = case
    here = without_copies(graph)
    one = CheckedSession(here, make(0), retain="all", making="always")
    other = CheckedSession(graph, make(0), retain="all", making="always")
    for change, want, how in data.draw(histories(here)):
        for session in (one, other):
            play(session, make, [(change, want, how)])
        kept, there = _computed(one), _computed(other)
        for node in graph.nodes:
            if node.type.device and node.op != "copy_to" and node.name in there:
                assert there[node.name] <= kept.get(node.name, 0)


def _computed(session: CheckedSession) -> dict[str, int]:
    """How many elements of every op the last run computed."""
    last, found = session.session.last, dict[str, int]()
    for made in () if last is None else last.program.instructions:
        origin = last.program.origin or () if last is not None else ()
        for node in (made.node, *made.posts):
            found[node.name] = found.get(node.name, 0) + made.box.at(origin).elements
    return found


# --- where things lie -----------------------------------------------------------------------------


def mlp(device: str | None = "cpu:1") -> Graph:
    """Rows through two layers, the second of them on another device."""
    g = GraphBuilder()
    x = g.input("x", (16, 32))
    w, v = g.parameter("w", (32, 32)), g.parameter("v", (32, 32))
    h = ops.relu(ops.linear(x, w))
    there = h if device is None else ops.copy_to(h, device)
    made = ops.softmax(ops.gelu(ops.linear(there, v) * 2.0), -1)
    g.output("y", ops.linear(made if device is None else ops.copy_to(made), w) + x)
    return g.build()


def values() -> dict[str, Any]:
    draw = np.random.default_rng(0).integers
    return {n: draw(-3, 4, s).astype("float32") for n, s in
            {"x": (16, 32), "w": (32, 32), "v": (32, 32)}.items()}  # fmt: skip


def session_of(graph: Graph, **options: Any) -> GraphSession:
    weights = {name: values()[name] for name in ("w", "v")}
    return GraphSession(graph, weights=weights, **options)


def test_what_is_computed_elsewhere_reads_and_writes_there() -> None:
    session = session_of(mlp())
    session.run({"x": values()["x"]})
    memory, seen = session.memory, set[str]()
    last = session.last
    assert last is not None
    for made in last.program.instructions:
        assert made.site is not None
        assert made.site.device == (made.node.type.device or "cpu")
        seen.add(made.node.type.device)
        for view in _views(made.site):
            is_apart = isinstance(view.buffer, OnDevice)
            if view is made.site.out:
                assert is_apart == bool(made.node.type.device)
    assert seen == {HOME, "cpu:1"}
    pool, own = session.pool.buffers, session.graph.parameters["v"]
    copies = [n for n in session.graph.nodes if n.op == "copy_to" and n in session.graph.frozen]
    [weight] = [node for node in copies if node.inputs[0] is own]
    assert pool[weight.name, "float32"].data_ptr() != pool["v", "float32"].data_ptr()
    assert set(memory.elsewhere) == {"cpu:1"}


def _views(site: Site) -> list[View]:
    return [*site.views, *(view for post in site.posts for view in post.read)]


def test_a_change_of_a_row_copies_a_row() -> None:
    session = session_of(mlp(), making="always")
    x = values()["x"]
    session.run({"x": x})
    for row in (3, 9, 4):
        x = x.copy()
        x[row] += 1
        found = session.run({"x": x}, want={"y": np.s_[row]})["y"]
        last = session.last
        assert last is not None
        copied = [made for made in last.program.instructions if made.node.op == "copy_to"]
        boxes = [made.box.at(last.program.origin or ()) for made in copied]
        assert [tuple(box) for box in boxes] == [((row, row + 1), (0, 32))] * 2
        right = session_of(mlp(None)).run({"x": x}, want={"y": np.s_[row]})["y"]
        assert np.allclose(found, right, rtol=1e-5, atol=1e-5)


def test_the_arena_has_nothing_of_it() -> None:
    here, there = session_of(mlp(None), retain="all"), session_of(mlp(), retain="all")
    for session in (here, there):
        session.run({"x": values()["x"]})
    assert there.placement.size_bytes < here.placement.size_bytes
    for node, slot in there.placement.slots.items():
        assert (slot.offset_bytes >= SPACE_BYTES) == bool(node.type.device)


def test_memory_of_both_devices_is_told_before_anything_runs() -> None:
    session = session_of(mlp(), memory={"cpu": "1MiB", "cpu:1": "64KiB"})
    before = session.estimate_memory()
    assert before["cpu:1"].budget_bytes == 64 << 10
    assert before["cpu"].budget_bytes == 1 << 20
    scheduled = ScheduledGraph.of(session.graph)
    values_bytes = sum(n.type.size_bytes for n in scheduled.stored if n.type.device)
    assert before["cpu:1"].keep_all_bytes == values_bytes
    assert before["cpu:1"].parameter_bytes >= 32 * 32 * 4  # v, and a number
    session.run({"x": values()["x"]})
    assert session.estimate_memory()["cpu:1"].arena_bytes == values_bytes
    assert session.memory.elsewhere["cpu:1"].numel() == values_bytes


# --- what is refused ------------------------------------------------------------------------------


def test_no_more_than_a_device_may_give() -> None:
    needed = session_of(mlp()).estimate_memory()["cpu:1"].total_bytes
    session_of(mlp(), memory={"cpu:1": needed}).run({"x": values()["x"]})
    with pytest.raises(BudgetError, match="computed and kept on cpu:1") as caught:
        session_of(mlp(), memory={"cpu:1": needed - 1})
    assert caught.value.needed_bytes == needed


def test_operands_have_to_be_together() -> None:
    g = GraphBuilder()
    x = g.input("x", (4,))
    with pytest.raises(GraphError, match="bring them together"):
        ops.copy_to(x, "cpu:1") + x


def test_weights_and_numbers_come_by_themselves() -> None:
    g = GraphBuilder()
    there = ops.copy_to(g.input("x", (4,)), "cpu:1")
    made = there * 2.0 + g.parameter("w", (4,))
    assert made.type.device == "cpu:1"
    copies = [node for node in g.nodes if node.op == "copy_to" and node is not there]
    assert {node.inputs[0].op for node in copies} == {"constant", "parameter"}


def test_outputs_are_handed_out_at_home() -> None:
    g = GraphBuilder()
    g.output("y", ops.copy_to(g.input("x", (4,)), "cpu:1") * 2.0)
    with pytest.raises(GraphError, match=r"ops.copy_to\(x\)"):
        g.build()


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cpu:x", "cpu:1; rm", 3])
def test_what_names_no_device(device: Any) -> None:
    with pytest.raises(GraphError, match="copy_to"):
        ops.copy_to(GraphBuilder().input("x", (4,)), device)


def test_a_device_that_is_not_there() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(GraphError, match="no CUDA"):
        session_of(mlp("cuda:0"))


def test_more_devices_than_offsets_tell_apart() -> None:
    g = GraphBuilder()
    x = g.input("x", (4,))
    parts = [ops.copy_to(-ops.copy_to(x, f"cpu:{i}")) for i in range(1, 67)]
    g.output("y", ops.concat(parts, 0))
    with pytest.raises(GraphError, match="64 at most"):
        GraphSession(g.build())


def test_the_session_s_own_device_is_no_other() -> None:
    with pytest.raises(GraphError, match="own device"):
        session_of(mlp("cpu"))


@pytest.mark.parametrize("memory", [{"cpu:1": "auto"}, {"cpu:1": "much"}, {"cpu": -1}])
def test_memory_that_is_no_size(memory: Any) -> None:
    with pytest.raises(GraphError, match="memory"):
        session_of(mlp(), memory=memory)


# --- what is kept in files ------------------------------------------------------------------------


def test_plans_and_programs_come_back(tmp_path: Path) -> None:
    plan, programs = tmp_path / "plan.json", tmp_path / "programs"
    first = session_of(mlp(), plan=plan, making="always")
    x = values()["x"]
    right = first.run({"x": x})["y"]
    first.save_plan(plan)
    first.save_programs(programs)
    again = session_of(mlp(), plan=plan, making="always")
    assert again.load_programs(programs) > 0
    assert np.array_equal(again.run({"x": x})["y"], right)
    assert again.counters.planned == 0
    assert again.counters.specialised == 0


def test_a_plan_that_puts_it_somewhere_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    session = session_of(mlp())
    session.run({"x": values()["x"]})
    session.save_plan(path)
    text = json.loads(path.read_text())
    apart = [slot for slot in text["slots"] if slot["offset_bytes"] >= SPACE_BYTES]
    assert apart
    for offset in (0, apart[-1]["offset_bytes"] + 64, 2 * SPACE_BYTES):
        apart[-1]["offset_bytes"] = offset
        with pytest.raises(PlanError):
            session_of(mlp(), plan=Plan.from_json(json.dumps(text)))


def test_a_graph_on_several_devices_comes_back_from_a_file() -> None:
    graph = mlp()
    again = graph_from_json(graph_to_json(graph))
    assert str(again) == str(graph)
    assert again.fingerprint == graph.fingerprint
    assert again.fingerprint != mlp(None).fingerprint


def test_views_show_the_session_s_own_map() -> None:
    """What lies elsewhere is in tables with its device, and not drawn into the arena."""
    session = session_of(mlp())
    session.run({"x": values()["x"]})
    size = session.placement.size_bytes
    for shown in (timeline(session.scheduled, session.placement), timeline_from_plan(session.plan)):
        assert all(r.offset_bytes + r.size_bytes <= size for r in shown.rectangles)
        assert not {r.name for r in shown.rectangles} & {
            n.name for n in session.scheduled.elsewhere
        }
    assert "of another device" in "".join(listing_of_session(session)._repr_mimebundle_().values())
    there = session.scheduled.elsewhere[-1].name
    assert "of another device" in str(session.plan.explain(there))
    with pytest.raises(PlanError, match="no bytes that can be given"):
        WhatIf.of(session).moved(there, 0).decisions  # noqa: B018


# --- placing --------------------------------------------------------------------------------------


def test_placing_finds_out_and_runs() -> None:
    """A device like the session's own brings nothing, so nothing goes there."""
    graph = mlp(None)
    found = tg.place(graph, {"cpu:1": "1MiB"}, calibrate=False)
    assert found.found.copies == 0
    assert found.found.time_ns == pytest.approx(found.found.home_ns)
    table = found.to_frame()
    assert set(table["device"]) == {"cpu"}
    assert {"node", "op", "cpu, µs", "cpu:1, µs"} <= set(table.columns)
    assert "cpu:1" in str(found)
    made = session_of(found.model).run({"x": values()["x"]})["y"]
    assert np.allclose(made, session_of(graph).run({"x": values()["x"]})["y"], rtol=1e-5)


def test_placing_takes_what_happened_and_modules() -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)
    ).eval()
    imported = tg.from_torch(module, (torch.zeros(4, 8),))
    session = GraphSession(imported)
    name = next(iter(session.graph.inputs))
    x = np.ones((4, 8), np.float32)
    for row in range(4):
        x = x.copy()
        x[row] += 1
        session.run({name: x})
    runs = [call.bucket for call in session.trace]
    placed = tg.place(imported, {"cpu:1": None}, runs=runs, calibrate=False)
    found = GraphSession(placed.model).run({name: x})
    for output, value in session.run({name: x}).items():
        assert np.allclose(found[output], value, rtol=1e-5, atol=1e-6)


def test_placing_needs_another_device() -> None:
    with pytest.raises(GraphError, match="name other devices"):
        tg.place(mlp(None), {"cpu": "1MiB"})


def test_regions_go_through_copies() -> None:
    """What is dirty of a copy is what is dirty of its source, and needed the other way round."""
    graph = mlp()
    scheduled = ScheduledGraph.of(graph)
    session = session_of(graph)
    dirty = scheduled.propagator(session.rules, scheduled.stored).forward(
        {graph.inputs["x"]: Region.full((16, 32)).intersect(_row(5))}
    )
    for node in graph.nodes:
        if node.op == "copy_to" and node not in graph.frozen:
            assert dirty[node] == dirty[node.inputs[0]]


def _row(at: int) -> Region:
    return Region((Box(((at, at + 1), (0, 32))),))


def test_other_ways_to_compute_it_are_placed_too() -> None:
    """x·a + x·b as x·(a + b): a product less, wherever that is computed."""
    g = GraphBuilder()
    x, a, b = (g.input(name, (256, 256)) for name in "xab")
    g.output("y", x @ a + x @ b)
    graph = g.build()
    one, more = (
        tg.place(graph, {"cpu:1": None}, ways=ways, calibrate=False).found for ways in (1, 4)
    )
    assert [sum(n.op == "matmul" for n in found.given.nodes) for found in (one, more)] == [2, 1]
    assert more.time_ns < one.time_ns
