"""Kernels of sizes nobody ranked: taken over from sizes nearby, all that take a site, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tgbench.graph.ops as ops
from tgbench.base.coords import origin_symbol, record
from tgbench.base.errors import KernelError
from tgbench.base.machine import Machine
from tgbench.base.regions import Box, Region
from tgbench.costs.model import CostModel, modelled_ns
from tgbench.costs.nearby import MOST_RANKED, Nearby
from tgbench.costs.records import Record
from tgbench.costs.signature import Signature, source_hash, without_layout
from tgbench.graph.graph import GraphBuilder, Node
from tgbench.kernels.registry import Kernel, Site
from tgbench.runs.pausing import at_once
from tgbench.runs.propagate import Step

ROWS = 4096


def _nodes() -> dict[str, Node]:
    g = GraphBuilder()
    x, w = g.input("x", (ROWS, 64)), g.parameter("w", (96, 64))
    image = g.input("image", (1, 8, 64, 64))
    return {
        "linear": ops.linear(x, w),
        "add": x + x,
        "softmax": ops.softmax(x),
        "conv": ops.conv(image, g.parameter("k", (16, 8, 3, 3)), padding=1),
    }


NODES = _nodes()


def _box(name: str, rows: int) -> Box:
    if name == "conv":
        return Box(((0, 1), (0, 16), (0, min(rows, 64)), (0, 64)))
    return Box(((0, rows), (0, NODES[name].shape[1])))


class Counted:
    """A cost model that notes what it was asked to rank."""

    def __init__(self, costs: CostModel) -> None:
        self.costs, self.ranked = costs, list[Box]()
        self.before = costs.by_time
        costs.by_time = self  # type: ignore[assignment,method-assign]

    def __call__(self, site: Site) -> list[Kernel]:
        self.ranked.append(site.out_box)
        return list(self.before(site))


@given(st.sampled_from(sorted(NODES)), st.lists(st.integers(1, ROWS), min_size=1, max_size=12))
@settings(max_examples=60)
def test_all_kernels_that_take_a_site_are_offered_once(name: str, sizes: list[int]) -> None:
    costs = CostModel()
    nearby = Nearby(costs)
    for rows in sizes:
        site = costs.site(NODES[name].call, _box(name, rows))
        found = list(nearby.kernels(site))
        assert len(set(found)) == len(found)
        assert set(found) == set(costs.kernels(site))
        assert list(nearby.kernels(site)) == found


def test_an_order_is_taken_over_from_a_size_nearby_and_nothing_is_ranked() -> None:
    asked = Counted(CostModel())
    nearby, call = Nearby(asked.costs), NODES["add"].call
    first = list(nearby.kernels(asked.costs.site(call, _box("add", 100))))
    assert len(asked.ranked) == 1
    for rows in (60, 101, 180):
        kernel = next(iter(nearby.kernels(asked.costs.site(call, _box("add", rows)))))
        assert kernel is first[0]
    assert len(asked.ranked) == 1
    for rows in (40, 900):
        next(iter(nearby.kernels(asked.costs.site(call, _box("add", rows)))))
    assert len(asked.ranked) == 3
    for rows in (1000, 480, 50, 21):
        next(iter(nearby.kernels(asked.costs.site(call, _box("add", rows)))))
    assert len(asked.ranked) == 3


def test_few_sizes_are_remembered_of_calls_that_are_alike() -> None:
    asked = Counted(CostModel())
    nearby, call = Nearby(asked.costs), NODES["add"].call
    rows = [4**i for i in range(6)] + [3 * 4**i for i in range(6)]
    for size in rows:
        next(iter(nearby.kernels(asked.costs.site(call, _box("add", size)))))
    (alike,) = nearby._ranked.values()
    assert len(alike) <= MOST_RANKED


def _slow(site: Site, kernel: Kernel, time_ns: int) -> Record:
    signature = Signature.of(site)
    return Record(
        kernel.name, source_hash(kernel), signature.text, Machine.here().fingerprint,
        (time_ns,) * 5, flops=signature.flops, size_bytes=signature.size_bytes,
        modelled_ns=modelled_ns(site, kernel), measured_at=1.0,
    )  # fmt: skip


def test_what_was_measured_at_a_size_counts_there_whatever_is_known_nearby() -> None:
    """Absurd records: the first kernel takes a second, at one size alone."""
    costs = CostModel()
    nearby, call = Nearby(costs), NODES["linear"].call
    sites = [costs.site(call, _box("linear", rows)) for rows in (64, 65, 66)]
    best = next(iter(nearby.kernels(sites[0])))
    there = list(nearby.kernels(sites[1]))
    assert there[0] is best
    assert len(there) > 1
    costs.learn(
        _slow(sites[1], kernel, 10**9 if kernel is best else 1000 + i)
        for i, kernel in enumerate(there)
    )
    assert next(iter(nearby.kernels(sites[1]))) is not best
    assert next(iter(nearby.kernels(sites[1]))) is costs.kernels(sites[1])[0]


def test_what_is_pinned_comes_first() -> None:
    costs = CostModel()
    nearby, call = Nearby(costs), NODES["linear"].call
    sites = [costs.site(call, _box("linear", rows)) for rows in (64, 65)]
    *_, last = nearby.kernels(sites[0])
    text = costs.signature(sites[1]).text
    costs.pins = {without_layout(text): last.name}
    assert next(iter(nearby.kernels(sites[1]))) is last


def test_sizes_that_move_are_ranked_each() -> None:
    asked = Counted(CostModel())
    nearby, node = Nearby(asked.costs), NODES["add"]
    u = origin_symbol(0)
    site = asked.costs.site(node.call, _box("add", 100))
    moving = replace(site, out=replace(site.out, shape=(u, 64)))
    with record((100,)):
        for _ in range(2):
            nearby.kernels(moving)
    assert len(asked.ranked) == 2


def test_what_nothing_takes_is_said_or_modelled_roughly(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = CostModel()

    def nobody(site: Site) -> Iterator[Kernel]:
        raise KernelError("no kernel")

    monkeypatch.setattr(costs, "kernels", nobody)
    nearby, node = Nearby(costs), NODES["softmax"]
    assert nearby.time_ns(node.call, _box("softmax", 8)) > 0
    with pytest.raises(KernelError, match="no kernel"):
        list(nearby.kernels(costs.site(node.call, _box("softmax", 8))))


def test_a_run_is_modelled_as_long_as_by_the_model_where_all_was_ranked() -> None:
    costs = CostModel()
    node = NODES["linear"]
    step = Step({}, {}, {node: Region((Box(((3, 40), (0, 96))),))}, {}, {}, ())
    work = at_once(Nearby(costs).working([step], (), None))
    assert work.at(()) == pytest.approx(costs.of_steps([step], ()))
