"""Bit-exact mode means it: what a trial might miss, and all of the op table beside new sessions."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bits.histories import TABLE, History, history, played
from bits.numbers import KINDS, NOT_FINITE, drawn, not_finite
from hypothesis import settings
from op_cases import CASES
from programs.test_bitwise import check, only
from strategies import mask_of, random_box

import tgbench
import tgbench.programs.program
from tgbench import ops
from tgbench.base.errors import ExactnessError
from tgbench.base.known import SparsityPattern
from tgbench.base.regions import Box, Region
from tgbench.base.tiles import Tiling
from tgbench.costs.model import plain_site
from tgbench.costs.probe import same_bits
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.graph.reference import evaluate
from tgbench.kernels.copied import of_tiling
from tgbench.programs.exact.findings import sources
from tgbench.runs.rules import Rules
from tgbench.session.session import GraphSession

LONG = max(settings().max_examples // 60, 1)  # 1, or more where the tests are asked to look longer


def of_one(make: Any, *shape: int, dtype: str = "float32") -> Graph:
    """A graph of one input `x`."""
    g = GraphBuilder()
    g.output("y", make(g.input("x", shape, dtype)))
    return g.build()


def edits_keep_bits(graph: Graph, draw: Any, count: int, seed: int = 0) -> None:
    """So many edits of one element, each beside a session that has no past."""
    rng = np.random.default_rng(seed)
    session, (name, node) = GraphSession(graph, exact="bitwise"), next(iter(graph.inputs.items()))
    x = np.asarray(draw(rng, node.shape), node.dtype)
    for _ in range(count):
        check(session, GraphSession(graph, exact="bitwise"), {name: x})
        x = x.copy()
        x[tuple(int(rng.integers(n)) for n in x.shape)] = draw(rng, ())


# --- every position -------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "taps"), [(2, 1), (5, 1), (1, 2), (3, 3)])
def test_a_convolution_that_sees_only_padding_here_and_there(size: int, taps: int) -> None:
    for padding, stride, dilation in product((1, 3), (1, 2), (1, 3)):
        g = GraphBuilder()
        x, weight = g.input("x", (1, 1, size)), g.parameter("w", (1, 1, taps))
        options = {"padding": padding, "stride": stride, "dilation": dilation}
        if size + 2 * padding <= (taps - 1) * dilation:
            continue
        g.output("y", ops.conv(x, weight, **options))
        graph, ones = g.build(), np.ones((1, 1, taps), np.float32)
        values = np.arange(5, 5 + 2 * size, 2, dtype=np.float32).reshape(1, 1, size)
        found = GraphSession(graph, {"w": ones}, exact="bitwise").run({"x": values})["y"]
        assert (found == evaluate(graph, {"x": values, "w": ones})["y"]).all(), options


def test_a_kernel_that_does_not_take_a_tile_is_named() -> None:
    graph = of_one(
        lambda x: ops.conv(x, x.builder.constant(np.ones((1, 1, 1), "f")), padding=1), 1, 1, 2
    )
    call, box = graph.outputs["y"].call, Box(((0, 1), (0, 1), (1, 2)))
    site = plain_site(call, box, Rules().reads(call, box), "cpu")
    tiling = Tiling("conv_of_padding", (1, 1, 1), (1, 1, 1), copied=True)
    with pytest.raises(ExactnessError, match=r"conv: conv_of_padding .*does not take.*leave out"):
        of_tiling(site, tiling)


# --- rare numbers ---------------------------------------------------------------------------------


def seldom_otherwise(x: torch.Tensor, out: torch.Tensor) -> None:
    """As a library whose function for the ends of rows rounds one number in 512 otherwise."""
    torch.exp(x, out=out)
    ends = out[..., out.shape[-1] // 8 * 8 :]
    ends += torch.where(ends.view(torch.int32) % 512 == 0, ends * 2e-7, 0)


def test_an_elementwise_kernel_is_tried_on_many_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "exp", seldom_otherwise)
    graph = of_one(ops.exp, 3, 13)
    session = GraphSession(graph, exact="bitwise")
    assert session.exactness is not None
    (tiling,) = session.exactness.tilings.values()
    assert tiling.copied
    assert tiling.tile == tiling.chunk
    edits_keep_bits(graph, lambda rng, shape: rng.standard_normal(shape), 20)


def by_place(x: torch.Tensor, out: torch.Tensor) -> None:
    """The larger of two numbers; of two zeros the first, or the second where rows have gaps."""
    torch.amax(x, -1, out=out)
    zeros = torch.copysign(torch.zeros_like(out), x[..., 0 if x.is_contiguous() else -1])
    torch.where(out == 0, zeros, out, out=out)


def test_trials_see_signed_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "max", by_place)
    graph = of_one(lambda x: ops.max_(x, -1), 6, 2)
    session = GraphSession(graph, exact="bitwise")
    assert session.exactness is not None
    (tiling,) = session.exactness.tilings.values()
    assert tiling.copied
    edits_keep_bits(graph, lambda rng, shape: rng.choice([0.0, -0.0], shape), 20)


SIGNED = (lambda rng, shape: rng.choice([0.0, -0.0], shape), 6)
POSITIVE = (lambda rng, shape: np.abs(rng.standard_normal(shape)), 10)
NORMAL = (lambda rng, shape: rng.standard_normal(shape), 4)
CALLS: dict[str, tuple[Any, tuple[Any, int]]] = {
    "a root as a power": (lambda x: x**0.5, POSITIVE),
    "the root of negative numbers": (lambda x: x**0.5, NORMAL),
    "largest of zeros": (lambda x: ops.max_(x, -1), SIGNED),
    "smallest of zeros": (lambda x: ops.min_(x, 0), SIGNED),
    "argmax": (lambda x: ops.argmax(x, -1), NORMAL),
    "argmax of zeros": (lambda x: ops.argmax(x, 0), SIGNED),
    "integers": (lambda x: x.cast("int32"), NORMAL),
    "remainders": (lambda x: x % 0.3, NORMAL),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_differed_once(name: str) -> None:
    make, (draw, count) = CALLS[name]
    for seed, shape in enumerate(((1, 15), (5, 23), (33, 1))):
        edits_keep_bits(of_one(make, *shape), draw, count, seed)


def test_one_column_of_integers_has_bits() -> None:
    column = torch.arange(10).view(2, 5)[:, :1][:1]
    assert same_bits(column, torch.zeros(1, 1, dtype=torch.int64))


def test_every_nan_that_is_handed_out_is_the_same() -> None:
    graph = of_one(lambda x: ops.concat([ops.log(x), ops.sqrt(x), (x / x) * 0.5], 1), 3, 9)
    session = GraphSession(graph, exact="bitwise")
    y = session.run({"x": np.float32(np.arange(27).reshape(3, 9) % 3 - 1)})["y"]
    assert len(set(y[np.isnan(y)].view(np.uint32))) == 1
    assert np.isneginf(y).any()


# --- known zeros ----------------------------------------------------------------------------------


def test_minus_zero_that_is_known_is_zero_in_every_run() -> None:
    """Whether it is computed, in a hole of a box, or filled in at its margin."""
    mask = np.bool_([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
    g = GraphBuilder()
    g.output("y", ops.where(g.constant(mask), g.input("x", (3, 4)), -0.0))
    graph = g.build()
    session, x = GraphSession(graph, exact="bitwise"), np.ones((3, 4), np.float32)
    for at in ((0, 0), (1, slice(0, 2)), (2, 3), (0, slice(None))):
        x = x.copy()
        x[at] -= 2
        check(session, GraphSession(graph, exact="bitwise"), {"x": x})
        assert not np.signbit(session.run({"x": x})["y"][~mask]).any()


def test_what_is_known_stays_known_wherever_it_is_computed() -> None:
    """0 · ∞ is no number and 0 · −1 is −0, in a hole of one run and at the margin of another."""
    g, mask = GraphBuilder(), np.float32([[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
    x = g.input("x", (3, 4))
    g.output("y", x * 1e20 * g.constant(mask))
    graph, draw = g.build(), np.random.default_rng(0)
    session, values = GraphSession(graph, exact="bitwise"), np.ones((3, 4), np.float32)
    for _ in range(12):
        check(session, GraphSession(graph, exact="bitwise"), {"x": values})
        assert set(session.run({"x": values})["y"][mask == 0].view(np.uint32)) == {0}
        values = values.copy()
        values[draw.integers(3)] = draw.choice([0, -1, 1e30], 4)


def test_the_closed_elements_of_a_box_are_found_exactly() -> None:
    rng = np.random.default_rng(0)
    for _ in range(60):
        shape = rng.integers(1, 5, rng.integers(1, 4))
        pattern = SparsityPattern.of(rng.random([rng.choice([1, n]) for n in shape]) < 0.6)
        box = random_box(rng, shape)
        right = ~np.broadcast_to(pattern.array, shape) & mask_of(Region((box,)), shape)
        found = pattern.closed(box)
        assert np.array_equal(mask_of(Region.of(*found), shape), right)
        assert sum(part.elements for part in found) == right.sum()
        inside = np.broadcast_to(pattern.closed_mask(box), box.extents)
        assert np.array_equal(inside, right[box.slices()])


def test_many_lines_are_settled_by_a_mask() -> None:
    rng = np.random.default_rng(0)
    mask = rng.random((3, 70, 5)) < 0.5
    g = GraphBuilder()
    g.output("out", g.input("x", (3, 70, 5)) * g.constant(mask.astype("float32")))
    session = GraphSession(g.build(), exact="bitwise")
    found = session.run({"x": -np.ones((3, 70, 5), np.float32)})["out"]
    assert not np.signbit(found[~mask]).any()
    assert (found[mask] == -1).all()


# --- what findings hold for -----------------------------------------------------------------------


def test_a_source_file_that_moves_is_seen(tmp_path: Path) -> None:
    shutil.copytree(Path(tgbench.__file__).parent / "kernels", tmp_path / "kernels")
    digests = [sources.__wrapped__(tmp_path)]
    deeper = tmp_path / "kernels" / "deeper"
    deeper.mkdir()
    moved = (tmp_path / "kernels" / "copied.py").rename(deeper / "copied.py")
    digests.append(sources.__wrapped__(tmp_path))
    moved.write_text(moved.read_text() + "\n")
    digests.append(sources.__wrapped__(tmp_path))
    assert len(set(digests)) == 3


# --- the whole table ------------------------------------------------------------------------------


def clean(played_one: History) -> None:
    outcome = played(played_one)
    assert not outcome.fault, (played_one.label, outcome)
    assert not outcome.refused, (played_one.label, outcome)


SEVERAL = 12 if LONG == 1 else 1


@pytest.mark.parametrize("seed", range(5, TABLE // 2, SEVERAL))
def test_every_op_keeps_its_bits(seed: int) -> None:
    """One in twelve of the cases with two kinds of numbers each; all, where more time is given."""
    one, kinds = history(seed), list(KINDS)
    at = seed // SEVERAL
    some = [kinds[at % len(kinds)], kinds[(at + 3) % len(kinds)]]
    clean(replace(one, kinds=some if LONG == 1 else kinds))


@pytest.mark.parametrize("seed", range(TABLE, TABLE + 16 * LONG))
def test_random_graphs_keep_their_bits(seed: int) -> None:
    clean(history(seed))


def test_a_program_that_follows_half_of_its_way_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that a wrapped loop is given are those of the place where the program was made."""
    add = list(CASES).index("add")
    assert played(history(add)).moved > 3
    monkeypatch.setattr(tgbench.programs.program, "Host", type("Nothing", (), {}))
    outcome = played(history(add))
    assert outcome.differing > 0, outcome


def test_numbers_are_of_their_kinds() -> None:
    rng, node = np.random.default_rng(0), GraphBuilder().input("x", (400,))
    found = {kind: drawn(node, kind, 0, rng) for kind in KINDS}
    tiny, least = np.finfo("f").tiny, np.finfo("f").smallest_subnormal
    assert ((found["denormals"] != 0) & (abs(found["denormals"]) < tiny)).sum() > 100
    assert np.signbit(found["zeros"][found["zeros"] == 0]).mean() > 0.3
    assert abs(found["magnitudes"]).max() > 1e25 * abs(found["magnitudes"]).min()
    assert {0.0, least, np.finfo("f").max} <= set(found["special"])
    payloads = np.array([not_finite(found["normal"], rng) for _ in range(50)]).view(np.uint32)
    spoilt = payloads[~np.isfinite(payloads.view("f"))]
    assert set(spoilt) == set(NOT_FINITE)
