"""Histories of bit-exact sessions: changes that walk over the inputs, beside sessions made anew.

    run 1   everything is new             a program for all of it
    run 2   a box changes            ▪···  a program is made
    run 3   … and one of that size   ·▪··  the program is moved
    run 4   … elsewhere again        ···▪  the program is moved

What a program has to follow when it is moved is where the mode once went wrong: a history in which
nothing comes again at another place sees none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from op_cases import CASES
from session_cases import HUGE, PoisonedSession
from strategies import Array, random_box

from bits.graphs import Made, chain, larger, resized, whole
from bits.numbers import KINDS, drawn, not_finite, numbers
from tgbench.base.errors import InputError, TgbenchError
from tgbench.graph.graph import Graph
from tgbench.graph.op_table import FLOATS
from tgbench.session.session import GraphSession

Rng = np.random.Generator
PLACES = 4  # that one walk goes to
MOST_WALKS = 2  # that differ in what changes and what is asked for; they are walked again
KINDS_AT_RANDOM = 2  # of numbers, in a random history
TABLE = 2 * len(CASES)  # histories that are of the op table, with all kinds of numbers


@dataclass(frozen=True)
class History:
    """A graph, and the kinds of numbers that walk over its inputs, one after the other."""

    label: str
    made: Made
    kinds: Sequence[str]
    rng: Rng


@dataclass(frozen=True)
class Walk:
    """What changes in each of its runs: a box of an input; and a part of an output, or everything.

    Fields:
        want: what is asked for, of the first run; None for all outputs.
        follows: whether that is elsewhere each time, too.
    """

    name: str
    extents: Sequence[int]
    want: Mapping[str, Any] | None
    follows: bool


@dataclass
class Outcome:
    """What came of a history.

    Fields:
        runs: compared with those of new sessions; differing: those with another bit.
        moved: runs by a program that was made for another place.
        not_finite: runs with infinities or NaN that were refused.
        refused: what a typed error said when the session was made, or "".
        raised: what was raised by a run, or by anything else than a typed refusal, or "".
    """

    runs: int = 0
    differing: int = 0
    moved: int = 0
    not_finite: int = 0
    refused: str = ""
    raised: str = ""

    @property
    def fault(self) -> str:
        """What is wrong with it, or ""."""
        return self.raised or (f"{self.differing} of {self.runs} differ" if self.differing else "")


def history(seed: int) -> History:
    """At first each op case, larger and as it is, with all numbers; then cases and random graphs.

    The first ones are `TABLE` in number.
    """
    rng, names = np.random.default_rng([3, seed]), list(CASES)
    name = names[seed % len(names)]
    if seed < TABLE:
        made = larger(name) if seed < len(names) else whole(name)
        return History(f"{seed} {name}", made, list(KINDS), rng)
    made = chain(rng) if seed % 2 else resized(name, rng)
    kinds = [str(kind) for kind in rng.choice(list(KINDS), KINDS_AT_RANDOM)]
    return History(f"{seed} {'chain' if seed % 2 else name}", made, kinds, rng)


def played(history: History) -> Outcome:
    """Play a history; what differs, is refused or raised is told, and never raised."""
    outcome = Outcome()
    try:
        player = _Player(history, outcome)
    except TgbenchError as error:
        outcome.refused = f"{type(error).__name__}: {error}"
        return outcome
    except Exception as error:
        outcome.raised = f"making: {type(error).__name__}: {error}"
        return outcome
    try:
        player.play()
    except Exception as error:
        outcome.raised = f"{type(error).__name__}: {error}"
    return outcome


class _Player:
    """A session with a past."""

    def __init__(self, history: History, outcome: Outcome) -> None:
        self.history, self.outcome, self.rng = history, outcome, history.rng
        self.graph: Graph = history.made.graph
        values = numbers(self.graph, history.kinds[0], history.made.below, self.rng)
        self.weights = {name: values[name] for name in self.graph.parameters}
        self.inputs = {name: values[name] for name in self.graph.inputs}
        retain = str(self.rng.choice(["all", "auto"]))
        self.session = self._session(PoisonedSession, retain=retain)
        self.session.runner.poison = HUGE
        self.walks = [self._walk() for _ in range(MOST_WALKS)] if self.inputs else []

    def _session(self, of: type[GraphSession], **options: Any) -> Any:
        options |= {"making": "always", "calibrate": False}
        return of(self.graph, self.weights, exact="bitwise", **options)

    def play(self) -> None:
        self._run(None)
        if not self.walks:
            return
        for number, kind in enumerate(self.history.kinds):
            if number:
                self.inputs = {name: self._drawn(name, kind) for name in self.inputs}
            for want in self._walked(self.walks[number % len(self.walks)], kind):
                self._run(want)
        self._refuse()

    # --- what changes ----------------------------------------------------------------------------

    def _drawn(self, name: str, kind: str) -> Array:
        return drawn(self.graph.inputs[name], kind, self.history.made.below.get(name, 0), self.rng)

    def _walk(self) -> Walk:
        name = str(self.rng.choice(list(self.inputs)))
        shape = self.inputs[name].shape
        is_point = self.rng.random() < 0.6
        extents = [1 for _ in shape] if is_point else random_box(self.rng, shape).extents
        if self.rng.random() < 0.6:
            return Walk(name, extents, None, False)
        output = str(self.rng.choice(list(self.graph.outputs)))
        want = {output: random_box(self.rng, self.graph.outputs[output].shape).slices()}
        return Walk(name, extents, want, bool(self.rng.random() < 0.5))

    def _walked(self, walk: Walk, kind: str) -> Iterator[Mapping[str, Any] | None]:
        """New numbers, one place after the other; what is asked for each time."""
        for _ in range(PLACES):
            changed = self.inputs[walk.name].copy()
            box = self._placed(walk.extents, changed.shape)
            changed[box] = self._drawn(walk.name, kind)[box]
            self.inputs = {**self.inputs, walk.name: changed}
            yield self._elsewhere(walk.want) if walk.want and walk.follows else walk.want

    def _placed(self, extents: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
        starts = [int(self.rng.integers(n - e + 1)) for n, e in zip(shape, extents, strict=True)]
        return tuple(slice(a, a + e) for a, e in zip(starts, extents, strict=True))

    def _elsewhere(self, want: Mapping[str, Any]) -> Mapping[str, Any]:
        return {
            name: self._placed([p.stop - p.start for p in parts], self.graph.outputs[name].shape)
            for name, parts in want.items()
        }

    # --- what comes of it ------------------------------------------------------------------------

    def _run(self, want: Mapping[str, Any] | None) -> None:
        found = self.session.run(self.inputs, want)
        right = self._session(GraphSession).run(self.inputs)
        self.outcome.runs += 1
        self.outcome.moved += self.session.last.moved
        asked = want or dict.fromkeys(found, ...)
        self.outcome.differing += any(
            _differs(found[name], right[name], index) for name, index in asked.items()
        )

    def _refuse(self) -> None:
        """Infinities and NaN in an input that something reads are refused, and the run after that
        is right.
        """
        read = self.session.keeper.standing.held
        floats = [name for name in read if self.graph.inputs[name].dtype in FLOATS]
        if not floats or not self.inputs[floats[0]].size:
            return
        spoilt = not_finite(self.inputs[floats[0]], self.rng)
        try:
            self.session.run({**self.inputs, floats[0]: spoilt})
        except InputError:
            self.outcome.not_finite += 1
        else:
            raise AssertionError(f"{floats[0]} is not finite, and was taken")
        self._run(None)


def _differs(found: Any, right: Any, index: Any) -> bool:
    return np.asarray(found).tobytes() != np.ascontiguousarray(np.asarray(right)[index]).tobytes()
