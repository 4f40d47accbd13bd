"""Kernels tried while runs go on: results stay right, little is lost, the quickest one stays."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tgbench import ops
from tgbench.base.coords import origin_symbol, standing
from tgbench.costs.records import Records
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.reference import evaluate
from tgbench.kernels.registry import KERNELS, Kernel
from tgbench.programs import calibrate
from tgbench.programs.calibrate import Task
from tgbench.programs.program import Instruction, Program, site_at
from tgbench.session import trying
from tgbench.session.planning import Planning
from tgbench.session.session import GraphSession
from tgbench.session.trying import (
    AT_ONCE,
    DRIFT,
    MOST_KNOWN,
    SAMPLES,
    SEEN,
    SHARE,
    Tryer,
)

ROWS, WIDE, LAYERS = 8, 64, 3
CALL_NS = 100_000


@dataclass
class World:
    """A machine on which kernels take what we say, and nothing else takes any time."""

    now_ns: int = 0
    takes: dict[str, int] = field(default_factory=dict)  # CALL_NS if left out
    raises: set[str] = field(default_factory=set)
    ran: list[str] = field(default_factory=list)

    def kernel(self, known: Kernel) -> Kernel:
        def bind(site: Any, scratch: Any) -> Any:
            function, arguments = known.bind(site, scratch)

            def run(*given: Any) -> None:
                self.ran.append(known.name)
                self.now_ns += self.takes.get(known.name, CALL_NS)
                if known.name in self.raises:
                    raise RuntimeError("not on this machine")
                function(*given)

            return run, arguments

        return replace(known, bind=bind, cost_ns=lambda site: float(CALL_NS))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "_is_disturbed", lambda device, is_contended: False)
    monkeypatch.setattr(trying, "_is_quiet", lambda: True)  # whatever else this machine does
    monkeypatch.setattr(Planning, "calibrate", lambda self, planner: None)
    made = World()
    wrapped = [made.kernel(one) for one in KERNELS["linear"]]
    monkeypatch.setitem(KERNELS, "linear", wrapped)
    return made


def layers() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (ROWS, WIDE))
    for i in range(LAYERS):
        x = ops.linear(x, g.parameter(f"w{i}", (WIDE, WIDE)))
    g.output("y", x)
    return g.build()


WEIGHTS = {
    f"w{i}": np.random.default_rng(i).integers(-1, 2, (WIDE, WIDE)).astype(np.float32)
    for i in range(LAYERS)
}


def opened(world: World, path: Path | None = None) -> GraphSession:
    records = Records(path) if path is not None else None
    session = GraphSession(layers(), WEIGHTS, packed_bytes=0, making="always", records=records)
    tryer = session.runner.tryer
    assert tryer is not None
    session.runner.tryer = Tryer(tryer.calibrator, lambda: world.now_ns)
    session.runner._work_ns = lambda: world.now_ns
    return session


def go_on(session: GraphSession, runs: int) -> Iterator[None]:
    """Rows change here and there, and every result is what it has to be, bit for bit."""
    rng, x = np.random.default_rng(0), np.zeros((ROWS, WIDE), np.float32)
    for _ in range(runs):
        row = int(rng.integers(ROWS))
        x[row] = np.where(x[row] > 0, -1, 1) * rng.integers(1, 3, WIDE)  # all of it changes
        assert np.array_equal(session.run({"x": x})["y"], right(x))
        yield


def right(x: Any) -> Any:
    for i in range(LAYERS):
        x = x @ WEIGHTS[f"w{i}"].T
    return x


def finish(session: GraphSession, runs: int) -> set[str]:
    """The kernels of the last run."""
    for _ in go_on(session, runs):
        pass
    return kernels(session)


def kernels(session: GraphSession) -> set[str]:
    assert session.last is not None
    return {made.kernel for made in session.last.program.instructions if made.site is not None}


def rivals(session: GraphSession) -> list[str]:
    """Kernels that take the rows' products, the chosen one first."""
    (own,) = finish(session, 3)
    assert session.last is not None
    program = session.last.program
    site = program.instructions[-1].site
    assert site is not None
    with standing(program.made_at):
        others = [one.name for one in KERNELS["linear"] if one.takes(site)]
    return [own, *(name for name in others if name != own)]


def tryer_of(session: GraphSession) -> Tryer:
    assert session.trying is not None
    return session.trying


def test_the_quickest_kernel_is_found_while_runs_go_on(world: World, tmp_path: Path) -> None:
    session = opened(world, tmp_path / "found.db")
    own, other, *_ = rivals(session)
    world.takes[other] = CALL_NS // 4
    assert finish(session, 1500) == {other}
    tryer = tryer_of(session)
    assert tryer.settled
    assert tryer.exchanged >= LAYERS
    assert {record.kernel for record in Records(tmp_path / "found.db").all()} >= {own, other}
    assert world.ran[-LAYERS:] == [other] * LAYERS


