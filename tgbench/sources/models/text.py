"""Text in, text out: a tokenizer file and the loop that appends one token after another.

    prompt ─ encode ─→ ids ─→ session ─→ logits[t] ─ pick ─→ id at t + 1 ─→ … ─ decode ─→ text

The loop knows nothing of caches. It writes one id into a fixed array, asks for one row of logits,
and the session finds out how little of the model that takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tgbench.base.errors import GraphError, InputError, KernelError
from tgbench.base.strict_json import bounded_text
from tgbench.graph.graph import Graph

Ids = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float64]

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer puts for half of a character


class Session(Protocol):
    """What generation asks of a session: its graph, and runs of it."""

    @property
    def graph(self) -> Graph: ...

    def run(
        self, inputs: Mapping[str, Any], want: Mapping[str, Any] | None = None
    ) -> Mapping[str, Any]: ...


# --- text and ids -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer of a checkpoint: its `tokenizer.json`, less the padding it may prescribe.

    `tokenizer` is the object of the package `tokenizers`, for everything not wrapped here.
    """

    tokenizer: Any

    @staticmethod
    def from_directory(directory: str | os.PathLike[str]) -> Tokenizer:
        """Read `tokenizer.json` in a checkpoint's folder.

        Raises `InputError` if the package `tokenizers` or the file is missing, or the file damaged.

        >>> Tokenizer.from_directory("gemma-3-270m").encode("Hello")  # doctest: +SKIP
        [2, 9259]
        """
        try:
            from tokenizers import Tokenizer as Reader
        except ImportError as error:
            raise InputError(
                "reading a tokenizer.json needs the package tokenizers; pip install tokenizers"
            ) from error
        path = Path(directory) / "tokenizer.json"
        try:
            reader = Reader.from_str(bounded_text(path))
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error}); give the folder of a checkpoint that holds one"
            ) from error
        except Exception as error:  # the package raises bare Exception, and UnicodeDecodeError
            raise InputError(
                f"{path}: is no tokenizer ({error}); download the file again"
            ) from error
        reader.no_padding()
        reader.no_truncation()
        return Tokenizer(reader)

    @property
    def vocab_size(self) -> int:
        """How many ids there are, those of added tokens included."""
        return int(self.tokenizer.get_vocab_size(with_added_tokens=True))

    def id(self, token: str) -> int:
        """The id of one token, such as "<eos>"; raises `InputError` if there is none."""
        found = self.tokenizer.token_to_id(token)
        if found is None:
            raise InputError(f"the tokenizer has no token {token!r}; use encode() for text")
        return int(found)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, with the begin and end tokens of the model where `special`."""
        return list(self.tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ids; special tokens are left out unless `special`."""
        text: str = self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=not special)
        return text

    def batch(self, texts: Sequence[str], tokens: int, *, pad: int = 0) -> dict[str, Ids]:
        """The inputs of `bert`: texts as the rows of `ids` and `mask`, both int64 [texts, tokens].

        Raises `InputError` for a text that is longer than `tokens`.
        """
        ids = np.full((len(texts), tokens), pad, np.int64)
        mask = np.zeros((len(texts), tokens), np.int64)
        for row, text in enumerate(texts):
            found = self.encode(text)
            if len(found) > tokens:
                raise InputError(
                    f"text {row} has {len(found)} tokens, the graph {tokens}; build it with more "
                    "tokens, or cut the text into pieces"
                )
            ids[row, : len(found)] = found
            mask[row, : len(found)] = 1
        return {"ids": ids, "mask": mask}


# --- one id from one row of logits --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an id is picked.

    Fields:
        temperature: 0 takes the largest logit; otherwise logits are divided by it and drawn from.
        top_k: draw from the k largest only.
        top_p: draw from the fewest that together have this probability (Holtzman et al. 2020).
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < np.inf:
            raise InputError(f"temperature {self.temperature} is negative or not finite; use 0..2")
        if self.top_k is not None and self.top_k < 1:
            raise InputError(f"top_k {self.top_k} leaves nothing to draw from; use 1 or more")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"top_p {self.top_p} is no probability above 0; use 0.9, say")


def pick(logits: npt.ArrayLike, sampling: Sampling, random: np.random.Generator) -> int:
    """One id from the logits of one position; ties go to the lowest id.

    Raises `KernelError` if the logits hold NaN.

    >>> pick([0.1, 0.9, 0.3], Sampling(), np.random.default_rng(0))
    1
    """
    row = np.asarray(logits, dtype=np.float64).reshape(-1)
    best = int(row.argmax())
    if np.isnan(row[best]):  # argmax finds a NaN first
        raise KernelError(f"the logits hold NaN, at id {best}; check the weights with check_finite")
    if sampling.temperature == 0:
        return best
    weights = np.exp((row - row[best]) / sampling.temperature)
    order = np.argsort(-weights, kind="stable")[: sampling.top_k]
    mass = np.cumsum(weights[order])
    if sampling.top_p is not None:
        # The first whose mass reaches top_p is still among them.
        kept = int(np.searchsorted(mass, sampling.top_p * weights.sum())) + 1
        order, mass = order[:kept], mass[:kept]
    at = int(np.searchsorted(mass, random.random() * mass[-1], side="right"))
    return int(order[min(at, len(order) - 1)])


# --- the loop -----------------------------------------------------------------------------------


