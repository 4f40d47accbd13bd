"""The bench of the views runs, at its smallest size; no time is asserted."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from benchmarks import widgets


def test_the_smallest_size_runs(
    chromium: Any, lab: str, lab_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the browser and the JupyterLab of the other tests."""
    monkeypatch.setattr(widgets, "desk", lambda: nullcontext((chromium, lab, lab_folder)))
    path = tmp_path / "widgets.json"
    assert widgets.main(["--quick", "--output", str(path)]) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["rectangles"] == 200
    assert row["shown_ms"]
