"""The bench of the views runs, at its smallest size; no time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import browsers


def test_the_smallest_size_runs(tmp_path: Path) -> None:
    if why := browsers.missing("playwright", "anywidget", "jupyterlab"):
        pytest.skip(why)
    path = tmp_path / "widgets.json"
    words = [sys.executable, "-m", "benchmarks.widgets", "--quick", "--output", str(path)]
    subprocess.run(words, check=True, cwd=browsers.ROOT)  # this process has a browser of its own
    (row,) = json.loads(path.read_text())["rows"]
    assert row["rectangles"] == 200
    assert row["shown_ms"]
