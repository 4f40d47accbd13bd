"""What is raised on purpose, as it stands there: the fault, and behind a `;` the mend."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "tgbench"
LETTERS = 20  # of a message's own; one with fewer says where another one's fault is
ARE_MENDS = (
    "changing a bit-exact plan needs its session: WhatIf.of(session)",
    "name other devices and what they may give: memory=",
    "give steps of 0 or more",
    "the check failed",  # with a row for each fault
)


def literal(value: ast.expr) -> str:
    """The text that stands there; what is filled in is left out."""
    match value:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(literal(part) for part in parts)
    return ""


def messages(folder: Path) -> Iterator[tuple[str, str]]:
    """Where something is raised, and its message, where that stands there."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = literal(node.exc.args[0])
                if len(text) >= LETTERS:
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", text


@pytest.mark.parametrize("room", ["sources", "session"])
def test_every_error_says_what_to_do(room: str) -> None:
    found = list(messages(PACKAGE / room))
    assert len(found) > 50
    bare = [
        f"{place}: {text}"
        for place, text in found
        if ";" not in text and not any(mend in text for mend in ARE_MENDS)
    ]
    assert not bare, "\n".join(bare)
