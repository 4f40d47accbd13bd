"""The example files that ship with the project can be read, and say what their script did."""

from __future__ import annotations

from places import DATA

import tgbench as tg
from tgbench.graph.simplify import simplify
from tgbench.sources.models.checkpoints import gemma3_reduced


def test_the_example_trace_holds_appends_edits_and_repeats() -> None:
    trace = tg.Trace.load(DATA / "decode.trace.jsonl")
    assert trace.torn is None
    graph = tg.models.gemma3(gemma3_reduced(), tokens=64)
    counts = {str(kind): n for kind, n in trace.class_counts(graph).items()}
    assert counts["ids[:, :] → logits[:, u0:+1, :]"] == 1
    assert counts["nothing → logits[:, u0:+1, :]"] == 3
    assert sum(counts.values()) == len(trace) == 24


def test_the_example_plan_retains_k_and_v() -> None:
    plan = tg.Plan.load(DATA / "decode.plan.json")
    assert set(plan.retained) == {"layer_0.k", "layer_0.v", "layer_1.k", "layer_1.v"}
    assert plan.size_bytes <= 128 << 10
    assert plan.search is not None
    assert plan.search.best_ns <= plan.search.greedy_ns
    assert "saves" in str(plan.explain("layer_1.k"))


def test_the_example_plan_is_for_the_graph_of_the_example_trace() -> None:
    graph = simplify(tg.models.gemma3(gemma3_reduced(), tokens=64))
    made = tg.Plan.load(DATA / "decode.plan.json").placement_for(graph, "cpu")
    calls = {call.bucket.classify(graph)[0] for call in tg.Trace.load(DATA / "decode.trace.jsonl")}
    assert calls == set(made.classes)
