"""What paths are asked for and cannot do comes out as a typed error that names the mend."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from plans.paths.test_chosen import LIMITS, inputs, session_of
from plans.paths.test_paths import layers

from tgbench.base.errors import ExactnessError, InputError, PlanError, RecordsError
from tgbench.costs.records import Records
from tgbench.session.paths import SessionPaths
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch

NAN = float("nan")


@cache
def session() -> GraphSession:
    made = session_of(layers(1))
    made.run(inputs())
    return made


@cache
def paths() -> SessionPaths:
    return session().paths(limits=LIMITS)


@cache
def others() -> SessionPaths:
    made = session_of(layers(2))
    made.run(inputs())
    return made.paths(limits=LIMITS)


def swept(**arguments: Any) -> Any:
    with TemporaryDirectory() as folder:
        return paths().sweep(Records(Path(folder) / "found.db"), **arguments)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: session().paths(within=0.5), "within=0.5 is not a number of at least 1"),
        (lambda: session().paths(within=NAN), "within=nan is not a number"),
        (lambda: session().paths(within="a"), "within='a' is not a number"),
        (lambda: session().paths(limits=3), r"limits=3 is an int; pass SaturationLimits"),
        (lambda: session().paths(samples=3), "samples=3 is an int; pass a list of inputs"),
        (lambda: session().paths(samples=inputs()), "is a dict; pass a list of inputs"),
        (lambda: paths()[True], r"\[True\] names no path"),
        (lambda: paths().graph_at(-1), r"\[-1\] names no path"),
        (lambda: paths().graph_at("a"), r"\['a'\] names no path"),  # type: ignore[arg-type]
        (lambda: paths().filtered(3), "keep=3 is no function"),  # type: ignore[arg-type]
        (lambda: paths().open(3), "path=3 is an int; pass one of"),  # type: ignore[arg-type]
        (lambda: paths().open(others()[0]), "is one of another graph"),
        (lambda: paths().take(None), "path=None; pass one of"),  # type: ignore[arg-type]
        (lambda: paths().error(paths()[0].chosen()), "PlanPath; pass one"),  # type: ignore[arg-type]
        (lambda: swept(progress=3), "progress=3 is no function; pass one"),
        (lambda: swept(executor=3), "executor=3 has no `submit`; pass a process pool"),
        (lambda: swept(workers=0), "workers=0 is not an integer of at least 1"),
        (lambda: paths().race(3), "paths=3 is an int; pass a list"),  # type: ignore[arg-type]
        (lambda: paths().race([3]), "path=3 is an int; pass one"),  # type: ignore[list-item]
        (lambda: paths().race([paths()[0]], 0), "rounds=0 is not an integer of at least 1"),
        (lambda: paths().optimize("best"), "mode='best' is not known"),  # type: ignore[arg-type]
        (lambda: paths().optimize(seconds="a"), "seconds='a' is not"),  # type: ignore[arg-type]
        (lambda: paths().optimize(seconds=-1), "seconds=-1 is not a number of at least 0"),
        (lambda: paths().optimize(count=-1), "count=-1 is not an integer of at least 0"),
        (lambda: paths().optimize(count=1.5), "count=1.5 is not an integer"),  # type: ignore[arg-type]
        (lambda: paths().optimize(rounds=-1), "rounds=-1 is not an integer of at least 0"),
        (lambda: paths().frontier(0), "count=0 is not an integer of at least 1"),
    ],
)
def test_what_is_asked_wrongly_is_named(ask: Callable[[], Any], message: str) -> None:
    before = session().graph.fingerprint
    with pytest.raises(PlanError, match=message):
        ask()
    assert session().graph.fingerprint == before


def test_what_are_no_records_is_named() -> None:
    for ask in (lambda: paths().measure(paths()[0], 3), lambda: paths().sweep("records.db")):  # type: ignore[arg-type]
        with pytest.raises(RecordsError, match=r"pass Records\('records.db'\)"):
            ask()


def test_a_place_behind_the_last_one_says_how_many_there_are() -> None:
    small = GraphSession(torch_layer(), calibrate=False)
    small.run(np.zeros((6, 8), "float32"))
    found = small.paths(limits=LIMITS)
    count = len(list(found))
    with pytest.raises(PlanError, match=rf"\[1000000\] names no path; there are {count} paths"):
        found[10**6]
    with pytest.raises(PlanError, match=r"\[1000000\] names no path; there are \d+ graphs"):
        found.graph_at(10**6)


def torch_layer() -> Any:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval()
    return from_torch(layer, (torch.zeros(6, 8),))


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({}, "input 'x' .* has no value yet; pass it"),
        ({"x": inputs()["x"], "q": 1}, "unknown input 'q'; this graph takes x"),
        ({"x": np.zeros((2, 2), "float32")}, r"x has shape \[2, 2\]"),
        ({"x": np.full((8, 16), NAN, "float32")}, r"x is nan at \(0, 0\)"),
        ({"x": np.zeros((8, 16))}, r"x is float64.*astype\('float32'\)"),
        ({"x": "text"}, "convert it"),
    ],
)
def test_a_sample_that_a_run_would_not_take_is_named(sample: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        session().paths(tolerance=0.1, samples=[sample], limits=LIMITS)


def test_a_sample_has_every_form_that_a_run_takes() -> None:
    """Also where a path is in force, which may read less."""
    x = torch.from_numpy(inputs()["x"]).bfloat16()
    forms: list[Any] = [x, x.float().requires_grad_(), x.float().numpy(), x.float().tolist()]
    plain = session_of(layers(1))
    plain.run(inputs())
    plain.take(paths()[0].chosen())
    for on in (session(), plain):
        found = on.paths(samples=[{"x": form} for form in forms] + forms, limits=LIMITS)
        for one in found.samples:
            np.testing.assert_array_equal(one["x"], forms[2])
        assert found.error(found.given) < 1e-5


def test_bits_and_a_tolerance_do_not_go_together() -> None:
    """Neither for a session nor for its paths: what computes in less has other bits."""
    with pytest.raises(
        ExactnessError, match=r"exact='bitwise' promises .*leave one of the two out"
    ):
        session_of(layers(1), exact="bitwise", tolerance=0.1)
    exact = session_of(layers(1), exact="bitwise")
    with pytest.raises(
        ExactnessError, match=r"exact='bitwise' promises .*leave one of the two out"
    ):
        exact.paths(tolerance=0.1)
    assert not exact.paths(limits=LIMITS)[0].is_rounded
