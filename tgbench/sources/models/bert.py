"""BERT as a sentence encoder: all-MiniLM-L6-v2 and its relatives.

    ids ─→ word + position + type ─→ norm ─→ layers ─→ hidden ─→ mean over open tokens ─→ / length

    layer   x ─→ q, k, v ─→ attention ─→ dense ─→ norm(· + x) = middle
            middle ─→ dense ─→ gelu ─→ dense ─→ norm(· + middle)

Every token sees every open token of its own row, so an edit dirties one row of the batch, whole.

Source: Devlin et al. (2019), `modeling_bert.py` of transformers 5.23, and the modules.json of
sentence-transformers/all-MiniLM-L6-v2 for pooling. Left out: the pooler and the heads on top of it,
token types other than 0, decoding and cross attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.graph import ops
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import Dim
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

ACTIVATIONS = {"gelu": "none", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
SHORTEST = 1e-12  # torch.nn.functional.normalize divides by no less
CLOSED = float(np.finfo(np.float32).min)


def bert(config: Source, tokens: Dim, batch: int = 1, pooled: bool = True) -> Graph:
    """A BERT encoder in float32, with sentence embeddings when `pooled`.

    `config` is a dict with the fields of `BertConfig`, a `config.json`, or its folder; `tokens` an
    integer or a `dim`. Parameters are named and shaped as in a `BertModel` checkpoint.

        ids, mask   int64   [batch, tokens]           mask: 1 open, 0 padding (HF's attention_mask)
        hidden      float32 [batch, tokens, hidden]
        embedding   float32 [batch, hidden]           of length 1

    A closed token's score has finfo.min added, as Hugging Face does, so that a row without an open
    token stays finite. In layer i the nodes layer_i.q, .k, .v, .attention, .middle, .gelu and .out
    have these names.

    Raises `GraphError` for a field that is missing, wrong or unsupported, and for more tokens than
    the position table has.

    >>> from tgbench.sources.models.checkpoints import bert_reduced
    >>> bert(bert_reduced(), tokens=16, batch=2).outputs["embedding"].type
    TensorType(shape=(2, 64), dtype='float32')
    """
    fields = load_config(config)
    with errors_of(config):
        _check(fields, tokens)
        return _Bert(GraphBuilder(), fields, tokens, batch).build(pooled)


def _check(config: Mapping[str, Any], tokens: Dim) -> None:
    refuse(config, "model_type", "bert", mend="use that model's builder")
    refuse(config, "is_decoder", False, mend="set it to false for an encoder")
    refuse(
        config, "position_embedding_type", "absolute", mend="only learned absolute positions are"
    )
    hidden, heads = size_of(config, "hidden_size"), size_of(config, "num_attention_heads")
    if hidden % heads:
        raise GraphError(
            f"config: hidden_size {hidden} is not a multiple of num_attention_heads {heads}; "
            "change one of them"
        )
    positions = size_of(config, "max_position_embeddings")
    if isinstance(tokens, int) and tokens > positions:
        raise GraphError(
            f"{tokens} tokens are more than the {positions} positions that the model has; "
            "ask for fewer, and cut long texts into pieces"
        )


@dataclass(frozen=True)
class _Bert:
    """The builder with everything that a layer needs to know."""

    g: GraphBuilder
    config: Mapping[str, Any]
    tokens: Dim
    batch: int

    @property
    def hidden(self) -> int:
        return size_of(self.config, "hidden_size")

    def build(self, pooled: bool) -> Graph:
        g, plane = self.g, (self.batch, self.tokens)
        ids, mask = g.input("ids", plane, "int64"), g.input("mask", plane, "int64")
        closed = ops.where(mask.equals(0), CLOSED, 0.0)[:, None, None, :]
        x = self.embedded(ids)
        for i in range(layers_of(self.config)):
            with g.scope(f"layer_{i}"):
                x = self.layer(x, f"encoder.layer.{i}.", closed)
        g.output("hidden", x)
        if pooled:
            g.output("embedding", self.pooled(x, mask.cast("float32")))
        return g.build()

    def embedded(self, ids: Node) -> Node:
        """The three tables' rows, added; two of them depend on no input and are added once."""
        words = self.table("word", size_of(self.config, "vocab_size"))
        places = self.table("position", size_of(self.config, "max_position_embeddings"))
        types = self.table("token_type", size_of(self.config, "type_vocab_size"))
        fixed = ops.embedding(places, ops.iota(self.g, (self.tokens,))) + types[0]
        return self.norm(ops.embedding(words, ids) + fixed, "embeddings.LayerNorm", "embedded")

    def layer(self, x: Node, prefix: str, closed: Node) -> Node:
        attended = self.dense(
            self.attention(x, f"{prefix}attention.self.", closed),
            f"{prefix}attention.output.dense",
            self.hidden,
        )
        middle = self.norm(attended + x, f"{prefix}attention.output.LayerNorm", "middle")
        inner = size_of(self.config, "intermediate_size")
        form = choice_of(self.config, "hidden_act", ACTIVATIONS, "gelu")
        wide = ops.gelu(self.dense(middle, f"{prefix}intermediate.dense", inner), form)
        mixed = self.dense(wide, f"{prefix}output.dense", self.hidden)
        return self.norm(mixed + middle, f"{prefix}output.LayerNorm", "out")

    def attention(self, x: Node, prefix: str, closed: Node) -> Node:
        heads = size_of(self.config, "num_attention_heads")
        shape = (self.batch, self.tokens, heads, self.hidden // heads)
        q, k, v = (
            self.g.name(self.dense(x, f"{prefix}{part}", self.hidden), part[0]).reshape(*shape)
            for part in ("query", "key", "value")
        )
        q, k, v = (part.permute(0, 2, 1, 3) for part in (q, k, v))
        mixed = ops.attention(q, k, v, closed)
        merged = mixed.permute(0, 2, 1, 3).reshape(self.batch, self.tokens, self.hidden)
        return self.g.name(merged, "merged")

    def pooled(self, x: Node, mask: Node) -> Node:
        """The mean over open tokens, scaled to length 1."""
        count = ops.maximum(ops.sum_(mask, 1, keepdims=True), 1e-9)
        mean = ops.sum_(x * mask[..., None], 1) / count
        length = ops.sqrt(ops.sum_(mean * mean, -1, keepdims=True))
        return self.g.name(mean / ops.maximum(length, SHORTEST), "embedding")

    def table(self, name: str, rows: int) -> Node:
        return self.g.parameter(f"embeddings.{name}_embeddings.weight", (rows, self.hidden))

    def dense(self, x: Node, name: str, width: int) -> Node:
        weight = self.g.parameter(f"{name}.weight", (width, x.shape[-1]))
        return ops.linear(x, weight, self.g.parameter(f"{name}.bias", (width,)))

    def norm(self, x: Node, prefix: str, name: str) -> Node:
        weight = self.g.parameter(f"{prefix}.weight", (self.hidden,))
        bias = self.g.parameter(f"{prefix}.bias", (self.hidden,))
        eps = number_of(self.config, "layer_norm_eps", 1e-12)
        return self.g.name(ops.layer_norm(x, weight, bias, eps), name)
