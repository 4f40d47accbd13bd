"""Every fifth module of one op: imported, edited, equal to PyTorch. The bench tries all of them."""

from __future__ import annotations

import pytest
import torch

from benchmarks.zoo_ops import OPS
from benchmarks.zoo_trial import outcome

SAMPLE = list(OPS)[::5]
NOT_EXPORTED = {"GaussianNLLLoss", "CTCLoss", "cov", "corrcoef", "combinations", "lstsq"}
if torch.__version__ < "2.13":
    NOT_EXPORTED.add("quantile")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_module_of_one_op_stays_right_after_edits(name: str) -> None:
    found = outcome(OPS[name], edits=2)
    assert found.how in ("native", "opaque") or name in NOT_EXPORTED, found


def test_names_and_families_are_many() -> None:
    assert len(OPS) > 450
    assert len({case.family for case in OPS.values()}) > 15
