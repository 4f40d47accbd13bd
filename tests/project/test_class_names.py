"""A class name stands for one concept: no two classes of the package share one."""

from __future__ import annotations

import re
from collections import defaultdict

from places import ROOT

PACKAGE = ROOT / "tgbench"
CLASS = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)


def test_no_two_classes_share_a_name() -> None:
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in CLASS.findall(path.read_text(encoding="utf-8")):
            found[name].append(str(path.relative_to(PACKAGE)))
    assert len(found) > 400
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}
