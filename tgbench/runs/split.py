"""Large runs in pieces: less working memory, the same answer.

A run that computes many rows needs working memory for all of them. When retained nodes are what
later rows need of earlier ones (K and V of a prompt), the run can go piece by piece:

    cut an input in k parts;  piece i computes, of the retained nodes, what does not depend on the
    parts after i;  the last piece computes what was asked for

Or the other way round: more than was asked for may take less memory, where a kernel wants its
operands whole and a part of them has to be copied. Whatever a superset of a demand can be computed
in, the demand can.

Nothing is assumed about the graph: `forward` says what depends on the later parts. Where everything
depends on everything (an encoder), the early pieces come out empty and the cut gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from typing import TypeAlias

from tgbench.base.coords import value_of
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Node
from tgbench.runs.propagate import Propagator, Step


@dataclass(frozen=True, order=True)
class Cut:
    """Where a run is cut: an input, one of its dimensions, and into how many equal parts."""

    input: str
    axis: int
    parts: int

    def __str__(self) -> str:
        """For people.

        >>> print(Cut("ids", 0, 4), WHOLE, sep="; ")
        runs cut in 4 along ids[0]; uncut runs
        """
        return (
            "uncut runs"
            if self.parts == 1
            else (f"runs cut in {self.parts} along {self.input}[{self.axis}]")
        )

    def later(self, shape: tuple[int, ...], part: int) -> Region:
        """The input from the end of this part on."""
        length = -(-shape[self.axis] // self.parts)
        start = min(length * (part + 1), shape[self.axis])
        if start >= shape[self.axis]:
            return Region(())
        box = list(Box.full(shape))
        box[self.axis] = (start, shape[self.axis])
        return Region((Box(box),))


WHOLE = Cut("", 0, 1)


def cuts(propagator: Propagator) -> Iterator[Cut]:
    """Every useful cut, coarse ones first."""
    inputs = propagator.graph.inputs
    longest = max((size for node in inputs.values() for size in node.shape), default=1)
    parts = 2
    while parts <= longest:
        for name, node in inputs.items():
            for axis, size in enumerate(node.shape):
                if parts <= size:
                    yield Cut(name, axis, parts)
        parts *= 2


def finest(propagator: Propagator) -> Iterator[Cut]:
    """Along each dimension of an input the cut into single elements."""
    for name, node in propagator.graph.inputs.items():
        yield from (Cut(name, axis, size) for axis, size in enumerate(node.shape) if size > 1)


def demands(
    propagator: Propagator,
    whole: Step,
    cut: Cut,
    demand: Mapping[Node, Region],
) -> list[Mapping[Node, Region]]:
    """What each piece is asked for: lasting parts first, what was really asked for last.

    Lasting is what is retained, whole or in a window, and nobody writes over. Of what a window
    leaves behind no later piece is asked for again.
    """
    leaf = propagator.graph.inputs.get(cut.input)
    if leaf is None or cut.parts < 2:
        return [demand]
    rules, sliding = propagator.rules, propagator.storage.sliding
    pieces: list[Mapping[Node, Region]] = []
    before: Mapping[Node, Region] = {}
    for part in range(cut.parts - 1):
        piece = early(propagator, whole, cut, part)
        if piece and piece != before:
            new = {
                node: rules.subtract(region, before.get(node, EMPTY)) if node in sliding else region
                for node, region in piece.items()
            }
            pieces.append({node: region for node, region in new.items() if region.boxes})
            before = piece
    return [*pieces, demand]


def early(propagator: Propagator, whole: Step, cut: Cut, part: int) -> dict[Node, Region]:
    """What lasts of a run and does not depend on the parts after this one."""
    storage, leaf = propagator.storage, propagator.graph.inputs[cut.input]
    lasting = [node for node in whole.compute if node in storage.lasting]
    late = propagator.forward({leaf: cut.later(leaf.shape, part)})
    return {
        node: region
        for node in lasting
        if not storage.overlaps.get(node)
        if (region := propagator.rules.subtract(whole.compute[node], late.get(node, EMPTY))).boxes
    }


Demand: TypeAlias = "Mapping[Node, Region]"
MOST_AXES = 3  # of which all choices are tried; of more, each alone and all of them


def contains(larger: Demand, smaller: Demand) -> bool:
    """Whether one demand asks for all that another does."""
    return all(node in larger and larger[node].contains(region) for node, region in smaller.items())


def supersets(demand: Demand, planned: Sequence[Demand] = ()) -> list[Demand]:
    """Larger demands: whole along some dimensions, along all; what was planned for, and likewise.

    Which there are is decided by numbers alone: it is a choice, and each of them is right.
    """
    around = [demand, *(other for other in planned if contains(other, demand))]
    found = [grown for each in around for grown in (each, *_grown(each))]
    return [one for i, one in enumerate(found) if one not in found[:i]][1:]


def _grown(demand: Demand) -> Iterator[Demand]:
    axes = sorted({axis for node, region in demand.items() for axis in _partial(node, region)})
    sizes = range(1, len(axes) + 1) if len(axes) <= MOST_AXES else (1, len(axes))
    for chosen in chain.from_iterable(combinations(axes, size) for size in sizes):
        yield {node: _whole_along(node, region, chosen) for node, region in demand.items()}


def _partial(node: Node, region: Region) -> list[int]:
    """The dimensions along which a region does not reach from end to end."""
    ends = [tuple(map(value_of, interval)) for interval in region.hull()]
    return [axis for axis, size in enumerate(node.shape) if ends[axis] != (0, size)]


def _whole_along(node: Node, region: Region, axes: Sequence[int]) -> Region:
    box = list(region.hull())
    for axis in axes:
        if axis < node.rank:
            box[axis] = (0, node.shape[axis])
    return Region((Box(box),))
