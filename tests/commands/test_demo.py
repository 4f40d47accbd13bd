"""The short tour with tiny models, end to end."""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path

import pytest

from tgbench.commands import cli, demo
from tgbench.commands.demo import (
    QUICK,
    TEXTS,
    Decoding,
    Terminal,
    Turns,
    difference,
    is_checkpoint,
    transformers_version,
)
from tgbench.plans.plan import Plan
from tgbench.sources.models.checkpoints import find_minilm, gemma3_checkpoint, gemma3_reduced
from tgbench.views.pages.report import Run


def tour(folder: Path, *more: str) -> int:
    quick = ["demo", "--quick", "--output", str(folder / "out"), "--cache", str(folder / "cache")]
    return cli.main([*quick, *more])


def has_minilm() -> bool:
    try:
        find_minilm()
    except demo.WeightsError:
        return False
    return True


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A whole tour: its folder, and what it said."""
    folder = tmp_path_factory.mktemp("demo")
    stream = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        assert tour(folder) == 0
    return folder, stream.getvalue()


def test_it_shows_every_run(toured: tuple[Path, str]) -> None:
    _, said = toured
    rows = [line for line in said.splitlines() if " → " in line and "×" not in line]
    gemma = 2 + QUICK.before + demo.EDITED + QUICK.after
    texts = 2 + 2 * QUICK.texts if has_minilm() else 0
    assert len(rows) == gemma + texts
    if transformers_version():
        assert all(re.search(r" yes \de-\d\d$", row) for row in rows)
    assert "NOT EQUAL" not in said
    assert "budget          1 MiB" in said
    assert said.index("Next:") > said.index("report  ")
    assert "\r" not in said  # no terminal, no rewriting of lines


def test_it_cuts_nothing_of_a_plan(toured: tuple[Path, str]) -> None:
    text = toured[1]
    for name in ["gemma", *(["minilm"] if has_minilm() else [])]:
        plan = Plan.load(toured[0] / "out" / f"{name}.plan.json")
        assert " ".join(str(plan).split()) in " ".join(text.split())


def test_it_writes_a_report_that_stands_alone(toured: tuple[Path, str]) -> None:
    text = (toured[0] / "out" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"https?:", text.replace("http://www.w3.org/2000/svg", ""))
    found = re.search(r'<script type="application/json" id="timelines">(.*?)</script>', text)
    assert found is not None
    first = json.loads(found[1])[0]
    assert set(first["computed"]) == {"prefill", "decode", "edit"}
    assert len(first["computed"]["decode"]) <= len(first["computed"]["edit"])


def test_the_report_draws_the_plan_that_it_saves(toured: tuple[Path, str]) -> None:
    folder = toured[0] / "out"
    plan = Plan.load(folder / "gemma.plan.json")
    text = (folder / "report.html").read_text(encoding="utf-8")
    found = re.search(r'id="timelines">(.*?)</script>', text)
    assert found is not None
    data = json.loads(found[1])[0]
    assert data["size_bytes"] == plan.size_bytes
    drawn = dict(zip(data["name"], data["offset"], strict=True))
    assert {slot.node: slot.offset_bytes for slot in plan.slots}.items() <= drawn.items()


def test_its_files(toured: tuple[Path, str]) -> None:
    folder = toured[0] / "out"
    names = {path.name for path in folder.iterdir()}
    assert {"report.html", "runs.json", "gemma.plan.json", ".gitignore"} <= names
    assert (folder / ".gitignore").read_text() == "*\n"
    runs = json.loads((folder / "runs.json").read_text())["runs"][
        "Gemma 3: decode, then edit in the middle"
    ]
    decoded = [run for run in runs if run["step"].startswith("decode")]
    assert len(decoded) == QUICK.before + QUICK.after
    assert any(not run["is_first"] for run in decoded)
    assert max(run["recomputed"] for run in decoded) < runs[0]["recomputed"] == 1
    assert not list(toured[0].rglob("*.tmp"))


def test_the_checkpoint_is_kept(toured: tuple[Path, str], tmp_path: Path) -> None:
    folder = toured[0] / "cache" / "gemma3-tiny-random"
    assert is_checkpoint(folder, QUICK.config)
    assert not is_checkpoint(folder, gemma3_reduced(vocab_size=512))
    assert not is_checkpoint(tmp_path, QUICK.config)
    torn = gemma3_checkpoint(tmp_path / "torn", QUICK.config)
    os.truncate(torn / "model.safetensors", 1000)
    assert not is_checkpoint(torn, QUICK.config)


def test_again_without_reference_and_from_a_folder(
    toured: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = toured[0] / "cache" / "gemma3-tiny-random"
    monkeypatch.setenv("GEMMA", str(given))
    assert tour(toured[0], "--no-reference") == 0
    said = capsys.readouterr().out
    assert "random weights" not in said
    assert "transformers" not in said.split("Next:")[0].replace("beside transformers", "")


def test_without_transformers_it_says_so_and_goes_on(
    toured: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "transformers_version", lambda: "")
    assert tour(toured[0]) == 0
    said = capsys.readouterr().out
    assert "transformers is not installed" in said
    assert "equal" not in said
    assert "kept from before" in said


def test_text_in_and_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    folder = gemma3_checkpoint(tmp_path / "gemma", QUICK.config)
    pieces = dict.fromkeys(["?", "never", *demo.PROMPT.replace(",", "").replace(".", "").split()])
    words = {word: i for i, word in enumerate(pieces)}
    words |= {f"w{i}": i for i in range(len(words), 256)}
    reader = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    reader.save(str(folder / "tokenizer.json"))
    assert tour(tmp_path, "--gemma", str(folder), "--no-reference") == 0
    said = capsys.readouterr().out
    before = re.search(r"before the edit: …'([^']+)'", said)
    assert before is not None
    assert len(before[1].split()) == QUICK.before


def test_a_budget_that_is_too_small_is_explained(
    toured: tuple[Path, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert tour(toured[0], "--no-reference", "--memory", "1KiB") == 1
    error = capsys.readouterr().err
    assert error.startswith("error: budget 1 KiB is too small")
    assert error.count("\n") == 1


def test_ctrl_c_leaves_whole_files(
    toured: tuple[Path, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {p: p.read_bytes() for p in (toured[0] / "out").iterdir()}
    step = Decoding.step

    def interrupted(self: Decoding, group: str, words: str, kept: int) -> int:
        if group == "edit":
            raise KeyboardInterrupt
        return step(self, group, words, kept)

    monkeypatch.setattr(Decoding, "step", interrupted)
    assert tour(toured[0], "--no-reference") == 130
    said = capsys.readouterr().out
    assert "stopped" in said
    assert str(toured[0] / "cache") in said
    assert {p: p.read_bytes() for p in (toured[0] / "out").iterdir()} == before


def test_turns_alternate_who_goes_first() -> None:
    order: list[str] = []
    turns = Turns()
    for _ in range(4):
        turns.both(lambda: order.append("here"), lambda: order.append("there"))
    assert order == ["here", "there", "there", "here"] * 2
    assert turns.both(lambda: 7, None)[0] == 7
    assert turns.both(lambda: 7, None)[2:] == (None, None)


def test_a_terminal_line_is_rewritten() -> None:
    class Stream(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Stream()
    screen = Terminal(terminal)
    screen.meanwhile("working …")
    screen.row(Run("a step", "x → y", 0.5, 1_000_000, 64), screen.table(beside=False))
    first, rest = terminal.getvalue().split("\r", 1)
    assert first == "working …"
    assert rest.startswith(" " * len(first) + "\r")
    assert terminal.getvalue().endswith("50.0 %   1.00 ms        64 B\n")


@pytest.mark.parametrize("width", [None, 300, 128, 110, 95, 80])
def test_the_table_fits_the_terminal(width: int | None) -> None:
    every = (*demo.COLUMNS, *demo.BESIDE)
    columns = demo.fitting(every, width)
    total = sum(column.width + 2 for column in columns) - 2
    if width is None or width >= 128:
        assert columns == every
    elif width > 93:
        assert total == width
    else:
        assert demo.FLEXIBLE not in [column.name for column in columns]


def test_an_output_folder_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert cli.main(["demo", "--quick", "--output", str(tmp_path / "file" / "out")]) == 1
    assert "error: --output cannot be made" in capsys.readouterr().err


def test_difference_is_relative() -> None:
    import numpy as np

    a = np.array([1.0, 2.0], np.float32)
    assert difference(a, None) is None
    assert difference(a, a) == 0
    assert difference(a, np.array([1.0, 4.0], np.float32)) == 0.5
    assert difference(a * 0, a * 0) == 0


def test_every_edit_changes_its_text() -> None:
    assert sorted(row for row, _, _ in demo.EDITS) == list(range(len(TEXTS)))
    for row, old, new in demo.EDITS:
        assert TEXTS[row].count(old) == 1
        assert TEXTS[row].replace(old, new).replace(new, old) == TEXTS[row]
