"""What is no argument is said before anything runs, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import tgbench as tg
from tgbench.commands import cli, holding, targets
from tgbench.commands.cli import main
from tgbench.commands.numbers import MOST_TOKENS
from tgbench.costs.records import Records
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced

SIZE = 8


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A graph with its weights and inputs, and the plan and trace of a run."""
    g = tg.GraphBuilder()
    x = g.input("x", (SIZE, SIZE))
    g.output("y", tg.ops.linear(x, g.parameter("w", (SIZE, SIZE))))
    tg.save_graph(g.build(), tmp_path / "g.json")
    save_file({"w": np.eye(SIZE, dtype="f")}, tmp_path / "w.safetensors")
    save_file({"x": np.ones((SIZE, SIZE), "f")}, tmp_path / "x.safetensors")
    assert ran(tmp_path, "--plan", str(tmp_path / "p.json"), "--trace", f"{tmp_path}/t.jsonl") == 0
    return tmp_path


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, where commands run."""
    monkeypatch.chdir(folder)
    return folder


def ran(folder: Path, *more: str) -> int:
    return main([
        "run", f"{folder}/g.json", "--weights", f"{folder}/w.safetensors",
        "--inputs", f"{folder}/x.safetensors", *more,
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("stream --samples -3", "--samples: -3 is no whole number from 1 to"),
        ("stream --samples 99999999999999", "is no whole number from 1 to"),
        ("stream --block 0", "--block: 0 is no whole number from 1 to"),
        ("stream --layers 0", "--layers: 0 is no whole number"),
        ("stream --window 99999999", "--window: 99999999 is no whole number"),
        ("complete --length 99999999999", "--length: 99999999999 is no whole number from 2 to"),
        ("stream --block 1.5", "--block: 1.5 is no whole number from 1 to"),
        ("complete --steps 0", "--steps: 0 is no whole number from 1"),
        ("edit --tokens 0", "--tokens: 0 is no whole number from 1 to"),
        ("check g.json pairs --edits 2 --seed -5", "--seed: -5 is no whole number from 0 on"),
        ("check g.json pairs --tolerance -1", "--tolerance: -1 is no number from 0 on"),
        ("check g.json pairs --tolerance inf", "--tolerance: inf is no number from 0 on"),
        ("sweep model --tolerance 0", "--tolerance: 0 is no number above 0; give one such as"),
        ("sweep model --tolerance nan", "--tolerance: nan is no number above 0"),
        ("optimize g.json --trace t --plan p --steps " + "9" * 23, "is no whole number from 0 to"),
        ("occlusion --patch 0", "--patch: 0 is no whole number from 1 on"),
        ("occlusion --stride 0", "--stride: 0 is no whole number from 1 on"),
        ("occlusion --at-once 0", "--at-once: 0 is no whole number from 1 on"),
        ("kernel admit f.py --seconds nan", "--seconds: nan is no number of seconds"),
        ("check g.json pairs --edits x", "--edits: x is no whole number from 0 on"),
        ("sweep model --count -1", "--count: -1 is no whole number from 0 on"),
        ("sweep model --seconds -1", "--seconds: -1 is no number of seconds"),
        ("profile model --seconds nan", "--seconds: nan is no number of seconds"),
        ("profile model --tokens 99999999", "--tokens: 99999999 is no whole number from 1 to"),
        ("run g.json --inputs x --repeat 0", "--repeat: 0 is no whole number from 1 on"),
        ("optimize g.json --trace t --plan p --seed -1", "--seed: -1 is no whole number from 0 to"),
        ("run g.json --inputs x --memory -5", "--memory: -5 is no size; write 268435456, 256MiB"),
        ("profile model --memory much", "--memory: much is no size"),
        ("run g.json --inputs x --bind T=x", "--bind: T=x is no name and size, such as T=128"),
        ("kernel task n g.json --to t --bind 3", "--bind: 3 is no name and size"),
        ("edit --edit nothing", "--edit: nothing is no OLD=NEW"),
        ("pack f.csv --seconds 0", "--seconds: 0 seconds are no time; give more"),
        ("pack f.csv --capacity 1KiB", "--capacity: 1KiB is no whole number from 1 on"),
    ],
)
def test_numbers_out_of_bounds_are_wrong_arguments(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_what_is_read_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = folder / "p.json"
    before = plan.read_bytes()
    (folder / "link.json").symlink_to(plan)
    (folder / "hard.json").hardlink_to(plan)
    (folder / "sub").mkdir()
    names = ("p.json", "sub/../p.json", "link.json", "hard.json")
    for target in (folder / name for name in names):
        assert main(["export", str(plan), "--to", str(target)]) == 1
        assert "is the file that is read; give another name" in capsys.readouterr().err
    assert plan.read_bytes() == before
    graph = folder / "g.json"
    assert main(["export", str(plan), "--graph", str(graph), "--to", str(graph)]) == 1
    assert tg.load_graph(graph).inputs
    assert ran(folder, "--output", f"{folder}/w.safetensors") == 1
    assert "w.safetensors is the file that is read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--plan a --output a", "a is to be two files at once; give each a name of its own"),
        ("--trace a --output sub/../a", "is to be two files at once"),
        ("--plan a --programs a", "is to be two files at once"),
        ("--plan a --trace a", "is to be two files at once"),
        ("--plan p.json --programs p.json", "p.json is the file that is read"),
        ("--trace x.safetensors", "x.safetensors is the file that is read"),
        ("--plan p.json --programs notes.txt", "notes.txt: no file of programs; pass one that"),
        ("--plan p.json --programs g.json", "g.json is the file that is read"),
        ("--plan p.json --programs other.json", "other.json: no file of programs; pass one that"),
        ("--plan p.json --programs t.jsonl", "t.jsonl: no file of programs; pass one that"),
    ],
)
def test_a_run_writes_each_file_once_and_nothing_else(
    words: str,
    said: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "sub").mkdir()
    (here / "notes.txt").write_text("mine")
    (here / "other.json").write_text('{"version": 1, "nodes": []}')
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    assert ran(here, *words.split()) == 1
    assert said in capsys.readouterr().err
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    "words",
    [
        "stream --layers 2 --channels 2 --signal s.npy --output s.npy",
        "occlusion --model m.pt2 --image s.npy --output s.npz --weights s.npz",
        "pack b.csv --output sub/../b.csv",
        "optimize g.json --weights w.safetensors --trace t.jsonl --plan t.jsonl",
        "optimize g.json --weights w.safetensors --trace t.jsonl --plan g.json",
        "optimize g.json --weights w.safetensors --trace t.jsonl --plan q --records sub/../q",
        "run g.json --weights . --inputs sub/x --output w.safetensors",
    ],
)
def test_every_command_leaves_what_it_reads(
    words: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "sub").mkdir()
    np.save("s.npy", np.ones(12, np.float32))
    (here / "b.csv").write_text("id,lower,upper,size\n0,0,2,4\n")
    before = {path: path.read_bytes() for path in here.iterdir() if path.is_file()}
    assert main(words.split()) == 1
    assert "is the file that is read; give another name" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in here.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("command", ["stream", "occlusion", "pack f.csv"])
def test_outputs_are_looked_at_before_anything_runs(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--output", f"{tmp_path}/none/x.npz"]) == 1
    assert "/none is no folder; check the path" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--output", "--plan", "--programs"])
def test_targets_are_looked_at_before_the_first_run(
    folder: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def lines() -> int:
        return len((folder / "t.jsonl").read_text().splitlines())

    before, plan = lines(), [] if option == "--plan" else ["--plan", f"{folder}/p.json"]
    for target in (folder / "none" / "x", folder, "/dev/null"):
        said = ran(folder, *plan, "--trace", f"{folder}/t.jsonl", option, str(target))
        assert said == 1
        assert f"{target}" in capsys.readouterr().err
    assert lines() == before


def test_a_plan_that_is_there_is_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.os, "access", lambda path, mode: False)
    assert ran(folder, "--plan", f"{folder}/p.json") == 0
    assert ran(folder, "--plan", f"{folder}/new.json") == 1


def test_names_that_no_file_has_are_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in ("--plan", "--output"):
        assert ran(folder, option, str(folder / ("x" * 300))) == 1
        assert "File name too long" in capsys.readouterr().err


def test_programs_are_of_a_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(folder, "--programs", f"{folder}/x.programs") == 1
    assert "--programs are of a plan; give its file with --plan" in capsys.readouterr().err


def test_a_plan_that_is_not_there_is_measured_by_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gemma3_checkpoint(tmp_path / "gem", gemma3_reduced())
    words = [f"{tmp_path}/gem", "--tokens", "8", "--plan", f"{tmp_path}/none.json"]
    for command in ("profile", "sweep"):
        assert main([command, *words, "--records", f"{tmp_path}/r.db"]) == 1
        assert "none.json: there is no such file; check --plan" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--page", "--to", "z.svg"], "--page writes .html; end --to z.svg in .html"),
        (["--against", "p.json", "--to", "z.svg"], "--against compares on a page; end --to z.svg"),
    ],
)
def test_what_only_a_page_has_is_not_asked_of_others(
    here: Path,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["export", "p.json", *words]) == 1
    assert said in capsys.readouterr().err
    assert not Path("z.svg").exists()


def test_an_explanation_is_in_the_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tg.Plan.load(folder / "p.json")
    name = plan.slots[0].node
    capsys.readouterr()
    assert main(["plan", f"{folder}/p.json", "--explain", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["explanation"] == str(plan.explain(name))


def test_weights_in_less_need_the_weights(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", f"{folder}/p.json", "--graph", f"{folder}/g.json", "--weights-dtype", "int8"]
    assert main(words) == 1
    assert "--weights-dtype int8 is of weights; give their file" in capsys.readouterr().err
    assert main([*words, "--weights", f"{folder}/w.safetensors"]) == 1
    assert "the plan is for graph" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--weights w", "--weights-dtype int8", "--bind T=3"])
def test_options_of_a_graph_need_the_graph(
    folder: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", f"{folder}/p.json", *option.split()]) == 1
    said = f"{option.split()[0]} is of a graph; give its file with --graph"
    assert said in capsys.readouterr().err


def test_sizes_are_of_dimensions_that_have_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One for each; nothing that was asked for is passed over."""
    for name, first in (("g", 3), ("s", tg.dim("T"))):
        g = tg.GraphBuilder()
        g.output("y", tg.ops.relu(g.input("x", (first, 4))))
        tg.save_graph(g.build(), tmp_path / f"{name}.json")
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.ones(3),)), tmp_path / "m.pt2")
    save_file({"x": np.ones((3, 4), "f")}, tmp_path / "x.safetensors")
    for model, sizes, said in (
        ("g.json", ["T=3"], "no dimension 'T'; the graph has none"),
        ("s.json", ["T=3", "S=2"], "no dimension 'S'; the graph has T"),
        ("s.json", ["T=3", "T=4"], "--bind T=3 and T=4: give one size"),
        ("m.pt2", ["T=3"], "the sizes of an exported program are known; leave --bind out"),
    ):
        words = [word for size in sizes for word in ("--bind", size)]
        shown = ["run", f"{tmp_path}/{model}", "--inputs", f"{tmp_path}/x.safetensors", *words]
        assert main(shown) == 1
        assert said in capsys.readouterr().err


