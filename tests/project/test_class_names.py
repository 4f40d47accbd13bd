"""A class name stands for one concept: no two classes of the package share one."""

from __future__ import annotations

import ast
from collections import defaultdict

from places import ROOT

PACKAGE = ROOT / "tgbench"


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}
