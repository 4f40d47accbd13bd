"""The cost model: measured, interpolated, modelled, and it says which."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tgbench.costs.model as cost
import tgbench.graph.ops as ops
from tgbench.base.coords import origin_symbol, record
from tgbench.base.errors import RecordsError
from tgbench.base.machine import Machine
from tgbench.base.regions import Box
from tgbench.costs.model import (
    NEIGHBOURS,
    CostModel,
    CostTable,
    Estimate,
    Fit,
    Measurement,
    Scales,
    modelled_ns,
    nonnegative,
    plain_site,
    total,
    work_of,
)
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import Signature, source_hash
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.kernels.registry import KERNELS, Kernel, Site, candidates, lays_out
from tgbench.runs.propagate import rough_ns
from tgbench.runs.rules import Rules

RULES = Rules()


def product(rows: int, depth: int = 64, columns: int = 64) -> Node:
    g = GraphBuilder()
    return ops.linear(g.input("x", (rows, depth)), g.parameter("w", (columns, depth)))


def site(node: Node, box: Box | None = None) -> Site:
    box = box if box is not None else Box.full(node.shape)
    return plain_site(node.call, box, RULES.reads(node.call, box), "cpu")


def measured(node: Node, time_ns: float, **changes: object) -> Record:
    """A record of the kernel that would be chosen."""
    where = site(node)
    kernel, signature = candidates(where)[0], Signature.of(where)
    made = Record(
        kernel.name,
        source_hash(kernel),
        signature.text,
        Machine.here().fingerprint,
        (round(time_ns),) * 3,
        flops=signature.flops,
        size_bytes=signature.size_bytes,
        modelled_ns=modelled_ns(where, kernel),
        measured_at=1.0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "records.db")


def whole(model: CostModel, node: Node) -> Estimate:
    return model.estimate(node.call, Box.full(node.shape))


def test_without_records_everything_is_modelled() -> None:
    node = product(3)
    kernel = candidates(site(node))[0]
    found = whole(CostModel(), node)
    assert (found.source, found.kernel) == ("modelled", kernel.name)
    assert found.time_ns == kernel.cost_ns(site(node))


def image(size: int = 24) -> Node:
    g = GraphBuilder()
    x, w = g.input("x", (1, 16, size, size)), g.parameter("w", (8, 16, 3, 3))
    return ops.conv(x, w, padding=1)


def test_images_lie_with_their_channels_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they do in memory: a kernel that takes no others is what a convolution is priced by."""
    node = image()
    plain = next(one for one in KERNELS["conv"] if one.name == "conv")

    def lies_so(where: Site) -> bool:
        x, w = where.ins[:2]
        lasts = [view.strides[1] for view in (x, where.out) if view is not None]
        return lasts == [1, 1] and w is not None and w.strides == (144, 9, 3, 1)

    picky = replace(plain, name="picky", accepts=lies_so, cost_ns=lambda where: 5.0)
    monkeypatch.setitem(KERNELS, "conv", [plain, picky])
    for box in (Box.full(node.shape), Box(((0, 1), (0, 8), (3, 9), (20, 24)))):
        assert CostModel().estimate(node.call, box).kernel == "picky"


