"""Gemma 3, the text model, as a graph over all positions at once.

    ids ─→ embedding · √hidden ─→ layers ─→ norm ─→ head ─→ logits

    layer   x ─→ norm ─→ q, k, v ─→ attention ─→ o ─→ norm ─→ + x = middle
            middle ─→ norm ─→ gated ─→ down ─→ norm ─→ + middle

q, k and v are stored as [batch, tokens, heads, head_dim] and seen by attention through a permuted
view, so a token is one contiguous row of every stored node. Nothing here knows of a KV cache: that
k and v of the old tokens need not be computed again follows from the region rules.

Source: Gemma 3 Technical Report (2025) and `modeling_gemma3.py` of transformers 5.23. Left out:
images, attention biases and attention softcapping, which no Gemma 3 has, and bidirectional
attention (EmbeddingGemma).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tgbench.base.errors import GraphError
from tgbench.base.surroundings import plainly
from tgbench.base.words import shorten
from tgbench.graph import ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import FLOATS, Dim
from tgbench.sources.models.config import (
    Source,
    choice_of,
    errors_of,
    layers_of,
    load_config,
    number_of,
    refuse,
    size_of,
)

ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "silu": "silu", "relu": "relu"}
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions of one kind of layer: angle = position / factor · theta^(−2i / head_dim)."""

    theta: float
    factor: float  # 1, or how many times longer the linearly scaled positions are


@dataclass(frozen=True, slots=True)
class Gemma3Config:
    """The fields of `config.json` that the graph depends on, under the same names.

    Fields:
        layers: the kind of each layer, `sliding_attention` or `full_attention`.
        ropes: by kind of layer.
        softcap: `final_logit_softcapping`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    heads: int
    key_value_heads: int
    head_dim: int
    layers: tuple[str, ...]
    ropes: Mapping[str, Rope]
    window: int  # keys that a sliding layer sees, the token itself included
    query_scalar: float
    eps: float
    activation: str
    is_tied: bool
    softcap: float | None

    @staticmethod
    def of(source: Source) -> Gemma3Config:
        """Read a configuration; raises `GraphError` for what is missing, wrong or unsupported."""
        config = load_config(source)
        with errors_of(source):
            return Gemma3Config._read(config)

    @staticmethod
    def _read(config: Mapping[str, Any]) -> Gemma3Config:
        _refuse_unsupported(config)
        heads = size_of(config, "num_attention_heads")
        shared = size_of(config, "num_key_value_heads")
        head_dim = size_of(config, "head_dim", 256)
        if heads % shared or head_dim % 2:
            raise GraphError(
                f"config: num_attention_heads {heads} must be a multiple of num_key_value_heads "
                f"{shared}, and head_dim {head_dim} even; change one of them"
            )
        layers = _layers(config)
        cap = config.get("final_logit_softcapping")
        return Gemma3Config(
            vocab_size=size_of(config, "vocab_size"),
            hidden_size=size_of(config, "hidden_size"),
            intermediate_size=size_of(config, "intermediate_size"),
            heads=heads,
            key_value_heads=shared,
            head_dim=head_dim,
            layers=layers,
            ropes={kind: _rope(config, kind) for kind in sorted(set(layers))},
            window=size_of(config, "sliding_window", 4096) if SLIDING in layers else 0,
            query_scalar=number_of(config, "query_pre_attn_scalar", 256),
            eps=number_of(config, "rms_norm_eps", 1e-6),
            activation=choice_of(config, "hidden_activation", ACTIVATIONS, "gelu_pytorch_tanh"),
            is_tied=bool(config.get("tie_word_embeddings", True)),
            softcap=None if cap is None else number_of(config, "final_logit_softcapping"),
        )


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    kind = config.get("model_type", "gemma3_text")
    if kind != "gemma3_text":
        mend = "pass its text_config" if "text_config" in config else "use that model's builder"
        raise GraphError(f"config: model_type is {shorten(kind)}, not 'gemma3_text'; {mend}")
    refuse(config, "attention_bias", False, mend="no released Gemma 3 has one: set it to false")
    refuse(config, "attn_logit_softcapping", mend="transformers ignores it too: set it to null")
    refuse(config, "use_bidirectional_attention", False, mend="set it to false for a causal model")


def _layers(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The kind of each layer; older files give the period of the full ones instead."""
    count = layers_of(config)
    kinds = config.get("layer_types")
    if kinds is None:
        period = size_of(config, "sliding_window_pattern", 6)
        return tuple(SLIDING if layer % period else FULL for layer in range(1, count + 1))
    known = isinstance(kinds, (list, tuple)) and all(kind in (SLIDING, FULL) for kind in kinds)
    if not known or len(kinds) != count:
        raise GraphError(
            f"config: layer_types {shorten(kinds)} is not a list of num_hidden_layers = {count} "
            f"entries from {SLIDING}, {FULL}; give one for each layer"
        )
    return tuple(kinds)


