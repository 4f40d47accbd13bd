"""The command line: subcommands, exit statuses, messages."""

from __future__ import annotations

import subprocess
import sys
from errno import ENOSPC

import pytest

import tgbench
from tgbench.base.errors import GraphError
from tgbench.commands import cli, demo


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command.name in shown
        assert command.help in shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"])
    assert left.value.code == 0
    assert capsys.readouterr().out == f"tgbench {tgbench.__version__}\n"


def test_a_wrong_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["dmeo"])
    assert left.value.code == 2
    assert "dmeo" in capsys.readouterr().err


@pytest.mark.parametrize("name", [command.name for command in cli.COMMANDS])
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([name, "--help"])
    assert left.value.code == 0
    assert "usage: tgbench" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("raised", "status", "message"),
    [
        (GraphError("this; do that"), 1, "error: this; do that\n"),
        (KeyboardInterrupt(), 130, "\nstopped\n"),
        (OSError(ENOSPC, "disk full"), 1, "error: disk full: what was to be said is not whole\n"),
    ],
)
def test_errors_are_one_line(
    raised: BaseException,
    status: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(arguments: object) -> int:
        raise raised

    monkeypatch.setattr(demo, "run", fail)
    assert cli.main(["demo"]) == status
    assert capsys.readouterr().err == message


def test_it_is_a_module_too() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tgbench", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"tgbench {tgbench.__version__}\n"
