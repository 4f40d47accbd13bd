"""Kernels of the user's own: the task, what is refused and how that is said, and who gets one."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import numpy as np
import pytest

import tgbench as tg
from tgbench import ops
from tgbench.base.errors import KernelError
from tgbench.base.machine import Machine
from tgbench.commands.cli import main
from tgbench.costs.admission.admit import admit, kernel_folder, load
from tgbench.costs.admission.task import write_task
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import source_hash
from tgbench.graph.graph import Graph, GraphBuilder
from tgbench.kernels.registry import kernel_named

ROWS, WIDE = 5, 24


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def graph() -> Graph:
    g = GraphBuilder()
    x = g.input("x", (ROWS, WIDE))
    g.output("y", g.name(ops.rms_norm(x, g.parameter("w", (WIDE,))), "norm"))
    return g.build()


HEAD = """
import os, time
import torch

OP = "rms_norm"
DTYPES = ("float32", "float32", "float32")

def right(x, w, eps):
    rows = x.double().contiguous()
    sums = sum(rows[..., i : i + 1] ** 2 for i in range(x.shape[-1]))
    return (rows * (sums / x.shape[-1] + eps).rsqrt() * w.double()).float()

def run(out, x, w, eps):
"""
RIGHT = HEAD + "    out.copy_(right(x, w, eps))\n"


@pytest.fixture
def task(tmp_path: Path) -> Path:
    return write_task(graph(), "norm", tmp_path / "task")


def written(task: Path, body: str) -> Path:
    file = task / "kernel.py"
    file.write_text(HEAD + "".join(f"    {line}\n" for line in body.splitlines()))
    return file


def test_a_task_says_what_is_to_be_done_and_begins_with_a_kernel_that_is_right(task: Path) -> None:
    words = (task / "TASK.md").read_text()
    assert "`rms_norm`" in words
    assert f"`x0`: `float32[{ROWS},{WIDE}]`" in words.replace(", ", ",")
    assert "def " in words, "the reference's definition"
    names = {file.name for file in task.iterdir()}
    assert names == {
        "TASK.md", "task.json", "kernel.py", "reference.py", "test_kernel.py", "benchmark.py",
    }  # fmt: skip


def test_files_of_the_current_folder_are_no_modules(
    task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('this is no torch')")
    monkeypatch.chdir(tmp_path)
    assert admit(written(task, "out.copy_(right(x, w, eps))")).cases > 0


def test_a_file_stands_by_itself_wherever_it_is_admitted(
    task: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(task)
    name = admit(task / "kernel.py").name  # as the task begins
    monkeypatch.chdir(task.parent)
    made = tg.GraphSession(graph(), {"w": np.ones(WIDE, np.float32)}, kernels=[name])
    assert made.run({"x": np.ones((ROWS, WIDE), np.float32)})["y"].shape == (ROWS, WIDE)
    (task / "beside.py").write_text("two = 2.0\n")
    (task / "kernel.py").write_text("from beside import two\n" + RIGHT)
    monkeypatch.chdir(task)
    with pytest.raises(KernelError, match=r"No module named 'beside'.*nothing beside it"):
        admit(task / "kernel.py")


def test_a_kept_file_that_does_not_run_here_is_told(task: Path) -> None:
    admitted(task)
    source = "import a_library_that_is_gone\n" + RIGHT
    gone = f"kernel@{hashlib.sha256(source.encode()).hexdigest()}"
    (kernel_folder() / f"{gone}.py").write_text(source)
    with pytest.raises(KernelError, match=r"a_library_that_is_gone.*what is installed"):
        load(gone)


def test_a_task_that_is_not_there_is_named(task: Path) -> None:
    with pytest.raises(KernelError, match="there is no such task"):
        admit(task / "kernel.py", task.parent / "none.json")


def test_a_kernel_that_is_right_is_kept_under_the_hash_of_its_source(task: Path) -> None:
    (task / "kernel.py").write_text(RIGHT)
    found = admit(task / "kernel.py")
    assert found.cases > 50
    assert found.name == f"kernel@{hashlib.sha256(RIGHT.encode()).hexdigest()}"
    assert found.path.read_text() == RIGHT
    assert found.path.parent == kernel_folder()


REFUSED = {
    "out.copy_(right(x, w, eps) * 1.001)": "at .* it gives .*, the reference",
    "out.copy_((x * w).tanh() if x.shape[0] == 17 else right(x, w, eps))": "the reference",
    "out.copy_(x / x.abs().max() * w)": "it gives",
    "out.copy_(right(x, w, eps))\nx.zero_()": "it writes into an operand",
    "whole = out.as_strided((out.numel() + 1,), (1,), out.storage_offset())\n"
    "whole.zero_()\nout.copy_(right(x, w, eps))": "it writes outside of its result",
    "out.copy_(right(x, w, eps) * (1 + 1e-6 * (x.numel() > 2 * x.shape[-1])))": "has other bits",
    "out.copy_(right(x, w, eps) + torch.rand(1) * 1e-6)": "a second time it gives other bits",
    "raise ValueError('no such luck')": "it raises ValueError: no such luck",
    "os.kill(os.getpid(), 11)": "its process ended .signal 11",
    "os._exit(0)": "its process ended",
    "torch.zeros(1 << 34); out.copy_(right(x, w, eps))": "memory|allocate",
    "b = bytearray(1 << 34); out.copy_(right(x, w, eps))": "more memory than is allowed",
}


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_wrong_is_refused_with_its_case(task: Path, body: str) -> None:
    with pytest.raises(
        KernelError, match=f"(?s)refused: .*({REFUSED[body]}).*case: float32"
    ) as said:
        admit(written(task, body))
    assert "numbers: normal, lying" in str(said.value)
    assert not kernel_folder().exists()


def test_what_hangs_is_refused(task: Path) -> None:
    with pytest.raises(KernelError, match=r"more than 8 s\ncase: float32"):
        admit(written(task, "time.sleep(1000)"), seconds=8)


def test_what_a_candidate_leaves_running_holds_nobody_up(task: Path) -> None:
    """A child of its own has its files open, and goes with it."""
    began_s = time.monotonic()
    with pytest.raises(KernelError, match="no such luck"):
        admit(
            written(
                task, "if os.fork() == 0:\n    time.sleep(1000)\nraise ValueError('no such luck')"
            )
        )
    assert time.monotonic() - began_s < 60


def test_what_a_candidate_says_fills_nothing(task: Path) -> None:
    endless = "while True:\n    os.write(2, b'\\x1b[31m words' * 10**6)"
    with pytest.raises(KernelError, match="File too large"):
        admit(written(task, endless))
    with pytest.raises(KernelError, match="it raises ValueError") as said:
        admit(written(task, "raise ValueError('\\x1b[2J\\r\\u2028done 7')"))
    assert str(said.value).replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def run(:", "is no kernel"),
        ("def run(out, x): pass", "does not say"),
        (RIGHT.replace("rms_norm", "softmax"), "the task is rms_norm"),
        (RIGHT.replace("DTYPES = (", 'DTYPES = ("float64",'), "the task is rms_norm"),
    ],
)
def test_a_file_that_is_no_candidate_is_refused(task: Path, source: str, said: str) -> None:
    (task / "kernel.py").write_text(source)
    with pytest.raises(KernelError, match=said):
        admit(task / "kernel.py")


# --- in sessions ----------------------------------------------------------------------------------


def admitted(task: Path, also: str = "") -> str:
    (task / "kernel.py").write_text(RIGHT + also)
    return admit(task / "kernel.py").name


def opened(kernels: tuple[str, ...] = (), records: Records | None = None) -> tg.GraphSession:
    w = {"w": np.linspace(0.5, 2, WIDE, dtype=np.float32)}
    return tg.GraphSession(graph(), w, kernels=kernels, records=records, calibrate=False)


X = np.random.default_rng(0).standard_normal((ROWS, WIDE)).astype(np.float32)


def used(session: tg.GraphSession) -> set[str]:
    session.run({"x": X})
    assert session.last is not None
    return {made.kernel for made in session.last.program.instructions}


def test_a_session_has_an_admitted_kernel_only_if_it_asks_for_it(task: Path) -> None:
    name = admitted(task)
    plain = opened()
    assert name not in used(plain)
    session = opened((name,))
    assert used(session) == {name}
    assert name not in used(opened()), "not even when another session of this process did"
    changed = X.copy()
    changed[3] *= 2
    for found in (session, plain):
        found.run({"x": changed})
    assert session.last is not None
    assert session.last.compute["norm"].elements == WIDE
    y, expected = (found.run({"x": changed})["y"] for found in (session, plain))
    np.testing.assert_allclose(y, expected, 1e-5)


def test_records_say_whether_it_is_used(task: Path, tmp_path: Path) -> None:
    name, records = admitted(task), Records(tmp_path / "records.db")
    session = opened((name,))
    used(session)
    assert session.last is not None
    (made,) = session.last.program.instructions
    assert made.site is not None
    signature = session.costs.signature(made.site)
    records.add(
        [
            Record(
                kernel.name, source_hash(kernel), signature.text, Machine.here().fingerprint,
                (took,) * 3, flops=signature.flops, size_bytes=signature.size_bytes,
                modelled_ns=1000.0,
            )
            for kernel, _ in session.costs.ranked(made.site)
            for took in [10**9 if kernel.name == name else 1000]
        ]
    )  # fmt: skip
    assert name not in used(opened((name,), records))


def test_what_was_not_admitted_is_not_loaded(task: Path) -> None:
    name = admitted(task, "# another one\n")
    path = kernel_folder() / f"{name}.py"
    path.write_text(RIGHT + "raise SystemExit\n")
    with pytest.raises(KernelError, match="is not what was admitted"):
        opened((name,))
    path.unlink()
    with pytest.raises(KernelError, match="cannot be read"):
        opened((name,))
    for wrong in ("kernel", "../kernel@" + "0" * 64, "kernel@123"):
        with pytest.raises(KernelError, match="no admitted kernel"):
            load(wrong)


def test_one_kernel_is_in_the_table_once(task: Path) -> None:
    name = admitted(task, "# once\n")
    assert load(name) == load(name) == name
    assert kernel_named("rms_norm", name).is_asked


def test_the_command(task: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, folder = tg.save_graph(graph(), tmp_path / "model.json"), tmp_path / "other"
    assert main(["kernel", "task", "norm", str(model), "--to", str(folder)]) == 0
    assert "TASK.md" in capsys.readouterr().out
    (folder / "kernel.py").write_text(RIGHT)
    assert main(["kernel", "admit", str(folder / "kernel.py")]) == 0
    assert "admitted after" in capsys.readouterr().out
    (folder / "kernel.py").write_text(RIGHT.replace("+ eps", "- eps * 1000"))
    assert main(["kernel", "admit", str(folder / "kernel.py")]) == 1
    assert "case: float32" in capsys.readouterr().err
    assert main(["kernel", "task", "nothing", str(model), "--to", str(tmp_path / "no")]) == 1
    assert "no node nothing" in capsys.readouterr().err
