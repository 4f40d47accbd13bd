"""The engine needs no widget, no numba and no transformers. Which room may import which is held by
the contracts in `pyproject.toml`, which `make lint` asks.
"""

from __future__ import annotations

import subprocess
import sys

from places import ROOT

WIDGETS = ("anywidget", "ipywidgets", "IPython", "plotly", "graphviz", "traitlets")
OPTIONAL = (*WIDGETS, "matplotlib", "transformers", "tokenizers", "numba", "dask", "jsonschema")


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
print("ran", sorted(set(sys.argv[1:]) & {name.split(".")[0] for name in sys.modules}))
"""


def test_the_engine_runs_without_optional_packages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED, *OPTIONAL], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ran []"


def test_importing_the_package_loads_no_optional_package() -> None:
    code = "import sys, tgbench; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert not {*WIDGETS, "pandas", "sympy", "transformers", "tokenizers", "dask"} & set(
        done.stdout.split()
    )
