"""What calls do besides takes no time of its own in the tables, as in a replay."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

import tgbench as tg
from tgbench import GraphSession, ops
from tgbench.base.regions import Box
from tgbench.costs.model import CostModel
from tgbench.graph.graph import Graph, Node
from tgbench.graph.simplify import simplify
from tgbench.kernels.registry import KERNELS, Kernel, Site, candidates
from tgbench.memory.placement import Retention
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.retention.along import Along
from tgbench.plans.search.judge import Candidate
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE

ROWS, WIDTH = 64, 32


def residual(layers: int = 2) -> Graph:
    """x + relu(x · w + b) · v, layer after layer: products whose additions a call does besides."""
    g = tg.GraphBuilder()
    h = g.input("x", (ROWS, WIDTH))
    for i in range(layers):
        w, v = (g.parameter(f"{name}{i}", (WIDTH, WIDTH)) for name in "wv")
        made = ops.relu(ops.linear(h, w, g.parameter(f"b{i}", (WIDTH,))))
        h = ops.linear(made, v) + h
    g.output("y", h)
    return simplify(g.build())


def images() -> Graph:
    g = tg.GraphBuilder()
    x = g.input("x", (1, 16, 32, 32))
    h = x
    for i in range(2):
        w = g.parameter(f"w{i}", (16, 16, 3, 3))
        h = ops.relu(ops.conv(h, w, padding=1) + x)
    g.output("y", h)
    return simplify(g.build())


def along(graph: Graph, ranking: object = candidates) -> Along:
    return Along(ScheduledGraph.of(graph), Rules(), ranking, "cpu")  # type: ignore[arg-type]


def drawn(random: np.random.Generator, node: Node) -> np.ndarray:
    return random.standard_normal(node.shape).astype(np.float32)


def told(found: Along, rows: int = ROWS) -> set[str]:
    """Ops of nodes that are computed along, of so many of their first elements."""
    nodes = found.scheduled.stored
    box = [
        Box(((0, min(rows, node.shape[0])), *((0, n) for n in node.shape[1:]))) for node in nodes
    ]
    return {n.op for n, one in zip(nodes, box, strict=True) if found.has(n, one)}


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that add and apply an activation besides, whatever this machine has."""
    posts = frozenset({"add", "relu"})
    for op in ("linear", "conv"):
        made = Kernel("several", op, lambda s: True, lambda s: 1.0, lambda s, _: (print, ()),
                      posts=posts)  # fmt: skip
        monkeypatch.setitem(KERNELS, op, [*KERNELS[op], made])


def besides(site: Site) -> list[Kernel]:
    """Who takes a site, and what is done there besides."""
    return [k for k in KERNELS[site.call.op.name] if k.is_there and k.takes(site)]


@pytest.mark.parametrize("graph", [residual(), images()], ids=["products", "images"])
@pytest.mark.usefixtures("several")
def test_what_a_call_does_besides_is_computed_along(graph: Graph) -> None:
    found = along(graph, besides)
    followers = [b for a, b in pairwise(found.scheduled.stored) if found.chain(b)]
    assert len(followers) == 4
    assert told(found) == {"add", "relu"} == {node.op for node in followers}
    assert not told(along(graph, lambda site: [] if site.posts else candidates(site)))


@pytest.mark.usefixtures("several")
def test_who_is_read_by_others_too_is_no_part_of_a_call() -> None:
    g = tg.GraphBuilder()
    x = g.input("x", (ROWS, WIDTH))
    product = ops.linear(x, g.parameter("w", (WIDTH, WIDTH)))
    g.output("y", ops.relu(product))
    g.output("z", product)
    found = along(simplify(g.build()), besides)
    assert not any(map(found.chain, found.scheduled.stored))


@pytest.mark.usefixtures("several")
def test_a_kernel_is_asked_for_once_for_about_as_large_boxes_of_equal_layers() -> None:
    asked = list[Site]()

    def ranking(site: Site) -> Sequence[Kernel]:
        asked.append(site)
        return besides(site)

    found = along(residual(6), ranking)
    for rows in (33, 34, 40, 48):
        told(found, rows)
    assert len(asked) == len({found.chain(n) for n in found.scheduled.stored} - {()}) == 2


@pytest.mark.parametrize("graph", [residual(), images()], ids=["products", "images"])
def test_the_model_takes_no_longer_than_the_replay_of_what_keeps_everything(
    graph: Graph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each addition that a call does besides would be a call more in the model. It takes to be so
    what a map may have no scratch memory for, too: then it is the faster one. Wherever operands
    lie, calls take as long here.
    """
    monkeypatch.setattr(CostModel, "takes_ns", lambda self, site, kernel: 0.0)
    found = kept_all(graph)
    assert found.modelled_ns <= found.time_ns * (1 + 1e-9)
    monkeypatch.setattr(Along, "has", lambda self, node, box: False)
    apart = kept_all(graph)
    assert apart.modelled_ns >= found.modelled_ns
    assert apart.modelled_ns >= apart.time_ns * (1 - 1e-6)


def kept_all(graph: Graph) -> Candidate:
    """What a session has run, replayed where all that is read again is kept."""
    random = np.random.default_rng(0)
    weights = {name: drawn(random, node) for name, node in graph.parameters.items()}
    session = GraphSession(graph, weights=weights)
    x = drawn(random, graph.inputs["x"])
    session.run(x)
    for at in range(0, x.shape[-1], 8):
        x = x.copy()
        x[..., at : at + 4] += 1.0
        session.run(x)
    judge = session.planning.task(session.runner.happened, None).optimiser().judge
    wanted = judge.planner.frontier(judge.planner.runs.distinct(judge.scenarios))
    retention = Retention.always(wanted, judge.workload.turns)
    placement = judge.planner.lay_out(retention, judge.scenarios, WHOLE)
    found = judge.candidate(retention, WHOLE, placement)
    assert found is not None
    return found