def test_another_session_starts_with_what_was_found(world: World, tmp_path: Path) -> None:
    session = opened(world, tmp_path / "found.db")
    _, other, *_ = rivals(session)
    world.takes[other] = CALL_NS // 4
    finish(session, 1500)
    assert finish(opened(world, tmp_path / "found.db"), 5) == {other}


@pytest.mark.parametrize("factor", [1.2, 3.0, 30.0])
def test_trying_takes_little_of_any_hundred_runs(world: World, factor: float) -> None:
    session = opened(world)
    own, *others = rivals(session)
    world.takes = dict.fromkeys(others, int(factor * CALL_NS))
    marks = [world.now_ns]
    for _ in go_on(session, 1500):
        marks.append(world.now_ns)
    assert tryer_of(session).tried
    most_ns = CALL_NS * LAYERS * 100 * 2 * SHARE + max(world.takes.values())
    for i in range(len(marks) - 100):
        assert marks[i + 100] - marks[i] <= CALL_NS * LAYERS * 100 + most_ns
    assert finish(session, 1) == {own}


def test_nothing_is_tried_that_cannot_be_paid_for(world: World) -> None:
    session = opened(world)
    tryer = tryer_of(session)
    for _ in go_on(session, 60):
        assert tryer.left_ns <= AT_ONCE * SHARE * CALL_NS * LAYERS * ROWS
    tried = tryer.tried
    tryer.left_ns = -1e12
    finish(session, 100)
    assert tryer.tried == tried


def test_a_program_is_looked_at_call_by_call_as_runs_pay_for_it(world: World) -> None:
    """A look at all calls takes longer than many runs do, and a run that paid it all would be slow:
    none owes more than a step of it, and in the end all was looked at.
    """
    session = opened(world)
    finish(session, 3)
    tryer, lowerer, looked = tryer_of(session), session.memory.specialiser.lowerer, []
    again, step_ns = lowerer.again, 2 * CALL_NS

    def slowly(made: Instruction) -> Instruction:
        world.now_ns += step_ns
        looked.append(made)
        return again(made)

    lowerer.again = slowly  # type: ignore[method-assign]
    owed = [
        -tryer.left_ns for _ in itertools.takewhile(lambda _: not tryer.tried, go_on(session, 1500))
    ]
    assert len(looked) >= LAYERS
    assert max(owed) <= step_ns


def test_a_look_that_is_interrupted_is_begun_again(world: World) -> None:
    session = opened(world)
    finish(session, 3)
    tryer, costs, left = tryer_of(session), tryer_of(session).calibrator.costs, [True]
    suiting = costs.suiting

    def interrupted(site: Any) -> Any:
        if left:
            left.clear()
            raise KeyboardInterrupt
        return suiting(site)

    costs.suiting = interrupted  # type: ignore[method-assign]
    stopped, rng, x = 0, np.random.default_rng(5), np.zeros((ROWS, WIDE), np.float32)
    for _ in range(1500):
        row = int(rng.integers(ROWS))
        x[row] = np.where(x[row] > 0, -1, 1) * rng.integers(1, 3, WIDE)
        try:
            assert np.array_equal(session.run({"x": x})["y"], right(x))
        except KeyboardInterrupt:
            stopped += 1
    assert stopped == 1
    assert tryer.settled


def test_a_kernel_that_raises_leaves_results_right_and_is_known_by_it(
    world: World, tmp_path: Path
) -> None:
    session = opened(world, tmp_path / "found.db")
    own, *others = rivals(session)
    world.raises = set(others)
    assert finish(session, 1500) == {own}
    failed = {one.kernel for one in Records(tmp_path / "found.db").all() if one.failure}
    assert failed == set(others) & set(world.ran)
    assert failed


def folding(known: Kernel) -> Kernel:
    """A kernel that does what comes after it as well, if that is relu."""

    def bind(site: Any, scratch: Any) -> Any:
        function, arguments = known.bind(replace(site, posts=()), scratch)

        def run(*given: Any) -> None:
            function(*given[:-1])
            given[-1].relu_()

        return (run, (*arguments, site.out)) if site.posts else (function, arguments)

    return replace(
        known, bind=bind, cost_ns=lambda site: float(CALL_NS), posts=frozenset({"relu"}),
        accepts=lambda site: known.accepts(replace(site, posts=())),
        scratch=lambda site: known.scratch(replace(site, posts=())),
    )  # fmt: skip


