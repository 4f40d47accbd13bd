"""Where no kernel takes sizes that move in the memory that is reserved, they are held."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plans.test_replay import convolutions

from tgbench import GraphSession, ops
from tgbench.base.coords import Moving, origin_symbol, record
from tgbench.base.errors import KernelError
from tgbench.base.regions import Box
from tgbench.costs.model import CostModel
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels.registry import KERNELS, Kernel, Site
from tgbench.programs import choices
from tgbench.programs.choices import Option
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Instruction, Program
from tgbench.programs.sites import held_here
from tgbench.programs.specialiser import Specialiser

ROWS = 6


def test_a_held_site_is_in_numbers_and_guards_them() -> None:
    g = GraphBuilder()
    node = ops.softmax(g.input("x", (ROWS, 8)))
    start = origin_symbol(0)
    with record([4]):
        site = CostModel().site(node.call, Box([(4, ROWS), (0, 8)]))
    moving = replace(
        site,
        out_box=Box([(start, ROWS), (0, 8)]),
        out=replace(site.out, shape=(ROWS - start, 8)),
    )
    with record([4]) as guards:
        held = held_here(moving)
    assert held.out.shape == (2, 8)
    assert held.out_box == Box([(4, ROWS), (0, 8)])
    assert not any(type(side) is Moving for interval in held.out_box for side in interval)
    assert [at for at in range(ROWS) if all(guard.holds([at]) for guard in guards)] == [4]


def softmax_where(monkeypatch: pytest.MonkeyPatch, refused: Callable[[str], bool]) -> None:
    """Kernels of softmax that are named do not take sizes that move."""
    really = Kernel.takes

    def takes(kernel: Kernel, site: Site) -> bool:
        views: Sequence[object] = site.out.shape
        moves = any(type(size) is Moving for size in views)
        is_softmax = site.call.op.name == "softmax"
        return really(kernel, site) and not (is_softmax and moves and refused(kernel.name))

    monkeypatch.setattr(Kernel, "takes", takes)


def graph() -> Graph:
    """Beside what a test is about, rows that change wherever they are: programs are right there
    too, and not at one place alone.
    """
    g = GraphBuilder()
    x, beside = g.input("x", (ROWS, 16)), g.input("beside", (ROWS, 16))
    g.output("y", ops.softmax(x * 2.0) + 1.0)
    g.output("z", beside * 3.0)
    return g.build()


def play(session: GraphSession, starts: Iterable[int] = (1, 3, 5, 4, 2)) -> list[bytes]:
    """Edits up to the end, each compared; the bits of what was found."""
    values = np.random.default_rng(0).standard_normal((ROWS, 16)).astype(np.float32)
    beside = values.copy()
    session.run({"x": values, "beside": beside})
    bits = []
    for start in starts:
        values[start:] += 1
        values[start:, 0] += 1
        beside[(start + 3) % ROWS] += 1
        results = session.run({"x": values, "beside": beside})
        found = results["y"]
        np.testing.assert_array_equal(results["z"], beside * 3)
        whole = np.exp(2 * values - (2 * values).max(1, keepdims=True))
        np.testing.assert_allclose(found, whole / whole.sum(1, keepdims=True) + 1, 1e-5)
        assert session.report().recomputed < 0.99
        bits.append(found.tobytes())
    return bits


def softmaxes(session: GraphSession) -> list[tuple[Program, Instruction]]:
    """The calls of softmax whose sizes move in the graph's coordinates."""
    return [
        (program, made)
        for _, _, program in session.programs
        for made in program.instructions
        if made.node.op == "softmax" and any(type(n) is Moving for n in made.site.out.shape)
    ]


def kernels_at(session: GraphSession) -> list[tuple[str, str]]:
    return sorted((made.kernel, str(made.box)) for _, made in softmaxes(session))


