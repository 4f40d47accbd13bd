"""Fixtures for the views: one Chromium, one file server and one JupyterLab for all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from warm import warm_kernels

from benchmarks import browsers

BARE = ("playwright", "anywidget")
LAB = (*BARE, "jupyterlab", "ipykernel")
IS_THERE = "() => window.jupyterapp?.commands.hasCommand('docmanager:open')"
SIZE = {"width": 1100, "height": 800}


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    if why := browsers.missing(*BARE):
        pytest.skip(why)
    with browsers.browser() as found:
        yield found


@pytest.fixture(scope="session")
def files(chromium: Any) -> Iterator[str]:
    with browsers.serving() as address:
        yield address


@pytest.fixture
def bare(chromium: Any) -> Iterator[browsers.Watched]:
    """A page without a kernel; a test fails if its console shows an error."""
    context = chromium.new_context(viewport=SIZE)
    watched = browsers.Watched(context.new_page()).watch()
    yield watched
    assert not watched.faults
    context.close()


@pytest.fixture(scope="session")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="session")
def lab(chromium: Any, lab_folder: Path) -> Iterator[str]:
    if why := browsers.missing(*LAB):
        pytest.skip(why)
    data = lab_folder / ".jupyter" / "data"
    with warm_kernels(data), browsers.jupyterlab(lab_folder) as address:
        yield address


@pytest.fixture(scope="session")
def lab_page(chromium: Any, lab: str) -> Iterator[browsers.Watched]:
    """JupyterLab with nothing open; loading it takes longer than any notebook."""
    context = chromium.new_context(viewport={"width": 1200, "height": 3400})
    watched = browsers.Watched(context.new_page()).watch()
    watched.page.goto(f"{lab}/lab")
    watched.page.wait_for_function(IS_THERE)
    yield watched
    context.close()