def test_a_window_that_is_too_small_names_one_that_is_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["stream", "--samples", "12", "--layers", "3", "--channels", "2", "--window"]
    assert main([*words, "3"]) == 1
    said = capsys.readouterr().err
    assert "depends on 8 samples" in said
    assert main([*words, said.split("give --window ")[1].split()[0]]) == 0


@pytest.mark.parametrize(
    "words",
    ["complete --length 12", "complete --length 12 --imported", "stream --layers 2 --channels 2"],
)
def test_what_no_memory_holds_is_refused(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(holding, "total_bytes", lambda device: 1000)
    assert main(words.split()) == 1
    assert ", and there are 1000 B of memory; " in capsys.readouterr().err


def test_a_model_that_no_memory_holds_is_not_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(holding, "total_bytes", lambda device: 32 << 30)
    gemma3_checkpoint(tmp_path, gemma3_reduced())
    words = [str(tmp_path), "--tokens", str(MOST_TOKENS), "--records", f"{tmp_path}/r.db"]
    for command in ("profile", "sweep"):
        assert main([command, *words]) == 1
        assert "of memory; ask for fewer --tokens" in capsys.readouterr().err


def test_blocks_longer_than_the_signal_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "--samples", "50", "--block", "500"]) == 1
    assert "--samples 50 are less than a --block of 500" in capsys.readouterr().err


