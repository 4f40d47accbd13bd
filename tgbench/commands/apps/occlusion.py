"""Occlusion maps: how much a class's logit drops while a patch of the image is covered.

    clean image, once a row ─→ run, kept
    for every few places:  cover one of them in each row ─→ run with keep=False ─→ the drops
                                    └─ computes what the patches reach, then puts it back

A batch of one image is the model's input, so that a run which reads the weights once serves
several places. Rows do not meet: each computes what its own patch reaches.

A run that is kept would have to compute the places that are covered and those that no longer
are. Putting values back takes a copy of what the patches reached.
Source: Zeiler and Fergus, arXiv:1311.2901, section 4.2; incremental evaluation: Nakandala et al.,
SIGMOD 2019 (which approximates; this does not).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isqrt
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tgbench.base.errors import ImporterError, InputError
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.base.surroundings import plainly
from tgbench.base.words import Progress, counted, format_time
from tgbench.graph.graph import Node
from tgbench.session.chooser import Making
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch
from tgbench.views.draw.heatmap import Heatmap

Floats: TypeAlias = npt.NDArray[np.float32]
Place: TypeAlias = "tuple[int, int, int, int]"  # first row, stop, first column, stop
AT_ONCE = 4  # places per run
JUST = 1.005  # times as many full forwards take, as two digits tell apart from as many


@dataclass(frozen=True, slots=True)
class CoveredRun:
    """One run of a sweep: a place covered in each of its rows.

    Fields:
        places: as many as the batch has rows, or the last ones of a sweep.
        logits: of the class, for each place.
        multiply_adds, time_ns: of all places together.
        specialised: whether a program was made in this run.
    """

    places: tuple[Place, ...]
    logits: tuple[float, ...]
    multiply_adds: int
    time_ns: int
    specialised: bool


@dataclass(frozen=True)
class OcclusionMap:
    """How much the logit of a class drops, by the place that is covered.

    Fields:
        drops: [rows, columns] of the grid; positive where the place speaks for the class.
        target, logit: the class, and its logit for the image as it is.
        image: [channels, height, width].
        patch, stride: of the places, in pixels.
        full_multiply_adds: of one image, from nothing.
        runs: what was measured; a place alone has neither a count nor a time, where several
            share a run. The run of the clean image, which computes a batch of it, is not here.
        ahead_ns: what went before them: the plan, if there was none, and the clean image.
    """

    drops: Floats
    target: int
    logit: float
    image: Floats
    patch: int
    stride: int
    full_multiply_adds: int
    runs: tuple[CoveredRun, ...]
    ahead_ns: int

    @property
    def multiply_adds(self) -> int:
        """Of all runs."""
        return sum(run.multiply_adds for run in self.runs)

    @property
    def time_ns(self) -> int:
        """Of all runs."""
        return sum(run.time_ns for run in self.runs)

    @property
    def programs_made(self) -> int:
        """In how many runs a program was made."""
        return sum(run.specialised for run in self.runs)

    @property
    def at_once(self) -> int:
        """Places per run, the last one perhaps left out."""
        return max(len(run.places) for run in self.runs)

    @property
    def saving(self) -> float:
        """Multiply–adds of full forwards over those of the sweep; 1 where a model has none."""
        if not self.full_multiply_adds:
            return 1.0
        return self.full_multiply_adds * self.drops.size / max(self.multiply_adds, 1)

    @property
    def _saved(self) -> str:
        if self.saving < JUST:
            return "no fewer than full forwards"
        return f"{self.saving:.2f} × fewer than full forwards"

    def shares(self, name: Literal["multiply_adds", "time_ns"]) -> npt.NDArray[np.float64]:
        """[rows, columns]: what each place's run took, divided equally among its places."""
        found = np.zeros(self.drops.shape)
        for run in self.runs:
            for top, _, left, _ in run.places:
                at = top // self.stride, left // self.stride
                found[at] = getattr(run, name) / len(run.places)
        return found

    @property
    def heatmap(self) -> Heatmap:
        """The picture."""
        told = f"drop of class {self.target}'s logit"
        return Heatmap(self.image, self.drops, self.patch, self.stride, told)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return {
            "target": self.target,
            "logit": self.logit,
            "patch": self.patch,
            "stride": self.stride,
            "drops": self.drops.tolist(),
            "at_once": self.at_once,
            "multiply_adds": self.multiply_adds,
            "full_multiply_adds": self.full_multiply_adds,
            "saving": self.saving,
            "time_ns": self.time_ns,
            "ahead_ns": self.ahead_ns,
            "programs_made": self.programs_made,
        }

    def __str__(self) -> str:
        rows, columns = self.drops.shape
        programs = counted(self.programs_made, "program")
        at = np.unravel_index(int(self.drops.argmax()), self.drops.shape)
        return (
            f"class {self.target}, logit {self.logit:.4g}; {rows} × {columns} places of "
            f"{self.patch} × {self.patch} pixels, {self.at_once} a run\n"
            f"largest drop {self.drops.max():.4g} at row {at[0]}, column {at[1]}\n"
            f"{self.multiply_adds:,} multiply–adds, {self._saved}\n"
            f"{format_time(self.time_ns)}, {programs} made; "
            f"{format_time(self.ahead_ns)} before for the plan and the clean image"
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": str(self), "image/svg+xml": self.heatmap.to_svg()}


@plainly
def occlusion(
    model: GraphSession | nn.Module,
    image: npt.ArrayLike | torch.Tensor,
    *,
    patch: int = 16,
    stride: int = 16,
    target: int | None = None,
    fill: float = 0.0,
    at_once: int | None = None,
    progress: Progress | None = None,
) -> OcclusionMap:
    """Cover one place after the other and record how far the logit of a class drops.

    Args:
        model: a module in evaluation mode, or a session of one. Its only input is a batch of
            images, its only output their logits. Programs that serve a sweep are made before it,
            unless the session has a plan. A session keeps its programs; one that is made with
            `making="always"` makes one for each run of the first sweep, by which later images are
            swept faster.
        image: [channels, height, width] or with a batch dimension of 1; float32.
        patch, stride: in pixels; places stand at multiples of `stride` and end inside the image.
        target: the class; None for the one with the largest logit.
        fill: the value that covers, in the units of the image that the model takes.
        at_once: places per run, each in its own row of the batch; 4 for a module, and for a
            session what its input has. More of them read weights less often, and need more memory.
        progress: called before each run, with how many places are done.

    Raises:
        InputError: for images, sizes and models that do not fit together, with the mend; among
            them models in which the rows of a batch meet.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(),
    ...                           torch.nn.Linear(72, 3)).eval()
    >>> occlusion(net, torch.ones(1, 8, 8), patch=4, stride=4).drops.shape
    (2, 2)
    """
    pixels = _pixels(image)
    if not abs(fill) <= float(np.finfo(np.float32).max):
        raise InputError(f"fill={fill} is no finite number that float32 holds; give another")
    rows, columns = (_starts(size, patch, stride) for size in pixels.shape[2:])
    session = _opened(model, pixels, at_once, len(rows) * len(columns))
    groups = grouped(rows, columns, patch, batch_of(session))
    began = time.perf_counter_ns()
    if not session.is_planned:
        plan(session, groups)
        session.prepare()
    before = run_clean(session, pixels)
    ahead_ns = time.perf_counter_ns() - began
    goal = int(before.argmax()) if target is None else target
    if not 0 <= goal < len(before):
        raise InputError(f"target={goal} is none of the {len(before)} classes of the model")
    full = full_multiply_adds(session, pixels)
    runs = tuple(
        run_covered(session, pixels, places, goal, fill) for places in _told(groups, progress)
    )
    drops = np.zeros((len(rows), len(columns)), np.float32)
    for run in runs:
        for (top, _, left, _), logit in zip(run.places, run.logits, strict=True):
            drops[top // stride, left // stride] = before[goal] - logit
    logit = float(before[goal])
    return OcclusionMap(drops, goal, logit, pixels[0], patch, stride, full, runs, ahead_ns)


# --- sessions -------------------------------------------------------------------------------------


def session_of(
    module: nn.Module, image: npt.ArrayLike, at_once: int = 1, making: Making | None = None
) -> GraphSession:
    """A session of a module for so many copies of an image [1, channels, height, width].

    Raises InputError for a module that takes one image alone, and for less than one copy.
    """
    if at_once < 1:
        raise InputError(f"at_once={at_once}: give 1 or more places per run")
    batch = torch.as_tensor(image).repeat(at_once, 1, 1, 1)
    try:
        return GraphSession(from_torch(module, (batch,)), making=making)
    except ImporterError as error:
        from_torch(module, (batch[:1],))  # raises, if the batch is not the reason
        raise InputError(
            f"the model cannot be imported for {at_once} images at once ({error}); pass at_once=1"
        ) from error


def batch_of(session: GraphSession) -> int:
    """How many images a session takes in a run."""
    (node,) = session.graph.inputs.values()
    return int(node.shape[0])


def _opened(
    model: GraphSession | nn.Module, image: Floats, at_once: int | None, places: int
) -> GraphSession:
    if not isinstance(model, GraphSession):
        model = session_of(model, image, min(AT_ONCE if at_once is None else at_once, places))
        at_once = None
    _check(model, image)
    if at_once not in (None, batch_of(model)):
        raise InputError(
            f"at_once={at_once}, but the session takes {batch_of(model)} images in a run; leave "
            "it out, or take a model of such a batch"
        )
    return model


def _names(session: GraphSession) -> tuple[str, str]:
    """The input and the output."""
    graph = session.graph
    if len(graph.inputs) != 1 or len(graph.outputs) != 1:
        raise InputError(
            f"an occlusion map needs one input and one output; this graph has "
            f"{', '.join(graph.inputs)} → {', '.join(graph.outputs)}"
        )
    return next(iter(graph.inputs)), next(iter(graph.outputs))


def _check(session: GraphSession, image: Floats) -> None:
    """Raise InputError unless the session makes a row of logits of each image, by itself."""
    name, output = _names(session)
    node, logits = session.graph.inputs[name], session.graph.outputs[output]
    if node.shape[1:] != image.shape[1:] or logits.rank != 2 or logits.shape[0] != node.shape[0]:
        raise InputError(
            f"the model makes {logits.type} of {node.type}, the image is {list(image.shape[1:])}; "
            "give an image of that size and a model that makes [images, classes] of [images, "
            "channels, height, width]; one that takes a single image needs at_once=1"
        )
    propagator = session.scheduled.once.propagator(session.rules, ())
    for row in range(node.shape[0]):
        dirty = propagator.forward({node: _row(node, row)}).get(logits, EMPTY)
        if dirty.subtract(_row(logits, row)).boxes:
            raise InputError(
                f"image {row} of a batch of {node.shape[0]} changes the logits of others "
                f"({logits.name}{dirty}), so no two places can share a run; pass at_once=1"
            )


def _row(node: Node, row: int) -> Region:
    return Region((Box(((row, row + 1), *((0, size) for size in node.shape[1:]))),))


# --- places ---------------------------------------------------------------------------------------


def grouped(
    rows: Sequence[int], columns: Sequence[int], patch: int, at_once: int
) -> list[tuple[Place, ...]]:
    """Places in groups of `at_once`, neighbours together: what they reach in deep layers is then
    mostly the same box, which is computed for all rows in one call.

    >>> groups = grouped([0, 8], [0, 8, 16], patch=8, at_once=4)
    >>> [[(top, left) for top, _, left, _ in places] for places in groups]
    [[(0, 0), (0, 8), (8, 0), (8, 8)], [(0, 16), (8, 16)]]
    """
    high = max(n for n in range(1, isqrt(at_once) + 1) if at_once % n == 0)
    wide = at_once // high
    spots = sorted(
        product(range(len(rows)), range(len(columns))),
        key=lambda at: (at[0] // high, at[1] // wide, at),
    )
    places = [(rows[i], rows[i] + patch, columns[j], columns[j] + patch) for i, j in spots]
    return [tuple(places[i : i + at_once]) for i in range(0, len(places), at_once)]


def _starts(size: int, patch: int, stride: int) -> list[int]:
    if patch < 1 or stride < 1 or patch > size:
        raise InputError(
            f"patch={patch} with stride={stride} does not fit {size} pixels; give patch=1 to "
            f"{size}, and stride=1 or more"
        )
    return list(range(0, size - patch + 1, stride))


def _boxes(places: Sequence[Place]) -> list[tuple[slice, ...]]:
    """One place in each row."""
    return [
        np.s_[row : row + 1, :, top:bottom, left:right]
        for row, (top, bottom, left, right) in enumerate(places)
    ]


# --- runs -----------------------------------------------------------------------------------------


def plan(session: GraphSession, groups: Sequence[tuple[Place, ...]]) -> None:
    """Plan for a whole sweep at once.

    What a place reaches is largest in each layer somewhere in the middle, and kernels want most
    scratch memory where it touches one border; so the groups that stand on the grid's diagonal,
    in its middle row and in its middle column. Along the border the boxes of several rows are
    joined in ways of their own; and the last group may be smaller.
    """
    name, output = _names(session)
    grid = [sorted({place[i] for group in groups for place in group}) for i in (0, 2)]
    spots = _across(*grid) | (_border(*grid) if len(groups[0]) > 1 else set())
    chosen = [group for group in groups if any((top, left) in spots for top, _, left, _ in group)]
    runs = [
        ({name: _boxes(group)}, {output: np.s_[: len(group)]})
        for group in dict.fromkeys([*chosen, groups[-1]])
    ]
    session.plan_for([({name: np.s_[:]}, None), *runs])


def _border(rows: Sequence[int], columns: Sequence[int]) -> set[tuple[int, int]]:
    return {
        (row, column)
        for row, column in product(rows, columns)
        if row in (rows[0], rows[-1]) or column in (columns[0], columns[-1])
    }


def _across(rows: Sequence[int], columns: Sequence[int]) -> set[tuple[int, int]]:
    """The grid's diagonal, its middle row and its middle column."""
    last = len(rows) - 1, len(columns) - 1
    diagonal = [(rows[min(i, last[0])], columns[min(i, last[1])]) for i in range(max(last) + 1)]
    middle = [(rows[len(rows) // 2], column) for column in columns]
    return {*diagonal, *middle, *((row, columns[len(columns) // 2]) for row in rows)}


def run_clean(session: GraphSession, image: Floats) -> Floats:
    """The logits of the image as it is; computes a whole batch of it."""
    name, output = _names(session)
    logits: Floats = session.run({name: _batch(session, image)})[output][0]
    return logits


def full_multiply_adds(session: GraphSession, image: Floats) -> int:
    """Of one image from nothing: of the last run, if it computed everything; else of one more."""
    if session.report().recomputed < 1:
        session.forget()
        run_clean(session, image)
    return session.report().multiply_adds // batch_of(session)


def run_covered(
    session: GraphSession, image: Floats, places: Sequence[Place], goal: int, fill: float
) -> CoveredRun:
    """The logits with one place covered in each row; the session stays as it was."""
    name, output = _names(session)
    batch = covered(_batch(session, image), places, fill)
    want, changed = {output: np.s_[: len(places)]}, {name: _boxes(places)}
    began = time.perf_counter_ns()
    found = session.run({name: batch}, want, changed=changed, keep=False)
    took = time.perf_counter_ns() - began
    report, logits = session.report(), found[output][:, goal]
    return CoveredRun(
        tuple(places), tuple(logits.tolist()), report.multiply_adds, took, report.specialised
    )


def covered(images: Floats, places: Sequence[Place], fill: float) -> Floats:
    """Copies of images, with the first place covered in the first of them, and so on."""
    found = images.copy()
    for box in _boxes(places):
        found[box] = fill
    return found


def _batch(session: GraphSession, image: Floats) -> Floats:
    return np.repeat(image, batch_of(session), axis=0)


def _told(
    groups: Sequence[tuple[Place, ...]], progress: Progress | None
) -> Iterator[tuple[Place, ...]]:
    done, count = 0, sum(map(len, groups))
    for places in groups:
        if progress is not None:
            progress(done, count, f"row {places[0][0]}, column {places[0][2]}")
        yield places
        done += len(places)
    if progress is not None:
        progress(count, count, "done")


def _pixels(image: npt.ArrayLike | torch.Tensor) -> Floats:
    array = image.detach().cpu().numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    array = array[None] if array.ndim == 3 else array
    if array.ndim != 4 or array.shape[0] != 1 or array.dtype != np.float32:
        raise InputError(
            f"the image is {array.dtype}{list(array.shape)}; give float32 [channels, height, "
            "width], scaled as the model takes it"
        )
    return np.ascontiguousarray(array)
