"""Which kind of run follows which: a square per pair of bucket classes, from a trace.

                next →   append   edit   ask
    after append          ███      ░      ·        how often, or P(next class | class)
    after edit             ▒       ·      ▒        a cell has an example, and what it took

`matrix` builds the payload from a trace, `matrix_of_plan` from the classes of a plan, which knows
how often each came but not in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tgbench.base.words import counted, cut, format_time
from tgbench.graph.graph import Graph
from tgbench.plans.plan import Plan
from tgbench.runs.buckets import SIZED, BucketClass, Span
from tgbench.runs.entry import LoggedCall
from tgbench.runs.trace import Trace
from tgbench.views.draw.svg import THEME

MOST_DRAWN = 24  # classes in the static picture; the rarest are left out
LETTERS = 54  # of a label; the whole is its title


@dataclass(frozen=True)
class Transition:
    """One pair of classes.

    Fields:
        before, after: positions of the classes.
        count: how often one came right after the other.
        mean_ns: mean time of the later runs; 0 where none was measured.
        hits: share of the later runs that found their program.
        example: such a pair of runs, in words.
    """

    before: int
    after: int
    count: int
    mean_ns: float
    hits: float
    example: str


@dataclass(frozen=True)
class Matrix:
    """Transitions between classes.

    Fields:
        classes: in words, in order of first occurrence.
        counts: how often each class came.
        cells: pairs that came, if the order is known.
        names: of the classes, for people.
        means_ns: mean time of each class's runs; 0 where none was measured.
    """

    classes: tuple[str, ...]
    counts: tuple[float, ...]
    cells: tuple[Transition, ...]
    names: tuple[str, ...] = ()
    means_ns: tuple[float, ...] = ()

    @property
    def count(self) -> NDArray[np.int64]:
        """[before, after] → how often."""
        found = np.zeros((len(self.classes), len(self.classes)), np.int64)
        for cell in self.cells:
            found[cell.before, cell.after] = cell.count
        return found

    @property
    def probability(self) -> NDArray[np.float64]:
        """[before, after] → P(after | before); a row of zeros where nothing followed."""
        counts = self.count.astype(float)
        found: NDArray[np.float64] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
        return found

    def columns(self) -> dict[str, Any]:
        """Plain columns for a script."""
        cells, probability = self.cells, self.probability
        return {
            "class": list(self.classes),
            "words": list(self.names),
            "times": np.array(self.counts, np.float64),
            "class_mean": np.array(self.means_ns, np.float64),
            "before": np.array([c.before for c in cells], np.int32),
            "after": np.array([c.after for c in cells], np.int32),
            "count": np.array([c.count for c in cells], np.int32),
            "probability": np.array([probability[c.before, c.after] for c in cells], np.float64),
            "mean": np.array([c.mean_ns for c in cells], np.float64),
            "hits": np.array([c.hits for c in cells], np.float64),
            "example": [c.example for c in cells],
        }

    def rows(self) -> list[list[str]]:
        """A row a pair: the text alternative."""
        shares = self.probability
        return [
            [
                self.classes[c.before], self.classes[c.after], str(c.count),
                f"{shares[c.before, c.after]:.0%}", format_time(c.mean_ns),
            ]
            for c in self.cells
        ]  # fmt: skip

    def __str__(self) -> str:
        transitions = counted(sum(cell.count for cell in self.cells), "transition")
        return f"{counted(len(self.classes), 'class')}, {transitions}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"image/svg+xml": to_svg(self), "text/plain": str(self)}


def matrix(trace: Trace, graph: Graph) -> Matrix:
    """The transitions of a trace; raises TraceError for calls of another graph."""
    calls = trace.calls[:]
    kinds = trace.kinds(graph, len(calls))
    order = list(dict.fromkeys(kinds))
    number = {kind: i for i, kind in enumerate(order)}
    followers: dict[tuple[int, int], list[int]] = {}
    for i, (before, after) in enumerate(pairwise(kinds)):
        followers.setdefault((number[before], number[after]), []).append(i + 1)
    cells = tuple(_cell(pair, found, calls) for pair, found in sorted(followers.items()))
    times, spent = [0.0] * len(order), [0] * len(order)
    for kind, call in zip(kinds, calls, strict=True):
        times[number[kind]] += 1
        spent[number[kind]] += call.duration_ns
    means = tuple(ns / count for ns, count in zip(spent, times, strict=True))
    return Matrix(tuple(map(str, order)), tuple(times), cells, tuple(map(words_of, order)), means)


def _cell(
    pair: tuple[int, int], followers: Sequence[int], calls: Sequence[LoggedCall]
) -> Transition:
    runs = [calls[i] for i in followers]
    last = followers[-1]
    return Transition(
        *pair,
        len(runs),
        sum(call.duration_ns for call in runs) / len(runs),
        sum(call.hit for call in runs) / len(runs),
        f"call {last}: {calls[last - 1].bucket}; call {last + 1}: {calls[last].bucket}",
    )


def words_of(kind: BucketClass) -> str:
    """A class for people: what it changes.

    >>> ids = BucketClass((("ids", (((0, 1),),)),), (("logits", (((0, 1), (None, 9)),)),), (63,))
    >>> words_of(ids)
    'append 1 to ids'
    >>> words_of(BucketClass((("x", (((0, 8), (0, 8)),)),), (("y", (((None, 9),),)),), (88,)))
    'edit 8×8 of 96×96 in x, on the diagonal'
    """
    asked = {symbol for _, boxes in kind.demand for box in boxes for symbol, _ in box}
    parts = [_changed(name, boxes, kind.bounds, asked) for name, boxes in kind.changed]
    return " and ".join(parts) or "nothing new"


def _changed(
    name: str,
    boxes: tuple[tuple[Span, ...], ...],
    bounds: tuple[int, ...],
    asked: set[int | None],
) -> str:
    moving = [(symbol, extent) for symbol, extent in boxes[0] if symbol is not None]
    if len(boxes) > 1:
        return f"edit {name} in {len(boxes)} places"
    if not moving:
        return f"all of {name}"
    if any(extent < 0 for _, extent in moving):
        return f"{name} from somewhere on"
    if any(extent == SIZED for _, extent in moving):
        return f"any number of {name}"
    extents = "×".join(str(extent) for _, extent in moving)
    if all(symbol in asked for symbol, _ in moving):
        return f"append {extents} to {name}"
    sizes = "×".join(str(bounds[symbol] + extent) for symbol, extent in moving)
    is_diagonal = len({symbol for symbol, _ in moving}) < len(moving)  # a class of its own
    return f"edit {extents} of {sizes} in {name}{', on the diagonal' if is_diagonal else ''}"


def matrix_of_plan(plan: Plan) -> Matrix:
    """The classes that a plan was made for, without their order."""
    kinds = [BucketClass(b.changed, b.demand, b.bounds) for b in plan.buckets]
    weights, names = (b.weight for b in plan.buckets), map(words_of, kinds)
    return Matrix(tuple(map(str, kinds)), tuple(weights), (), tuple(names))


# --- the static picture ---------------------------------------------------------------------------

SIDE, LEFT, TOP = 34, 330, 40
STYLE = (
    THEME + ".tg-heat{fill:var(--tg-a)}.tg-cell{fill:none;stroke:var(--tg-line)}"
    "@media(prefers-color-scheme:dark){.tg-heat{fill:#33627d}}"  # behind letters that are light
)


def to_svg(shown: Matrix) -> str:
    """The matrix as one SVG: the darker, the likelier."""
    if not shown.classes:
        return _svg(300, 30, '<text class="tg-text" x="8" y="18">no runs yet</text>', str(shown))
    frequent = sorted(range(len(shown.classes)), key=lambda i: -shown.counts[i])[:MOST_DRAWN]
    kept = {kind: place for place, kind in enumerate(sorted(frequent))}
    parts = []
    for kind, place in kept.items():
        y, x = TOP + place * SIDE, LEFT + place * SIDE
        name = shown.classes[kind]
        parts.append(
            f'<text class="tg-strong" x="{LEFT - 8}" y="{y + 15}" text-anchor="end">'
            f"<title>{escape(name)}</title>{place}: {escape(cut(_said(shown, kind), LETTERS))}"
            f', {shown.counts[kind]:g} ×</text><text class="tg-text" x="{LEFT - 8}" y="{y + 28}" '
            f'text-anchor="end">{escape(cut(name, LETTERS))}</text>'
            f'<text class="tg-text" x="{x + SIDE / 2}" y="{TOP - 8}" text-anchor="middle">'
            f"{place}</text>"
        )
        for other in range(len(kept)):
            parts.append(
                f'<rect class="tg-cell" x="{LEFT + other * SIDE}" y="{y}" width="{SIDE}" '
                f'height="{SIDE}"/>'
            )
    shares = shown.probability
    for cell in shown.cells:
        if cell.before in kept and cell.after in kept:
            parts.append(
                _square(
                    cell,
                    kept[cell.before],
                    kept[cell.after],
                    float(shares[cell.before, cell.after]),
                )
            )
    left_out = len(shown.classes) - len(kept)
    if left_out:
        y = TOP + len(kept) * SIDE + 18
        parts.append(
            f'<text class="tg-text" x="{LEFT}" y="{y}">'
            f"{counted(left_out, 'rarer class')} left out</text>"
        )
    size = len(kept) * SIDE
    head = (
        f'<text class="tg-text" x="{LEFT - 8}" y="{TOP - 8}" text-anchor="end">'
        "a run ↓ the next one →</text>"
    )
    return _svg(LEFT + size + 20, TOP + size + 28, head + "".join(parts), str(shown))


def _said(shown: Matrix, kind: int) -> str:
    """A class for people, or in its own words where it has no others."""
    return shown.names[kind] if shown.names else shown.classes[kind]


def _square(cell: Transition, row: int, column: int, share: float) -> str:
    x, y = LEFT + column * SIDE, TOP + row * SIDE
    mean = f"mean {format_time(cell.mean_ns)}"
    words = f"{counted(cell.count, 'time')}, {share:.0%}; {mean}; {cell.example}"
    return (
        f'<g><title>{escape(words)}</title><rect class="tg-heat" x="{x}" y="{y}" width="{SIDE}" '
        f'height="{SIDE}" fill-opacity="{0.08 + 0.72 * share:.2f}"/><text class="tg-strong" '
        f'x="{x + SIDE / 2}" y="{y + 21}" text-anchor="middle">{share:.0%}</text></g>'
    )


def _svg(width: float, height: float, inside: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{min(width, 960):.0f}" role="img" font-family="system-ui, sans-serif" '
        f'font-size="11"><title>{escape(title)}</title><style>{STYLE}</style>{inside}</svg>'
    )