def folded_layers(monkeypatch: pytest.MonkeyPatch, world: World, count: int) -> list[str]:
    """Products whose activations are folded in, by so many kernels; returns those, the first one
    to be chosen first. Graphs have activations from now on.
    """

    def activated() -> Graph:
        g = GraphBuilder()
        x = g.input("x", (ROWS, WIDE))
        for i in range(LAYERS):
            x = ops.relu(ops.linear(x, g.parameter(f"w{i}", (WIDE, WIDE))))
        g.output("y", x)
        return g.build()

    def activated_right(x: Any) -> Any:
        for i in range(LAYERS):
            x = np.maximum(x @ WEIGHTS[f"w{i}"].T, 0)
        return x

    own, *others = rivals(opened(world))
    names = [own, *others][:count]
    made = [folding(one) if one.name in names else one for one in KERNELS["linear"]]
    monkeypatch.setitem(KERNELS, "linear", made)
    monkeypatch.setitem(globals(), "layers", activated)
    monkeypatch.setitem(globals(), "right", activated_right)
    return names


def test_calls_with_activations_folded_in_are_tried_and_exchanged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = folded_layers(monkeypatch, world, 2)
    session = opened(world)
    (own,) = finish(session, 3)
    (other,) = set(names) - {own}
    assert session.last is not None
    assert {made.how for made in session.last.program.instructions} == {f"{own} + relu"}
    world.takes[other] = CALL_NS // 4
    assert finish(session, 1500) == {other}
    assert {made.how for made in session.last.program.instructions} == {f"{other} + relu"}
    assert tryer_of(session).exchanged >= LAYERS
    assert world.ran[-LAYERS:] == [other] * LAYERS


