"""A run as it would be lowered, for one who only asks what it takes: nothing is bound or placed.

The calls are the same, and so is what fits: which kernels there are for operands that lie so, and
the scratch memory they want, is asked as ever. What is known of that is the same for every map of
a graph, so maps that are looked at one after the other share it; where operands lie is only worked
out where somebody has to ask a kernel, or whether one lies on another.

A run that was lowered before is lowered from that: every answer is kept with what it was asked, and
asked again only where that differs.

    what is computed near a node ─→ what is touched of it ─┬─ its slot, where it begins ─→ inside?
                                                           └─ what of it is there ─→ fills
    what is computed of a node, how its operands lie ─→ its calls, each with a kernel
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from tgbench.base.coords import STANDING, Coord, Guard, record
from tgbench.base.memo import Latest
from tgbench.base.regions import EMPTY, Box, Left, Region
from tgbench.graph.graph import Node
from tgbench.kernels.registry import ARENA, KERNELS, Site, View
from tgbench.kernels.torch.elementwise import fill_
from tgbench.memory.placement import Placement, hull_of, touched_by
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.choices import BoundKernel, Choices, KnownBindings, Option
from tgbench.programs.folding import Calls, Folder, joined_site
from tgbench.programs.held import State, Written
from tgbench.programs.lowering import UNDECIDED, DoesNotFit, Lowerer, Lowering, Starts
from tgbench.programs.program import Instruction
from tgbench.programs.sites import Addresser, half_octaves, is_there
from tgbench.programs.states import States
from tgbench.runs.pausing import Pausing
from tgbench.runs.propagate import Step
from tgbench.runs.rules import Rules

R = TypeVar("R")
MOST_ANSWERS = 200_000  # of each kind, for all runs that are remembered together
STATES_BYTES = 32 << 20  # of states between runs
Fill = tuple["Node | None", int, Box]  # who looks at it, in which of its calls, and what is lacking
Asked = Sequence[tuple[Node, Region]]  # what is handed out


class Appraised(NamedTuple):
    """The kernel of a call, and a site where it takes as long."""

    kernel: str
    site: Site


class _Answer(NamedTuple):
    """What follows from what was asked, and the guards that it stands on."""

    asked: Hashable
    found: Any
    guards: Set[Guard]


class _OfNodes:
    """Of one kind, by node: as they were where the same is asked."""

    def __init__(self, before: Mapping[Node, _Answer]) -> None:
        self.before, self.now = before, dict[Node, _Answer]()

    def of(self, node: Node, asked: Hashable, find: Callable[..., R], *about: Any) -> R:
        known = self.before.get(node)
        if known is None or known.asked != asked:
            with record(STANDING.origin) as guards:
                known = _Answer(asked, find(*about), guards)
        elif known.guards and STANDING.guards is not None:
            STANDING.guards |= known.guards
        self.now[node] = known
        found: R = known.found
        return found


class _Lowered(NamedTuple):
    """The answers that made a run calls; see the module's first lines."""

    touched: Mapping[Node, _Answer] = {}
    inside: Mapping[Node, _Answer] = {}
    fills: Mapping[Node, _Answer] = {}
    calls: Mapping[Node, _Answer] = {}


