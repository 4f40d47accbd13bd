"""Notebooks run in kernels that have loaded the package already: see `tests/warm.py`."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest
from warm import warm_kernels


def pytest_configure(config: pytest.Config) -> None:
    """Once, before there are workers."""
    if not hasattr(config, "workerinput"):
        stack = ExitStack()
        config.add_cleanup(stack.close)
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(warm_kernels(path))
        os.environ["JUPYTER_PATH"] = str(path)
