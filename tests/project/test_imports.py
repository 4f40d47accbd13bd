"""What is loaded, and when: commands that compute nothing load no torch, and the engine needs no
widget, no numba and no transformers. Which room may import which is held by the contracts in
`pyproject.toml`, which `make lint` asks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

import tgbench

WIDGETS = ("anywidget", "ipywidgets", "IPython", "plotly", "graphviz", "traitlets")
OPTIONAL = (*WIDGETS, "matplotlib", "transformers", "tokenizers", "numba", "dask", "jsonschema")
ON_DEMAND = ("pandas", "sympy")  # always there, and slow to load
HEAVY = (*OPTIONAL, *ON_DEMAND, "torch", "scipy", "sqlalchemy")

LOADED = "import sys\nprint(*sorted({name.split('.')[0] for name in sys.modules}))"
BLOCKED = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1:]:
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
"""


def loaded(code: str, *arguments: str) -> set[str]:
    """What a fresh process has loaded at the end of this code."""
    done = subprocess.run(
        [sys.executable, "-c", code + "\n" + LOADED, *arguments],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_engine_runs_without_optional_packages() -> None:
    assert not {*OPTIONAL, *ON_DEMAND} & loaded(BLOCKED, *OPTIONAL)


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
