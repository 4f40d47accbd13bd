"""Sessions that share an arena: each gives what it gives alone, and nobody's bytes are another's.

Before every run each byte of the arena that nobody holds anything valid in is garbage: the whole
common part, but for what the session at hand left there if it ran last.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from session.test_state import lines
from session_cases import HUGE, CheckedSession, in_slot
from strategies import Array, changes, edited, graphs

from tgbench import ops
from tgbench.base.errors import BudgetError, GraphError, InputError, KernelError, PlanError
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.memory.arena import Arena, Part, Seat, ceiling, check_map, lay_out, moved
from tgbench.memory.placement import ALIGNMENT, Placement, aligned
from tgbench.plans.plan import Plan
from tgbench.programs.held import Held
from tgbench.session.running import Decision, Outcome, Runner
from tgbench.session.session import GraphSession
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.checkpoints import (
    bert_checkpoint,
    bert_reduced,
    gemma3_checkpoint,
    gemma3_reduced,
)

SMALL = settings(max_examples=max(settings().max_examples // 3, 5))


# --- the layout -----------------------------------------------------------------------------------


def disjoint(parts: Mapping[int, Part], size_bytes: int) -> bool:
    """Every pair is looked at, and every fixed part against every common part."""
    found = [part for part in parts.values() if part.fixed_bytes]
    apart = all(
        a is b or a.stop_bytes <= b.offset_bytes or b.stop_bytes <= a.offset_bytes
        for a in found
        for b in found
    )
    commons = [size_bytes - part.common_bytes for part in parts.values()]
    return apart and all(part.stop_bytes <= start for part in found for start in commons)


Steps = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 400), st.booleans()), max_size=14
)


@given(Steps, st.integers(6, 24))
def test_parts_are_disjoint_and_move_only_if_they_must(steps: Any, blocks: int) -> None:
    size, parts = blocks * ALIGNMENT + 7, {}
    for key, fixed, common, leaves in steps:
        if leaves:
            parts.pop(key, None)
            continue
        new = Part(0, fixed * ALIGNMENT, common)
        others = {k: part for k, part in parts.items() if k != key}
        wanted = [*others.values(), new]
        if sum(part.fixed_bytes for part in wanted) > ceiling(wanted, size):
            continue
        places = [
            at
            for at in range(0, size, ALIGNMENT)
            if disjoint({**others, key: Part(at, new.fixed_bytes, common)}, size)
        ]
        after = lay_out(parts, key, new, size)
        assert disjoint(after, size)
        assert set(after) == {*others, key}
        if places and new.fixed_bytes:
            assert after[key].offset_bytes == places[0]
            assert all(after[k] == part for k, part in others.items())
        parts = after


def test_a_placement_moves_in_two_pieces() -> None:
    placement = session_of(causal()).placement
    after = moved(placement, 640, 6400)
    for node, slot in after.slots.items():
        before = placement.slots[node].offset_bytes
        assert slot.offset_bytes - before == (640 if before < placement.kept_bytes else 6400)
    for node, room in after.scratch.items():
        assert room.offset_bytes - placement.scratch[node].offset_bytes == 6400
    assert after.overlaps == placement.overlaps
    assert (after.size_bytes, after.kept_bytes) == (placement.size_bytes, placement.kept_bytes)


@pytest.mark.parametrize(("kept", "message"), [(1, "multiple of 64"), (0, "x lies above")])
def test_a_map_without_a_fixed_part_is_refused(kept: int, message: str) -> None:
    placement = session_of(causal()).placement
    wrong = Placement(
        placement.slots, placement.retained, {}, {}, placement.size_bytes, kept, 0, 0, ()
    )
    with pytest.raises(PlanError, match=f"kept_bytes: .*{message}"):
        check_map(wrong)


def test_a_map_whose_parts_run_into_each_other_is_refused() -> None:
    graph = causal()
    session = session_of(graph)
    inside = session.placement.slots[session.graph.inputs["x"]].offset_bytes + ALIGNMENT
    text = session.plan.to_json().replace(
        f'"kept_bytes": {session.placement.kept_bytes}', f'"kept_bytes": {inside}'
    )
    with pytest.raises(PlanError, match="lies inside x"):
        GraphSession(graph, values_of(graph, 0), plan=Plan.from_json(text), ignore_weights=["x"])


# --- sessions that are checked --------------------------------------------------------------------


class TenantRunner(Runner):
    """What nobody in the arena holds is garbage before each run."""

    def execute(self, run: Decision, turn: Any = None) -> Outcome:
        poison(self)
        return super().execute(run, turn)


class Tenant(GraphSession):
    """Its bytes are where the arena has them."""

    runs_by = TenantRunner

    @property
    def placement(self) -> Placement:
        return self.memory.placement


def poison(runner: TenantRunner) -> None:
    arena = runner.arena
    holds = np.zeros(arena.size_bytes, bool)
    for session in TENANTS[id(arena)]:
        if not session.is_planned:
            continue
        placement = session.seat.map(session.memory.decisions.placement)
        assert session.memory.is_in_place or session.runner is not runner
        last = session if session.runner is runner else None
        for node, held in held_by(session, last is not None).items():
            slot = placement.slots[node]
            span = slice(slot.offset_bytes, slot.offset_bytes + placement.size_of(node))
            inside = in_slot(holds[span], slot)
            for box in held.valid:
                here = [slice(int(a - s), int(b - s)) for (a, b), s in
                        zip(box, held.start, strict=True)]  # fmt: skip
                inside[tuple(here)] = True
        for node, slot in placement.slots.items():
            if node.is_leaf:
                holds[slot.offset_bytes : slot.offset_bytes + placement.size_of(node)] = True
    garbage = np.frombuffer(HUGE * (holds.size // len(HUGE) + 1), np.uint8)[: holds.size]
    np.copyto(arena.bytes.numpy(), garbage, where=~holds)


def held_by(session: Tenant, whole: bool) -> Mapping[Any, Held]:
    standing = session.standing
    if standing.last is None:
        return {}
    state = standing.valid if whole else session.memory.outliving(standing.valid)
    return session.states.patterns[state].at(standing.last.origin).state


TENANTS: dict[int, list[Tenant]] = {}


class Guest(CheckedSession):
    """A checked session in an arena that others are in too."""

    def __init__(
        self, arena: Arena, graph: Graph, values: Mapping[str, Array], **options: Any
    ) -> None:
        super().__init__(graph, values)
        self.session = Tenant(graph, weights=self.parameters, arena=arena, **options)
        TENANTS.setdefault(id(arena), []).append(self.session)

    def leave(self) -> None:
        TENANTS[id(self.session.arena)].remove(self.session)
        self.session.release()


@pytest.fixture(autouse=True)
def forget_tenants() -> Any:
    yield
    TENANTS.clear()


def check(arena: Arena) -> None:
    """What must hold of an arena at any time."""
    parts = arena.parts
    assert disjoint(parts, arena.size_bytes)
    assert arena.used_bytes <= arena.size_bytes or not parts
    for session in TENANTS[id(arena)]:
        if session.is_planned:
            plan = session.memory.decisions.placement
            part = parts[session.seat.number]
            assert part.fixed_bytes == aligned(plan.kept_bytes)
            assert part.common_bytes == plan.size_bytes - plan.kept_bytes


def causal(rows: int = 12) -> Graph:
    """What attention does, without the exp: exact on small integers."""
    g = GraphBuilder()
    x = g.input("x", (rows, 2))
    i, j = np.indices((rows, rows))
    k = g.name(x @ g.parameter("w", (2, 2)), "k")
    scores = g.name(ops.where(g.constant(j <= i), x @ k.transpose(), 0.0), "scores")
    g.output("y", g.name(ops.minimum(scores @ x, 50.0), "out"))
    return g.build()


def counter() -> Graph:
    g = GraphBuilder()
    x, total = g.input("x", (4,)), g.state("total", (4,))
    g.update(total, total + x)
    g.output("y", (total + x) * 2.0)
    return g.build()


def values_of(graph: Graph, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    leaves = {**graph.inputs, **graph.parameters}
    return {n: rng.integers(-1, 2, node.shape).astype("float32") for n, node in leaves.items()}


def session_of(graph: Graph, **options: Any) -> GraphSession:
    values = values_of(graph, 0)
    session = GraphSession(graph, {n: values[n] for n in graph.parameters}, **options)
    session.run({n: values[n] for n in graph.inputs})
    return session


def alone(graph: Graph) -> int:
    return session_of(graph).placement.size_bytes


@SMALL
@given(st.lists(graphs(most_ops=6), min_size=2, max_size=3), st.data(), st.booleans())
def test_interleaved_runs_give_what_full_recomputation_gives(
    cases: list[Any], data: Any, grows: bool
) -> None:
    arena = Arena("cpu", None if grows else "64KiB")
    guests = [(Guest(arena, graph, make(0)), make) for graph, make in cases]
    for i in range(data.draw(st.integers(3, 10))):
        guest, make = data.draw(st.sampled_from(guests))
        change = data.draw(st.one_of(st.just({}), changes(guest.graph)))
        guest.run(edited(guest.values, change, make(i)))
        check(arena)


Events = st.lists(
    st.tuples(
        st.sampled_from(["run", "run", "run", "row", "create", "replan", "release", "drop"]),
        st.integers(0, 3),
        st.integers(0, 11),
    ),
    min_size=4,
    max_size=16,
)


@SMALL
@given(Events, st.sampled_from([None, "3KiB", "4KiB", "16KiB"]))
def test_any_order_of_events_leaves_every_session_right(events: Any, size: Any) -> None:
    """Created, run, planned anew, released and dropped; the arena may be too small for a run."""
    arena = Arena("cpu", size)
    TENANTS[id(arena)] = []
    guests: dict[int, Guest] = {}
    for i, (event, which, at) in enumerate(events):
        guest = guests.get(which)
        if guest is None:
            if event in ("create", "run", "row"):
                graph = counter() if which == 3 else causal(6 + 3 * which)
                start = values_of(graph, which) | {"x": np.ones(graph.inputs["x"].shape, "f4")}
                guests[which] = Guest(arena, graph, start)
            continue
        if event == "drop":
            TENANTS[id(arena)].remove(guest.session)
            del guests[which], guest
            assert len(arena.seats) <= len(guests)
            continue
        if event == "release":
            guest.session.release()
            guest.states = {name: np.zeros_like(value) for name, value in guest.states.items()}
            continue
        try:
            if event == "replan" and len(guest.session.trace):
                guest.session.optimize()
            elif event in ("run", "row"):
                x = guest.values["x"].copy()
                x[at % len(x)] = values_of(guest.graph, i)["x"][at % len(x)]
                guest.run({"x": x}, {"y": np.s_[at % len(x)]} if event == "row" else None)
        except BudgetError:
            if size is None or len(arena.seats) < 2:
                raise
        check(arena)


def test_what_is_left_out_of_inputs_survives_a_new_plan() -> None:
    """The new part may lie over the old one, where the inputs of earlier runs were."""
    g = GraphBuilder()
    x, z = g.input("x", (8,)), g.input("z", (8,))
    g.output("small", x + z)
    g.output("large", x.reshape(8, 1) * z + 1.0)
    graph, arena = g.build(), Arena("cpu", "4KiB")
    guests = [Guest(arena, graph, values_of(graph, seed)) for seed in range(3)]
    for guest in guests:
        guest.run(guest.values, {"small": np.s_[2:4]})
    for guest in guests:
        guest.run({"x": guest.values["x"] + 1}, {"large": np.s_[:]})
        assert guest.session.counters.planned == 2
        check(arena)


def test_states_and_inputs_are_carried_when_the_arena_moves_a_session() -> None:
    arena = Arena("cpu")  # grows: every new session moves those before it
    guests = []
    for seed in range(4):
        graph = counter() if seed % 2 == 0 else causal(6 + seed)
        guests.append(Guest(arena, graph, values_of(graph, seed)))
        for guest in guests:
            guest.run()
            guest.run({})
    assert guests[0].states["total"].any()


def test_bfloat16_inputs_are_carried_too() -> None:
    g = GraphBuilder()
    x = g.input("x", (4,), "bfloat16")
    g.output("y", x + x)
    graph, arena = g.build(), Arena("cpu")
    first = GraphSession(graph, arena=arena)
    first.run({"x": np.arange(4, dtype="float32")})
    other = GraphSession(causal(), {"w": np.eye(2, dtype="f4")}, arena=arena)
    other.run({"x": np.ones((12, 2), "f4")})
    assert first.run({})["y"].tolist() == [0, 2, 4, 6]


# --- what survives another session's run ----------------------------------------------------------


def test_retained_nodes_outlive_another_sessions_run_and_slices_do_not() -> None:
    arena = Arena("cpu", "64KiB")
    graph = causal()
    mine = Guest(arena, graph, values_of(graph, 0))
    other = Guest(arena, graph, values_of(graph, 1))

    def edit(row: int) -> dict[str, int]:
        x = mine.values["x"].copy()
        x[row] = [2, -2]
        mine.run({"x": x}, {"y": np.s_[11]})
        ran = mine.session.last.compute  # type: ignore[union-attr]
        return {name: region.elements for name, region in ran.items()}

    mine.run(want={"y": np.s_[11]})
    other.run(want={"y": np.s_[11]})
    edit(3)
    undisturbed = edit(4)
    other.run({"x": other.values["x"] + 1}, {"y": np.s_[11]})
    disturbed = edit(5)
    assert disturbed["k"] == undisturbed["k"] == 2, "one row of k: the others were there"
    assert list(mine.session.plan.retained) == ["k"]
    again = mine.run({}, {"y": np.s_[11]})
    assert mine.session.last.compute == {}  # type: ignore[union-attr]
    other.run({"x": other.values["x"] + 1}, {"y": np.s_[11]})
    found = mine.run({}, {"y": np.s_[11]})
    ran = mine.session.last.compute  # type: ignore[union-attr]
    assert "k" not in ran
    assert {"scores", "out"} <= set(ran)
    assert np.array_equal(found["y"], again["y"])


def test_a_session_that_moved_still_has_its_retained_nodes() -> None:
    arena, graph = Arena("cpu"), causal()
    mine = Guest(arena, graph, values_of(graph, 0))
    mine.run(want={"y": np.s_[11]})
    first = Guest(arena, causal(30), values_of(causal(30), 1))
    first.run()
    mine.run({}, {"y": np.s_[11]})
    assert "k" not in mine.session.last.compute  # type: ignore[union-attr]
    assert arena.size_bytes == arena.used_bytes


def test_planning_and_refused_inputs_of_another_session_disturb_nothing() -> None:
    arena, graph = Arena("cpu", "64KiB"), causal()
    mine, other = (Guest(arena, graph, values_of(graph, seed)) for seed in range(2))
    other.run()
    mine.run()
    other.session.optimize()
    other.session.prepare()
    with pytest.raises(InputError):
        other.run({"x": np.full((12, 2), np.nan, "f4")})
    mine.run({})
    assert mine.session.last.compute == {}  # type: ignore[union-attr]


def test_a_run_that_fails_leaves_the_others_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    arena, graph = Arena("cpu", "64KiB"), causal()
    mine, other = (Guest(arena, graph, values_of(graph, seed)) for seed in range(2))
    mine.run()
    other.run()

    def fail(*arguments: Any) -> None:
        raise RuntimeError("no more")

    with monkeypatch.context() as patched:
        patched.setattr(other.session.memory, "update_states", fail)
        with pytest.raises(KernelError, match="no more"):
            other.session.run({"x": other.values["x"] + 1})
    mine.run({"x": mine.values["x"] + 1})
    other.run({})
    mine.run({})


# --- what it takes --------------------------------------------------------------------------------


def test_three_sessions_take_less_than_the_sum_of_what_they_take_alone() -> None:
    cases = [causal(12), causal(20), counter()]
    arena = Arena("cpu", "64KiB")
    guests = [Guest(arena, graph, values_of(graph, i)) for i, graph in enumerate(cases)]
    for i in range(120):
        guest = guests[i % 7 % 3]
        x = guest.values["x"].copy()
        x[i % len(x)] = values_of(guest.graph, i)["x"][i % len(x)]
        guest.run({"x": x})
    check(arena)
    sizes = [alone(graph) for graph in cases]
    assert arena.used_bytes < sum(sizes)
    assert arena.used_bytes == arena.fixed_bytes + arena.common_bytes


def test_models_interleaved_give_what_they_give_alone(tmp_path: Path) -> None:
    texts, config = bert_reduced(), gemma3_reduced(num_hidden_layers=1)
    encoder = bert(texts, tokens=8, batch=2)
    decoder = gemma3(config, tokens=8)
    weights = [
        (encoder, bert_checkpoint(tmp_path / "texts", texts)),
        (decoder, gemma3_checkpoint(tmp_path / "decoder", config)),
    ]
    options: dict[str, Any] = {"ignore_weights": ["pooler.*"]}
    arena = Arena("cpu", "8MiB")

    def sessions(arena: Arena | None) -> tuple[GraphSession, ...]:
        named = [GraphSession(g, w, arena=arena, **options) for g, w in weights]
        return (*named, GraphSession(causal(), {"w": np.eye(2, dtype="f4")}, arena=arena))

    together, apart = sessions(arena), sessions(None)
    rng = np.random.default_rng(0)
    words = rng.integers(0, 200, encoder.inputs["ids"].shape)
    mask = np.ones_like(words)
    ids = np.zeros((1, 8), np.int64)
    x = np.zeros((12, 2), np.float32)
    for i in range(72):
        words[i % 2, i % 8] = rng.integers(200)
        ids[0, i // 3 % 8] = 1 + rng.integers(200)
        x[i % 12] = rng.integers(-2, 3, 2)
        which = int(rng.integers(3))
        inputs = ({"ids": words, "mask": mask}, {"ids": ids}, {"x": x})[which]
        want = (None, {"logits": np.s_[0, i // 3 % 8]}, None)[which]
        found, right = (s[which].run(inputs, want) for s in (together, apart))
        for name, array in found.items():
            np.testing.assert_allclose(array, right[name], atol=1e-5, rtol=1e-5)
    assert arena.used_bytes < sum(session.placement.size_bytes for session in apart)
    assert [s.counters.runs for s in together] == [s.counters.runs for s in apart]


def test_a_session_plans_for_what_the_others_leave() -> None:
    graph = causal(24)
    roomy = alone(graph)
    fixed = session_of(graph).placement.kept_bytes
    arena = Arena("cpu", roomy + fixed)
    first = Guest(arena, graph, values_of(graph, 0))
    second = Guest(arena, graph, values_of(graph, 1))
    first.run()
    second.run()
    assert arena.used_bytes <= arena.size_bytes
    estimate = second.session.estimate_memory()["cpu"]
    assert estimate.others_bytes == arena.parts[1].fixed_bytes
    assert estimate.budget_bytes == arena.size_bytes - estimate.others_bytes
    assert estimate.fixed_bytes == arena.parts[2].fixed_bytes
    for line in ("fixed part", "common part", "others' fixed"):
        assert line in str(estimate)
    first.run({})
    check(arena)


@pytest.mark.parametrize("spare", [320, 384, 448, 512, 576, 640])
def test_what_is_kept_ends_where_the_common_part_of_another_begins(spare: int) -> None:
    """The second session's budget would do for all it retains, but for the other's slices."""
    g = GraphBuilder()
    hidden = g.input("x", (1, 4)) @ g.parameter("w", (4, 256))  # all of it is new in every run
    g.output("y", hidden @ g.parameter("v", (256, 4)))
    wide, graph = g.build(), causal(40)
    arena = Arena("cpu", alone(wide) + spare)
    first, second = (Guest(arena, each, values_of(each, 0)) for each in (wide, graph))
    first.run()
    assert arena.common_bytes >= 1024
    second.run(want={"y": np.s_[39]})
    assert second.session.plan.retained == (("k",) if spare >= 640 else ())
    check(arena)
    first.run({})
    second.run({}, {"y": np.s_[39]})


def test_an_arena_that_is_too_small_names_who_holds_what() -> None:
    graph = causal(24)
    arena = Arena("cpu", alone(graph))
    first = Guest(arena, graph, values_of(graph, 0))
    first.run()
    second = Guest(arena, graph, values_of(graph, 1))
    with pytest.raises(
        BudgetError, match=r"x → y needs .* does not have beside x → y: .* fixed"
    ) as e:
        second.run()
    [enough] = [int(w) for w in str(e.value).split("give it ")[1].split()[:1]]
    first.run({})
    roomy = Arena("cpu", enough)
    for seed in range(2):
        Guest(roomy, graph, values_of(graph, seed)).run()
    first.leave()
    second.run()
    check(arena)


def test_a_session_gives_way_by_a_smaller_budget() -> None:
    graph = causal(24)
    arena = Arena("cpu", alone(graph))
    first, second = (Guest(arena, graph, values_of(graph, seed)) for seed in range(2))
    first.run()
    with pytest.raises(BudgetError, match="arena of"):
        second.run()
    with pytest.raises(BudgetError, match="pass memory=") as error:
        first.session.optimize(budget=0)
    first.session.optimize(budget=error.value.needed_bytes)
    second.run()
    first.run({})
    check(arena)


def test_a_session_that_is_dropped_gives_its_part_back() -> None:
    arena, graph = Arena("cpu", "8KiB"), causal()
    first, second = session_of(graph, arena=arena), session_of(graph, arena=arena)
    assert len(arena.seats) == 2
    gc.disable()
    try:
        del first
    finally:
        gc.enable()
    assert [seat.number for seat in arena.seats] == [2]
    third = session_of(graph, arena=arena)
    assert arena.parts[3].offset_bytes == 0
    assert second.run({})["y"].shape == third.run({})["y"].shape


def test_a_released_session_starts_as_a_new_one() -> None:
    arena, graph = Arena("cpu"), counter()
    session = session_of(graph, arena=arena)
    before = arena.used_bytes
    session.release()
    assert before > 0 == arena.used_bytes
    assert arena.size_bytes <= 8
    with pytest.raises(InputError, match="no value yet"):
        session.run({})
    assert session.run({"x": np.ones(4, "f4")})["y"].tolist() == [2, 2, 2, 2]


def test_an_interrupt_while_a_plan_is_put_in_force_loses_no_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = session_of(counter())
    before = session.run({"x": np.ones(4, "f4")})["y"] / 2

    def stop(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("tgbench.session.standing.Memory", stop)
        with pytest.raises(KeyboardInterrupt):
            session.optimize()
    assert (session.run({})["y"] == 2 * (before + 1)).all()


BLOCK = ALIGNMENT


def apart(arena: Arena) -> dict[Seat, Array]:
    """Three seats with gaps between them, each full of its own number; what each holds."""
    seats = [arena.join(str(i), 0) for i in range(5)]
    for seat in seats:
        arena.place(seat.number, Part(0, BLOCK * (1 + seat.number % 2), BLOCK))
    for seat in seats:
        assert seat.part is not None
        arena.bytes[seat.part.offset_bytes : seat.part.stop_bytes] = seat.number
    gone = seats[0], seats[2]
    for seat in gone:
        seat.leave()
    return {seat: held(seat) for seat in seats if seat not in gone}


def held(seat: Seat) -> Array:
    assert seat.part is not None
    return seat.arena.bytes[seat.part.offset_bytes : seat.part.stop_bytes].numpy().copy()


@pytest.mark.parametrize("size", [10 * BLOCK, None], ids=["moved down", "into more memory"])
def test_an_interrupt_while_parts_are_moved_leaves_each_whole(size: int | None) -> None:
    """At every line: the others' bytes are where their seats say, and the call can be repeated."""

    def grow(arena: Arena, number: int) -> None:
        arena.place(number, Part(0, 4 * BLOCK, BLOCK))

    arena = Arena("cpu", size)
    before = apart(arena)
    there = {seat: seat.part for seat in before}
    count = lines(lambda: grow(arena, 6))
    assert there != {seat: seat.part for seat in before}
    for stop in range(count):
        arena = Arena("cpu", size)
        before = apart(arena)
        with pytest.raises(KeyboardInterrupt):
            lines(lambda arena=arena: grow(arena, 6), stop)  # type: ignore[misc]
        arena.finish_move()
        for again in (False, True):
            if again:
                grow(arena, 6)
            assert disjoint(arena.parts, arena.size_bytes)
            assert all(np.array_equal(held(seat), was) for seat, was in before.items())


