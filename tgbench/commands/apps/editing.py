"""A document under editing: its embedding after every edit, and what that took.

    text ─ sentences ─→ rows of a batch ─→ MiniLM ─→ an embedding per sentence ─→ their mean

Attention looks at every token of its row, so an edit computes its row again, from the first
attention on. Cut into sentences, the other rows stay; as one row, nothing can be saved, and
`Edited.spread` names the node that spreads the change.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tgbench.base.errors import InputError
from tgbench.base.words import Progress
from tgbench.session.session import GraphSession
from tgbench.sources.models.bert import bert
from tgbench.sources.models.checkpoints import find_minilm
from tgbench.sources.models.config import load_config
from tgbench.sources.models.text import Tokenizer
from tgbench.sources.torch import from_torch

Floats: TypeAlias = npt.NDArray[np.float32]
UNUSED = ("pooler.*", "embeddings.position_ids")  # weights of the file that the graph has not
ENDS = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Edited:
    """The document after one edit.

    Fields:
        embedding: of the document, of length 1.
        recomputed: share of what a run from nothing computes.
        rows: which rows of the batch changed.
        spread: where the change of a part became one of everything; "" where it did not.
        time_ns: of the run.
    """

    text: str
    embedding: Floats
    recomputed: float
    multiply_adds: int
    rows: tuple[int, ...]
    spread: str
    time_ns: int


@dataclass(frozen=True)
class EditReport:
    """A document's states: the first is the text as it was given.

    Fields:
        session: that embedded them, as the last edit left it.
    """

    states: tuple[Edited, ...]
    session: GraphSession

    @property
    def similarities(self) -> list[float]:
        """Cosine similarity of each state to the first."""
        first = self.states[0].embedding
        return [float(state.embedding @ first) for state in self.states]

    def to_dict(self) -> dict[str, Any]:
        names = ("text", "recomputed", "multiply_adds", "rows", "spread", "time_ns")
        rows = [{name: getattr(state, name) for name in names} for state in self.states]
        return {"states": rows, "similarities": self.similarities}

    def __str__(self) -> str:
        lines = ["edit  rows  computed  similarity to the first"]
        for i, (state, alike) in enumerate(zip(self.states, self.similarities, strict=True)):
            rows = ",".join(map(str, state.rows)) if i else "all"
            lines.append(f"{i:>4}  {rows:>4}  {state.recomputed:>8.1%}  {alike:.4f}")
        spreads = sorted({state.spread for state in self.states if state.spread})
        lines += [f"nothing is saved behind {spread}" for spread in spreads]
        return "\n".join(lines)


def edit(
    document: str,
    edits: Sequence[tuple[str, str]],
    *,
    tokens: int = 32,
    split: bool = True,
    imported: bool = False,
    progress: Progress | None = None,
) -> EditReport:
    """Embed a document, then again after each edit (old words, new words), one upon the other.

    Args:
        tokens: of a row; longer sentences are cut.
        split: a row per sentence; False for the whole document as one row.
        imported: take the model from transformers through `from_torch`, not from our builder.

    Raises:
        InputError: for an empty document, for words that are not there, and for an edit that makes
            more sentences. WeightsError: without the package that ships the model.
    """
    texts = _rows(document, split)
    encoder = Encoder.of(len(texts), tokens, imported)
    states = [encoder.state(document, texts)]
    for done, (old, new) in enumerate(edits):
        if progress is not None:
            progress(done, len(edits), f"{old} → {new}")
        if old not in document:
            raise InputError(f"edit {done}: the document does not hold {old!r}")
        document = document.replace(old, new, 1)
        states.append(encoder.state(document, _rows(document, split)))
    return EditReport(tuple(states), encoder.session)


def _rows(document: str, split: bool) -> list[str]:
    rows = [part for part in ENDS.split(document.strip()) if part] if split else [document]
    if not rows or not rows[0].strip():
        raise InputError("the document is empty")
    return rows


@dataclass
class Encoder:
    """MiniLM over a fixed number of rows."""

    session: GraphSession
    tokenizer: Tokenizer
    rows: int
    tokens: int

    @staticmethod
    def of(rows: int, tokens: int, imported: bool) -> Encoder:
        folder = find_minilm()
        # A changed word reaches all of its row, so a row is one class whatever changed in it.
        rounding = ("exact", "full") if rows > 1 else ("exact", "exact")
        places = {"ids": rounding, "mask": rounding}
        options: Mapping[str, Any] = {"buckets": places, "making": "always"}
        if imported:
            session = GraphSession(_from_transformers(str(folder), rows, tokens), **options)
        else:
            graph = bert(load_config(folder), tokens=tokens, batch=rows)
            session = GraphSession(graph, folder, ignore_weights=UNUSED, **options)
        return Encoder(session, Tokenizer.from_directory(folder), rows, tokens)

    def state(self, document: str, texts: Sequence[str]) -> Edited:
        """Embed the document's rows; what did not change is not computed."""
        if len(texts) > self.rows:
            raise InputError(
                f"the document has {len(texts)} sentences now, {self.rows} at first; pass "
                "split=False, or start anew"
            )
        texts = [*texts, *[""] * (self.rows - len(texts))]
        inputs = dict(self.tokenizer.batch(texts, self.tokens))
        began = time.perf_counter_ns()
        found = self.session.run(inputs, {"embedding": np.s_[:]})["embedding"]
        took = time.perf_counter_ns() - began
        report = self.session.report()
        changed = {row for _, region in report.bucket.changed for box in region
                   for row in range(int(box[0][0]), int(box[0][1]))}  # fmt: skip
        is_partial = len(changed) < self.rows or self.rows == 1
        spread = str(report.spread) if is_partial and report.spread is not None else ""
        mean = found[[bool(text) for text in texts]].mean(axis=0)
        return Edited(
            document, mean / np.linalg.norm(mean), report.recomputed, report.multiply_adds,
            tuple(sorted(changed)), spread, took,
        )  # fmt: skip


class Sentences(nn.Module):
    """An encoder of transformers with the mean over open tokens, scaled to length 1."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(input_ids=ids, attention_mask=mask)[0]
        weights = mask[..., None].to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return {"embedding": mean / mean.square().sum(1, keepdim=True).sqrt().clamp(min=1e-12)}


def _from_transformers(folder: str, rows: int, tokens: int) -> Any:
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise InputError("imported=True needs transformers; pip install transformers") from error
    encoder = AutoModel.from_pretrained(folder, attn_implementation="sdpa", local_files_only=True)
    ids = torch.ones((rows, tokens), dtype=torch.int64)
    return from_torch(Sentences(encoder).eval(), (ids, ids.clone()))