def _rope(config: Mapping[str, Any], kind: str) -> Rope:
    """Rotary parameters, in the form of transformers 5 or of the files on the Hub."""
    old, default = ("rope_theta", 1e6) if kind == FULL else ("rope_local_base_freq", 1e4)
    by_kind = config.get("rope_parameters") or {kind: {}, FULL: config.get("rope_scaling") or {}}
    given = by_kind.get(kind) if isinstance(by_kind, Mapping) else None
    if not isinstance(given, Mapping):
        raise GraphError(
            f"config: rope_parameters {shorten(by_kind)} says nothing of {kind}; give it "
            '{"rope_type": "default", "rope_theta": 10000.0}, say'
        )
    form = given.get("rope_type", "default")
    if form not in ("default", "linear"):
        raise GraphError(
            f"config: the rope_type of {kind} is {shorten(form)}; use 'default', or "
            "'linear' with a factor"
        )
    theta = number_of(given, "rope_theta", number_of(config, old, default))
    return Rope(theta, number_of(given, "factor") if form == "linear" else 1.0)


@plainly
def gemma3(config: Source, tokens: Dim, batch: int = 1, dtype: str = "float32") -> Graph:
    """Gemma 3 over `tokens` positions: logits of every position from the ids of all.

    `config` is a dict with the fields of `Gemma3TextConfig`, a `config.json`, or its folder;
    `tokens` an integer or a `dim`. Parameters are named and shaped as in the checkpoint; a tied
    head is the embedding's own node. They, and all activations, are `dtype`; norms are computed in
    float32, as Hugging Face does.

        ids      int64 [batch, tokens]
        logits   dtype [batch, tokens, vocab_size]

    Position t of the logits depends on ids 0..t alone, so what stands after the prompt does not
    matter. Masks and rotary tables are nodes without inputs, which fold to constants. In layer i
    the nodes layer_i.q, .k, .v, .attention, .middle, .gated and .out have these names.

    Raises `GraphError` for a field that is missing, wrong or unsupported, with the mend.

    >>> from tgbench.sources.models.checkpoints import gemma3_reduced
    >>> graph = gemma3(gemma3_reduced(), tokens=16)
    >>> graph.outputs["logits"].type
    TensorType(shape=(1, 16, 256), dtype='float32')
    >>> graph.node("layer_1.k").shape
    (1, 16, 1, 32)
    """
    if dtype not in FLOATS:
        raise GraphError(f"dtype {dtype!r} is not a float; use one of {', '.join(FLOATS)}")
    model = _Gemma3(GraphBuilder(), Gemma3Config.of(config), tokens, batch, dtype)
    return model.build()


@dataclass(frozen=True)
class _Kind:
    """What the layers of one kind share: rotary tables [tokens, 1, head_dim] and the mask."""

    cos: Node
    sin: Node
    mask: Node  # [tokens, tokens], True where the row's token sees the column's


