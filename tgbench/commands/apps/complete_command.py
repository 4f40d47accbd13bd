"""`tgbench complete`: a language model writes on after every edit of its prompt.

$ tgbench complete --imported --steps 8
64 ids, 0 as before: 100.0% of a prefill, then 312,000 multiply–adds an id
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from tgbench.base.errors import InputError
from tgbench.commands.apps.completion import completions, imported_gemma
from tgbench.commands.holding import least_bytes, require_memory
from tgbench.commands.numbers import MOST_TOKENS, whole
from tgbench.commands.progress import bar
from tgbench.session.session import GraphSession
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced
from tgbench.sources.models.gemma3 import gemma3
from tgbench.sources.models.text import Tokenizer


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--gemma", type=Path, help="folder of a Gemma 3 checkpoint (a reduced, random one)")
    add("--imported", action="store_true", help="the reduced one from transformers, by from_torch")
    add("--prompt", action="append", help="text; several are edits of one another (needs --gemma)")
    add("--length", type=whole(2, MOST_TOKENS), default=64, help="ids of the random prompts (64)")
    add("--steps", type=whole(1, MOST_TOKENS), default=8, help="ids to write after each (8)")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.prompt and arguments.gemma is None:
        raise InputError("--prompt needs a tokenizer; give --gemma FOLDER")
    tokenizer = Tokenizer.from_directory(arguments.gemma) if arguments.prompt else None
    prompts = _prompts(arguments, tokenizer)
    tokens = max(map(len, prompts)) + arguments.steps
    with tempfile.TemporaryDirectory() as folder, bar() as progress:
        found = completions(
            _session(arguments, tokens, Path(folder)), prompts, arguments.steps, progress=progress
        )
    if arguments.json:
        print(json.dumps([one.to_dict() for one in found]))
        return 0
    for one in found:
        print(one)
        print(f"  {tokenizer.decode(list(one.ids)) if tokenizer else list(one.ids)}")
    return 0


def _session(arguments: argparse.Namespace, tokens: int, folder: Path) -> GraphSession:
    reduced = gemma3_reduced()
    source = None if arguments.imported else arguments.gemma or gemma3_checkpoint(folder, reduced)
    graph = gemma3(reduced if source is None else source, tokens=tokens)
    require_memory(least_bytes(graph), "cpu", "ask for fewer ids, by --length and --steps")
    return GraphSession(imported_gemma(tokens) if source is None else graph, source)


def _prompts(arguments: argparse.Namespace, tokenizer: Tokenizer | None) -> list[list[int]]:
    """The texts' ids; or random ids, then an edit near the end and one in the middle."""
    if tokenizer is not None:
        return [tokenizer.encode(text) for text in arguments.prompt]
    vocabulary = int(gemma3_reduced()["vocab_size"])
    length = arguments.length
    first = [int(i) for i in np.random.default_rng(0).integers(3, vocabulary, length)]
    late, middle = list(first), list(first)
    late[-2] = (late[-2] + 1) % vocabulary
    middle[length // 2] = (middle[length // 2] + 1) % vocabulary
    return [first, late, middle]
