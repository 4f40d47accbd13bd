"""A class name stands for one concept: no two classes of the package share one."""

from __future__ import annotations

import ast
from collections import defaultdict

from places import ROOT

PACKAGE = ROOT / "tgbench"
TWICE = {
    "Change": "of a memory map by hand; of a sequence that computes again",
    "Pattern": "of open elements; of what the arena holds",
    "Standing": "what stands between two runs; where an origin stands still",
    "View": "of a buffer; in a notebook",
    "_Search": "for plans; for sequences that compute again",
}


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(path.relative_to(PACKAGE)))
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert twice.keys() == TWICE.keys(), twice
    assert all(len(paths) == 2 for paths in twice.values()), twice
