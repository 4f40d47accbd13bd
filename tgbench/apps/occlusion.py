"""Occlusion maps: how much a class's logit drops while a patch of the image is covered.

    clean image ─→ run, kept
    for every place:  cover it ─→ run with keep=False ─→ the logit's drop
                                  └─ computes what the patch reaches, then puts it back

A run that is kept would have to compute two places, the one that is covered and the one that no
longer is. Putting values back takes a copy of what the patch reached.
Source: Zeiler and Fergus, arXiv:1311.2901, section 4.2; incremental evaluation: Nakandala et al.,
SIGMOD 2019 (which approximates; this does not).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tgbench.errors import InputError
from tgbench.importers import from_torch
from tgbench.session import GraphSession
from tgbench.views.heatmap import Heatmap

Floats: TypeAlias = npt.NDArray[np.float32]
Progress: TypeAlias = Callable[[int, int, str], None]  # (done, of, what)
Place: TypeAlias = "tuple[int, int, int, int]"  # first row, stop, first column, stop


@dataclass(frozen=True)
class OcclusionMap:
    """How much the logit of a class drops, by the place that is covered.

    Fields:
        drops: [rows, columns] of the grid; positive where the place speaks for the class.
        target, logit: the class, and its logit for the image as it is.
        image: [channels, height, width].
        patch, stride: of the places, in pixels.
        multiply_adds: that the run of each place executed, [rows, columns].
        full_multiply_adds: of the run from nothing.
        time_ns: of each place's run, [rows, columns].
        specialised: [rows, columns], whether a program was made in that run.
    """

    drops: Floats
    target: int
    logit: float
    image: Floats
    patch: int
    stride: int
    multiply_adds: npt.NDArray[np.int64]
    full_multiply_adds: int
    time_ns: npt.NDArray[np.int64]
    specialised: npt.NDArray[np.bool_]

    @property
    def saving(self) -> float:
        """Multiply–adds of full forwards over those of the sweep."""
        return float(self.full_multiply_adds * self.drops.size / self.multiply_adds.sum())

    @property
    def heatmap(self) -> Heatmap:
        """The picture."""
        return Heatmap(self.image, self.drops, self.patch, self.stride, f"class {self.target}")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {
            "target": self.target,
            "logit": self.logit,
            "patch": self.patch,
            "stride": self.stride,
            "drops": self.drops.tolist(),
            "multiply_adds": int(self.multiply_adds.sum()),
            "full_multiply_adds": self.full_multiply_adds,
            "saving": self.saving,
            "time_ns": int(self.time_ns.sum()),
            "programs_made": int(self.specialised.sum()),
        }

    def __str__(self) -> str:
        rows, columns = self.drops.shape
        at = np.unravel_index(int(self.drops.argmax()), self.drops.shape)
        return (
            f"class {self.target}, logit {self.logit:.4g}; {rows} × {columns} places of "
            f"{self.patch} × {self.patch} pixels\n"
            f"largest drop {self.drops.max():.4g} at row {at[0]}, column {at[1]}\n"
            f"{self.multiply_adds.sum():,} multiply–adds, {self.saving:.2f} × fewer than full "
            f"forwards; {self.time_ns.sum() / 1e9:.2f} s, {int(self.specialised.sum())} programs "
            "made"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "image/svg+xml": self.heatmap.to_svg()}


def occlusion(
    model: GraphSession | nn.Module,
    image: npt.ArrayLike | torch.Tensor,
    *,
    patch: int = 16,
    stride: int = 16,
    target: int | None = None,
    fill: float = 0.0,
    progress: Progress | None = None,
) -> OcclusionMap:
    """Cover one place after the other and record how far the logit of a class drops.

    Args:
        model: a module in evaluation mode, or a session of one. Its only input is a batch of one
            image, its only output that image's logits. A session keeps its programs, so that the
            next image is swept faster.
        image: [channels, height, width] or with a batch dimension of 1; float32.
        patch, stride: in pixels; places stand at multiples of `stride` and end inside the image.
        target: the class; None for the one with the largest logit.
        fill: the value that covers, in the units of the image that the model takes.
        progress: called before each place.

    Raises:
        InputError: for images, sizes and models that do not fit together, with the mend.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(),
    ...                           torch.nn.Linear(72, 3)).eval()
    >>> occlusion(net, torch.ones(1, 8, 8), patch=4, stride=4).drops.shape
    (2, 2)
    """
    pixels = _pixels(image)
    session = model if isinstance(model, GraphSession) else session_of(model, pixels)
    name, output = _names(session, pixels)
    rows, columns = (_starts(size, patch, stride) for size in pixels.shape[2:])
    if not session.is_planned:
        plan(session, patch, rows, columns)
    before = session.run({name: pixels})[output]
    assert session.last is not None
    goal = int(before[0].argmax()) if target is None else target
    if not 0 <= goal < before.shape[1]:
        raise InputError(f"class {goal} is none of the {before.shape[1]} that the model knows")
    full = multiply_adds_from_nothing(session, name, pixels)
    made = [
        run_covered(session, pixels, place, goal, fill)
        for place in _told(_places(rows, columns, patch), len(rows) * len(columns), progress)
    ]
    grid = (len(rows), len(columns))
    return OcclusionMap(
        np.array([before[0, goal] - one.logit for one in made], np.float32).reshape(grid),
        goal, float(before[0, goal]), pixels[0], patch, stride,
        np.array([one.multiply_adds for one in made], np.int64).reshape(grid), full,
        np.array([one.time_ns for one in made], np.int64).reshape(grid),
        np.array([one.specialised for one in made], np.bool_).reshape(grid),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Covered:
    """One place's run."""

    logit: float
    multiply_adds: int
    time_ns: int
    specialised: bool


