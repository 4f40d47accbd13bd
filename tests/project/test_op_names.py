"""What a pass has to know of an op stands in the op's entry: no pass names one.

Names belong where ops are defined, spelt by others, found again and computed. Anywhere else a new
op would have to be added by hand. Building a node by name (`x.builder.apply("add", …)`) is no
question about an op, and is allowed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from places import ROOT

from tgbench.graph import ops
from tgbench.graph.op_table import OPS

assert ops  # which fill the table
PACKAGE = ROOT / "tgbench"
KERNELS = (
    "kernels/numba/", "kernels/numpy/", "kernels/onednn/", "kernels/torch/", "kernels/triton/"
)  # fmt: skip
AT_HOME = ("graph/ops/", "graph/recognise/", "graph/rewrite/", *KERNELS, "sources/")
BUILDS = ("apply", "_binary", "_operator")
HOMONYMS = {  # words that mean something else there
    "base/surroundings.py": {"matmul", "conv"},  # settings of PyTorch
    "commands/apps/cnn.py": {"relu"},  # a word of torch's initialisation
    "commands/apps/editing.py": {"full"},  # a rounding of buckets
    "commands/demo.py": {"full", "equal"},  # a rounding; a column
    "graph/expressions.py": {"floor", "mod", "max", "min"},  # functions of symbolic dimensions
    "graph/graph_file.py": {"add"},  # an attribute of another op
    "kernels/__init__.py": {"conv", "opaque", "rowwise"},  # modules
    "memory/estimate.py": {"max"},  # what the system calls no limit
    "memory/packing/compiled/instructions.py": {"add", "sub", "mul"},  # LLVM's instructions
    "memory/packing/compiled/translation.py": {"max", "min"},  # Python's functions
    "plans/explain.py": {"slice"},  # a role in memory
    "runs/buckets.py": {"full"},  # a rounding
    "runs/trace.py": {"mean", "max"},  # columns
    "views/pages/report.py": {"equal"},  # a column
    "views/panels/parts.py": {"fold"},  # of equal layers
    "views/panels/screen.py": {"fold"},  # of equal layers
    "views/show.py": {"mean", "slice"},  # a column; a role in memory
    "views/values/timeline.py": {"slice"},  # a role in memory
    "views/values/transitions.py": {"mean"},  # a column
}


def op_names(source: str) -> Iterator[tuple[int, str]]:
    """Where a source names an op, other than to build a node: (line, name)."""
    tree = ast.parse(source)
    built = {
        call.args[0]
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and call.args
        and getattr(call.func, "attr", getattr(call.func, "id", "")) in BUILDS
    }  # fmt: skip
    words = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    for word in words:
        if word.value in OPS and word not in built:
            yield word.lineno, word.value


def files() -> list[str]:
    found = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    return [file for file in found if not file.startswith(AT_HOME)]


def test_no_pass_names_an_op() -> None:
    named = [
        f"{file}:{line}: {name!r}: give OpDef a field that says what holds of it, and ask that"
        for file in files()
        for line, name in op_names((PACKAGE / file).read_text())
        if name not in HOMONYMS.get(file, ())
    ]
    assert not named, "\n".join(named)


@pytest.mark.parametrize("file", HOMONYMS)
def test_words_that_mean_something_else_are_there(file: str) -> None:
    assert {name for _, name in op_names((PACKAGE / file).read_text())} == HOMONYMS[file]


def test_asking_by_name_is_seen_and_building_is_not() -> None:
    source = 'if node.op in ("conv", "odd"):\n    made = node.builder.apply("add", a, b)\n'
    assert list(op_names(source)) == [(1, "conv")]
