"""How long runs take wherever they stand: what a model says of two places, and of all others."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgbench as tg
from tgbench.base.coords import Coord, Moving, at
from tgbench.costs.model import CostModel
from tgbench.costs.nearby import Nearby
from tgbench.programs.program import Program
from tgbench.runs.pausing import at_once
from tgbench.runs.work import Work

ROWS = 64
places = st.tuples(st.integers(0, ROWS - 1), st.integers(0, ROWS - 1))
extents = st.sampled_from(
    [(3,), (Moving(ROWS, ((0, -1),)), 4), (Moving(1, ((1, 1),)), Moving(1, ((1, 1),))), (4, 2)]
)
parts = st.tuples(extents, st.integers(0, 100), st.integers(0, 9))


def _linear(form: Any, still: int, rate: int) -> Any:
    return lambda place: float(still + rate * prod(at(one, place) for one in form))


@given(st.lists(parts, max_size=6), places, places, places)
def test_what_is_linear_in_elements_is_known_everywhere(
    found: list[Any], here: Any, there: Any, other: Any
) -> None:
    work, models = Work(), []
    for form, still, rate in found:
        moves = [prod(at(one, place) for one in form if type(one) is Moving) for place in
                 (here, there)]  # fmt: skip
        models.append(_linear(form, still, rate))
        work.add(form, models[-1], here, there)
        if Moving in map(type, form) and moves[0] == moves[1]:
            return  # two places that tell nothing of others
    assert work.at(other) == pytest.approx(sum(model(other) for model in models))


@given(extents, st.floats(0, 100), places, places, places)
def test_whatever_a_model_says_no_time_is_negative(
    form: tuple[Coord, ...], said: float, here: Any, there: Any, other: Any
) -> None:
    work = Work()
    work.add(form, lambda place: said if place == here else 0.0, here, there)
    work.add(form, lambda place: 0.0 if place == here else said, here, None)
    assert work.at(other) >= 0
    assert work.at(here) == pytest.approx(said)


def _session() -> tg.GraphSession:
    """What is changed costs as many rows as follow it."""
    random, g = np.random.default_rng(0), tg.GraphBuilder()
    x = g.input("x", (ROWS, 32))
    heads = x.reshape(1, 1, ROWS, 32)
    causal = g.constant(np.tri(ROWS, dtype=bool))
    weights = {"w": random.standard_normal((32, 32)).astype(np.float32)}
    seen = tg.ops.attention(heads, heads, heads, causal).reshape(ROWS, 32)
    g.output("y", tg.ops.tanh(seen) @ g.parameter("w", (32, 32)))
    return tg.GraphSession(g.build(), weights, making="always", calibrate=False)


def _edited(session: tg.GraphSession, row: int) -> Program:
    x = np.zeros((ROWS, 32), np.float32)
    session.run({"x": x})
    x[row] = 1
    session.run({"x": x})
    assert session.last is not None
    return session.last.program


def test_a_program_is_expected_to_take_as_long_as_it_computes() -> None:
    costs, program = CostModel(), _edited(_session(), 20)
    program.work = at_once(Nearby(costs).working(program.steps, (20,), (40,)))
    for place in (20, 40):
        assert program.work.at((place,)) == pytest.approx(costs.of_steps(program.steps, (place,)))
    assert program.share((20,)) == 1.0
    assert program.share((4,)) > 1.0 > program.share((50,)) > program.share((60,))


def test_what_a_run_took_elsewhere_counts_for_what_it_would_have_taken_here() -> None:
    program = _edited(_session(), 20)
    program.work = Work()
    program.work.add(
        (Moving(ROWS, ((0, -1),)),), lambda place: 10.0 * (ROWS - place[0]), (20,), None
    )
    program.use.modelled_ns, program.use.instead_ns = program.work.at((20,)), 500.0
    for place in ((20,), (42,), (60,), (9,)):
        program.origin = place
        program.ran(round(12.0 * (ROWS - place[0])))
    assert program.use.ratio == pytest.approx(1.2, rel=1e-3)
    assert program.takes_ns((60,)) == pytest.approx(48.0)
    assert program.is_good((60,))
    assert not program.is_good((2,))
