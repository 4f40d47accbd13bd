"""The model graphs compute what Hugging Face computes, and an edit reaches what it should."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from tgbench.base.errors import GraphError, InputError, KernelError, WeightsError
from tgbench.base.regions import Box, Region
from tgbench.base.safetensors import Weights
from tgbench.graph.dims import dim
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.reference import evaluate
from tgbench.memory.storage import ScheduledGraph
from tgbench.runs.propagate import Propagator, Step, Storage
from tgbench.runs.rules import Rules
from tgbench.sources.models import Tokenizer, bert, complete, gemma3, generate, stream
from tgbench.sources.models.checkpoints import (
    GEMMA3_270M,
    MINILM,
    bert_checkpoint,
    bert_reduced,
    find_minilm,
    gemma3_checkpoint,
    gemma3_reduced,
)
from tgbench.sources.models.text import Sampling, pick

Array = npt.NDArray[Any]
WIDE = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}


# --- helpers ------------------------------------------------------------------------------------


def folded(graph: Graph) -> Graph:
    """Nodes of constants alone become constants, as simplification does."""

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        is_fixed = not node.is_leaf and all(parent.op == "constant" for parent in inputs)
        if not is_fixed or node.dtype == "bfloat16":
            return copy_node(builder, node, inputs)
        arrays = [parent.attrs["data"].array for parent in inputs]
        return builder.constant(node.call.op.reference(node.attrs, *arrays), node.dtype)

    return graph.rebuild(make)


def evaluated(graph: Graph, inputs: Mapping[str, Array], weights: Weights) -> dict[str, Array]:
    """Every output by the NumPy references; the weights are found by name."""
    parameters = {name: weights.tensor(name).float().numpy() for name in graph.parameters}
    return evaluate(graph, {**inputs, **parameters})


def hugging_face(auto: str, folder: Path, **options: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    options = {"dtype": torch.float32, "attn_implementation": "eager"} | options
    return getattr(transformers, auto).from_pretrained(folder, **options).eval()


def relative_error(found: Array, expected: Array) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def random_ids(vocab: int, *shape: int) -> Array:
    return np.random.default_rng(0).integers(0, vocab, shape)


# --- Gemma 3 against Hugging Face ---------------------------------------------------------------

GEMMA3: dict[str, tuple[dict[str, Any], int, int]] = {  # overrides, tokens, batch
    "window shorter than the text": ({}, 24, 1),
    "window longer than the text": ({"sliding_window": 64}, 12, 1),
    "four heads share two": (WIDE, 20, 1),
    "no sharing": ({"num_attention_heads": 2, "num_key_value_heads": 2}, 16, 1),
    "batch of two": ({"num_hidden_layers": 3}, 12, 2),
    "untied": ({"tie_word_embeddings": False}, 16, 1),
    "other scale, softcapped": (
        {"query_pre_attn_scalar": 100, "final_logit_softcapping": 2.0},
        16,
        1,
    ),
    "one token": ({}, 1, 1),
    "all positions": ({"sliding_window": 100}, 512, 1),
}


def gemma3_case(folder: Path, case: str, dtype: str = "float32") -> tuple[Graph, Array, Weights]:
    overrides, tokens, batch = GEMMA3[case]
    config = gemma3_reduced(**overrides)
    gemma3_checkpoint(folder, config, dtype=dtype)
    graph = folded(gemma3(folder, tokens, batch, dtype))
    return graph, random_ids(config["vocab_size"], batch, tokens), Weights(folder)


@pytest.mark.parametrize("case", GEMMA3)
def test_gemma3_is_hugging_faces(tmp_path: Path, case: str) -> None:
    graph, ids, weights = gemma3_case(tmp_path, case)
    found = evaluated(graph, {"ids": ids}, weights)["logits"]
    with torch.no_grad():
        model = hugging_face("AutoModelForCausalLM", tmp_path)
        expected = model(torch.from_numpy(ids)).logits.numpy()
    assert found.dtype == np.float32
    assert relative_error(found, expected) <= 1e-5
    assert (found.argmax(-1) == expected.argmax(-1)).all()


def test_gemma3_in_bfloat16_is_hugging_faces_but_for_rounding(tmp_path: Path) -> None:
    graph, ids, weights = gemma3_case(tmp_path, "untied", "bfloat16")
    assert graph.outputs["logits"].dtype == "bfloat16"
    found = evaluated(graph, {"ids": ids}, weights)["logits"]  # computed in float32
    with torch.no_grad():
        model = hugging_face("AutoModelForCausalLM", tmp_path, dtype=torch.bfloat16)
        expected = model(torch.from_numpy(ids)).logits.float().numpy()
    assert relative_error(found, expected) <= 0.05


@pytest.mark.parametrize("kind", ["full_attention", "sliding_attention"])
def test_rotary_tables_are_hugging_faces(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

    linear = {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}
    ropes = {**GEMMA3_270M["rope_parameters"], "full_attention": linear}
    config = GEMMA3_270M | {"rope_parameters": ropes}
    embedding = Gemma3RotaryEmbedding(transformers.Gemma3TextConfig(**config))
    expected = embedding(torch.ones(1), torch.arange(4096)[None], kind)
    graph = gemma3(gemma3_reduced(head_dim=256, rope_parameters=ropes), 4096)
    for name, table in zip(("cos", "sin"), expected, strict=True):
        found = value_of(graph.node(f"{kind}.{name}"))
        assert np.abs(found[:, 0] - table[0].numpy()).max() <= 1e-6


def value_of(node: Node) -> Array:
    """The value of a node that depends on nothing."""
    if node.op == "constant":
        return np.asarray(node.attrs["data"].array)
    return node.call.op.reference(node.attrs, *(value_of(parent) for parent in node.inputs))


def test_the_masks_show_who_sees_whom() -> None:
    graph = gemma3(gemma3_reduced(sliding_window=3), 5)
    drawn = {
        kind: [
            "".join(".#"[int(open_)] for open_ in row)
            for row in value_of(graph.node(f"{kind}.mask"))
        ]
        for kind in ("full_attention", "sliding_attention")
    }
    assert drawn["full_attention"] == ["#....", "##...", "###..", "####.", "#####"]
    assert drawn["sliding_attention"] == ["#....", "##...", "###..", ".###.", "..###"]


# --- how the graph is built ---------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_gemma3_has_the_parameters_of_the_checkpoint(tmp_path: Path, tied: bool) -> None:
    config = gemma3_reduced(tie_word_embeddings=tied)
    gemma3_checkpoint(tmp_path, config)
    graph, weights = gemma3(config, 8), Weights(tmp_path)
    assert set(graph.parameters) == set(weights.names())
    for name, node in graph.parameters.items():
        assert weights.info(name).shape == node.shape
    head = graph.outputs["logits"].inputs[1]
    assert (head.name == "model.embed_tokens.weight") == tied


def test_bert_has_the_parameters_of_the_checkpoint(tmp_path: Path) -> None:
    bert_checkpoint(tmp_path, bert_reduced())
    weights = Weights(tmp_path)
    unused = {"pooler.dense.weight", "pooler.dense.bias"}
    assert set(bert(tmp_path, 8).parameters) == set(weights.names()) - unused


@pytest.mark.parametrize(
    ("build", "config"), [(gemma3, gemma3_reduced(**WIDE)), (bert, bert_reduced())]
)
def test_a_bound_graph_is_the_graph_of_that_size(
    build: Callable[..., Graph], config: dict[str, Any]
) -> None:
    symbolic = build(config, dim("T", max=64), batch=2)
    assert [str(symbol) for symbol in symbolic.symbols] == ["T"]
    assert symbolic.bind(T=12).fingerprint == build(config, 12, batch=2).fingerprint


def test_layers_of_a_kind_share_tables_and_mask() -> None:
    graph = gemma3(gemma3_reduced(num_hidden_layers=6), 8)
    masks = [graph.node(f"layer_{i}.attention").inputs[3].name for i in range(6)]
    assert masks == ["sliding_attention.mask", "full_attention.mask"] * 3
    assert sum(node.op == "cos" for node in graph.nodes) == 2


def test_key_nodes_have_names() -> None:
    graph = gemma3(gemma3_reduced(), 8, batch=3)
    shapes = {"q": (3, 8, 2, 32), "k": (3, 8, 1, 32), "v": (3, 8, 32), "attention": (3, 2, 8, 32)}
    shapes |= {"middle": (3, 8, 64), "gated": (3, 8, 128), "out": (3, 8, 64)}
    for layer in range(2):
        for name, shape in shapes.items():
            assert graph.node(f"layer_{layer}.{name}").shape == shape


def test_given_names_survive_a_rebuild() -> None:
    graph = gemma3(gemma3_reduced(), 8)
    again = graph.rebuild(copy_node)
    for name in ("embedded", "layer_0.q_flat", "layer_1.k", "sliding_attention.mask", "logits"):
        assert again.node(name).type == graph.node(name).type


def test_a_leaf_keeps_its_name() -> None:
    g = GraphBuilder()
    with pytest.raises(GraphError, match="leaf"):
        g.name(g.input("x", (2,)), "y")


def test_gemma3_reads_the_configuration_of_the_hub() -> None:
    config = {
        key: value
        for key, value in GEMMA3_270M.items()
        if key not in ("rope_parameters", "tie_word_embeddings")
    }
    old = config | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": None}
    assert gemma3(old, 4).fingerprint == gemma3(GEMMA3_270M, 4).fingerprint
    del old["layer_types"]  # every sixth is full
    assert gemma3(old, 4).fingerprint == gemma3(GEMMA3_270M, 4).fingerprint
    old["rope_scaling"] = {"rope_type": "linear", "factor": 8.0}
    assert gemma3(old, 4).fingerprint != gemma3(GEMMA3_270M, 4).fingerprint


@pytest.mark.parametrize(
    ("field", "value", "mend"),
    [
        ("attn_logit_softcapping", 50.0, "null"),
        ("attention_bias", True, "false"),
        ("use_bidirectional_attention", True, "false"),
        ("model_type", "gemma2", "builder"),
        ("hidden_activation", "swish", "gelu_pytorch_tanh"),
        ("layer_types", ["full_attention"], "one for each layer"),
        ("layer_types", 3, "one for each layer"),
        ("num_key_value_heads", 3, "change one"),
        ("hidden_size", 0, "set it"),
        ("num_hidden_layers", 2**40, "set it"),
        ("layer_types", ["x" * 10**6], "one for each layer"),
        ("rms_norm_eps", "small", "set it"),
        ("sliding_window", None, "set it"),
        ("rope_parameters", {"sliding_attention": {}}, "full_attention"),
        (
            "rope_type",
            {"sliding_attention": {}, "full_attention": {"rope_type": "yarn"}},
            "linear",
        ),
    ],
)
def test_an_unsupported_gemma3_is_refused_with_the_mend(field: str, value: Any, mend: str) -> None:
    with pytest.raises(GraphError, match=field) as caught:
        gemma3(gemma3_reduced() | {field.replace("rope_type", "rope_parameters"): value}, 8)
    assert mend in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "roberta"),
        ("is_decoder", True),
        ("position_embedding_type", "relative_key"),
        ("num_attention_heads", 3),
        ("hidden_act", "mish"),
        ("max_position_embeddings", 4),
        ("num_hidden_layers", 2**40),
        ("vocab_size", 2**60),
        ("layer_norm_eps", float("inf")),
    ],
)
def test_an_unsupported_bert_is_refused(field: str, value: Any) -> None:
    with pytest.raises(GraphError):
        bert(bert_reduced() | {field: value}, 8)


@pytest.mark.parametrize(
    ("build", "config", "field"),
    [(gemma3, gemma3_reduced(), "num_attention_heads"), (bert, bert_reduced(), "layer_norm_eps")],
)
def test_a_wrong_field_is_said_with_its_file(
    build: Callable[..., Graph], config: dict[str, Any], field: str, tmp_path: Path
) -> None:
    wrong = config | {field: -1}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    with pytest.raises(GraphError, match=rf"^{re.escape(str(tmp_path))}: config: {field} is -1"):
        build(tmp_path, 8)
    with pytest.raises(GraphError, match=rf"^config: {field} is -1"):
        build(wrong, 8)


def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"config\.json"):
        gemma3(tmp_path, 8)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(GraphError, match="no JSON object"):
        gemma3(tmp_path / "config.json", 8)
    with pytest.raises(GraphError, match="not a float"):
        gemma3(gemma3_reduced(), 8, dtype="int8")


# --- BERT against Hugging Face ------------------------------------------------------------------


def expected_bert(folder: Path, ids: Array, mask: Array) -> tuple[Array, Array]:
    """Hidden states of Hugging Face, and the pooling that sentence-transformers does."""
    with torch.no_grad():
        model = hugging_face("AutoModel", folder)
        hidden = model(torch.from_numpy(ids), torch.from_numpy(mask)).last_hidden_state
        open_ = torch.from_numpy(mask)[..., None].expand(hidden.size()).float()
        mean = (hidden * open_).sum(1) / torch.clamp(open_.sum(1), min=1e-9)
        pooled = torch.nn.functional.normalize(mean, p=2, dim=1)
    return hidden.numpy(), pooled.numpy()


@pytest.mark.parametrize("overrides", [{}, {"num_attention_heads": 8, "hidden_act": "gelu_new"}])
def test_bert_is_hugging_faces(tmp_path: Path, overrides: dict[str, Any]) -> None:
    config = bert_reduced(**overrides)
    bert_checkpoint(tmp_path, config)
    ids = random_ids(config["vocab_size"], 3, 20)
    mask = (np.arange(20) < np.array([[20], [7], [0]])).astype(np.int64)  # full, padded, empty
    found = evaluated(bert(tmp_path, 20, batch=3), {"ids": ids, "mask": mask}, Weights(tmp_path))
    hidden, pooled = expected_bert(tmp_path, ids, mask)
    assert relative_error(found["hidden"], hidden) <= 1e-5
    assert relative_error(found["embedding"], pooled) <= 1e-5
    assert set(bert(tmp_path, 20, pooled=False).outputs) == {"hidden"}


def minilm() -> Path:
    pytest.importorskip("tokenizers")
    try:
        return find_minilm()
    except WeightsError as error:
        pytest.skip(str(error))


SENTENCES = (
    "A man is eating a piece of bread.",
    "Someone has lunch.",
    "The orbit of Mercury precesses by 43 arcseconds a century, which Newton cannot explain.",
)


def test_minilm_embeds_real_sentences() -> None:
    folder = minilm()
    inputs = Tokenizer.from_directory(folder).batch(SENTENCES, 32)
    found = evaluated(bert(folder, 32, batch=3), inputs, Weights(folder))
    hidden, pooled = expected_bert(folder, **inputs)
    open_ = inputs["mask"] == 1  # at padding, float32 itself is off by 6e-6
    assert relative_error(found["hidden"][open_], hidden[open_]) <= 1e-5
    assert relative_error(found["embedding"], pooled) <= 1e-5
    likeness = found["embedding"] @ found["embedding"].T
    assert likeness[0, 1] > 0.4 > 0.1 > likeness[0, 2]
    assert bert(MINILM, 32, batch=3).fingerprint == bert(folder, 32, batch=3).fingerprint


# --- what a run computes ------------------------------------------------------------------------


class Steps:
    """Runs of a graph with every stored node retained."""

    def __init__(self, graph: Graph) -> None:
        scheduled = ScheduledGraph.of(graph)
        self.graph, self.stored = graph, scheduled.stored
        storage = Storage(scheduled.views, scheduled.frozen, frozenset(scheduled.stored))
        self.propagator = Propagator(graph, storage, Rules())
        self.valid: Mapping[Node, Region] = {}

    def run(self, changed: Mapping[str, Box], want: Mapping[str, Box]) -> Step:
        step = self.propagator.step(
            self.valid,
            {self.graph.inputs[name]: Region.of(box) for name, box in changed.items()},
            {self.graph.outputs[name]: Region.of(box) for name, box in want.items()},
        )
        self.valid = step.valid
        return step


def row(shape: tuple[int, ...], axis: int, start: int, stop: int) -> Box:
    return Box((start, stop) if i == axis else (0, size) for i, size in enumerate(shape))


def token_axis(node: Node) -> int:
    return 2 if node.op == "attention" else 1


T, WINDOW, VOCAB = 16, 4, 256


@pytest.fixture
def decoding() -> Steps:
    config = gemma3_reduced(num_hidden_layers=4, sliding_window=WINDOW)
    steps = Steps(folded(gemma3(config, T)))
    steps.run({"ids": row((1, T), 1, 0, T)}, {"logits": row((1, T, VOCAB), 1, 8, 9)})
    return steps


def test_an_appended_token_computes_its_own_row_of_every_node(decoding: Steps) -> None:
    for t in (9, 10, 11):
        step = decoding.run(
            {"ids": row((1, T), 1, t, t + 1)}, {"logits": row((1, T, VOCAB), 1, t, t + 1)}
        )
        assert set(step.compute) == set(decoding.stored)
        for node, region in step.compute.items():
            assert region == Region.of(row(node.shape, token_axis(node), t, t + 1)), node.name


def test_attention_reads_the_keys_and_values_that_its_mask_opens(decoding: Steps) -> None:
    for t in (9, 10, 11, 12):
        step = decoding.run(
            {"ids": row((1, T), 1, t, t + 1)}, {"logits": row((1, T, VOCAB), 1, t, t + 1)}
        )
    for layer, first in enumerate([t + 1 - WINDOW, 0] * 2):
        for name in "kv":
            node = decoding.graph.node(f"layer_{layer}.{name}")
            opened = Region.of(row(node.shape, 1, first, t + 1))
            assert step.needed[node] == opened, node.name


def test_the_prompt_leaves_out_what_the_last_row_does_not_see() -> None:
    config = gemma3_reduced(
        num_hidden_layers=2, sliding_window=WINDOW, layer_types=["sliding_attention"] * 2
    )
    steps = Steps(folded(gemma3(config, T)))
    t = 10
    step = steps.run({"ids": row((1, T), 1, 0, T)}, {"logits": row((1, T, VOCAB), 1, t, t + 1)})
    first = {  # layer 1 sees a window of layer 0's outputs, and each of them a window of the ids
        "layer_1.out": t,
        "layer_1.k": t + 1 - WINDOW,
        "layer_0.out": t + 1 - WINDOW,
        "layer_0.k": t + 2 - 2 * WINDOW,
        "embedded": t + 2 - 2 * WINDOW,
    }
    for name, start in first.items():
        node = steps.graph.node(name)
        assert step.compute[node] == Region.of(row(node.shape, 1, start, t + 1)), name


def test_an_edited_token_dirties_what_comes_after_it(decoding: Steps) -> None:
    step = decoding.run({"ids": row((1, T), 1, 5, 6)}, {"logits": row((1, T, VOCAB), 1, 8, 9)})
    for layer, (first, last) in enumerate([(5, 9), (5, 9), (5, 9), (8, 9)]):
        node = decoding.graph.node(f"layer_{layer}.out")
        assert step.compute[node] == Region.of(row(node.shape, 1, first, last)), node.name
        assert step.dirty[node].hull()[1][0] == 5


def test_a_token_past_the_window_of_every_layer_changes_nothing() -> None:
    config = gemma3_reduced(
        num_hidden_layers=2, sliding_window=WINDOW, layer_types=["sliding_attention"] * 2
    )
    steps = Steps(folded(gemma3(config, T)))
    want = {"logits": row((1, T, VOCAB), 1, 12, 13)}
    steps.run({"ids": row((1, T), 1, 0, T)}, want)
    assert not steps.run(
        {"ids": row((1, T), 1, 12 + 1 - 2 * WINDOW, 12 + 2 - 2 * WINDOW)}, want
    ).compute


@pytest.mark.parametrize("name", ["ids", "mask"])
def test_an_edited_document_dirties_its_own_row(name: str) -> None:
    shape = (4, 12)
    steps = Steps(folded(bert(bert_reduced(), 12, batch=4)))
    want = {key: Box.full(node.shape) for key, node in steps.graph.outputs.items()}
    whole = {key: Box.full(shape) for key in ("ids", "mask")}
    assert all(
        region == Region.full(node.shape) for node, region in steps.run(whole, want).compute.items()
    )
    step = steps.run({name: Box([(2, 3), (5, 6)])}, want)
    for node, region in step.compute.items():
        assert region.hull()[0] == (2, 3), node.name
    embedding = steps.graph.outputs["embedding"]
    assert step.compute[embedding] == Region.of(Box([(2, 3), (0, 64)]))


# --- text ---------------------------------------------------------------------------------------


class FakeSession:
    """Full runs by the references; remembers what it was asked."""

    def __init__(self, graph: Graph, weights: Weights) -> None:
        self.graph, self.weights = graph, weights
        self.calls: list[tuple[Array, Any]] = []

    def run(
        self, inputs: Mapping[str, Any], want: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        assert want is not None
        self.calls.append((inputs["ids"], want["logits"]))
        found = evaluated(self.graph, inputs, self.weights)
        return {name: found[name][index] for name, index in want.items()}


@pytest.fixture
def session(tmp_path: Path) -> FakeSession:
    gemma3_checkpoint(tmp_path, gemma3_reduced())
    return FakeSession(folded(gemma3(tmp_path, 24)), Weights(tmp_path))


PROMPT = [2, 40, 200, 7]


def test_greedy_generation_is_hugging_faces(session: FakeSession, tmp_path: Path) -> None:
    model = hugging_face("AutoModelForCausalLM", tmp_path)
    expected = model.generate(
        torch.tensor([PROMPT]), do_sample=False, max_new_tokens=12, eos_token_id=None
    )[0, len(PROMPT) :].tolist()
    heard: list[int] = []
    assert generate(session, PROMPT, 12, on_token=heard.append) == expected == heard


def test_each_step_changes_one_id_and_asks_for_one_row(session: FakeSession) -> None:
    result = generate(session, PROMPT, 4)
    assert [want for _, want in session.calls] == [(0, 3), (0, 4), (0, 5), (0, 6)]
    for t, (ids, _) in enumerate(session.calls):
        assert ids[0].tolist() == [*PROMPT, *result[:t], *[0] * (20 - t)]


def test_a_stop_id_ends_the_generation(session: FakeSession) -> None:
    whole = generate(session, PROMPT, 6)
    stop = whole[3]
    assert generate(session, PROMPT, 6, stop=[stop]) == whole[: whole.index(stop)]


def test_sampling_repeats_with_its_seed(session: FakeSession) -> None:
    drawn = [generate(session, PROMPT, 8, temperature=1.5, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert generate(session, PROMPT, 8, temperature=1.5, top_k=1) == generate(session, PROMPT, 8)


def test_the_last_position_may_be_asked_but_no_further(session: FakeSession) -> None:
    assert len(generate(session, [3] * 24, 1)) == 1
    assert generate(session, PROMPT, 0) == []
    for ids, steps in (([3] * 24, 2), ([3] * 25, 0)):
        with pytest.raises(InputError, match="the graph has 24"):
            generate(session, ids, steps)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([], {}, "empty"),
        ([256], {}, "outside the vocabulary"),
        ([-1], {}, "outside the vocabulary"),
        ([1], {"steps": -1}, "steps"),
        ([1], {"stop": 3}, "stop"),
        ([1], {"temperature": -1.0}, "temperature"),
        ([1], {"temperature": float("nan")}, "temperature"),
        ([1], {"top_k": 0}, "top_k"),
        ([1], {"top_p": 0.0}, "top_p"),
    ],
)
def test_a_request_that_makes_no_sense_is_an_error(
    session: FakeSession, ids: list[int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        generate(session, ids, **({"steps": 2} | options))
    assert not session.calls


def test_another_kind_of_graph_cannot_generate(tmp_path: Path) -> None:
    bert_checkpoint(tmp_path, bert_reduced())
    for graph in (bert(tmp_path, 8), gemma3(gemma3_reduced(), dim("T"))):
        with pytest.raises(GraphError):
            generate(FakeSession(graph, Weights(tmp_path)), [1], 1)


def frequencies(logits: list[float], sampling: Sampling, draws: int = 4000) -> Array:
    random = np.random.default_rng(0)
    found = [pick(logits, sampling, random) for _ in range(draws)]
    return np.bincount(found, minlength=len(logits)) / draws


def test_sampling_draws_from_the_softmax() -> None:
    logits = [0.0, 2.0, 1.0, -np.inf]
    weights = np.exp(np.array(logits) / 0.5)
    found = frequencies(logits, Sampling(temperature=0.5))
    assert np.abs(found - weights / weights.sum()).max() < 0.03


def test_top_k_and_top_p_cut_the_tail() -> None:
    logits = np.log([0.1, 0.5, 0.05, 0.35]).tolist()
    assert (frequencies(logits, Sampling(1.0, top_k=2)) > 0).tolist() == [False, True, False, True]
    assert (frequencies(logits, Sampling(1.0, top_p=0.4)) > 0).tolist() == [
        False,
        True,
        False,
        False,
    ]
    assert (frequencies(logits, Sampling(1.0, top_p=0.9)) > 0).tolist() == [True, True, False, True]
    assert (frequencies(logits, Sampling(1.0, top_p=1.0)) > 0).all()
    both = Sampling(1.0, top_k=3, top_p=0.6)
    assert (frequencies(logits, both) > 0).tolist() == [False, True, False, True]


def test_nan_logits_are_an_error() -> None:
    with pytest.raises(KernelError, match="NaN, at id 1"):
        pick([0.0, np.nan, 5.0], Sampling(), np.random.default_rng(0))


def test_minilms_tokenizer_round_trip() -> None:
    tokenizer = Tokenizer.from_directory(minilm())
    ids = tokenizer.encode("The quick brown fox, 1984!")
    assert (ids[0], ids[-1]) == (tokenizer.id("[CLS]"), tokenizer.id("[SEP]"))
    assert tokenizer.decode(ids) == "the quick brown fox, 1984!"
    assert tokenizer.decode(ids, special=True).startswith("[CLS]")
    assert tokenizer.encode("fox", special=False) == [tokenizer.id("fox")]
    assert tokenizer.vocab_size == MINILM["vocab_size"]
    assert len(tokenizer.encode("word " * 200)) == 202  # neither cut nor padded
    with pytest.raises(InputError, match="no token"):
        tokenizer.id("no such token")
    with pytest.raises(InputError, match="text 1 has 5 tokens"):
        tokenizer.batch(["fox", "brown fox runs"], 4)


def test_a_tokenizer_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tokenizers")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match="download"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="download"):
        Tokenizer.from_directory(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(InputError, match="pip install tokenizers"):
        Tokenizer.from_directory(tmp_path)


@pytest.fixture
def byte_tokenizer(tmp_path: Path) -> Tokenizer:
    """One id for each byte, as many as the reduced Gemma has."""
    tokenizers = pytest.importorskip("tokenizers")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[])
    reader = tokenizers.Tokenizer(model)
    reader.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    reader.decoder = tokenizers.decoders.ByteLevel()
    reader.save(str(tmp_path / "tokenizer.json"))
    assert json.loads((tmp_path / "tokenizer.json").read_text())
    return Tokenizer.from_directory(tmp_path)


class Script:
    """A session whose logits always name the next id of a script."""

    def __init__(self, graph: Graph, ids: list[int]) -> None:
        self.graph, self.ids = graph, iter(ids)

    def run(
        self, inputs: Mapping[str, Any], want: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]:
        return {"logits": np.eye(256)[next(self.ids)]}


def test_text_is_streamed_in_whole_characters(byte_tokenizer: Tokenizer) -> None:
    graph, text = gemma3(gemma3_reduced(), 64), "aé→😀 b"
    ids = byte_tokenizer.encode(text)
    pieces = stream(Script(graph, ids), byte_tokenizer, "é: ", len(ids))
    assert isinstance(pieces, Iterator)
    assert list(pieces) == ["a", "é", "→", "😀", " ", "b"]
    assert complete(Script(graph, ids), byte_tokenizer, "é: ", len(ids)) == text
    assert complete(Script(graph, ids), byte_tokenizer, "x", 2) == "a\ufffd"  # ends inside é


def test_text_in_and_out(session: FakeSession, byte_tokenizer: Tokenizer) -> None:
    ids = generate(session, byte_tokenizer.encode("Hi"), 8)
    text = complete(session, byte_tokenizer, "Hi", 8, temperature=0.0)
    assert text == byte_tokenizer.decode(ids)


def test_a_stream_complains_before_it_is_read(
    session: FakeSession, byte_tokenizer: Tokenizer
) -> None:
    with pytest.raises(InputError, match="the graph has 24"):
        stream(session, byte_tokenizer, "word " * 9, 3)
