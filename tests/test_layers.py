"""Imports go one way, and the engine needs no widget, no numba and no transformers."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tgbench

ROOT = Path(tgbench.__file__).parent
ORDER = (
    "errors", "strictjson", "words",
    "packing", "validate", "remat", "coords", "regions", "grains", "known", "optable",
    "graph", "weights", "ops", "reference", "simplify", "recognise", "importers", "rules",
    "buckets", "calls", "tracefile", "graphfile", "trace", "estimate", "models", "propagate",
    "anatomy", "placement", "schedule", "split", "explain", "plandiff", "plan", "kernels",
    "program", "lowering", "states", "machine", "signature", "records", "cost", "probe",
    "trials", "exactness", "planner", "specialiser", "search", "arena", "whatif", "pool",
    "calibrate", "memory", "intake", "results", "report", "session", "checking", "profiler",
)  # fmt: skip
OUTSIDE = (
    "__init__",
    "apps",
    "views",
    "demo",
    "bench",
    "cli",
    "__main__",
)  # may import all of the above
WIDGETS = ("anywidget", "ipywidgets", "IPython", "plotly", "graphviz", "traitlets")
OPTIONAL = (*WIDGETS, "matplotlib", "transformers", "tokenizers", "numba", "dask", "jsonschema")


def part_of(path: Path) -> str:
    """The name of a module, or of the package that it lies in."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Modules that a file imports when it runs, wherever in the file that is written."""
    tree = ast.parse(path.read_text())
    for block in ast.walk(tree):
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            assert node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = sorted(ROOT.rglob("*.py"))


def test_every_module_has_a_place_in_the_order() -> None:
    assert {part_of(path) for path in FILES} <= {*ORDER, *OUTSIDE}
    assert len(set(ORDER)) == len(ORDER)
    missing = [name for name in ORDER if not list(ROOT.glob(f"{name}*"))]
    assert not missing


@pytest.mark.parametrize("name", ORDER)
def test_a_module_imports_only_from_its_left(name: str) -> None:
    left = {*ORDER[: ORDER.index(name)], name}
    for path in FILES:
        if part_of(path) != name:
            continue
        for module in imports(path):
            if module.split(".")[0] == "tgbench":
                parts = module.split(".")
                assert len(parts) > 1, f"{path}: import the module that defines it"
                assert parts[1] in left, f"{path.name} imports {module}, which stands to its right"


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Within packages too."""
    names = {".".join(["tgbench", *path.relative_to(ROOT).with_suffix("").parts]): path
             for path in FILES}  # fmt: skip
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " → ".join([*above, name])
        if name in done or name not in names:
            return
        for module in imports(names[name]):
            target = module if module in names else module.rpartition(".")[0]
            if target != name:
                visit(target, (*above, name))
        done.add(name)

    for name in names:
        visit(name, ())


def test_views_alone_know_of_widgets() -> None:
    for path in FILES:
        if part_of(path) != "views":
            found = [m for m in imports(path) if m.split(".")[0] in WIDGETS]
            assert not found, f"{path}: {found}"


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
        [sys.executable, "-c", BLOCKED, *OPTIONAL], capture_output=True, text=True, cwd=ROOT.parent
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ran []"


def test_importing_the_package_loads_no_optional_package() -> None:
    code = "import sys, tgbench; print(*sorted({n.split('.')[0] for n in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=True
    )
    assert not {*WIDGETS, "transformers", "tokenizers", "dask"} & set(done.stdout.split())
