"""`tgbench edit`: the embedding of a document while it is edited.

$ tgbench edit --edit "two days=three weeks" --edit "heron=crane"
edit  rows  computed  similarity to the first
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tgbench.base.errors import InputError
from tgbench.commands.apps.editing import edit
from tgbench.commands.demo import TEXTS
from tgbench.commands.numbers import MOST_TOKENS, whole
from tgbench.commands.progress import bar

DOCUMENT = " ".join(TEXTS)
EDITS = ("two days=three weeks", "heron=crane", "rose=fell", "cake=bread")


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--document", type=Path, help="a text file (eight sentences of ours)")
    add("--edit", type=_edit, action="append", metavar="OLD=NEW", help="may be given several times")
    add("--tokens", type=whole(1, MOST_TOKENS), help="of a row (32; 256 with --whole)")
    add("--whole", action="store_true", help="the document as one row, not a row per sentence")
    add("--imported", action="store_true", help="the model from transformers, by from_torch")
    add("--json", action="store_true", help="say it as JSON")


def run(arguments: argparse.Namespace) -> int:
    if arguments.document is not None and not arguments.edit:
        raise InputError(
            f"--document {arguments.document}: say what is edited, by --edit OLD=NEW; the usual "
            "edits are of the usual document"
        )
    edits = arguments.edit or list(map(_edit, EDITS))
    tokens = arguments.tokens or (256 if arguments.whole else 32)
    with bar() as progress:
        found = edit(
            _document(arguments.document), edits, tokens=tokens, split=not arguments.whole,
            imported=arguments.imported, progress=progress,
        )  # fmt: skip
    print(json.dumps(found.to_dict()) if arguments.json else found)
    return 0


def _document(path: Path | None) -> str:
    if path is None:
        return DOCUMENT
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--document {path} cannot be read ({error})") from error


def _edit(text: str) -> tuple[str, str]:
    old, equals, new = text.partition("=")
    if not old or not equals:
        raise argparse.ArgumentTypeError(f"{text} is no OLD=NEW")
    return old, new
