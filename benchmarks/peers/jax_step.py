"""JAX: the step written by hand, compiled, with a cache that is given away and taken back.

Arrays of the cache are donated, so XLA writes the new row where it lies. Weights are arguments, and
not constants, which would be copied into the program. XLA's processor client takes as many threads
as the variable `NPROC` says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from benchmarks.peers import gemma
from benchmarks.peers.child import Array, Job

PACKAGES = ("jax", "jaxlib")
SLIDING = "sliding_attention"


class Decode:
    def __init__(self, job: Job) -> None:
        os.environ["NPROC"] = str(job.threads)  # before the client starts
        os.environ["JAX_PLATFORMS"] = "cpu"
        import jax

        self.job = job
        config = gemma.Config(job.model, job.tokens)
        tensors = gemma.weights(job.model)
        self.weights = {name: jax.numpy.asarray(w.numpy()) for name, w in tensors.items()}
        self.turns = {
            kind: tuple(jax.numpy.asarray(t.numpy()) for t in gemma.angles(config, kind))
            for kind in config.ropes
        }
        self.cache = [jax.numpy.zeros(config.cache[1:]) for _ in range(2 * len(config.kinds))]
        self.call = jax.jit(partial(_step, config), donate_argnums=(4,))

    def prompt(self, ids: Sequence[int]) -> None:
        import jax

        keys, values = gemma.prompted(self.job, ids)
        pairs = zip(keys, values, strict=True)
        self.cache = [jax.numpy.asarray(part) for pair in pairs for part in pair]

    def step(self, token: int, at: int) -> Array:
        logits, self.cache = self.call(self.weights, self.turns, token, at, self.cache)
        return np.asarray(logits)


def _step(config: gemma.Config, w: Mapping[str, Any], turns: Any, token: Any, at: Any, cache: Any):  # type: ignore[no-untyped-def]
    table, kept = w[gemma.HEAD], []
    x = table[token] * config.hidden**0.5
    for i, kind in enumerate(config.kinds):
        own = {
            name.removeprefix(f"model.layers.{i}.").removesuffix(".weight"): tensor
            for name, tensor in w.items()
            if name.startswith(f"model.layers.{i}.")
        }
        cos, sin = (part[at] for part in turns[kind])
        pair = tuple(cache[2 * i : 2 * i + 2])
        x, pair = _layer(config, kind, own, x, cos, sin, at, pair)
        kept += pair
    return table @ _rms(config, x, w["model.norm.weight"]), kept


def _layer(config: Any, kind: str, w: Any, x: Any, cos: Any, sin: Any, at: Any, pair: Any) -> Any:
    import jax

    inner = _rms(config, x, w["input_layernorm"])
    mixed, pair = _attention(config, kind, w, inner, cos, sin, at, pair)
    x = x + _rms(config, mixed, w["post_attention_layernorm"])
    inner = _rms(config, x, w["pre_feedforward_layernorm"])
    gated = jax.nn.gelu(w["mlp.gate_proj"] @ inner, approximate=True) * (w["mlp.up_proj"] @ inner)
    return x + _rms(config, w["mlp.down_proj"] @ gated, w["post_feedforward_layernorm"]), pair


def _attention(
    config: Any, kind: str, w: Any, x: Any, cos: Any, sin: Any, at: Any, pair: Any
) -> Any:
    import jax
    import jax.numpy as jnp

    shared, _, depth = config.cache[1:]
    q, k, v = (
        (w[f"self_attn.{name}_proj"] @ x).reshape(shared, -1, depth) for name in ("q", "k", "v")
    )
    q = _turned(_rms(config, q, w["self_attn.q_norm"]), cos, sin) * config.scale
    k = _turned(_rms(config, k, w["self_attn.k_norm"]), cos, sin)
    put = jax.lax.dynamic_update_slice_in_dim
    keys, values = (put(old, new, at, 1) for old, new in zip(pair, (k, v), strict=True))
    places = jnp.arange(config.tokens)
    seen = places <= at
    if kind == SLIDING:
        seen &= places > at - config.window
    scores = jnp.where(seen, q @ keys.transpose(0, 2, 1), -jnp.inf)
    mixed = jax.nn.softmax(scores, -1) @ values
    return w["self_attn.o_proj"] @ mixed.reshape(-1), (keys, values)


def _rms(config: Any, x: Any, weight: Any) -> Any:
    import jax.numpy as jnp

    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + config.eps) * weight


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    import jax.numpy as jnp

    left, right = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-right, left], -1) * sin


decode = Decode
