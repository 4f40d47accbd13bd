"""The documentation runs: every Python block, in order, in a folder of its own.

    ```python      is executed; the blocks of one file share their names
    ```text        right behind a Python block: what that block prints, exactly
    <!-- no-run -->  in the line above a block: it is not executed

Blocks run as a user runs them: without `TGBENCH_MAKING`, which other tests are run with. What they
print is the same on every machine where a block says `making="always"` for itself.

And every relative link and image points at something.
"""

from __future__ import annotations

import contextlib
import io
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

import tgbench
from tgbench.base.switches import MAKING

PAGES = sorted(path for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")] if path.exists())
LINKED = sorted({*PAGES, *ROOT.glob("docs/**/*.md")})
NO_RUN = "<!-- no-run -->"
FENCE = re.compile(r"^(```+)(\w*)\s*$")
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Fields:
        line: number of its first line of code, from 1.
        skipped: `<!-- no-run -->` stands above it.
        follows: nothing but blank lines lies between it and the block before.
    """

    language: str
    code: str
    line: int
    skipped: bool
    follows: bool


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order.

    >>> [found] = blocks("a\\n```python\\nx = 1\\n```\\n")
    >>> found.language, found.code, found.line
    ('python', 'x = 1\\n', 3)
    """
    lines = text.splitlines()
    at, between = 0, ["start"]
    while at < len(lines):
        opening = FENCE.match(lines[at])
        if opening is None:
            between.append(lines[at])
            at += 1
            continue
        stop = next(i for i in range(at + 1, len(lines)) if lines[i] == opening[1])
        said = [line for line in between if line.strip()]
        code = "".join(f"{line}\n" for line in lines[at + 1 : stop])
        yield Block(opening[2], code, at + 2, said[-1:] == [NO_RUN], not said)
        at, between = stop + 1, []


def run_page(path: Path) -> int:
    """Execute a page; returns how many blocks ran. Tracebacks name the page and its lines."""
    names: dict[str, Any] = {"__name__": path.stem}
    printed: str | None = None
    count = 0
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.language == "text" and block.follows and printed is not None:
            assert printed == block.code, f"{path.name}:{block.line}: the block prints\n{printed}"
        printed = None
        if block.language == "python" and not block.skipped:
            source = "\n" * (block.line - 1) + block.code
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(source, str(path), "exec"), names)
            printed, count = out.getvalue(), count + 1
    return count


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(MAKING, raising=False)
    run_page(path)


def test_the_runner_sees_wrong_output_and_honours_the_marker(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        f"{NO_RUN}\n```python\n1 / 0\n```\n\n```python\nprint(2)\n```\n\n```text\n2\n```\n"
    )
    assert run_page(page) == 1
    page.write_text("```python\nprint(2)\n```\n```text\n3\n```\n")
    with pytest.raises(AssertionError, match=r"page.md:5"):
        run_page(page)
    page.write_text("a\n```python\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as error:
        run_page(page)
    assert error.traceback[-1].lineno == 2  # counted from 0


@pytest.mark.parametrize("path", LINKED, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "", text)
    for found in LINK.finditer(text):
        target = (found[1] or found[2]).split("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("docs/decisions/[0-9]*.md")), ids=lambda path: path.stem
)
def test_decisions_are_numbered_and_titled(path: Path) -> None:
    number = path.name[:4]
    assert number.isdigit()
    assert path.read_text(encoding="utf-8").startswith(f"# {number}: ")


def test_the_contributing_page_has_the_rooms_in_their_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    layers = contracts["contracts"][0]["layers"]
    table = (ROOT / "docs/contributing.md").read_text(encoding="utf-8").split("| room |")[1]
    lines = table.split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip(" `") for cell in line.split("|")[1:4]] for line in lines]
    assert [room for room, _, _ in rows] == [r for row in layers[1:] for r in row.split(" | ")]
    for room, _, starts in rows:
        for name in starts.split("`, `"):
            assert (ROOT / "tgbench" / room / name).exists(), f"{room} has no {name}"


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\(([^)]+)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(path.name for path in folder.glob("[0-9]*.md"))


@pytest.mark.parametrize("name", sorted(set(re.findall(
    r"`((?:[a-z_]+\.)+[A-Za-z_]+)`", (ROOT / "docs/glossary.md").read_text(encoding="utf-8")))
    - {"config.json", "tg.supported"}
))  # fmt: skip
def test_the_glossary_names_what_there_is(name: str) -> None:
    value: Any = tgbench
    for part in name.split("."):
        with contextlib.suppress(ModuleNotFoundError):
            import_module(f"{getattr(value, '__name__', '')}.{part}")
        value = getattr(value, part)