def test_graphs_without_parameters_are_optimized(tmp_path: Path) -> None:
    g = tg.GraphBuilder()
    g.output("y", tg.ops.relu(g.input("x", (tg.dim("T"), 4))))
    tg.save_graph(g.build(), tmp_path / "g.json")
    save_file({"x": np.ones((3, 4), "f")}, tmp_path / "x.safetensors")
    model = [f"{tmp_path}/g.json", "--bind", "T=3", "--trace", f"{tmp_path}/t.jsonl"]
    assert main(["run", *model, "--inputs", f"{tmp_path}/x.safetensors"]) == 0
    plan = tmp_path / "p.json"
    assert main(["optimize", *model, "--plan", str(plan), "--steps", "1"]) == 0
    assert tg.Plan.load(plan).size_bytes


def test_exported_programs_are_optimized(tmp_path: Path) -> None:
    program, x = tmp_path / "m.pt2", torch.ones(3, 4)
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (x,)), program)
    [name] = tg.from_pt2(program).graph.inputs
    save_file({name: x.numpy()}, tmp_path / "x.safetensors")
    words = [str(program), "--trace", f"{tmp_path}/t.jsonl"]
    assert main(["run", *words, "--inputs", f"{tmp_path}/x.safetensors"]) == 0
    plan = tmp_path / "p.json"
    assert main(["optimize", *words, "--plan", str(plan), "--steps", "1"]) == 0
    assert tg.Plan.load(plan).size_bytes


