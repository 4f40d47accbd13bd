"""Hypothesis profiles: `ci` by default; TGBENCH_HYPOTHESIS=thorough looks much longer.

Tests neither read nor write the user's measured times.
"""

from __future__ import annotations

import os
import tempfile

from hypothesis import HealthCheck, settings

_CACHE = tempfile.TemporaryDirectory(prefix="tgbench-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE.name

os.environ.setdefault("TGBENCH_CHECK", "1")  # every memory map that a planner makes is checked

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]

settings.register_profile(
    "ci", deadline=None, derandomize=True, max_examples=60, suppress_health_check=_SLOW
)
settings.register_profile(
    "thorough", deadline=None, derandomize=False, max_examples=2000, suppress_health_check=_SLOW
)
settings.load_profile(os.environ.get("TGBENCH_HYPOTHESIS", "ci"))
