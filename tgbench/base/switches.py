"""What may be switched on from outside, for whoever works on this package.

TGBENCH_CHECK=1       every memory map is checked, the slow way, before it counts
"""

from __future__ import annotations

import os

CHECK = "TGBENCH_CHECK"


def checks() -> bool:
    """Whether every memory map is to be checked."""
    return os.environ.get(CHECK, "0") not in ("", "0")
