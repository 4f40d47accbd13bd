"""`tgbench pack`: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tgbench.commands import cli
from tgbench.commands.pack import TOO_HIGH
from tgbench.memory.check import validate
from tgbench.memory.packing import Buffer, Problem, Solution, read_minimalloc, write_minimalloc

PROBLEM = Problem((Buffer("a", 128, 0, 2), Buffer("b", 64, 1, 4), Buffer("c", 128, 2, 4)), None, 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_minimalloc(tmp_path / "buffers.csv", PROBLEM)
    return tmp_path / "buffers.csv"


def test_it_says_height_bound_ratio_and_reason(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pack", str(file), "--capacity", "200"]) == 0
    said = capsys.readouterr().out
    assert "height 192 B (192 B) of 200 B (200 B); bound 192 B, ratio 1.0000\n" in said
    assert "no packing is lower; 3 buffers, 0 steps" in said


def test_a_capacity_that_is_not_met_shows_in_the_status(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pack", str(file), "--capacity", "100"]) == TOO_HIGH
    assert "no packing meets the capacity" in capsys.readouterr().out


def test_the_solution_is_written_and_valid(file: Path) -> None:
    output = file.with_name("packed.csv")
    assert cli.main(["pack", str(file), "--alignment", "64", "--output", str(output)]) == 0
    problem = read_minimalloc(output, alignment=64)
    with open(output, newline="") as lines:
        offsets = {row["id"]: int(row["offset"]) for row in csv.DictReader(lines)}
    assert problem.buffers == PROBLEM.buffers
    assert validate(problem, Solution.of(problem, offsets, "file")) == []


def test_json_and_the_drawing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pack", str(file), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["height_bytes"], said["stop_reason"], said["fits"]) == (192, "OPTIMAL", True)
    assert cli.main(["pack", str(file), "--draw"]) == 0
    assert "a = a 128 B" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [("id,lower,upper,size\n0,0,4,many\n", "line 2: size is 'many'"), (None, "cannot be read")],
)
def test_a_damaged_or_missing_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, message: str
) -> None:
    path = tmp_path / "damaged.csv"
    if text is not None:
        path.write_text(text)
    assert cli.main(["pack", str(path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", [["--seconds", "0"], ["--capacity", "-1"], ["--alignment", "x"]])
def test_wrong_numbers_are_wrong_arguments(file: Path, words: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["pack", str(file), *words])
    assert stopped.value.code == 2
