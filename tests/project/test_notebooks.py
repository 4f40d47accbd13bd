"""What a notebook shows before anything of it ran."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from places import ROOT

NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
WIDGET = "application/vnd.jupyter.widget-view+json"


def outputs(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    return [output for cell in cells for output in cell.get("outputs", ())]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_needs_no_kernel(path: Path) -> None:
    """A view of a widget is an error message where its kernel is gone; the picture beside it is
    shown where there is none.
    """
    found = outputs(path)
    assert not [one for one in found if WIDGET in one.get("data", {})]
    assert not [
        one for one in found if one["output_type"] == "error" or one.get("name") == "stderr"
    ]