def session_of(module: nn.Module, image: npt.ArrayLike) -> GraphSession:
    """A session of a module for images of one shape."""
    return GraphSession(from_torch(module, (torch.as_tensor(image),)))


def plan(session: GraphSession, patch: int, rows: Sequence[int], columns: Sequence[int]) -> None:
    """Plan for a whole sweep at once.

    What a place reaches is largest in each layer somewhere in the middle, and kernels want most
    scratch memory where it touches one border; so all rows and columns once, and both together.
    """
    ((name, node),) = session.graph.inputs.items()
    middle = (rows[len(rows) // 2], columns[len(columns) // 2])
    longest = max(rows, columns, key=len)
    diagonal = [(rows[min(i, len(rows) - 1)], columns[min(i, len(columns) - 1)])
                for i in range(len(longest))]  # fmt: skip
    tops = {*diagonal, *((row, middle[1]) for row in rows), *((middle[0], at) for at in columns)}
    whole: Any = np.s_[tuple(slice(0, int(n)) for n in node.shape)]
    boxes = [_box((top, top + patch, left, left + patch)) for top, left in sorted(tops)]
    session.plan_for([({name: whole}, None), *(({name: box}, None) for box in boxes)])


def _box(place: Place) -> tuple[slice, ...]:
    top, bottom, left, right = place
    return slice(None), slice(None), slice(top, bottom), slice(left, right)


def run_covered(
    session: GraphSession, image: Floats, place: Place, goal: int, fill: float
) -> Covered:
    """The logit with one place covered; the session stays as it was."""
    ((name, output),) = zip(session.graph.inputs, session.graph.outputs, strict=True)
    covered, box = image.copy(), _box(place)
    covered[box] = fill
    began = time.perf_counter_ns()
    found = session.run({name: covered}, changed={name: box}, keep=False)[output]
    took = time.perf_counter_ns() - began
    report = session.report()
    return Covered(float(found[0, goal]), report.multiply_adds, took, report.specialised)


def multiply_adds_from_nothing(session: GraphSession, name: str, image: Floats) -> int:
    """Those of the last run, if it computed everything; else of one that does."""
    if session.report().recomputed < 1:
        session.forget()
        session.run({name: image})
    return session.report().multiply_adds


def _told(places: Iterator[Place], count: int, progress: Progress | None) -> Iterator[Place]:
    for done, place in enumerate(places):
        if progress is not None:
            progress(done, count, f"row {place[0]}, column {place[2]}")
        yield place
    if progress is not None:
        progress(count, count, "done")


def _places(rows: Sequence[int], columns: Sequence[int], patch: int) -> Iterator[Place]:
    return ((top, top + patch, left, left + patch) for top in rows for left in columns)


def _starts(size: int, patch: int, stride: int) -> list[int]:
    if patch < 1 or stride < 1 or patch > size:
        raise InputError(
            f"a patch of {patch} pixels every {stride} does not fit {size} pixels; give "
            f"1 ≤ patch ≤ {size} and stride ≥ 1"
        )
    return list(range(0, size - patch + 1, stride))


def _pixels(image: npt.ArrayLike | torch.Tensor) -> Floats:
    array = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    array = array[None] if array.ndim == 3 else array
    if array.ndim != 4 or array.shape[0] != 1 or array.dtype != np.float32:
        raise InputError(
            f"the image is {array.dtype}{list(array.shape)}; give float32 [channels, height, "
            "width], scaled as the model takes it"
        )
    return np.ascontiguousarray(array)


def _names(session: GraphSession, image: Floats) -> tuple[str, str]:
    graph = session.graph
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise InputError(
            f"an occlusion map needs one input and one output; this graph has "
            f"{', '.join(graph.inputs)} → {', '.join(graph.outputs)}"
        )
    ((name, node),), ((output, logits),) = graph.inputs.items(), graph.outputs.items()
    if node.shape != image.shape or logits.rank != 2 or logits.shape[0] != 1:
        raise InputError(
            f"the model makes {logits.type} of {node.type}, the image is {list(image.shape)}; "
            "give an image of that size and a model that makes [1, classes] of it"
        )
    return name, output