def test_a_session_that_was_being_moved_is_whole_when_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arena = Arena("cpu", "4KiB")
    first, moved_one = session_of(counter(), arena=arena), session_of(counter(), arena=arena)
    first.run({"x": np.ones(4, "f4")})
    right = 2 * (moved_one.run({"x": np.ones(4, "f4")})["y"] / 2 + 1)
    first.release()
    seat, part = arena.join("large", 0), Part(0, 0, 0)
    for fixed in range(4096 // BLOCK, 0, -1):  # the largest that needs the room of the first
        part = Part(0, fixed * BLOCK, 0)
        if arena.fixed_bytes + part.fixed_bytes + arena.common_bytes <= arena.size_bytes:
            break

    def stop(self: Arena) -> None:
        if self.layout.moving is not None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Arena, "finish_move", stop)
        with pytest.raises(KeyboardInterrupt):
            arena.place(seat.number, part)
    assert (moved_one.run({})["y"] == right).all()


def test_a_plan_is_the_same_alone_and_in_an_arena(tmp_path: Path) -> None:
    graph = causal()
    single = session_of(graph)
    arena = Arena("cpu", "64KiB")
    Guest(arena, counter(), values_of(counter(), 0)).run()
    session = session_of(graph, arena=arena)
    assert session.plan.slots == single.plan.slots
    path = session.save_plan(tmp_path / "plan.json")
    loaded = Guest(arena, graph, values_of(graph, 0), plan=path)
    loaded.run()
    assert loaded.session.counters.planned == 0
    check(arena)
    with pytest.raises(PlanError, match="left in the arena; make it larger, or drop plan="):
        Guest(Arena("cpu", 256), graph, values_of(graph, 0), plan=path)