def test_a_kernel_that_alone_folds_is_timed_as_well(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What it takes is compared with one call after the other, by programs made from then on."""
    (own,) = folded_layers(monkeypatch, world, 1)
    assert finish(opened(world, tmp_path / "found.db"), 800) == {own}
    found = [one for one in Records(tmp_path / "found.db").all() if "; then relu" in one.signature]
    assert {one.kernel for one in found} == {own}


def test_a_call_that_drifts_is_told_and_its_kernels_are_timed_again(world: World) -> None:
    session = opened(world)
    own, *_ = rivals(session)
    finish(session, 1500)
    tryer = tryer_of(session)
    assert not tryer.drift
    settled = tryer.settled
    world.takes[own] = 4 * CALL_NS  # others use the machine, in a way that this kernel minds
    seen, said = [], set()
    for _ in go_on(session, 3 * ROWS * SEEN):
        seen.append(dict(tryer.drift))
        said.add(str(tryer))
    told = [ratio for drift in seen for ratio in drift.values()]
    assert max(told) == pytest.approx(4.0)
    assert max(told) > DRIFT
    assert any("takes 4 × what was timed" in words for words in said)
    assert tryer.settled > settled
    assert own not in kernels(session)
    assert not tryer.drift


def test_a_steady_call_is_looked_at_and_nothing_is_told(world: World) -> None:
    session = opened(world)
    rivals(session)
    finish(session, 1500)
    tryer, tried = tryer_of(session), tryer_of(session).tried
    finish(session, 4 * SEEN + SAMPLES)
    assert not tryer.drift
    assert tryer.tried == tried


def test_what_was_timed_beside_others_is_timed_again_when_they_are_gone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = opened(world)
    own, other, *_ = rivals(session)
    tryer = tryer_of(session)
    with monkeypatch.context() as beside:
        beside.setattr(calibrate, "_is_disturbed", lambda device, is_contended: True)
        beside.setattr(trying, "_is_quiet", lambda: False)
        assert finish(session, 1500) == {own}
        assert tryer.calibrator.doubtful
        world.takes[other] = CALL_NS // 4  # it waited for others before
        assert finish(session, 6 * SEEN) == {own}
    assert finish(session, 1500) == {other}
    assert not tryer.calibrator.doubtful


def test_a_course_goes_with_the_programs_that_have_it(world: World) -> None:
    """It keeps weights as kernels want them, and no other program may ever come."""
    session = opened(world)
    tryer = tryer_of(session)
    assert any(tryer._courses for _ in go_on(session, 500))
    session.runner.keeper.programs.clear()
    session.runner.finished = None
    gc.collect()
    assert not tryer._courses
    finish(session, 50)


def test_what_is_remembered_of_calls_has_bounds(world: World) -> None:
    tryer = tryer_of(opened(world))
    for number in range(MOST_KNOWN + 10):
        tryer.drift[f"call {number}"] = 2.0
        tryer._unfit[f"call {number}", "kernel"] = None
    assert len(tryer.drift) == len(tryer._unfit) == MOST_KNOWN
    assert f"call {MOST_KNOWN + 9}" in tryer.drift


def test_an_interrupt_while_calls_are_exchanged_leaves_the_program_right(world: World) -> None:
    session = opened(world)
    _, other, *_ = rivals(session)
    world.takes[other] = CALL_NS // 4
    bind, left = session.memory.bind, itertools.count()

    def interrupted(program: Any, origin: Any) -> None:
        if next(left) < 2:
            program.calls = program.calls[:1]  # as far as it came
            raise KeyboardInterrupt
        bind(program, origin)

    session.memory.bind = interrupted  # type: ignore[method-assign]
    stopped, rng, x = 0, np.random.default_rng(5), np.zeros((ROWS, WIDE), np.float32)
    for _ in range(1500):
        row = int(rng.integers(ROWS))
        x[row] = np.where(x[row] > 0, -1, 1) * rng.integers(1, 3, WIDE)  # all of it changes
        try:
            found = session.run({"x": x})["y"]
        except KeyboardInterrupt:
            stopped += 1
            continue
        assert np.array_equal(found, right(x))
    assert stopped == 2
    assert tryer_of(session).exchanged


def test_calls_that_lie_differently_stay_apart_when_more_is_known(world: World) -> None:
    """What lies alike is told by a number, which lowering remembers."""
    session = opened(world)
    finish(session, 3)
    lowerer = session.memory.specialiser.lowerer
    known = {lowerer._how(node) for node in lowerer.scheduled.stored if not node.is_leaf}
    lowerer.choose_anew()
    assert lowerer._bindings.number("lies otherwise") not in known
    session.forget()
    finish(session, 3)


@pytest.mark.parametrize("last", [5, ROWS - 1])
def test_a_kernel_that_suits_few_places_computes_no_other(last: int) -> None:
    """What is chosen where a program last ran, for as many rows as there are, has to suit wherever
    it may run next: scratch memory is enough for so many rows, say.
    """
    g = GraphBuilder()
    x, w = g.input("x", (ROWS, WIDE)), g.parameter("w", (WIDE, WIDE))
    heads = ops.linear(x, w).reshape(1, 1, ROWS, WIDE)
    causal = g.constant(np.tri(ROWS, dtype=bool))
    g.output("y", ops.attention(heads, heads, heads, causal).reshape(ROWS, WIDE))
    weights = {"w": np.random.default_rng(0).standard_normal((WIDE, WIDE)).astype(np.float32) / 9}
    session = GraphSession(g.build(), weights, packed_bytes=0, making="always")
    tryer = tryer_of(session)
    given, rows = np.random.default_rng(1).standard_normal((ROWS, WIDE)).astype(np.float32), []

    def looked_at(row: int) -> None:
        session.forget()
        found = session.run({"x": given}, want=np.s_[row])["y"]
        whole = evaluate(session.graph, {"x": given, **weights})["y"]
        np.testing.assert_allclose(found, whole[row], rtol=1e-4, atol=1e-5)

    def run(function: Any, *given: Any) -> None:
        rows.append(max(one.shape[0] for one in given if hasattr(one, "shape")))
        function(*given)

    def again(made: Instruction) -> Instruction:
        if made.node.op != "linear" or not origin_symbol(0) <= last:
            return made
        return replace(made, kernel="few", function=partial(run, made.function))

    for row in (3, 2, 3):
        looked_at(row)
    assert session.last is not None
    program = session.last.program
    assert program.origin == (3,)
    assert program.domain.holds((6,))
    lowerer = session.memory.specialiser.lowerer
    lowerer.again = again  # type: ignore[method-assign]
    before = tryer.before

    def looking(program: Program, memory: Any, most: Any) -> None:
        tryer._exchange(program, range(len(program.instructions)), memory, most)
        before(program, memory, most)

    tryer.before = looking  # type: ignore[method-assign]
    for row in (6, 4, 6, 2):
        looked_at(row)
    assert session.last.program is program
    assert (len(rows) > 0) is (last == ROWS - 1)


def test_a_call_that_writes_over_what_it_reads_is_not_tried(world: World) -> None:
    """Were it to raise half-way, what it read would be gone: also a residual that it adds to."""
    session = opened(world)
    finish(session, 1)
    assert session.last is not None
    site = session.last.program.instructions[-1].site
    assert site is not None
    site = site_at(site, session.last.program.made_at)
    kernels = tuple(KERNELS["linear"])
    residual = replace(site, ins=(None, site.out), posts=())
    tried = [
        tryer_of(session)._is_open(Task("a product", [one], kernels))
        for one in (site, replace(site, ins=(site.out, *site.ins[1:])))
    ]
    assert tried == [True, False]
    assert not tryer_of(session)._is_open(Task("b", [replace(site, posts=(residual,))], kernels))


def test_bits_that_were_promised_are_not_tried_with(world: World) -> None:
    graph = layers()
    assert GraphSession(graph, WEIGHTS, exact="bitwise").trying is None
    assert GraphSession(graph, WEIGHTS, calibrate=False).trying is None