def generate(
    session: Session,
    ids: Sequence[int],
    steps: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Collection[int] = (),
    on_token: Callable[[int], None] | None = None,
) -> list[int]:
    """Up to `steps` ids that continue `ids`.

    The session's graph has an input `ids` int64 [batch, tokens] and an output `logits`
    [batch, tokens, vocab], as `gemma3` builds it; row 0 of the batch is written. An id in `stop`
    ends the generation and is not returned; `on_token` is called with each id that is. The same
    seed gives the same ids.

    Raises `InputError` for an empty prompt, an id outside the vocabulary, more ids than the graph
    has positions, and sampling parameters that make no sense; `GraphError` for another kind of
    graph; `KernelError` for logits that hold NaN.

    >>> generate(session, [2, 9259], 20, temperature=0.7, top_p=0.9)  # doctest: +SKIP
    [236764, 1902, ...]
    """
    sampling = Sampling(temperature, top_k, top_p)
    result = []
    for token in _continued(session, ids, steps, sampling, seed, stop):
        result.append(token)
        if on_token is not None:
            on_token(token)
    return result


def complete(
    session: Session, tokenizer: Tokenizer, prompt: str, steps: int, **options: Any
) -> str:
    """The text that continues a prompt; `options` and errors are those of `stream`."""
    return "".join(stream(session, tokenizer, prompt, steps, **options))


def stream(
    session: Session,
    tokenizer: Tokenizer,
    prompt: str,
    steps: int,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Collection[int] = (),
) -> Iterator[str]:
    """The pieces of text that continue a prompt, each as soon as it is whole.

    A character may take several tokens, and a piece may change while it is incomplete; what is
    yielded never changes. Options and errors are those of `generate`, raised at once.

    >>> for piece in stream(session, tokenizer, "Once upon", 50):  # doctest: +SKIP
    ...     print(piece, end="", flush=True)
    """
    ids = tokenizer.encode(prompt)
    sampling = Sampling(temperature, top_k, top_p)
    return _pieces(tokenizer, ids, _continued(session, ids, steps, sampling, seed, stop))


def _pieces(tokenizer: Tokenizer, ids: list[int], new: Iterator[int]) -> Iterator[str]:
    """The text of ids that are added to a prompt, in pieces.

    Each step decodes from the start of the last piece, so that a long text costs no more per
    token; that piece is there for the space that some tokenizers put between two tokens.
    """
    ids = list(ids)
    start, stop = 0, len(ids)  # the last piece is ids[start:stop]; at first, the prompt
    for token in new:
        ids.append(token)
        before, now = tokenizer.decode(ids[start:stop]), tokenizer.decode(ids[start:])
        if len(now) > len(before) and not now.endswith(UNFINISHED):
            yield now[len(before) :]
            start, stop = stop, len(ids)
    rest = tokenizer.decode(ids[start:])[len(tokenizer.decode(ids[start:stop])) :]
    if rest:
        yield rest


def _continued(
    session: Session,
    ids: Sequence[int],
    steps: int,
    sampling: Sampling,
    seed: int,
    stop: Collection[int],
) -> Iterator[int]:
    """Check the request now, and return the generator that serves it."""
    batch, tokens, vocab = _space(session.graph)
    if isinstance(stop, int) or steps < 0:
        raise InputError(f"steps={steps}, stop={stop!r}: give steps of 0 or more, and stop a list")
    if len(ids) == 0:
        raise InputError("the prompt is empty; give at least the begin token")
    wrong = [token for token in ids if not 0 <= token < vocab]
    if wrong:
        raise InputError(
            f"id {wrong[0]} is outside the vocabulary 0..{vocab - 1}; the tokenizer and the model "
            "belong to different checkpoints"
        )
    if max(len(ids), len(ids) + steps - 1) > tokens:  # the last id is never read
        raise InputError(
            f"a prompt of {len(ids)} and {steps} new ids need {len(ids) + steps - 1} positions, "
            f"the graph has {tokens}; build it with more tokens, or ask for fewer"
        )
    array = np.zeros((batch, tokens), np.int64)
    array[0, : len(ids)] = ids
    return _loop(session, array, len(ids), steps, sampling, np.random.default_rng(seed), stop)


def _loop(
    session: Session,
    array: Ids,
    length: int,
    steps: int,
    sampling: Sampling,
    random: np.random.Generator,
    stop: Collection[int],
) -> Iterator[int]:
    for at in range(length, length + steps):
        # A copy, so that a session may keep what it was given.
        found = session.run({"ids": array.copy()}, want={"logits": np.s_[0, at - 1]})
        token = pick(found["logits"], sampling, random)
        if token in stop:
            return
        yield token
        if at < array.shape[1]:
            array[0, at] = token


def _space(graph: Graph) -> tuple[int, int, int]:
    """batch, tokens and vocabulary of a language model's graph."""
    ids, logits = graph.inputs.get("ids"), graph.outputs.get("logits")
    if ids is None or logits is None or ids.rank != 2 or logits.rank != 3:
        raise GraphError(
            "generation needs an input ids [batch, tokens] and an output logits [batch, tokens, "
            "vocab]; build the graph as tgbench.sources.models.gemma3 does"
        )
    sizes = (*ids.shape, logits.shape[-1])
    if not all(isinstance(size, int) for size in sizes):
        raise GraphError(f"ids {list(ids.shape)} has an unbound dimension; bind it (graph.bind)")
    batch, tokens, vocab = sizes
    return batch, tokens, vocab