@dataclass(frozen=True)
class _Gemma3:
    """The builder with everything that a layer needs to know."""

    g: GraphBuilder
    config: Gemma3Config
    tokens: Dim
    batch: int
    dtype: str

    def build(self) -> Graph:
        g, config = self.g, self.config
        ids = g.input("ids", (self.batch, self.tokens), "int64")
        table = self.weight("model.embed_tokens", config.vocab_size, config.hidden_size)
        scale = g.scalar(config.hidden_size**0.5, self.dtype)
        x = g.name(ops.embedding(table, ids) * scale, "embedded")
        kinds = {kind: self.kind(kind) for kind in config.ropes}
        for i, kind in enumerate(config.layers):
            with g.scope(f"layer_{i}"):
                x = self.layer(x, f"model.layers.{i}.", kinds[kind])
        head = table
        if not config.is_tied:
            head = self.weight("lm_head", config.vocab_size, config.hidden_size)
        logits = ops.linear(self.norm(x, "model.norm"), head)
        if config.softcap is not None:
            logits = ops.tanh(logits / config.softcap) * config.softcap
        g.output("logits", g.name(logits, "logits"))
        return g.build()

    def layer(self, x: Node, prefix: str, kind: _Kind) -> Node:
        attended = self.attention(self.norm(x, f"{prefix}input_layernorm"), prefix, kind)
        middle = x + self.norm(attended, f"{prefix}post_attention_layernorm")
        self.g.name(middle, "middle")
        mixed = self.mlp(self.norm(middle, f"{prefix}pre_feedforward_layernorm"), f"{prefix}mlp.")
        out = middle + self.norm(mixed, f"{prefix}post_feedforward_layernorm")
        return self.g.name(out, "out")

    def attention(self, x: Node, prefix: str, kind: _Kind) -> Node:
        g, config = self.g, self.config
        prefix += "self_attn."
        q = self.heads(x, f"{prefix}q_proj", config.heads, "q_flat")
        k = self.heads(x, f"{prefix}k_proj", config.key_value_heads, "k_flat")
        v = self.heads(x, f"{prefix}v_proj", config.key_value_heads, "v")
        q = g.name(ops.rope(self.norm(q, f"{prefix}q_norm"), kind.cos, kind.sin), "q")
        k = g.name(ops.rope(self.norm(k, f"{prefix}k_norm"), kind.cos, kind.sin), "k")
        q, k, v = (part.permute(0, 2, 1, 3) for part in (q, k, v))
        mixed = ops.attention(q, k, v, kind.mask, scale=config.query_scalar**-0.5)
        width = config.heads * config.head_dim
        rows = mixed.permute(0, 2, 1, 3).reshape(self.batch, self.tokens, width)
        g.name(rows, "merged")
        return ops.linear(rows, self.weight(f"{prefix}o_proj", config.hidden_size, width))

    def heads(self, x: Node, weight: str, heads: int, name: str) -> Node:
        """A projection, called `name`, seen as [batch, tokens, heads, head_dim]."""
        depth = self.config.head_dim
        flat = ops.linear(x, self.weight(weight, heads * depth, self.config.hidden_size))
        self.g.name(flat, name)
        return flat.reshape(self.batch, self.tokens, heads, depth)

    def mlp(self, x: Node, prefix: str) -> Node:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        gate = self.weight(f"{prefix}gate_proj", inner, hidden)
        up = self.weight(f"{prefix}up_proj", inner, hidden)
        gated = ops.gated_linear(x, gate, up, self.config.activation)
        self.g.name(gated, "gated")
        return ops.linear(gated, self.weight(f"{prefix}down_proj", hidden, inner))

    def norm(self, x: Node, name: str) -> Node:
        """x / rms(x) · (1 + weight), in float32; the sum is computed once, before the first run."""
        weight = self.weight(name, x.shape[-1]).cast("float32") + 1.0
        return ops.rms_norm(x.cast("float32"), weight, self.config.eps).cast(self.dtype)

    def weight(self, name: str, *shape: int) -> Node:
        return self.g.parameter(f"{name}.weight", shape, self.dtype)

    def kind(self, kind: str) -> _Kind:
        with self.g.scope(kind):
            cos, sin = self.tables(self.config.ropes[kind])
            return _Kind(cos, sin, self.mask(self.config.window if kind == SLIDING else None))

    def tables(self, rope: Rope) -> tuple[Node, Node]:
        """cos and sin [tokens, 1, head_dim] of the angles, which are float32 whatever the dtype."""
        position = ops.iota(self.g, (self.tokens, 1, 1), axis=0, dtype="float32")
        angle = position * self.g.constant(_frequencies(rope, self.config.head_dim))
        angle = ops.concat([angle, angle], axis=-1)
        return ops.cos(angle).cast(self.dtype), ops.sin(angle).cast(self.dtype)

    def mask(self, window: int | None) -> Node:
        """Keys up to the query's position, and no further back than the window."""
        plane = (self.tokens, self.tokens)
        query, key = ops.iota(self.g, plane, axis=0), ops.iota(self.g, plane, axis=1)
        seen = key <= query
        return self.g.name(seen if window is None else seen & (key > query - window), "mask")


def _frequencies(rope: Rope, depth: int) -> Any:
    """theta^(−2i / depth) by torch's float32 `pow`, whose last bit NumPy's does not share.

    At position 32,768 one unit in that place turns an angle by 0.002.
    """
    exponents = torch.arange(0, depth, 2, dtype=torch.float32) / depth
    return (1.0 / rope.theta**exponents / rope.factor).numpy()