def test_a_signal_is_copied_for_pytorch(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    np.save(tmp_path / "s.npy", np.ones(12, np.float32))
    words = ["stream", "--layers", "2", "--channels", "2", "--signal", f"{tmp_path}/s.npy"]
    torch.set_warn_always(True)
    try:
        assert main([*words, "--plain"]) == 0
    finally:
        torch.set_warn_always(False)
    assert not [str(one.message) for one in recwarn if "writable" in str(one.message)]


def test_ctrl_c_while_modules_are_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", stopped)
    assert main(["run", "g.json"]) == 130
    assert capsys.readouterr().err == "\nstopped\n"


# --- the paths of a session -----------------------------------------------------------------------


def session_of(folder: Path) -> tg.GraphSession:
    session = tg.GraphSession(tg.load_graph(folder / "g.json"), folder / "w.safetensors")
    session.run({"x": np.ones((SIZE, SIZE), np.float32)})
    return session


def test_paths_ask_for_counts_and_times(folder: Path) -> None:
    paths = session_of(folder).paths()
    with pytest.raises(tg.PlanError, match="count=-1 is not an integer of at least 0"):
        paths.to_frame(-1)
    records = Records(folder / "r.db")
    with pytest.raises(tg.PlanError, match="count=-1 is not an integer of at least 0"):
        paths.sweep(records, -1)
    with pytest.raises(tg.PlanError, match="seconds=nan is not a number of at least 0"):
        paths.sweep(records, seconds=float("nan"))


@pytest.mark.parametrize("stops", [{"seconds": 0.0}, {"count": 0}])
def test_a_sweep_without_time_shows_what_the_records_know(
    folder: Path, stops: dict[str, int]
) -> None:
    records = Records(folder / "r.db")
    session_of(folder).paths().sweep(records, 1)
    paths = session_of(folder).paths()
    assert paths.given.estimate.source != "measured"
    assert paths.sweep(records, **stops).measured == 0
    assert paths.given.estimate.source == "measured"


@pytest.mark.parametrize(
    ("left_out", "more", "said"),
    [("--weights", (), "pass `--weights`"), ("", ("--memory", "64"), "--memory")],
)
def test_errors_name_options_of_the_command(
    left_out: str,
    more: tuple[str, ...],
    said: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = {"--weights": f"{folder}/w.safetensors", "--inputs": f"{folder}/x.safetensors"}
    given.pop(left_out, None)
    words = [word for pair in given.items() for word in pair]
    assert main(["run", f"{folder}/g.json", *words, *more]) == 1
    error = capsys.readouterr().err
    assert said in error, error
    assert "weights=" not in error
    assert "memory=" not in error


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of images, and arrays that it cannot take."""
    folder = tmp_path_factory.mktemp("classifier")
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3)).eval()
    torch.export.save(torch.export.export(module, (torch.ones(2, 3, 8, 8),)), folder / "m.pt2")
    wrong = np.ones((3, 8, 8), np.float32)
    np.save(folder / "right.npy", wrong)
    wrong[1, 2, 3] = np.nan
    np.save(folder / "nan.npy", wrong)
    np.save(folder / "large.npy", np.full((3, 8, 8), 1e39))
    np.save(folder / "stereo.npy", np.ones((2, 12), np.float32))
    np.save(folder / "late.npy", np.float32([0, 1, np.inf]))
    return folder


IMAGE = "occlusion --model m.pt2 --patch 4 --stride 4 --image right.npy"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (f"{IMAGE} --fill nan", "--fill nan is no finite number that float32 holds"),
        (f"{IMAGE} --fill 1e39", "--fill 1e+39 is no finite number"),
        (f"{IMAGE} --image nan.npy", "--image nan.npy: nan at (1, 2, 3) is no finite number"),
        (f"{IMAGE} --image large.npy", "--image large.npy: 1e+39 at (0, 0, 0) is no finite"),
        (
            f"{IMAGE} --patch 9",
            "--patch 9 with --stride 4 does not fit 8 pixels; give --patch 1 to",
        ),
        (f"{IMAGE} --class 3", "--class 3 is none of the 3 classes of the model"),
        (f"{IMAGE} --at-once 3", "--at-once 3, but the session takes 2 images in a run"),
        (f"{IMAGE} --weights w", "m.pt2 has its own weights; leave --weights out"),
        ("occlusion --model m.json", "--model m.json: give vgg16, resnet18, resnet50, or a .pt2"),
        ("stream --signal late.npy", "--signal late.npy: inf at (2,) is no finite number"),
        ("stream --signal stereo.npy", "--signal stereo.npy is [2, 12]; give [time] or [1, time]"),
        ("edit --document d.txt", "--document d.txt: say what is edited, by --edit OLD=NEW"),
        ("export m.pt2 --to x.svg --bind T=3", "--bind is for a plan or a trace; m.pt2 is a graph"),
        ("export m.pt2 --to x.svg --graph m.pt2", "leave --graph out"),
        ("export m.pt2 --to x.svg --weights-dtype int8", "leave --weights-dtype out"),
    ],
)
def test_an_option_that_cannot_be_is_named(
    words: str,
    said: str,
    classifier: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    recwarn: pytest.WarningsRecorder,
) -> None:
    monkeypatch.chdir(classifier)
    assert main(words.split()) == 1
    assert said in capsys.readouterr().err
    assert not Path("x.svg").exists()
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "run {} --want y[2:2,...]",
            "error: y[2:2, ...] asks for nothing; leave it out of `--want`",
        ),
        (
            "optimize {} --trace none.jsonl --plan q.json",
            "no such trace; make one with `tgbench run",
        ),
        (
            "optimize {} --trace empty.jsonl --plan q.json",
            "is empty; make one with `tgbench run --",
        ),
        ("plan p.json --explain none", "named as in the graph (weights, and what depends on them"),
        ("plan p.json --explain none", "need --graph)"),
        ("export notes.txt --to x.svg", "write one with `save_plan`, `save_graph` or `tgbench run"),
    ],
)
def test_what_is_said_can_be_done_in_a_shell(
    words: str,
    said: str,
    here: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("empty.jsonl").touch()
    model = "g.json --weights w.safetensors"
    model += " --inputs x.safetensors" if words.startswith("run") else ""
    assert main(words.format(model).split()) == 1
    assert said in capsys.readouterr().err


def test_a_wrong_field_of_a_checkpoint_names_the_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = gemma3_reduced() | {"num_attention_heads": 0}
    (tmp_path / "config.json").write_text(json.dumps(wrong))
    for words in (["complete", "--gemma"], ["profile"]):
        assert main([*words, str(tmp_path)]) == 1
        assert f"{tmp_path}: config: num_attention_heads is 0" in capsys.readouterr().err