class Appraisals(KnownBindings):
    """What appraisers of a graph found out, over whatever map.

    Fields:
        lowered: how runs were lowered last.
        hows: numbers for how a node's operands lie, by what that follows from.
        near: of every node with bytes, those that touch them where they are computed, in order.
        ends: of every node with bytes, what of it may be handed out.
        followers: of nodes that one other reads, that one, where a kernel may do both.
    """

    def __init__(self, choices: Choices, scheduled: ScheduledGraph) -> None:
        super().__init__(choices)
        most = max(MOST_ANSWERS // max(len(scheduled.schedule), 1), 1)
        self.lowered = Latest[Hashable, _Lowered](most)
        self.sketches = choices.rules.allowance.memo()
        self._states = States()
        self.near: dict[Node, list[Node]] = {node: [node] for node in scheduled.stored}
        for node in scheduled.stored:
            for base in dict.fromkeys(scheduled.base[parent] for parent in node.inputs):
                if base in self.near:
                    self.near[base].append(node)
        self.ends: dict[Node, list[Node]] = {}
        for node in scheduled.graph.ends:
            self.ends.setdefault(scheduled.base[node], []).append(node)
        besides = {op for kernels in KERNELS.values() for one in kernels for op in one.posts}
        readers = Folder.readers_in(scheduled)
        self.followers = {
            node: after
            for node, them in readers.items()
            for after in them
            if len(them) == 1 and after.op in besides
        }

    def forget(self) -> None:
        super().forget()
        self.hows = self.choices.rules.allowance.memo()

    @property
    def states(self) -> States:
        """What was there between runs, as far as there is room for it."""
        if self._states.size_bytes > STATES_BYTES:
            self._states = States()
        return self._states


class Appraiser(Lowerer):
    """Lowers steps over one placement to calls that nobody will make.

    Args:
        known: what other appraisers of the graph found out, and nobody who binds.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        placement: Placement,
        rules: Rules,
        device: str,
        known: Appraisals,
    ) -> None:
        super().__init__(scheduled, placement, rules, device, bindings=known)
        self._known = known
        self._addresser = Addresser(self.layout_of, {})

    def lowering(
        self,
        step: Step,
        state: State,
        demand: Mapping[str, tuple[Node, Region]] | None = None,
    ) -> Pausing[Lowering]:
        yield
        asked, run = tuple((demand or {}).values()), (step.run, tuple(STANDING.origin))
        last = self._known.lowered.get(run, _Lowered())
        touched, inside, filled, calls = map(_OfNodes, last)
        boxes = self._touched(step, touched)
        starts = self._begun(step, state, boxes, inside)
        state, slid = self._slid(state, starts)
        fills = self._lacking(step, state, asked, boxes, touched, filled)
        self._addresser = Addresser(self.layout_of, starts)
        made = [*slid, *self._calls(step, fills, {node for node, _ in asked}, starts, calls)]
        after = self._after(step, made, starts)
        found = (touched.now, inside.now, filled.now, calls.now)
        self._known.lowered[run] = _Lowered(*found)
        return Lowering(tuple(made), after, {})

    def _number_of_how(self, node: Node) -> int:
        """It follows from the sizes of slots; most nodes have the same in map after map."""
        base, slots = self.scheduled.base, self.placement.slots
        there = [slots.get(base[one]) for one in (node, *node.inputs)]
        sizes = tuple([None if slot is None else slot.extents for slot in there])
        about = node, sizes, self._taken(node), self._reserved(node)
        found: int = self._known.hows.get(about, super()._number_of_how, node)
        return found

    # --- what fits -------------------------------------------------------------------------------

    def _touched(self, step: Step, answers: _OfNodes) -> dict[Node, Box]:
        """The hull of what is computed and read of every node; see `memory.placement.touched`."""
        boxes: dict[Node, Box] = {}
        compute, needed, ends = step.compute.get, step.needed.get, self._known.ends
        for base, near in self._known.near.items():
            regions = tuple([compute(node) for node in near])
            if base in ends:
                regions += tuple([needed(node) for node in ends[base]])
            if any(regions):
                box = answers.of(base, regions, self._hull, base, regions)
                if box is not None:
                    boxes[base] = box
        return boxes

    def _hull(self, base: Node, regions: Sequence[Region | None]) -> Box | None:
        scheduled, rules, near = self.scheduled, self.rules, self._known.near[base]
        found: Box | None = None
        for node, region in zip(near, regions, strict=False):
            if region is not None:
                for one, box in touched_by(node, region, scheduled, rules):
                    if one is base:
                        found = box if found is None else hull_of(found, box)
        for node, region in zip(self._known.ends.get(base, ()), regions[len(near) :], strict=True):
            for part in region or ():
                box = scheduled.stored_box(*scheduled.base_box(node, part, rules))
                found = box if found is None else hull_of(found, box)
        return found

    def _begun(
        self, step: Step, state: State, boxes: Mapping[Node, Box], answers: _OfNodes
    ) -> Starts:
        """Where each node's bytes begin; raises as `_starts` does where something does not fit."""
        placement, made = self.placement, step.compute.keys() | step.filled
        slots = placement.slots
        if placement.sliding or not boxes.keys() <= slots.keys():
            return self._starts(step, state)
        groups: dict[Node, Box] = {}
        for node, box in boxes.items():
            if node in made:
                first = placement.group(node)
                groups[first] = hull_of(groups[first], box) if first in groups else box
        starts: dict[Node, tuple[Coord, ...]] = dict(self._fixed)
        retained = placement.retained
        starts |= {node: held.start for node, held in state.items() if node not in retained}
        for node in boxes:
            if node in made:
                starts[node] = placement.begins(node, groups[placement.group(node)])
        for node, box in boxes.items():
            slot, start = slots[node], starts[node]
            if not answers.of(node, (box, slot.extents, start), slot.holds, box, start):
                return self._starts(step, state)
        self._check_donors(step, starts)
        return starts

    # --- what is put there -----------------------------------------------------------------------

    def _lacking(
        self,
        step: Step,
        state: State,
        asked: Asked,
        boxes: Mapping[Node, Box],
        touched: _OfNodes,
        answers: _OfNodes,
    ) -> dict[tuple[Node | None, int], list[Instruction]]:
        """Fills, by who looks at them in which of its calls; nobody for those who asked."""
        retained, base_of = self.placement.retained, self.scheduled.base
        sliding = self.placement.sliding
        handed: dict[Node, Asked] = {}
        for node, region in asked:
            handed[base_of[node]] = (*handed.get(base_of[node], ()), (node, region))
        found: dict[tuple[Node | None, int], list[Instruction]] = {}
        for base in boxes:
            held, left = state.get(base), None
            if held is not None and (
                base in retained
                or base in sliding
                or not (base in step.compute or base in step.filled)
            ):
                left = held.valid, step.dirty.get(base, EMPTY)
            about = touched.now[base].asked, left, handed.get(base, ())
            for reader, call, part in answers.of(base, about, self._filled_of, base, *about):
                fill = self.filled(base, part, View(ARENA, base.dtype, part.extents, (), 0))
                found.setdefault((reader, call), []).append(fill)
        return found

    def _filled_of(
        self,
        base: Node,
        regions: Sequence[Region | None],
        left: tuple[Region, Region] | None,
        handed: Asked,
    ) -> list[Fill]:
        """What of a node is lacking, in the order in which it is found out."""
        written, found = Written({} if left is None else {base: Left(*left)}), list[Fill]()

        def look(reader: Node | None, call: int, part: Box) -> None:
            for lacking in written.lacking(base, part):
                written.add(base, lacking)
                found.append((reader, call, lacking))

        for node, region in zip(self._known.near[base], regions, strict=False):
            for i, box in enumerate(self.rules.parts(node.call, region or EMPTY)):
                for one, part in self._seen(node, box):
                    if one is base:
                        look(node, i, part)
                if node is base:
                    written.add(node, box)
        for node, region in handed:
            for box in region:
                look(None, 0, self.scheduled.base_box(node, box, self.rules)[1])
        return found

    # --- calls -----------------------------------------------------------------------------------

    def _calls(
        self,
        step: Step,
        fills: Mapping[tuple[Node | None, int], list[Instruction]],
        handed: Collection[Node],
        starts: Starts,
        answers: _OfNodes,
    ) -> Iterator[Instruction]:
        """All calls in order, each by a kernel; several as one where some kernel does that."""
        for nodes in self._segments(step.compute):
            if len(nodes) > 1:
                apart = [
                    one
                    for node in nodes
                    for i, made in enumerate(self._sketches(node, step.compute[node]))
                    for one in (*fills.get((node, i), ()), made)
                ]
                for chain in self._folder.chains(apart, handed):
                    yield from self._chained(chain, step.compute, starts, answers)
                continue
            [node] = nodes
            region = step.compute[node]
            about = region, self._how(node), self._begin(node, starts)
            for i, made in enumerate(answers.of(node, about, self._chosen_calls, node, region)):
                yield from fills.get((node, i), ())
                yield made
        yield from fills.get((None, 0), ())

    def _chained(
        self,
        chain: Sequence[Calls],
        compute: Mapping[Node, Region],
        starts: Starts,
        answers: _OfNodes,
    ) -> Sequence[Instruction]:
        """Calls that may be one, by kernels; fills as they are."""
        first = chain[0][0]
        if first.site is None:
            return chain[0]
        about = (
            first.box,
            tuple(
                [
                    (len(calls), node, compute[node], self._how(node), self._begin(node, starts))
                    for calls in chain
                    for node in (calls[0].node,)
                ]
            ),
        )
        return answers.of(first.node, about, self._chosen_chain, chain)

    def _chosen_chain(self, chain: Sequence[Calls]) -> tuple[Instruction, ...]:
        return tuple(
            [
                self._chosen_for(made) if made.kernel == UNDECIDED else made
                for made in self._shortened(chain)
            ]
        )

    def _segments(self, compute: Mapping[Node, Region]) -> Iterator[list[Node]]:
        """Nodes in order, those that may be one call together."""
        found: list[Node] = []
        follows = {} if self.rules.tilings else self._known.followers
        for node in compute:
            if found and follows.get(found[-1]) is not node:
                yield found
                found = []
            found.append(node)
        if found:
            yield found

    def _begin(self, node: Node, starts: Starts) -> Hashable:
        """Where a result begins, and the operands whose bytes it takes over."""
        taken = self._taken(node)
        if not taken:
            return ()
        base = self.scheduled.base
        return starts[node], tuple([starts.get(base[node.inputs[i]]) for i in sorted(taken)])

    def _chosen_calls(self, node: Node, region: Region) -> tuple[Instruction, ...]:
        return tuple(map(self._chosen_for, self._sketches(node, region)))

    def _sketches(self, node: Node, region: Region) -> Sequence[Instruction]:
        """Calls that no kernel was chosen for, wherever their bytes lie."""
        found: Calls = self._known.sketches.get((node, region), self._sketched, node, region)
        return found

    def _sketched(self, node: Node, region: Region) -> Calls:
        made = []
        for box in self.rules.parts(node.call, region):
            reads = self.rules.reads(node.call, box)
            nowhere = View(ARENA, node.dtype, (), (), 0)
            site = Site(node.call, box, reads, nowhere, (None,) * len(reads), self.device)
            made.append(Instruction(node, box, UNDECIDED, fill_, (), site=site))
        return made

    def _chosen_for(self, made: Instruction) -> Instruction:
        name, site = self._known.by_how.get(self._alike(made, made, ()), self._appraised, made)
        return Instruction(made.node, made.box, name, fill_, (), site=site)

    def _appraised(self, made: Instruction) -> Appraised:
        site = self._site(made.node, made.box, self._addresser)
        return Appraised(self._any(made.node, site).kernel, site)

    def _as_one(self, calls: Calls) -> Instruction | None:
        nodes = [made.node for made in calls]
        alike = tuple([self._alike(made, calls[-1], nodes) for made in calls])
        found = self._known.by_how.get(alike, self._appraised_as_one, calls)
        if found is None:
            return None
        first, (name, site) = calls[0], found
        return Instruction(
            first.node, first.box, name, fill_, (), site=site, posts=tuple(nodes[1:])
        )

    def _bound(self, site: Site, key: Hashable, option: Option) -> BoundKernel:
        """Only which one it is: nobody will call it."""
        kernel = option.kernel
        return BoundKernel(kernel.name, fill_, (), option.used_bytes, kernel.allocates)

    def _appraised_as_one(self, calls: Calls) -> Appraised | None:
        """The kernel that does all of them at once; None where there is none."""
        first, *posts = nodes = [made.node for made in calls]
        sites = [self._site(made.node, made.box, self._addresser) for made in calls]
        there = joined_site(nodes, sites)
        with suppress(DoesNotFit):
            return Appraised(self._best(first, there, posts).kernel, there)
        return None

    def _alike(self, made: Instruction, last: Instruction, chain: Sequence[Node]) -> Hashable:
        """What tells the kernels of a call apart, whose result is the last one's of a chain."""
        assert made.site is not None
        reads, boxes = made.site.in_boxes, [made.box]
        boxes += [box for box in reads if box is not None]
        sizes = half_octaves(size for box in boxes if box.moves for size in box.extents)
        taken = [(made.node.inputs[i], reads[i]) for i in sorted(self._taken(made.node))]
        inplace = tuple(
            [
                read is not None and self._is_there(operand, read, last)
                for operand, read in taken
                if operand not in chain
            ]
        )
        return self._how(made.node), made.box, reads, inplace, sizes

    def _is_there(self, operand: Node, read: Box, last: Instruction) -> bool:
        """Whether what is read of an operand lies exactly where a result does."""
        view = self._addresser.view
        return is_there(view(operand, read), view(last.node, last.box))
