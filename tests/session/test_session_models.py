"""Whole models through sessions: equal to Hugging Face at every budget, and what that takes.

KV caching is not a feature of tgbench; the tests here say where it shows: which rows are computed,
which are read, what is retained, and that no file but the op's own knows of attention.
"""

from __future__ import annotations

import io
import json
import tokenize
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elsewhere import printed
from hypothesis import given, settings
from hypothesis import strategies as st
from places import GOLDEN
from session_cases import PoisonedSession
from strategies import Array
from torch.profiler import ProfilerActivity, profile

import tgbench
from tgbench.base.errors import BudgetError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph
from tgbench.runs.buckets import Bucket
from tgbench.runs.pausing import at_once
from tgbench.runs.propagate import Propagator
from tgbench.session.session import GraphSession
from tgbench.sources.models import bert, gemma3
from tgbench.sources.models.checkpoints import (
    GEMMA3_270M,
    bert_checkpoint,
    bert_reduced,
    find_minilm,
    gemma3_checkpoint,
    gemma3_reduced,
)

TOLERANCE = 1e-5
FEW = settings(max_examples=max(settings().max_examples // 12, 3))
GEMMA: dict[str, tuple[dict[str, Any], int]] = {  # overrides, batch
    "window shorter than the text": ({"sliding_window": 5}, 1),
    "window longer than the text": ({"sliding_window": 64}, 1),
    "heads share": (
        {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6},
        1,
    ),
    "a batch of two": ({"num_hidden_layers": 3, "sliding_window": 4}, 2),
}
T, VOCAB = 24, 256
LOWEST: dict[str, int] = {}  # the smallest budget of each case, found once


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Checkpoints and their Hugging Face models, made once for each configuration."""
    made: dict[str, tuple[Path, Any]] = {}

    def get(name: str, config: Mapping[str, Any], write: Any, auto: str) -> tuple[Path, Any]:
        if name not in made:
            transformers = pytest.importorskip("transformers")
            path = write(tmp_path_factory.mktemp("checkpoint"), config)
            options = {"dtype": torch.float32, "attn_implementation": "eager"}
            made[name] = path, getattr(transformers, auto).from_pretrained(path, **options).eval()
        return made[name]

    return get


def gemma_case(folder: Any, case: str) -> tuple[Graph, Path, Any]:
    overrides, batch = GEMMA[case]
    config = gemma3_reduced(**overrides)
    path, model = folder(case, config, gemma3_checkpoint, "AutoModelForCausalLM")
    return gemma3(path, T, batch), path, model


def close(found: Array, expected: Array) -> bool:
    error = np.abs(found - expected).max() / np.abs(expected).max()
    same = (found.argmax(-1) == expected.argmax(-1)).all()
    return bool(error <= TOLERANCE and same)


def smallest(graph: Graph, weights: Any, inputs: Mapping[str, Array], want: Any) -> int:
    with pytest.raises(BudgetError) as error:
        GraphSession(graph, weights, memory=0, ignore_weights=["pooler.*"]).run(inputs, want)
    return int(error.value.needed_bytes)


def opened(t: int, stop: int, *shape: int) -> Region:
    """Rows [t, stop) of dimension 1, all of the others."""
    return Region((Box((t, stop) if i == 1 else (0, size) for i, size in enumerate(shape)),))


# --- equal to Hugging Face ------------------------------------------------------------------------

Steps = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "edit", "edits", "repeat", "jump", "other"]),
        st.integers(0, T - 1),
        st.integers(1, VOCAB - 1),
    ),
    min_size=3,
    max_size=8,
)


@FEW
@given(st.sampled_from(list(GEMMA)), Steps, st.sampled_from([0.0, 0.05, 0.3, 1.0, None]))
def test_gemma_is_hugging_faces_after_any_history(
    folder: Any, case: str, steps: list[tuple[str, int, int]], share: float | None
) -> None:
    graph, path, model = gemma_case(folder, case)
    batch = graph.inputs["ids"].shape[0]
    ids = np.random.default_rng(0).integers(0, VOCAB, (batch, T))
    at = 9
    want = {"logits": np.s_[:, at]}
    memory = None
    if share is not None:
        if case not in LOWEST:
            LOWEST[case] = smallest(graph, path, {"ids": ids}, want)
        memory = LOWEST[case] + int(share * 8 * LOWEST[case])
    session = PoisonedSession(graph, path, memory=memory)
    for kind, where, token in [("repeat", 0, 1), *steps]:
        ids = ids.copy()
        if kind == "append":
            at = (at + 1) % T
            ids[:, at] = token
        elif kind == "edit":
            ids[0, where % (at + 1)] = token
        elif kind == "edits":
            ids[:, [where % (at + 1), where // 2, at]] = token, (token * 7) % VOCAB, token - 1
        elif kind == "jump":
            at = where
        elif kind == "other":
            ids = np.random.default_rng(token).integers(0, VOCAB, (batch, T))
        found = session.run({"ids": ids}, {"logits": np.s_[:, at]})["logits"]
        with torch.inference_mode():
            expected = model(torch.from_numpy(ids[:, : at + 1])).logits[:, -1].numpy()
        assert close(found, expected), (kind, at, session.last)
    if memory is not None:
        assert session.placement.size_bytes <= memory


@pytest.mark.parametrize("share", [0.0, 0.2, None])
def test_bert_is_hugging_faces_after_edits(folder: Any, share: float | None) -> None:
    path, model = folder("bert", bert_reduced(), bert_checkpoint, "AutoModel")
    graph = bert(path, 12, batch=3, pooled=False)
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, VOCAB, (3, 12)), np.ones((3, 12), np.int64)
    mask[1, 7:] = 0
    memory = None
    if share is not None:
        low = smallest(graph, path, {"ids": ids, "mask": mask}, None)
        memory = low + int(share * low)
    session = PoisonedSession(graph, path, memory=memory, ignore_weights=["pooler.*"])
    for step in range(6):
        ids, mask = ids.copy(), mask.copy()
        if step % 3 == 1:
            ids[step % 3, 2:5] = rng.integers(0, VOCAB, 3)
        if step % 3 == 2:
            mask[2, 12 - step :] = 0
        found = session.run({"ids": ids, "mask": mask})["hidden"]
        with torch.inference_mode():
            expected = model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state
        open_ = mask.astype(bool)
        assert close(found[open_], expected.numpy()[open_]), step


def test_minilm_is_hugging_faces_after_edits() -> None:
    transformers = pytest.importorskip("transformers")
    path = find_minilm()
    model = transformers.AutoModel.from_pretrained(path, attn_implementation="eager").eval()
    session = PoisonedSession(
        bert(path, 16, batch=2), path, ignore_weights=["pooler.*", "embeddings.position_ids"]
    )
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(1000, 20000, (2, 16)), np.ones((2, 16), np.int64)
    for step in range(4):
        ids = ids.copy()
        ids[step % 2, step : step + 2] = rng.integers(1000, 20000, 2)
        found = session.run({"ids": ids, "mask": mask})
        with torch.inference_mode():
            hidden = model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state.numpy()
        mean = hidden.mean(1)
        assert close(found["hidden"], hidden)
        assert close(found["embedding"], mean / np.linalg.norm(mean, axis=1, keepdims=True))


@pytest.mark.slow
def test_gemma_270m_is_hugging_faces(tmp_path: Path) -> None:
    """The real sizes, random weights: a prompt, some tokens, an edit. Needs 4 GB."""
    transformers = pytest.importorskip("transformers")
    gemma3_checkpoint(tmp_path, GEMMA3_270M)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    session = PoisonedSession(gemma3(tmp_path, 64), tmp_path, memory="24MiB")
    rng = np.random.default_rng(0)
    ids = np.zeros((1, 64), np.int64)
    ids[0, :32] = rng.integers(0, GEMMA3_270M["vocab_size"], 32)
    for at, place in [(31, None), (32, 32), (33, 33), (34, 34), (34, 10), (35, 35)]:
        ids = ids.copy()
        if place is not None:
            ids[0, place] = rng.integers(0, GEMMA3_270M["vocab_size"])
        found = session.run({"ids": ids}, {"logits": np.s_[0, at]})["logits"]
        with torch.inference_mode():
            expected = model(torch.from_numpy(ids[:, : at + 1])).logits[0, -1].numpy()
        assert close(found, expected), at


# --- KV caching falls out -------------------------------------------------------------------------


def decoding(
    folder: Any, stop: int = 16, case: str = "window shorter than the text", **options: Any
) -> tuple[PoisonedSession, Array]:
    """A session that has read ten ids, then decoded up to (excluding) `stop`."""
    graph, path, _ = gemma_case(folder, case)
    session = PoisonedSession(graph, path, **options)
    ids = np.zeros(graph.inputs["ids"].shape, np.int64)
    ids[:, :10] = np.random.default_rng(0).integers(0, VOCAB, (len(ids), 10))
    session.run({"ids": ids}, {"logits": np.s_[:, 9]})
    for t in range(10, stop):
        ids = append(session, ids, t)
    return session, ids


def append(session: GraphSession, ids: Array, t: int, **options: Any) -> Array:
    ids = ids.copy()
    ids[:, t] = (7 * t + 1) % VOCAB
    session.run({"ids": ids}, {"logits": np.s_[:, t]}, **options)
    return ids


def test_with_everything_retained_a_token_computes_its_own_row(folder: Any) -> None:
    session, ids = decoding(folder, 12, retain="all")
    for t in range(12, 16):
        ids = append(session, ids, t)
        computed = session.last.compute  # type: ignore[union-attr]
        names = {node.name: node for node in session.scheduled.stored}
        assert set(computed) >= set(names), set(names) - set(computed)
        for name, region in computed.items():
            node = session.graph.node(name)
            axis = 2 if node.op == "attention" else 1  # attention is stored heads first
            row = Box((t, t + 1) if i == axis else (0, size) for i, size in enumerate(node.shape))
            assert region == Region((row,)), name


def test_attention_reads_open_positions_alone(folder: Any) -> None:
    session, ids = decoding(folder, 16, retain="all")
    append(session, ids, 16)
    (step,) = session.last.program.steps  # type: ignore[union-attr]
    for layer, first in enumerate([16 + 1 - 5, 0]):  # a window of 5, then everything
        for name in "kv":
            node = session.graph.node(f"layer_{layer}.{name}")
            read = step.needed[node].at(session.last.origin)  # type: ignore[union-attr]
            assert read == opened(first, 17, *node.shape), node.name


def test_logits_are_one_row(folder: Any) -> None:
    session, _ = decoding(folder)
    logits = session.placement.slots[session.graph.outputs["logits"]]
    assert logits.extents == (1, 1, VOCAB)
    full = T * VOCAB * 4
    assert max(map(session.placement.size_of, session.placement.slots)) < full
    assert not any(scratch.size_bytes >= full for scratch in session.placement.scratch.values())


def test_the_computed_regions_of_a_decoded_token(folder: Any) -> None:
    session, ids = decoding(folder, 16, retain="all")
    append(session, ids, 16)
    lines = [f"{name} {region}" for name, region in session.last.compute.items()]  # type: ignore[union-attr]
    expected = (GOLDEN / "decoded_token.txt").read_text()
    assert "\n".join(lines) + "\n" == expected


def test_nothing_but_the_op_its_kernels_and_the_models_knows_of_attention() -> None:
    """Identifiers and strings of the code; comments and documentation may say the word."""
    root = Path(tgbench.__file__).parent
    allowed = ("graph/ops/nn.py", "graph/ops/__init__.py", "graph/recognise/", "kernels/",
               "sources/", "views/", "commands/")  # fmt: skip
    found = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if not name.startswith(allowed):
            found += [f"{name}:{line}" for line in _mentions(path.read_text(), "attention")]
    assert not found


def _mentions(source: str, word: str) -> list[int]:
    lines, fresh = [], True  # fresh: a string here would be a docstring
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT):
            fresh = True
        elif token.type not in (tokenize.NL, tokenize.COMMENT):
            is_docstring = fresh and token.type == tokenize.STRING
            if word in token.string.lower() and not is_docstring:
                lines.append(token.start[0])
            fresh = False
    return lines


# --- small memory ---------------------------------------------------------------------------------


def keys_and_values(session: GraphSession) -> set[str]:
    layers = range(sum(node.op == "attention" for node in session.graph.nodes))
    return {f"layer_{layer}.{name}" for layer in layers for name in "kv"}


def test_what_is_retained_is_k_and_v(folder: Any) -> None:
    session, _ = decoding(folder)
    assert set(session.plan.retained) == keys_and_values(session)
    assert not session.plan.dropped


def test_a_budget_for_k_v_and_transients_is_enough_and_spent_on_them(folder: Any) -> None:
    roomy, ids = decoding(folder)
    exact = roomy.placement.size_bytes
    session, ids = decoding(folder, memory=exact)
    assert set(session.plan.retained) == keys_and_values(session)
    append(session, ids, 16)
    assert session.last.recomputed < 0.2  # type: ignore[union-attr]
    kept = session.placement.kept_bytes
    sizes = [session.graph.node(name).type.size_bytes for name in session.plan.retained]
    assert kept <= sum(sizes) + 64 * (len(sizes) + 1) + ids.nbytes


def test_below_that_it_runs_and_says_what_it_computes_again(folder: Any) -> None:
    graph, path, _ = gemma_case(folder, "window shorter than the text")
    ids = np.zeros((1, T), np.int64)
    low = smallest(graph, path, {"ids": ids}, {"logits": np.s_[:, 9]})
    session, ids = decoding(folder, 12, memory=low)
    missing = keys_and_values(session) - set(session.plan.retained)
    assert missing == set(session.plan.dropped)
    if missing:
        assert "computed again when needed" in str(session.plan)
        assert all(name in str(session.plan) for name in missing)
    append(session, ids, 12)


# --- one document of a batch ----------------------------------------------------------------------


def test_a_run_that_changes_one_document_computes_only_that_row(folder: Any) -> None:
    path, _ = folder("bert", bert_reduced(), bert_checkpoint, "AutoModel")
    session = PoisonedSession(bert(path, 12, batch=4), path, ignore_weights=["pooler.*"])
    ids = np.random.default_rng(0).integers(0, VOCAB, (4, 12))
    mask = np.ones((4, 12), np.int64)
    session.run({"ids": ids, "mask": mask})
    for document in (2, 0, 3):
        ids = ids.copy()
        ids[document, 5] += 1
        session.run({"ids": ids % VOCAB, "mask": mask})
        computed = session.last.compute  # type: ignore[union-attr]
        assert computed
        for name, region in computed.items():
            assert region.hull()[0] == (document, document + 1), name


# --- allocation, and what is found again ----------------------------------------------------------


def test_a_warm_run_allocates_nothing_in_its_calls(folder: Any) -> None:
    session, ids = decoding(folder, 14)
    ids = append(session, ids, 14, copy=False)
    ids = append(session, ids, 15, copy=False)
    report = session.last
    assert report is not None
    assert report.moved
    assert not report.specialised
    program = session.last.program  # type: ignore[union-attr]
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        for function, arguments in program.calls:
            function(*arguments)
    declared = sum(i.allocates for i in program.instructions)
    taken = [e for e in recorded.events() if e.name == "[memory]" and e.self_cpu_memory_usage > 0]
    names = sorted({i.kernel for i in program.instructions if i.allocates})
    if not declared:
        assert not taken, [event.self_cpu_memory_usage for event in taken]
    assert sum(e.self_cpu_memory_usage for e in taken) <= declared, names


def test_the_second_run_of_a_class_decides_nothing(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, ids = decoding(folder, 12)

    def fail(*arguments: Any, **named: Any) -> Any:
        raise AssertionError("propagated")

    monkeypatch.setattr(Propagator, "step", fail)
    monkeypatch.setattr(Propagator, "forward", fail)
    for t in (12, 13, 14):
        ids = append(session, ids, t)
        assert session.last.moved  # type: ignore[union-attr]


# --- plans ----------------------------------------------------------------------------------------

CHILD = """
import json, sys
import numpy as np
from tgbench.sources.models import gemma3
from tgbench.session.session import GraphSession

path, plan, batch, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
ids = np.array(json.loads(sys.argv[5]))
session = GraphSession(gemma3(path, tokens, batch), path, plan=plan)
found = session.run({"ids": ids}, {"logits": np.s_[:, 15]})["logits"]
ids[:, 16] = 3
more = session.run({"ids": ids}, {"logits": np.s_[:, 16]})["logits"]
logits = [found.tolist(), more.tolist()]
print(json.dumps({"planned": session.counters.planned, "logits": logits}))
"""


def test_a_saved_plan_starts_another_process_without_planning(folder: Any, tmp_path: Path) -> None:
    session, ids = decoding(folder)
    _, path, _ = gemma_case(folder, "window shorter than the text")
    session.save_plan(tmp_path / "plan.json")
    found = session.run({"ids": ids}, {"logits": np.s_[:, 15]})["logits"]
    arguments = [str(path), str(tmp_path / "plan.json"), "1", str(T), json.dumps(ids.tolist())]
    answer = json.loads(printed(CHILD, *arguments))
    assert answer["planned"] == 0
    assert close(np.array(answer["logits"][0]), found)
    ids[:, 16] = 3
    more = session.run({"ids": ids}, {"logits": np.s_[:, 16]})["logits"]
    assert close(np.array(answer["logits"][1]), more)


def test_equal_sessions_make_equal_plans_byte_for_byte(folder: Any) -> None:
    plans = []
    for _ in range(2):
        session, _ = decoding(folder, memory="64KiB")
        plans.append(session.plan.to_json())
    assert plans[0] == plans[1]


def test_a_decode_through_windows_makes_none_once_they_are_full(folder: Any) -> None:
    """How far a token reaches, and where the text ends, is nothing to an append."""
    graph, path, model = gemma_case(folder, "window shorter than the text")
    session = GraphSession(graph, path, making="always", calibrate=False)
    ids = np.zeros((1, T), np.int64)
    ids[0, :2] = 7, 9
    session.run({"ids": ids}, {"logits": np.s_[0, 1]})
    made = []
    for at in range(2, T):
        ids[0, at] = 3 + 5 * at % 200
        found = session.run({"ids": ids}, {"logits": np.s_[0, at]})["logits"]
        with torch.no_grad():
            assert close(found, model(torch.from_numpy(ids[:, : at + 1])).logits[0, at].numpy())
        made.append(session.report().specialised)
    assert not any(made[5:-1]), made


def test_a_block_between_others_is_one_program_from_the_window_to_the_end(folder: Any) -> None:
    """What it makes stale behind it is nothing to what it computes, also where that is all there:
    how far it reaches differs from layer to layer, and where the text ends.
    """
    graph, path, _ = gemma_case(folder, "window shorter than the text")
    session = GraphSession(graph, path, making="measured", calibrate=False)
    ids = np.arange(T, dtype=np.int64)[None]
    session.run({"ids": ids})
    memory, count, first = session.keeper.memory, 2, 8
    block = Box(((0, 1), (first, first + count)))
    demand = Box((*block, (0, VOCAB)))
    spot = Bucket.of({"ids": Region((block,))}, {"logits": Region((demand,))}).classify(graph)
    state = session.keeper.standing.valid
    made = at_once(memory.specialising(state, *spot, or_more=True, leftovers=False))
    assert all(made.domain.holds((at,)) for at in range(5, T - count))
    left = memory.states.patterns[memory.after(made, state, spot)].state
    there = {node.name: held.valid.at(spot.origin) for node, held in left.items()}
    stop, reach = first + count, 5 - 1  # of a window, behind the block
    for name in ("layer_1.k", "layer_1.v"):
        shape = graph.node(name).shape
        rows = graph.node(name).shape.index(T)
        parts = [
            Box((span if axis == rows else (0, n)) for axis, n in enumerate(shape))
            for span in ((0, stop), (stop + reach, T))
        ]
        assert there[name] == Region.of(*parts)


def test_what_is_planned_for_is_ready_with_the_first_answer_of_a_searched_plan(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tgbench.session.choosing.CLEARLY", 1.0)  # of so few rows all is quick
    graph, path, _ = gemma_case(folder, "window shorter than the text")
    session = GraphSession(graph, path, making="measured", calibrate=False)
    rehearsing = session.runner.rehearser.rehearsing

    def to_the_end(likely: Any) -> Any:
        for _ in rehearsing(likely):  # as long as it takes
            pass
        yield

    session.runner.rehearser.rehearsing = to_the_end  # type: ignore[method-assign]
    ids = np.zeros((1, T), np.int64)

    def append(at: int) -> None:
        ids[0, at] = 3 + at
        session.run({"ids": ids}, {"logits": np.s_[0, at]})

    for at in range(1, 10):
        append(at)
    session.optimize("greedy", steps=0)
    append(10)
    kind = session.report().bucket.classify(session.graph).kind
    ready = {kind: program for _, kind, program in session.keeper.programs if not program.renews}
    appends = next(k for k, (weight, _) in session.planning.classes.items() if weight > 1)
    assert kind != appends
    assert ready[appends].domain.holds((11,))
