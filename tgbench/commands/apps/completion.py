"""A language model that writes on after every edit of its prompt, from what is still right.

    prompt ─→ n ids │ edit at position k ─→ rows before k stay, rows from k on are computed │ …

The session finds the common prefix by comparing ids; nothing here knows of caches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tgbench.base.errors import InputError
from tgbench.base.words import Progress, format_time
from tgbench.session.session import GraphSession
from tgbench.sources.models.checkpoints import Config, gemma3_reduced
from tgbench.sources.models.text import generate
from tgbench.sources.torch import Imported, from_torch


@dataclass(frozen=True)
class Completion:
    """What was written after one prompt.

    Fields:
        prompt, ids: the ids given, and those that continue them.
        common: ids at the front of the prompt that the session had seen in the last one.
        recomputed: share of a prefill from nothing that the first id took.
        multiply_adds: of the first id, and of each id after it (median).
        time_ns: of everything.
    """

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    common: int
    recomputed: float
    multiply_adds: tuple[int, int]
    time_ns: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def __str__(self) -> str:
        return (
            f"{len(self.prompt)} ids, {self.common} as before: {self.recomputed:.1%} of a prefill, "
            f"then {self.multiply_adds[1]:,} multiply–adds an id; {format_time(self.time_ns)}"
        )


def completions(
    session: GraphSession,
    prompts: Sequence[Sequence[int]],
    steps: int,
    *,
    progress: Progress | None = None,
) -> list[Completion]:
    """`steps` ids after each prompt, greedily; prompts are usually edits of one another.

    The graph has an input `ids` [1, tokens] and an output `logits` [1, tokens, vocabulary]. Errors
    are those of `generate`.
    """
    if steps < 1:
        raise InputError(f"steps={steps}: give 1 or more")
    found: list[Completion] = []
    held: list[int] = []
    for done, prompt in enumerate(prompts):
        if progress is not None:
            progress(done, len(prompts), f"prompt of {len(prompt)} ids")
        made = _completed(session, prompt, steps, _common(held, prompt))
        held = [*prompt, *made.ids]
        found.append(made)
    return found


def _completed(session: GraphSession, prompt: Sequence[int], steps: int, common: int) -> Completion:
    shares: list[float] = []
    counts: list[int] = []

    def note(_: int) -> None:
        report = session.report()
        shares.append(report.recomputed if not shares else 0.0)
        counts.append(report.multiply_adds)

    began = time.perf_counter_ns()
    ids = generate(session, prompt, steps, on_token=note)
    took = time.perf_counter_ns() - began
    later = int(np.median(counts[1:])) if len(counts) > 1 else 0
    return Completion(tuple(prompt), tuple(ids), common, shares[0], (counts[0], later), took)


def _common(old: Sequence[int], new: Sequence[int]) -> int:
    """How many ids at the front are the same."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))


def imported_gemma(tokens: int, config: Config | None = None) -> Imported:
    """A Gemma 3 of transformers with seeded random weights (reduced by default), imported.

    Raises InputError without transformers.
    """
    try:
        from transformers import Gemma3ForCausalLM, Gemma3TextConfig
    except ImportError as error:
        raise InputError("an imported Gemma 3 needs transformers; pip install it") from error
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = Gemma3TextConfig(**{k: v for k, v in (config or gemma3_reduced()).items()
                                   if k not in ("architectures", "model_type")})  # fmt: skip
        made._attn_implementation = "sdpa"
        module = Gemma3ForCausalLM(made).eval()
    ids = torch.ones((1, tokens), dtype=torch.int64)
    return from_torch(module, (ids,), kwargs={"use_cache": False}, names={"input_ids": "ids"})
