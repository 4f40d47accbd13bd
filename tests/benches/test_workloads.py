"""The workloads fit their graphs, repeat themselves, and are what they say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree

import pandas as pd
import pytest

from benchmarks.optimize import budget_plot, policy_table
from benchmarks.policies import POLICIES
from benchmarks.runs import Runs, enough_bytes, keep_everything_bytes
from benchmarks.workloads import (
    FORMS,
    NAMED,
    RANDOM,
    Size,
    Workload,
    adversarial,
    decode_edits,
    occlusion,
    prefill_decode,
    random_layered,
    towers,
    two_documents,
    workloads,
)
from tgbench.base.errors import GraphError
from tgbench.base.regions import Region
from tgbench.graph.simplify import simplify
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.entry import LoggedCall
from tgbench.runs.rules import Rules
from tgbench.runs.trace import Trace

Maker = Callable[[Size, int], Workload]


def title(make: Maker) -> str:
    """The same in every process: a partial's text holds an address."""
    form = getattr(make, "keywords", {}).get("form", "")
    name: str = getattr(make, "func", make).__name__
    return f"{name}-{form}" if form else name


@pytest.mark.parametrize("make", [*NAMED, *RANDOM], ids=title)
def test_a_workload_fits_its_graph_and_comes_again(make: Maker) -> None:
    work = make("small", 1)
    assert simplify(work.graph).fingerprint == work.graph.fingerprint
    assert 20 <= len(work.buckets) <= 60
    trace = Trace()
    for bucket in work.buckets:
        trace.append(LoggedCall(bucket, False, 0, 0.0))
    assert sum(trace.class_counts(work.graph).values()) == len(work.buckets)
    again, other = make("small", 1), make("small", 2)
    assert (again.graph.fingerprint, again.buckets) == (work.graph.fingerprint, work.buckets)
    for one in (work, other):
        whole = {name: Region.full(node.shape) for name, node in one.graph.inputs.items()}
        assert one.buckets[0].changed == tuple(sorted(whole.items()))


def test_seeds_make_other_traces() -> None:
    for make in (prefill_decode, occlusion, two_documents):
        assert make("small", 1).buckets != make("small", 2).buckets


@pytest.mark.parametrize("make", [*NAMED, *RANDOM], ids=title)
def test_small_workloads_are_small_and_their_calls_reuse_values(make: Maker) -> None:
    work = make("small", 0)
    assert len(work.graph) < 100
    runs = Runs(ScheduledGraph.of(work.graph), Rules(), work.buckets)
    assert sum(bool(run.reused) for run in runs.ideal) > len(work.buckets) / 2
    assert enough_bytes(runs) < keep_everything_bytes(runs) / 2


def test_decoding_appends_and_edits_go_back() -> None:
    def lengths(work: Workload) -> list[int]:
        found = []
        for bucket in work.buckets[1:]:
            (a, b), (_, end) = dict(bucket.changed)["ids"].hull()[1], end_of(bucket)
            found.append((b - a, end - b))
        return found

    def end_of(bucket: object) -> tuple[int, int]:
        return dict(bucket.demand)["logits"].hull()[1]  # type: ignore[attr-defined]

    plain, edited = lengths(prefill_decode()), lengths(decode_edits())
    assert sum(pair == (1, 0) for pair in plain) > 30
    assert any(later > 0 for _, later in edited)
    assert not any(later > 0 for _, later in plain)


def test_two_documents_share_parameters_and_nothing_else() -> None:
    one = prefill_decode().graph
    both = towers(one, "ab")
    assert both.parameters.keys() == one.parameters.keys()
    assert list(both.inputs) == ["ids_a", "ids_b"]
    executed = [sum(not node.is_leaf for node in graph.nodes) for graph in (one, both)]
    frozen = len([n for n in ScheduledGraph.of(one).frozen if not n.is_leaf])
    assert executed[1] == 2 * executed[0] - frozen
    turns = [bucket.demand[0][0] for bucket in two_documents().buckets]
    assert set(turns) == {"logits_a", "logits_b"}
    assert sum(a == b for a, b in pairwise(turns)) > len(turns) / 2


def test_an_occlusion_changes_the_old_place_and_the_new_one() -> None:
    work = occlusion()
    shape = work.graph.inputs["image"].shape
    moved = [dict(b.changed)["image"] for b in work.buckets[1:]]
    small = [region for region in moved if region != Region.full(shape)]
    assert len(small) > 30
    assert all(region.elements <= 2 * 4 * 4 * 3 for region in small)


def test_forms_of_adversarial_traces_have_names() -> None:
    assert {adversarial(form=form).name for form in FORMS} == {
        "adversarial, sizes", "adversarial, cycle", "adversarial, phases", "adversarial, jumps",
    }  # fmt: skip
    with pytest.raises(GraphError, match="use one of sizes, cycle, phases, jumps"):
        adversarial(form="strange")


def test_all_of_them_together() -> None:
    names = [work.name for work in workloads()]
    assert len(set(names)) == len(names) == len(NAMED) + len(RANDOM)


def test_a_table_has_a_row_per_budget_and_policy_and_can_be_drawn() -> None:
    tables = [policy_table(make(), budgets=(0.3, 1.0)) for make in (prefill_decode, random_layered)]
    table = pd.concat(tables)
    assert len(table) == 2 * 2 * len(POLICIES)
    whole = table[table.budget == 1.0]
    assert whole.over_all.to_numpy() == pytest.approx(1.0)
    assert not whole.recomputed.any()
    root = ElementTree.fromstring(budget_plot(table))
    titles = [element.text for element in root.iter() if element.get("class") == "tg-strong"]
    assert titles == ["prefill and decode", "random layers"]


def test_budgets_that_do_not_fit_are_infinite_and_have_no_point() -> None:
    table = policy_table(random_layered(), budgets=(0.01, 1.0), policies=POLICIES[:1])
    assert [bool(row.out_of_memory) for row in table.itertuples()] == [True, False]
    assert table.mean_ns[0] == float("inf")
    drawn = ElementTree.fromstring(budget_plot(table)).iter("{http://www.w3.org/2000/svg}path")
    assert not any("L" in path.get("d", "") for path in drawn)