def test_sizes_that_nobody_measured_go_by_those_around(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quickest kernel at the half-octave above, of those that take these; where something was
    measured at these very sizes, the quickest there.
    """
    node = product(96)
    plain = next(one for one in KERNELS["linear"] if one.name == "linear_rows")

    def rows(where: Site) -> int:
        return int(where.out.shape[0])

    few = replace(plain, name="few", cost_ns=lambda where: 10.0 if rows(where) < 40 else 900.0)
    odd = replace(
        plain, name="odd", accepts=lambda where: rows(where) % 2 == 1, cost_ns=lambda where: 100.0
    )
    monkeypatch.setitem(KERNELS, "linear", [replace(plain, cost_ns=lambda where: 500.0), few, odd])
    asked = {count: Box(((7, 7 + count), (0, 64))) for count in (20, 33, 50, 64)}
    model = CostModel()
    names = {count: model.estimate(node.call, box).kernel for count, box in asked.items()}
    assert names == {20: "few", 33: "linear_rows", 50: "linear_rows", 64: "linear_rows"}
    met = site(node, asked[33])
    found = replace(
        measured(node, 7.0), kernel="odd", source_hash=source_hash(odd),
        signature=Signature.of(met).text,
    )  # fmt: skip
    records.add([found])
    assert CostModel(records).estimate(node.call, asked[33]).kernel == "few"


def test_a_record_is_what_was_measured(records: Records) -> None:
    node = product(3)
    records.add([measured(node, 12_345), measured(node, 12_347, measured_at=2.0)])
    found = whole(CostModel(records), node)
    assert (found.source, found.time_ns) == ("measured", 12_346)
    assert 0 < found.spread < 1e-3


@pytest.mark.parametrize(
    "change",
    [
        {"fingerprint": "another machine"},
        {"source_hash": "another source"},
        {"failure": "it broke", "samples_ns": ()},
    ],
)
def test_what_was_measured_elsewhere_is_not_measured_here(
    change: dict[str, object], records: Records
) -> None:
    node = product(3)
    records.add([measured(node, 12_345, **change)])
    assert whole(CostModel(records), node).source == "modelled"


def test_weights_in_another_place_are_not_measured(records: Records) -> None:
    node = product(3)
    records.add([measured(node, 12_345)])
    assert whole(CostModel(records, streams=False), node).source == "modelled"


def test_a_model_is_scaled_by_what_was_measured(records: Records) -> None:
    node = product(3)
    plain = whole(CostModel(), node).time_ns
    records.add([measured(node, 3 * plain)])
    far = product(3, 640, 640)
    found, model = whole(CostModel(records), far), whole(CostModel(), far)
    assert found.source == "modelled"
    assert math.isclose(found.time_ns, 3 * model.time_ns, rel_tol=1e-3)


@pytest.mark.parametrize(
    ("shares", "quickest"),
    [
        ({"other": 0.5}, "other"),
        ({"plain": 3.0, "other": 1.0}, "other"),
        ({"plain": 1.0, "other": 3.0}, "plain"),
    ],
)
def test_what_was_measured_at_about_this_size_counts_before_models(
    shares: dict[str, float], quickest: str, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once is enough; what it took of many rows says nothing of few."""

    def named(name: str, row_ns: float) -> Kernel:
        return replace(
            next(one for one in KERNELS["linear"] if one.name == "linear_rows"),
            name=name, cost_ns=lambda site: row_ns * site.out_box.extents[0],
        )  # fmt: skip

    found = {"plain": named("plain", 1_000.0), "other": named("other", 1_100.0)}
    monkeypatch.setitem(KERNELS, "linear", list(found.values()))
    many = product(128)
    for name, share in shares.items():
        taken = {"kernel": name, "source_hash": source_hash(found[name])}
        records.add([measured(many, share * found[name].cost_ns(site(many)), **taken)])
    model = CostModel(records)
    for rows, expected in ((70, quickest), (96, quickest), (200, quickest), (8, "plain")):
        assert model.kernels(site(product(rows)))[0].name == expected, rows


def truth(node: Node) -> float:
    signature = Signature.of(site(node))
    return 200 + 0.001 * signature.flops + 0.01 * signature.size_bytes


def test_between_measurements_is_interpolated(records: Records) -> None:
    sizes = [(rows, depth) for rows in (8, 16, 40) for depth in (32, 64, 128)]
    nodes = [product(rows, depth) for rows, depth in sizes]
    records.add([measured(node, truth(node)) for node in nodes])
    model = CostModel(records)
    for rows, depth in ((12, 48), (20, 96), (24, 64)):
        node = product(rows, depth)
        found = whole(model, node)
        assert found.source == "interpolated"
        assert math.isclose(found.time_ns, truth(node), rel_tol=0.02)
    assert whole(model, product(40, 1024, 512)).source == "modelled"


points = st.builds(
    lambda flops, size_bytes, time_ns, modelled: Measurement(
        "k", "a", f"s{flops}/{size_bytes}", time_ns, 0.1, flops, size_bytes, modelled
    ),
    st.floats(1, 1e9),
    st.integers(4, 1 << 30),
    st.floats(1, 1e9),
    st.floats(1, 1e9),
)


@given(st.lists(points, min_size=1, max_size=12), st.floats(0, 1e10), st.integers(1, 1 << 31))
def test_estimates_are_positive_and_repeatable(
    known: list[Measurement], flops: float, size_bytes: int
) -> None:
    asked = Signature("s", flops, size_bytes)
    found = Fit(tuple(known)).at(asked, lambda: 100.0)
    assert 0 < found.time_ns < math.inf
    assert 0 <= found.spread < math.inf
    assert found == Fit(tuple(known)).at(asked, lambda: 100.0)


def told(op: str, modelled_ns: float, ratio: float) -> Measurement:
    return Measurement("k", "a", f"{op}() x", ratio * modelled_ns, 0.1, 1.0, 1, modelled_ns)


def test_what_nobody_timed_is_off_as_others_of_its_op_and_size_are() -> None:
    small = [told("linear", 500.0 + i, 0.5) for i in range(9)]
    large = [told("linear", 5e4 + i, 4.0) for i in range(9)]
    scales = Scales([*small, *large, told("add", 1e3, 7.0)])
    assert scales.at("linear", 400.0) == 0.5
    assert scales.at("linear", 1e6) == 4.0
    assert scales.at("add", 1e6) == 7.0
    assert scales.at("softmax", 600.0) == 0.5  # as all ops are
    assert Scales(()).at("linear", 1e3) == 1.0


def test_a_kernel_that_nobody_timed_is_not_ahead_of_the_best_by_its_model_alone() -> None:
    """All that were timed take four times as long as their models say: so would it."""
    node = product(64)
    where = site(node)
    best, other, *_ = sorted(candidates(where), key=lambda kernel: modelled_ns(where, kernel))
    best_ns, other_ns = modelled_ns(where, best), modelled_ns(where, other)
    record = replace(measured(node, 4 * other_ns), modelled_ns=other_ns)
    record = replace(record, kernel=other.name, source_hash=source_hash(other))
    model = CostModel()
    model.learn([record])
    took_ns = record.median_ns
    assert took_ns == round(4 * other_ns)  # records are whole nanoseconds
    assert model.of_site(where, best).time_ns == pytest.approx(best_ns * took_ns / other_ns)


@pytest.mark.parametrize(("share", "first"), [(0.5, "untried"), (0.9, "timed"), (1.1, "timed")])
def test_a_kernel_that_nobody_timed_has_to_be_clearly_ahead(
    share: float, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = ops.relu(GraphBuilder().input("x", (64, 64)))
    where = site(node)
    timed, untried = (
        Kernel(name, "relu", lambda s: True, lambda s, cost=cost: cost, lambda s, _: (print, ()))
        for name, cost in (("timed", 1e4), ("untried", share * 1e4))
    )
    monkeypatch.setitem(KERNELS, "relu", [timed, untried])
    record = replace(measured(node, 3e4), modelled_ns=1e4)
    model = CostModel()
    model.learn([replace(record, kernel="timed", source_hash=source_hash(timed))])
    assert model.ranked(where)[0][0].name == first
    assert model.of_site(where, untried).time_ns == pytest.approx(3e4 * share)


def test_a_kernels_model_is_off_as_at_the_sizes_near_it() -> None:
    row = Measurement("k", "a", "s1", 1e3, 0.1, 1.0, 1, 1e3)
    many = Measurement("k", "a", "s2", 3e5, 0.1, 1e3, 1000, 1e5)
    fit, asked = Fit((row, many)), Signature("s", 1e9, 1 << 30)
    assert fit.at(asked, lambda: 1e3).time_ns == pytest.approx(1e3, rel=0.01)
    assert fit.at(asked, lambda: 9e4).time_ns == pytest.approx(2.7e5, rel=0.01)
    between = fit.at(asked, lambda: 1e4)
    assert 1e4 < between.time_ns < 3e4
    assert between.source == "modelled"


few = st.sampled_from([1.0, 2.0, 3.0, 1e6])  # so that many are equally far


@given(
    st.lists(st.tuples(few | st.floats(0, 1e10), few), min_size=1, max_size=40),
    few | st.floats(0, 1e10),
    few,
)
def test_the_nearest_measurements_are_those_of_all(
    known: list[tuple[float, float]], flops: float, size_bytes: float
) -> None:
    """Bit for bit, and of equally near ones the first."""
    fit = Fit(tuple(Measurement("k", "a", "s", 1.0, 0.1, f, int(s), 1.0) for f, s in known))
    a, b = work_of(flops, size_bytes)
    squares = [(a - c) ** 2 + (b - d) ** 2 for c, d in fit._work]
    nearest = sorted(range(len(squares)), key=squares.__getitem__)[:NEIGHBOURS]
    assert fit._nearest(a, b) == [(squares[i], i) for i in nearest]


@given(st.data())
def test_a_ranking_is_what_each_kernel_is_expected_to_take(data: st.DataObject) -> None:
    """Whatever was asked before, and of whichever sizes something was measured."""
    sizes = st.tuples(st.sampled_from([1, 2, 7, 40]), st.sampled_from([16, 64, 256]))
    known = data.draw(st.lists(sizes, max_size=6, unique=True))
    records = [
        replace(
            measured(product(*size), data.draw(st.integers(100, 10**6))),
            kernel=kernel.name,
            source_hash=source_hash(kernel),
        )
        for size in known
        for kernel in data.draw(st.sets(st.sampled_from(candidates(site(product(*size))))))
    ]
    model = CostModel()
    model.learn(records)
    for size in data.draw(st.lists(sizes, min_size=1, max_size=4)):
        where = site(product(*size))
        alone = CostModel(model.table())
        plain = {kernel.name: alone.of_site(where, kernel) for kernel in alone.suiting(where)}
        ranked = model.ranked(where)
        assert {kernel.name: found for kernel, found in ranked} == plain
        times = [found.time_ns for _, found in ranked]
        if not any(found.source == "modelled" or found.spread for found in plain.values()):
            assert times == sorted(times)


@given(st.lists(points, min_size=3, max_size=8), st.integers(0, 1 << 30))
def test_no_other_line_is_nearer(known: list[Measurement], seed: int) -> None:
    """Against lines drawn at random, none with a smaller relative squared error."""
    times = np.array([p.time_ns for p in known])
    work = np.array([(1.0, p.flops, p.size_bytes) for p in known])

    def error(line: np.ndarray) -> float:
        return float((((work @ line) / times - 1) ** 2).sum())

    found = np.array(Fit(tuple(known))._line)
    assert (found >= 0).all()
    rng = np.random.default_rng(seed)
    scale = times.mean() / work.mean(axis=0)
    others = [found * rng.uniform(0.9, 1.1, 3) for _ in range(20)]
    others += [scale * rng.random(3) * rng.integers(0, 2, 3) for _ in range(20)]
    assert error(found) <= min(map(error, others)) + 1e-6


def test_another_process_gets_the_same_numbers(records: Records) -> None:
    nodes = [product(rows) for rows in (1, 2, 4, 8)]
    records.add([measured(node, truth(node)) for node in nodes])
    model = CostModel(records)
    table = pickle.loads(pickle.dumps(model.table()))
    assert isinstance(table, CostTable)
    copy = CostModel(table)
    for node in (*nodes, product(3), product(100)):
        assert whole(copy, node) == whole(model, node)


def test_equal_layers_are_asked_about_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One look for a kernel a shape, whatever the position and however many layers; and one at the
    whole call, where that says how its weights are laid out.
    """
    looked: list[Site] = []

    def looking(where: Site, *more: Any) -> list[object]:
        looked.append(where)
        return list(candidates(where, *more))

    monkeypatch.setattr(cost, "candidates", looking)
    g, model = GraphBuilder(), CostModel()
    x = g.input("x", (32, 8))
    for i in range(12):
        x = ops.linear(x, g.parameter(f"w{i}", (8, 8)))
    g.output("y", x)
    for _ in range(5):
        for node in g.build().nodes:
            if not node.is_leaf:
                for start in range(31):
                    model.estimate(node.call, Box(((start, start + 1), (0, 8))))
    rows = sorted(where.out_box.extents[0] for where in looked)
    assert rows == ([1, 32] if lays_out(x.call, "cpu") else [1])


def test_costs_leave_no_guards() -> None:
    node, u = product(8), origin_symbol(0)
    model = CostModel()
    with record([4]) as guards:
        found = model.estimate(node.call, Box(((u, u + 1), (0, 64))))
    assert not guards
    assert found == model.estimate(node.call, Box(((4, 5), (0, 64))))


def test_kernels_are_ranked_by_what_was_measured(records: Records) -> None:
    node = product(40)
    best, second = (kernel for kernel, _ in CostModel().ranked(site(node))[:2])
    slow = measured(node, 1e9)
    quick = replace(slow, kernel=second.name, source_hash=source_hash(second), samples_ns=(10,))
    records.add([slow, quick])
    assert slow.kernel == best.name
    ranking = [kernel.name for kernel, _ in CostModel(records).ranked(site(node))]
    assert ranking[0] == second.name


@pytest.mark.parametrize(
    ("first_ns", "second_ns", "is_level"),
    [
        ((1000, 1020, 1080), (980, 1000, 1060), True),  # apart by half of what each spreads
        ((1000, 1040, 1080), (980, 1000, 1060), False),
        ((1000, 1001, 1002), (980, 981, 982), False),
        ((1300,), (1000,), True),  # one sample says nothing of how far they spread
        ((2000,), (1000,), False),
    ],
)
def test_what_times_spread_by_leaves_the_models_order(
    records: Records, first_ns: tuple[int, ...], second_ns: tuple[int, ...], is_level: bool
) -> None:
    node = product(40)
    first, second = (kernel for kernel, _ in CostModel().ranked(site(node))[:2])
    one = measured(node, 1, samples_ns=first_ns)
    other = replace(one, kernel=second.name, source_hash=source_hash(second), samples_ns=second_ns)
    records.add([one, other])
    ranking = [kernel.name for kernel, _ in CostModel(records).ranked(site(node))]
    expected = [first.name, second.name] if is_level else [second.name, first.name]
    assert [name for name in ranking if name in expected] == expected
    assert ranking[0] == expected[0]


def test_measurements_of_large_calls_do_not_rank_small_ones(records: Records) -> None:
    small, large = product(1), product(1, 4096, 4096)
    usual = [kernel.name for kernel, _ in CostModel().ranked(site(small))]
    slow = measured(large, 1e9)
    others = [kernel for kernel in candidates(site(large)) if kernel.name != slow.kernel]
    quick = [
        replace(slow, kernel=other.name, source_hash=source_hash(other), samples_ns=(10,))
        for other in others
    ]
    assert slow.kernel in usual
    records.add([slow, *quick])
    model = CostModel(records)
    assert [kernel.name for kernel, _ in model.ranked(site(small))] == usual
    assert model.ranked(site(large))[-1][0].name == slow.kernel


def test_a_call_without_a_kernel_is_modelled_roughly() -> None:
    node, box = product(3), Box.full((3, 64))
    model = CostModel(CostTable("abacus:0", True, "", ()))
    assert model.estimate(node.call, box).time_ns == rough_ns(node.call, box)


def test_sums() -> None:
    parts = [Estimate(300.0, "measured", 0.1), Estimate(100.0, "interpolated", 0.5)]
    found = total([*parts, Estimate(0.0, "modelled")])
    assert (found.time_ns, found.source) == (400.0, "interpolated")
    assert found.share("measured") == 0.75
    assert math.isclose(found.spread, math.hypot(30, 50) / 400)
    assert total([found, found]).share("measured") == 0.75
    assert str(found) == "400 ns ± 15% (75% measured, 25% interpolated)"
    nearly = total([Estimate(999.0, "measured"), Estimate(1.0, "modelled")])
    assert str(nearly) == "1 µs ± 0% (>99% measured, <1% modelled)"
    assert total([]).time_ns == 0.0


def test_a_record_without_a_model_is_refused(records: Records) -> None:
    records.add([measured(product(3), 100, modelled_ns=0.0)])
    with pytest.raises(RecordsError, match="no modelled time; delete it"):
        CostModel(records)


@given(st.integers(0, 2**32 - 1), st.integers(3, 20), st.integers(1, 3))
def test_least_squares_without_negative_coefficients(seed: int, rows: int, columns: int) -> None:
    from scipy.optimize import nnls

    random = np.random.default_rng(seed)
    left, right = random.standard_normal((rows, columns)), random.standard_normal(rows)
    found = nonnegative(left, right)
    _, residual = nnls(left, right)
    assert (found >= 0).all()
    assert np.linalg.norm(left @ found - right) <= residual + 1e-9
