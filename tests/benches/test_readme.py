"""Every number that the README cites is in the file that it links to, rounded as printed."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from places import ROOT

from benchmarks import readme
from benchmarks.measure import RESULTS

FOLDER = ROOT / RESULTS
TEXT = (ROOT / readme.README).read_text(encoding="utf-8")


def test_the_readme_says_what_the_results_hold() -> None:
    """If this fails: `python -m benchmarks.readme --write`, and read what changed."""
    assert readme.put(TEXT, readme.measured(FOLDER)) == TEXT


def test_results_are_cited_nowhere_else_in_the_readme() -> None:
    before, rest = TEXT.split(readme.BEGIN)
    after = rest.split(readme.END, 1)[1]
    assert not re.findall(r"\w+\.json\)", before + after)


def test_every_file_of_results_is_listed_with_its_command() -> None:
    rows = re.findall(r"^\| `(\S+?)\.json`", (FOLDER / "README.md").read_text("utf-8"), re.M)
    assert not {path.stem for path in FOLDER.glob("*.json")} - set(rows)


def test_another_result_is_another_text(tmp_path: Path) -> None:
    for path in FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    found = json.loads((tmp_path / "engine.json").read_text("utf-8"))
    model = found["models"][readme.LARGE]
    model["hot_loop"]["over_loop"]["run"] = 1.2345
    model["planning"] = {
        "32MiB": {"outcome": "25.13 MiB, 36 retained, cut in 2"},
        "20MiB": {"outcome": "19.75 MiB, 9 retained, 27 dropped"},
    }
    (tmp_path / "engine.json").write_text(json.dumps(found), encoding="utf-8")
    section = readme.measured(tmp_path)
    assert "| 1.23 × |" in section
    assert "| 25.13 MiB planned for 32 MiB, of" in section


@pytest.mark.parametrize(("load", "shown"), [(1.0, True), (9.0, False)])
def test_two_threads_are_shown_where_others_left_the_processors(
    load: float, shown: bool, tmp_path: Path
) -> None:
    for path in FOLDER.glob("*.json"):
        shutil.copy(path, tmp_path)
    found = json.loads((tmp_path / "decode.json").read_text("utf-8"))
    for case in found["cases"]:
        case["loads"] = [load] * len(case["loads"])
    (tmp_path / "decode.json").write_text(json.dumps(found), encoding="utf-8")
    section = readme.measured(tmp_path)
    assert "fp32, 1 thread" in section
    assert ("fp32, 2 threads" in section) is shown


def test_it_prints_and_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / RESULTS).parent.mkdir(parents=True)
    shutil.copytree(FOLDER, tmp_path / RESULTS)
    (tmp_path / readme.README).write_text(f"a\n{readme.BEGIN}\nold\n{readme.END}\nb\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    readme.main([])
    printed = capsys.readouterr().out
    readme.main(["--write"])
    written = (tmp_path / readme.README).read_text("utf-8")
    assert written == f"a\n{readme.BEGIN}\n\n{printed}\n{readme.END}\nb\n"
