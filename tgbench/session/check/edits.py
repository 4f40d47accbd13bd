"""Random edits: every incremental run beside one that computes everything.

    patch    a random box               token   one index of a dimension, and all behind it
    append   the next token             back    a box that was edited gets its first values again

New values lie in the range of the pairs' values, so that token numbers stay in their vocabulary.
A sequence that fails is shortened: edits are dropped while it still does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tgbench.base.errors import TgbenchError
from tgbench.base.regions import Box
from tgbench.graph.graph import Graph
from tgbench.graph.holding import may_round
from tgbench.session.check.compare import Array, difference, tolerance_of
from tgbench.session.check.copies import twin
from tgbench.session.check.pairs import Pair
from tgbench.session.session import GraphSession

SEQUENCE = 16  # edits from one starting point
MOST_REPLAYS = 200  # of sequences, to find a shorter one
SHOWN = 64  # values of an edit that a message writes out


@dataclass(frozen=True)
class Edit:
    """New values for a box of one input, and the parts of the outputs that are then asked for."""

    input: str
    box: Box
    values: Array
    want: Mapping[str, Box] | None = None

    @property
    def assignment(self) -> str:
        """As Python, over `values`."""
        place = f"values[{self.input!r}]{_index(self.box)}"
        if self.values.size > SHOWN:
            return f"{place} = …  # {self.values.dtype}{list(self.values.shape)}: `.edits`"
        return f"{place} = np.array({self.values.tolist()}, {str(self.values.dtype)!r})"

    @property
    def run(self) -> str:
        if self.want is None:
            return "session.run(values)"
        parts = ", ".join(f"{name!r}: np.s_{_index(box)}" for name, box in self.want.items())
        return f"session.run(values, want={{{parts}}})"


def _index(box: Box) -> str:
    return f"[{', '.join(f'{a}:{b}' for a, b in box) or '...'}]"


@dataclass(frozen=True)
class EditFailure:
    """The shortest sequence found after which a run goes wrong.

    Fields:
        pair: whose inputs it begins with.
        fault: what is wrong after the last of the edits.
        replays: how many sequences were tried to find it.
    """

    pair: int
    edits: tuple[Edit, ...]
    fault: str
    has_states: bool
    replays: int

    @property
    def python(self) -> str:
        """The sequence to paste, where `inputs` are those of the pair."""
        lines = ["values = {name: array.copy() for name, array in inputs.items()}"]
        lines += ["session.forget()", *["session.reset_states()"] * self.has_states]
        lines += ["session.run(values)"]
        for edit in self.edits[:-1]:
            lines += [edit.assignment, edit.run]
        last = self.edits[-1]
        lines += [last.assignment, f"found = {last.run}"]
        if not self.has_states:
            lines += ["session.forget()", f"right = {last.run}"]
        return "\n".join(lines)

    def __str__(self) -> str:
        count = len(self.edits)
        title = f"after {count} edit{'s' * (count > 1)} of pair {self.pair}: {self.fault}"
        return f"{title}\n\n{_indented(self.python)}"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def try_edits(
    session: GraphSession,
    pairs: Sequence[Pair],
    count: int,
    seed: int,
    tolerance: float | None,
    progress: Callable[[int, int, str], None],
) -> EditFailure | None:
    """`count` random edits in sequences; the first that fails, shortened. None if none does."""
    rng, player = np.random.default_rng(seed), _Player(session, pairs, tolerance)
    done, number = 0, 0
    while done < count:
        start = number % len(pairs)
        drawer = _Drawer(session.graph, [pair.inputs for pair in pairs], start, rng)
        edits = drawer.sequence(min(SEQUENCE, count - done))
        if not edits:
            return None  # there is nothing to edit
        found = player.play(start, edits, lambda i, d=done: progress(d + i, count, "edits"))  # type: ignore[misc]
        if found is not None:
            return player.shortened(start, *found)
        done, number = done + len(edits), number + 1
    return None


class _Player:
    """Plays sequences on one session, each run beside a run of another that forgets."""

    def __init__(
        self, session: GraphSession, pairs: Sequence[Pair], tolerance: float | None
    ) -> None:
        self.pairs, self.tolerance = pairs, tolerance
        self.graph = session.graph
        self.tried, self.whole = twin(session), twin(session)
        self.replays = 0

    def play(
        self, pair: int, edits: Sequence[Edit], progress: Callable[[int], None] = lambda i: None
    ) -> tuple[tuple[Edit, ...], str] | None:
        """The edits up to the first wrong run, and what is wrong with it; None if all are right."""
        values = {n: self.pairs[pair].inputs[n].copy() for n in self.graph.inputs}
        for session in (self.tried, self.whole):
            session.forget()
            session.reset_states()
            session.run(values)
        for i, edit in enumerate(edits):
            values[edit.input][edit.box.slices()] = edit.values
            fault = self._fault(values, edit)
            progress(i + 1)
            if fault is not None:
                return tuple(edits[: i + 1]), fault
        return None

    def _dtype(self, output: str) -> str:
        """What an output may be off by is what the least exact of the arithmetic is."""
        less = [str(n.attrs["arithmetic"]) for n in self.graph.nodes if may_round(n)]
        return next(iter(less), self.graph.outputs[output].dtype)

    def _fault(self, values: Mapping[str, Array], edit: Edit) -> str | None:
        want = edit.want
        try:
            index = None if want is None else {name: box.slices() for name, box in want.items()}
            found = self.tried.run(values, want=index)
        except TgbenchError as error:
            return f"the run fails: {error}"
        self.whole.forget()
        right = self.whole.run(values)
        for name, array in found.items():
            expected = right[name] if want is None else right[name][want[name].slices()]
            allowed = tolerance_of(self._dtype(name), self.tolerance)
            apart = difference(array, expected, allowed)
            if not apart.relative <= allowed:
                return (
                    f"output {name!r} differs by {apart.absolute:.3g} (relative "
                    f"{apart.relative:.3g}) from a run that computes everything"
                )
        return None

    def shortened(self, pair: int, edits: tuple[Edit, ...], fault: str) -> EditFailure:
        """Drop edits, the latest first, while the rest still fails."""
        at, dropped = len(edits) - 2, False
        while (at >= 0 or dropped) and self.replays < MOST_REPLAYS:
            if at < 0:  # an edit that had to stay may go now that others have gone
                at, dropped = len(edits) - 2, False
                continue
            self.replays += 1
            found = self.play(pair, [*edits[:at], *edits[at + 1 :]])
            if found is not None:
                (edits, fault), dropped = found, True
            at = min(at, len(edits) - 1) - 1
        return EditFailure(pair, edits, fault, bool(self.graph.states), self.replays)


class _Drawer:
    """Draws edits that fit the inputs of a graph."""

    def __init__(
        self,
        graph: Graph,
        examples: Sequence[Mapping[str, Array]],
        start: int,
        rng: np.random.Generator,
    ) -> None:
        self.rng = rng
        self.graph = graph
        self.first = examples[start]
        self.ranges = {
            name: (min(e[name].min() for e in examples), max(e[name].max() for e in examples))
            for name in graph.inputs
        }
        self.edited: list[Edit] = []

    def sequence(self, length: int) -> list[Edit]:
        if not self.graph.inputs:
            return []
        for _ in range(length):
            self.edited.append(self._edit())
        return self.edited

    def _pick(self, choices: Sequence[str]) -> str:
        return choices[int(self.rng.integers(len(choices)))]

    def _edit(self) -> Edit:
        kind = self._pick(["patch", "token", "append", "back"])
        name, box = self._pick(list(self.graph.inputs)), None
        if self.edited and kind in ("append", "back"):
            last = self.edited[int(self.rng.integers(len(self.edited)))] if kind == "back" else None
            name, box = (last or self.edited[-1]).input, (last or self.edited[-1]).box
        shape = self.graph.inputs[name].shape
        if kind == "append":
            box = _next(box, shape) if box is not None else None
        if kind == "patch":
            box = self._patch(shape)
        if box is None:
            box = self._token(shape)
        original = self.first[name][box.slices()]
        values = original.copy() if kind == "back" else self._values(name, original)
        return Edit(name, box, values, self._want())

    def _patch(self, shape: Sequence[int]) -> Box:
        starts = [int(self.rng.integers(size)) for size in shape]
        return Box(
            (a, a + 1 + int(self.rng.integers(size - a)))
            for a, size in zip(starts, shape, strict=True)
        )

    def _token(self, shape: Sequence[int]) -> Box:
        axes = [axis for axis, size in enumerate(shape) if size > 1]
        if not axes:
            return Box.full(shape)
        at = axes[int(self.rng.integers(len(axes)))]
        box = []
        for axis, size in enumerate(shape):
            start = int(self.rng.integers(size))
            box.append((start, start + 1) if axis <= at else (0, size))
        return Box(box)

    def _values(self, name: str, original: Array) -> Array:
        low, high = self.ranges[name]
        if original.dtype == bool:
            return np.asarray(self.rng.integers(0, 2, original.shape)).astype(bool)
        if original.dtype.kind in "iu":
            made = self.rng.integers(min(int(low), 0), int(high) + 1, original.shape)
        else:
            made = low + (high - low) * self.rng.random(original.shape)
        return np.asarray(made).astype(original.dtype)

    def _want(self) -> Mapping[str, Box] | None:
        if self.rng.integers(2):
            return None
        outputs = self.graph.outputs
        names = [name for name in outputs if self.rng.integers(2)] or [self._pick(list(outputs))]
        return {name: self._patch(outputs[name].shape) for name in names}


def _next(box: Box, shape: Sequence[int]) -> Box | None:
    """The same box one place further, along the first dimension where it is one place wide."""
    for axis, (start, stop) in enumerate(box):
        if stop - start == 1 and stop < shape[axis]:
            return Box((a + 1, b + 1) if i == axis else (a, b) for i, (a, b) in enumerate(box))
    return None
