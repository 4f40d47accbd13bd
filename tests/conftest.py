"""How long the tests look for counterexamples: TGBENCH_HYPOTHESIS names a profile.

    ci        20 examples a property, the same ones each time (`make test`)
    sweep     200 examples, new ones each time (`make sweep`)
    thorough  2000 examples, for one test at a time

Random cases that are no properties (the fuzzer, edits of models) are counted in the same measure.
Tests neither read nor write the user's measured times.

What is there before the first test stays until the last: a million objects that searches for
garbage seldom need to look at. A test leaves what PyTorch, NumPy and the process are set to as it
was: what is left on changes what others compute, much later.
"""

from __future__ import annotations

import functools
import gc
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

gc.disable()  # until everything is imported and collected

_CACHE = tempfile.TemporaryDirectory(prefix="tgbench-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

os.environ.setdefault("TGBENCH_MAKING", "always")  # what re-runs must not hang on how fast it is
os.environ.setdefault("TGBENCH_COMPILING", "first")  # which kernels compute must not, either
os.environ.setdefault("OMP_NUM_THREADS", "1")  # many workers use every core already
os.environ.setdefault("TGBENCH_CHECK", "1")  # every memory map that a planner makes is checked
if not os.path.exists("/dev/nvidiactl"):  # no GPU; Triton looks at this where torch imports it
    os.environ.setdefault("TRITON_INTERPRET", "1")

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

for _name, _examples in {"ci": 20, "sweep": 200, "thorough": 2000}.items():
    settings.register_profile(
        _name,
        deadline=None,
        derandomize=_name == "ci",
        max_examples=_examples,
        suppress_health_check=_SLOW,
    )
settings.load_profile(os.environ.get("TGBENCH_HYPOTHESIS", "ci"))


def surroundings() -> dict[str, Any]:
    """What is set for the process and for this thread."""
    import numpy as np
    import torch
    from torch.utils import _device

    from tgbench.base import once

    return {
        "gradients": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "autocast dtype": torch.get_autocast_dtype("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": _device.CURRENT_DEVICE,
        "torch functions": torch._C._is_torch_function_enabled(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "precision": {
            op: torch._C._get_fp32_precision_getter("mkldnn", op)
            for op in ("all", "matmul", "conv", "rnn")
        },
        "threads": torch.get_num_threads(),
        "numpy's errors": np.geterr(),
        "folder": os.getcwd(),
        "compiling": once.is_put_off(),
        "locks": [name for name, lock in _locks(len(sys.modules)) if lock._is_owned()],
    }


@functools.cache
def _locks(modules: int) -> list[tuple[str, Any]]:
    """Those of the package's cached properties, where Python has one for all objects of a class
    (3.11): what this thread keeps, others wait for.
    """
    found = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "tgbench"]
    classes = {one for module in found for one in vars(module).values() if isinstance(one, type)}
    properties = [vars(one).values() for one in classes]
    return [
        (one.func.__qualname__, one.lock)
        for values in properties
        for one in values
        if isinstance(one, functools.cached_property) and hasattr(one, "lock")
    ]


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """No test leaves anything set."""
    before = surroundings()
    yield
    assert surroundings() == before


@pytest.fixture
def in_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder is gone."""
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches in other processes start at once; tests of how they start do without."""
    from search_cases import loaded_once

    loaded_once()
    context = multiprocessing.get_context("forkserver")
    monkeypatch.setattr("tgbench.plans.background.process.CONTEXT", context)


def pytest_collection_finish() -> None:
    gc.set_threshold(10_000, 20, 200)
    gc.enable()