def test_edits_up_to_the_end_are_incremental_by_kernels_of_standing_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No kernel takes sizes that move."""
    softmax_where(monkeypatch, lambda name: True)
    play(GraphSession(graph(), making="always", calibrate=False))


def test_programs_of_held_sizes_survive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    softmax_where(monkeypatch, lambda name: True)
    path = tmp_path / "plan.json"
    first = GraphSession(graph(), making="always", calibrate=False, plan=path)
    bits = play(first)
    assert len(softmaxes(first)) >= 3, "a program for each place, as sizes are held"
    first.save_plan()
    first.save_programs()
    second = GraphSession(graph(), making="always", calibrate=False, plan=path)
    assert second.load_programs() == len(first.programs)
    made = second.counters.specialised
    assert play(second) == bits
    assert second.counters.specialised == made, "none is made again"
    assert kernels_at(second) == kernels_at(first)


def test_programs_whose_kernel_has_room_only_at_held_sizes_survive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Kernels take sizes that move, but want more scratch memory then than is reserved."""
    path, plain = tmp_path / "plan.json", choices._option

    def option(kernel: Kernel, site: Site) -> Option:
        found = plain(kernel, site)
        moves = any(type(size) is Moving for size in site.out.shape)
        return replace(found, used_bytes=1 << 30) if moves else found

    monkeypatch.setattr(choices, "_option", option)
    first = GraphSession(graph(), making="always", calibrate=False, plan=path)
    bits = play(first)
    assert softmaxes(first)
    first.save_plan()
    first.save_programs()
    second = GraphSession(graph(), making="always", calibrate=False, plan=path)
    second.load_programs()
    made = second.counters.specialised
    assert play(second) == bits
    assert second.counters.specialised == made


@pytest.mark.parametrize("refuses_all", [False, True])
def test_what_is_tried_might_be_chosen(monkeypatch: pytest.MonkeyPatch, refuses_all: bool) -> None:
    """A kernel of standing sizes is tried where no other would be chosen, and nowhere else."""
    names = [kernel.name for kernel in KERNELS["softmax"]]
    session = GraphSession(graph(), making="always", calibrate=False)
    play(session)
    own = {made.kernel for _, made in softmaxes(session)}
    others = {name for name in names if name not in own}
    softmax_where(monkeypatch, lambda name: refuses_all or name in others)
    session = GraphSession(graph(), making="always", calibrate=False)
    play(session)
    lowerer, tried = session.memory.specialiser.lowerer, set()
    for program, made in softmaxes(session):
        assert program.origin is not None
        for name in names:
            with record(program.origin), suppress(KernelError, DoesNotFit):
                tried.add(lowerer.by(made, name).kernel)
        with record(program.origin):
            assert lowerer.again(made).kernel in tried
    assert tried >= own if refuses_all else not tried & others


def patched(session: GraphSession) -> None:
    """A patch of an image after the other, by programs of their own."""
    random = np.random.default_rng(0)
    image = random.standard_normal((1, 3, 64, 64)).astype(np.float32)
    session.run(image)
    for i, j in ((5, 9), (30, 2), (17, 44), (51, 51)):
        image = image.copy()
        image[..., i : i + 6, j : j + 6] += 1
        session.run(image)


def test_runs_that_are_right_at_one_place_alone_are_lowered_for_numbers() -> None:
    """No kernel is left out that takes no sizes that move, where none would move anyway."""
    session = GraphSession(convolutions(64), making="always", calibrate=False)
    patched(session)
    programs = [one for _, _, one in session.programs if one.origin]
    alone = [one for one in programs if len([*one.domain.fixed]) == len(one.origin or ())]
    assert alone
    for program in alone:
        for made in program.instructions:
            views = made.site.views if made.site is not None else ()
            assert all(type(size) is int for view in views for size in view.shape)


def test_where_numbers_do_not_fit_what_moves_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    really, asked = Specialiser._lowering, list[bool]()

    def lowering(self: Specialiser, *given: Any) -> Any:
        asked.append(given[4])
        if given[4]:
            raise DoesNotFit(self.scheduled.stored[0], "all", "nothing")
        return (yield from really(self, *given))

    monkeypatch.setattr(Specialiser, "_lowering", lowering)
    patched(GraphSession(convolutions(64), making="always", calibrate=False))
    assert any(asked)