def test_an_arena_is_on_the_sessions_device() -> None:
    with pytest.raises(GraphError, match="the arena is on cpu, the session on cuda:0; pass device"):
        GraphSession(counter(), device="cuda:0", arena=Arena("cpu"))
    with pytest.raises(GraphError, match="is not a size"):
        Arena("cpu", "much")


def test_an_arena_prints_who_holds_what() -> None:
    arena = Arena("cpu", "64KiB")
    sessions = [session_of(graph, arena=arena) for graph in (causal(), counter())]
    lines = str(arena).splitlines()
    assert lines[0] == "arena on cpu: 64 KiB"
    assert [line.split(":")[0] for line in lines[1:-1]] == ["  x → y"] * 2
    assert len(sessions) == len(arena.seats)


def test_threads_take_turns() -> None:
    arena, rounds = Arena("cpu", "64KiB"), 60
    guests = [Guest(arena, causal(8 + i), values_of(causal(8 + i), i)) for i in range(3)]
    for guest in guests:
        guest.run()
    failed: list[BaseException] = []

    def work(guest: Guest) -> None:
        try:
            for i in range(rounds):
                x = guest.values["x"].copy()
                x[i % len(x)] += 1
                guest.values["x"] = x
                with arena.lock:  # the check looks at what the run left
                    guest.run({"x": x})
                found = guest.session.run({}, copy=True)["y"]
                if found.shape != x.shape:
                    failed.append(AssertionError(found.shape))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(guest,)) for guest in guests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
