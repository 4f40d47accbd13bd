"""One module imported, edited at random, and compared with PyTorch run by run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.zoo_ops import OneOp
from tgbench.base.errors import TgbenchError
from tgbench.base.regions import Box
from tgbench.session.session import GraphSession
from tgbench.sources.torch import Imported, from_torch
from tgbench.sources.torch.program import paths

EDITS = 4
TOLERANCE = 1e-5  # of a distance, or of it over the right value's size where that is above 1
HALVES = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


@dataclass(frozen=True)
class Outcome:
    """What became of a module.

    Fields:
        how: native, opaque (some of it is computed whole), refused, or wrong.
        whole: the operators that are computed whole.
        reason: why it was refused, or where it was wrong.
        error: the largest distance that was found.
    """

    name: str
    family: str
    how: str
    whole: tuple[str, ...] = ()
    reason: str = ""
    error: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {"family": self.family, "how": self.how, "whole": list(self.whole),
                "reason": self.reason, "error": self.error}  # fmt: skip


def outcome(case: OneOp, edits: int = EDITS) -> Outcome:
    """Import a module, run it after random edits, and compare with PyTorch each time."""
    try:
        imported = from_torch(case.make(), case.draw(0))
    except TgbenchError as error:
        reason = str(error).replace(f"{Path.cwd()}/", "")
        return Outcome(case.name, case.family, "refused", reason=reason)
    except Exception as error:  # an error of ours would name the mend
        return Outcome(case.name, case.family, "wrong", reason=repr(error))
    whole = whole_in(imported)
    trial = _Trial(case, imported)
    try:
        trial.follow(edits)
    except Exception as error:  # whatever it is, the module does not run as PyTorch runs it
        return Outcome(case.name, case.family, "wrong", whole, repr(error), trial.error)
    return Outcome(
        case.name, case.family, "opaque" if whole else "native", whole, error=trial.error
    )


def whole_in(imported: Imported) -> tuple[str, ...]:
    """The operators in a graph's opaque ops."""
    nodes = [node for node in imported.graph.nodes if node.op == "opaque"]
    return tuple(dict.fromkeys(name for node in nodes for name, _, _ in node.attrs["calls"]))


@dataclass
class _Trial:
    case: OneOp
    imported: Imported
    error: float = 0.0
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def follow(self, edits: int) -> None:
        module, session = self.case.make(), GraphSession(self.imported)
        given = [value.clone() for value in self.case.draw(0)]
        for step in range(edits + 1):
            if step:
                self._edit(given, self.case.draw(step))
            with torch.no_grad():
                right = dict(paths(module(*(value.clone() for value in given)), ""))
            want = self._wanted(right) if step % 2 and step > 1 else None
            inputs = self._named(given)
            found = session.run(inputs) if want is None else session.run(inputs, want)
            self._compare(found, right, want, step)

    def _named(self, given: Sequence[Tensor]) -> dict[str, Any]:
        """Inputs by name; the graph has them in the order of the call."""
        names = self.imported.graph.inputs
        return {name: value.numpy() for name, value in zip(names, given, strict=True)}

    def _edit(self, given: Sequence[Tensor], fresh: Sequence[Tensor]) -> None:
        """A part of one input from another draw."""
        i = int(self.random.integers(len(given)))
        part = self._box(given[i].shape)
        given[i][part] = fresh[i][part]

    def _box(self, shape: Sequence[int]) -> tuple[slice, ...]:
        starts = [int(self.random.integers(size)) for size in shape]
        stops = [
            int(self.random.integers(start + 1, size + 1))
            for start, size in zip(starts, shape, strict=True)
        ]
        return Box(tuple(zip(starts, stops, strict=True))).slices()

    def _wanted(self, right: Mapping[str, Tensor]) -> dict[str, Any]:
        return {name: self._box(value.shape) for name, value in right.items()}

    def _compare(
        self, found: Mapping[str, Any], right: Mapping[str, Tensor], want: Any, step: int
    ) -> None:
        for name, array in found.items():
            expected = right[name] if want is None else right[name][want[name]]
            value = torch.as_tensor(array)
            assert value.dtype == expected.dtype, f"{name} is {value.dtype}"
            self.error = max(self.error, distance(value, expected))
            allowed = HALVES.get(value.dtype, TOLERANCE)
            assert self.error <= allowed, f"{name} is off by {self.error:.3g} after {step} edits"


def distance(value: Tensor, right: Tensor) -> float:
    """The largest distance, over the right value where that is above 1; infinite for integers
    that differ, and for numbers that are finite in one alone.
    """
    if not right.dtype.is_floating_point:
        return 0.0 if torch.equal(value, right) else float("inf")
    is_finite = right.isfinite()
    if not torch.equal(value[~is_finite].nan_to_num(0.5), right[~is_finite].nan_to_num(0.5)):
        return float("inf")
    near = (value - right)[is_finite].abs().double() / right[is_finite].abs().double().clamp_min(1)
    return float(near.max()) if near.numel() else 0.0
