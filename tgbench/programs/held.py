"""What the bytes of a node hold: between runs, and while one writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tgbench.base.coords import Coord, fixed
from tgbench.base.regions import EMPTY, NOTHING, Box, Left, Region
from tgbench.graph.graph import Node
from tgbench.memory.placement import Placement
from tgbench.runs.propagate import Step


@dataclass(frozen=True)
class Held:
    """What a node's bytes hold between runs.

    Fields:
        valid: elements that hold the value for the current inputs.
        start: coordinates of the first element of its slot.
    """

    valid: Region
    start: tuple[Coord, ...]

    def fixed(self, numbers: Mapping[int, int]) -> Held:
        """The same where these entries of the origin are numbers."""
        return Held(self.valid.fixed(numbers), tuple(fixed(at, numbers) for at in self.start))


State = Mapping[Node, Held]


class Written:
    """What holds a number by now: valid and clean elements, and what a run has written so far."""

    def __init__(self, left: Mapping[Node, Left]) -> None:
        self._left = left
        self._boxes: dict[Node, list[Box]] = {}

    @staticmethod
    def before(step: Step, state: State, placement: Placement) -> Written:
        """As it is when a run begins, and windows lie where they do in it."""
        retained, sliding = placement.retained, placement.sliding
        return Written(
            {
                node: Left(held.valid, step.dirty.get(node, EMPTY))
                for node, held in state.items()
                if node in retained
                or node in sliding
                or not (node in step.compute or node in step.filled)
            }
        )

    def add(self, node: Node, box: Box) -> None:
        """A box is written."""
        self._boxes.setdefault(node, []).append(box)

    def lacking(self, node: Node, box: Box) -> Region:
        """What of a box holds nothing yet.

        What was dirty is what is written, often in the same boxes: asked in this order, nothing is
        asked of where they lie in the box.
        """
        written = self._boxes.get(node, ())
        if box in written:
            return EMPTY
        missing = self._left.get(node, NOTHING).lacking(Region((box,)))
        return missing.subtract(Region.of(*written))
