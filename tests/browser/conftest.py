"""Fixtures for the views: one Chromium, one file server and one JupyterLab for all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from benchmarks import browsers

BARE = ("playwright", "anywidget")
LAB = (*BARE, "jupyterlab", "ipykernel")
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
    with browsers.jupyterlab(lab_folder) as address:
        yield address


@pytest.fixture
def lab_page(chromium: Any) -> Iterator[browsers.Watched]:
    """A page for JupyterLab; a test fails if a view writes an error to its console."""
    context = chromium.new_context(viewport=SIZE)
    watched = browsers.Watched(context.new_page()).watch()
    yield watched
    ours = [fault for fault in watched.faults if "blob:" in fault or "tg-" in fault]
    assert not ours
    context.close()
