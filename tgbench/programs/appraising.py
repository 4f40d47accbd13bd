"""A run as it would be lowered, for one who only asks what it takes: nothing is bound or placed.

The calls are the same, and so is what fits: which kernels there are for operands that lie so, and
the scratch memory they want, is asked as ever. What is known of that is the same for every map of
a graph, so maps that are looked at one after the other share it; where operands lie is only worked
out where somebody has to ask a kernel, or whether one lies on another.

A run that was lowered before is lowered from that: every answer is kept with what it was asked.
First it is found out which nodes are computed, held, handed out or laid otherwise than then; only
what follows from these is asked again, and found again where it differs.

    what is computed near a node ─→ what is touched of it ─┬─ its slot, where it begins ─→ inside?
                                                           └─ what of it is there ─→ fills
    what is computed of a node, how its operands lie ─→ its calls, each with a kernel
"""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple, TypeVar

from tgbench.base.coords import STANDING, Coord, Guard, at, record
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
from tgbench.runs.redeciding import differing
from tgbench.runs.rules import Rules

R = TypeVar("R")
MOST_ANSWERS = 200_000  # of each kind, for all runs that are remembered together
STATES_BYTES = 32 << 20  # of states between runs
NO_STEP = Step({}, {}, {}, {}, {}, ())  # before any
Fill = tuple["Node | None", int, Box]  # who looks at it, in which of its calls, and what is lacking
Asked = Sequence[tuple[Node, Region]]  # what is handed out


class Appraised(NamedTuple):
    """The kernel of a call, and a site where it takes as long."""

    kernel: str
    site: Site


class _Answer(NamedTuple):
    """What follows from what was asked."""

    asked: Hashable
    found: Any


@dataclass(eq=False)
class _KnownAnswers:
    """Of one kind, by node; those that stand on guards, besides."""

    known: dict[Node, _Answer] = field(default_factory=dict)
    guarded: dict[Node, Set[Guard]] = field(default_factory=dict)

    def again(self) -> _KnownAnswers:
        """The same, to go on from."""
        return _KnownAnswers(self.known.copy(), self.guarded.copy())

    def ask(self, node: Node, asked: Hashable, find: Callable[..., R], *about: Any) -> R:
        """What was found, if the same was asked the last time."""
        known = self.known.get(node)
        if known is None or known.asked != asked:
            with record(STANDING.origin) as guards:
                known = _Answer(asked, find(*about))
            self.known[node] = known
            self.guarded.pop(node, None)
            if guards:
                self.guarded[node] = guards
        found: R = known.found
        return found

    def forget(self, node: Node) -> None:
        """Nothing is asked of a node any more."""
        self.known.pop(node, None)
        self.guarded.pop(node, None)


class _Laid(NamedTuple):
    """What of a node's place calls depend on, wherever that is: the slot's extents and start, whose
    bytes they are first, and who gives them, scratch memory, and whether it lasts.
    """

    extents: tuple[int, ...] | None
    start: tuple[int, ...] | None
    owner: Node
    donor: Node | None
    scratch_bytes: int
    is_kept: bool
    slides: bool


Laid = Mapping[Node, _Laid]


@dataclass(eq=False)
class _Lowered:
    """How a run was lowered: what it was asked, and the answers; see the module's first lines.

    Fields:
        step, state, asked, laid: the run, what was there, what is handed out, and how nodes lie.
        boxes: of every node with bytes, what is touched.
        made_starts: where those begin that are computed or filled, and
        starts: all.
        fills: of nodes of which something is lacking.
        segments: nodes in order, those together that may be one call.
    """

    step: Step = NO_STEP
    state: State = field(default_factory=dict)
    asked: Asked = ()
    laid: Laid = field(default_factory=dict)
    boxes: dict[Node, Box] = field(default_factory=dict)
    made_starts: dict[Node, tuple[Coord, ...]] = field(default_factory=dict)
    starts: Starts = field(default_factory=dict)
    fills: dict[Node, list[Fill]] = field(default_factory=dict)
    segments: Sequence[Sequence[Node]] = ()
    touched: _KnownAnswers = field(default_factory=_KnownAnswers)
    inside: _KnownAnswers = field(default_factory=_KnownAnswers)
    filled: _KnownAnswers = field(default_factory=_KnownAnswers)
    calls: _KnownAnswers = field(default_factory=_KnownAnswers)

    @property
    def guards(self) -> Iterator[Set[Guard]]:
        """What all of it stands on."""
        for answers in (self.touched, self.inside, self.filled, self.calls):
            yield from answers.guarded.values()


@dataclass(eq=False)
class _Differs:
    """Nodes about which something else is asked than the last time.

    Fields:
        computed, needed, dirty, filled: what the step says of them.
        held: what is there.
        laid: how they lie, over this map; `laid_before` says how they did.
        handed: what is handed out.
        touched: who computes or reads how much of them, and
        boxes: all of what is touched.
        starts: where they begin.
    """

    computed: set[Node]
    needed: set[Node]
    dirty: set[Node]
    filled: set[Node]
    held: set[Node]
    laid: set[Node]
    laid_before: Laid
    handed: set[Node]
    touched: set[Node] = field(default_factory=set)
    boxes: set[Node] = field(default_factory=set)
    starts: set[Node] = field(default_factory=set)

    @property
    def filling(self) -> set[Node]:
        """Of which something else may be lacking."""
        whole = self.touched | self.computed | self.filled | self.handed
        return whole | self.held | self.laid | self.dirty


def _held_otherwise(one: State, other: State) -> set[Node]:
    """Nodes of which states have something else; equal layers have the same regions in them."""
    same = dict[tuple[int, int], bool]()
    found = other.keys() - one.keys()
    for node, held in one.items():
        before = other.get(node)
        if before is held:
            continue
        if before is None or before.start != held.start:
            found.add(node)
            continue
        key = id(before.valid), id(held.valid)
        if key not in same:
            same[key] = before.valid == held.valid
        if not same[key]:
            found.add(node)
    return found


def _all_of(lists: Mapping[Node, Sequence[Node]], nodes: Iterable[Node]) -> dict[Node, None]:
    """What these nodes have in lists of their own, each once."""
    return dict.fromkeys([one for node in nodes for one in lists.get(node, ())])


class Appraisals(KnownBindings):
    """What appraisers of a graph found out, over whatever map.

    Fields:
        lowered: how runs were lowered last.
        hows: numbers for how a node's operands lie, by what that follows from.
        near: of every node with bytes, those that touch them where they are computed, in order.
        ends: of every node with bytes, what of it may be handed out.
        touches: of every node, whose bytes are touched where it is computed, or handed out.
        followers: of nodes that one other reads, that one, where a kernel may do both.
    """

    def __init__(self, choices: Choices, scheduled: ScheduledGraph) -> None:
        self._most = max(MOST_ANSWERS // max(len(scheduled.schedule), 1), 1)
        super().__init__(choices)
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
        self.touches: dict[Node, list[Node]] = {}
        for base, nodes in self.near.items():
            for node in (*nodes, *self.ends.get(base, ())):
                self.touches.setdefault(node, []).append(base)
        self.order = {base: i for i, base in enumerate(self.near)}
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
        self.lowered = Latest[Hashable, _Lowered](self._most)
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
        self._laid = {node: self._lies(node) for node in known.near}
        self._members: dict[Node, list[Node]] = {}
        for node, laid in self._laid.items():
            self._members.setdefault(laid.owner, []).append(node)
        self._moved_from: tuple[Laid, Set[Node]] = self._laid, frozenset()

    def _lies(self, node: Node) -> _Laid:
        placement = self.placement
        slot = placement.slots.get(node)
        return _Laid(
            None if slot is None else slot.extents, None if slot is None else slot.start,
            placement.group(node), placement.donors.get(node), self._reserved(node),
            node in placement.retained, node in placement.sliding,
        )  # fmt: skip

    def _laid_otherwise(self, before: Laid) -> Set[Node]:
        """Nodes that lie otherwise than over another map: the last one, mostly."""
        if self._moved_from[0] is not before:
            self._moved_from = before, differing(self._laid, before)
        return self._moved_from[1]

    def lowering(
        self,
        step: Step,
        state: State,
        demand: Mapping[str, tuple[Node, Region]] | None = None,
    ) -> Pausing[Lowering]:
        yield
        asked, slides = tuple((demand or {}).values()), bool(self.placement.sliding)
        run = step.run, tuple(STANDING.origin), slides  # over windows begins are found otherwise
        last = self._known.lowered.get(run)
        now, differs = self._asked_now(last or _Lowered(), step, state, asked)
        try:
            self._touch(now, differs)
            self._begin(now, differs)
            state, slid = self._slid(state, now.starts)
            self._fill(now, state, differs)
            self._addresser = Addresser(self.layout_of, now.starts)
            made = [*slid, *self._calls(now, differs)]
        finally:
            if STANDING.guards is not None:
                STANDING.guards.update(*now.guards)
        after = self._after(step, made, now.starts)
        self._known.lowered[run] = now
        return Lowering(tuple(made), after, {})

    def _asked_now(
        self, last: _Lowered, step: Step, state: State, asked: Asked
    ) -> tuple[_Lowered, _Differs]:
        """What to go on from, and where what is asked differs."""
        before, laid, handed = last.step, self._laid_otherwise(last.laid), set[Node]()
        if asked != last.asked:
            handed = {self.scheduled.base[node] for node, _ in (*asked, *last.asked)}
        ends = self.scheduled.graph.ends
        needed = {node for node in ends if step.needed.get(node) != before.needed.get(node)}
        goes_on = step.compute.keys() == before.compute.keys()
        now = _Lowered(
            step, state, asked, self._laid, last.boxes.copy(), last.made_starts.copy(),
            last.starts, last.fills.copy(), last.segments if goes_on else (),
            last.touched.again(), last.inside.again(), last.filled.again(), last.calls.again(),
        )  # fmt: skip
        return now, _Differs(
            differing(step.compute, before.compute), needed, differing(step.dirty, before.dirty),
            set(step.filled ^ before.filled), _held_otherwise(state, last.state), set(laid),
            last.laid, handed,
        )  # fmt: skip

    def _number_of_how(self, node: Node) -> int:
        """It follows from the sizes of slots; most nodes have the same in map after map."""
        base, slots = self.scheduled.base, self.placement.slots
        there = [slots.get(base[one]) for one in (node, *node.inputs)]
        sizes = tuple([None if slot is None else slot.extents for slot in there])
        about = node, sizes, self._taken(node), self._reserved(node)
        found: int = self._known.hows.get(about, super()._number_of_how, node)
        return found

    # --- what fits -------------------------------------------------------------------------------

    def _touch(self, now: _Lowered, differs: _Differs) -> None:
        """The hull of what is computed and read of every node; see `memory.placement.touched`."""
        compute, needed, known = now.step.compute.get, now.step.needed.get, self._known
        boxes, there = now.boxes, len(now.boxes)
        for base in _all_of(known.touches, differs.computed | differs.needed):
            differs.touched.add(base)
            regions = tuple([compute(node) for node in known.near[base]])
            regions += tuple([needed(node) for node in known.ends.get(base, ())])
            box = None
            if any(regions):
                box = now.touched.ask(base, regions, self._hull, base, regions)
            else:
                now.touched.forget(base)
            if box != boxes.get(base):
                differs.boxes.add(base)
            if box is None:
                there -= boxes.pop(base, None) is not None
            else:
                boxes[base] = box
        if len(boxes) > there:  # in order, as they are gone through
            now.boxes = {base: boxes[base] for base in sorted(boxes, key=known.order.__getitem__)}

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

    def _begin(self, now: _Lowered, differs: _Differs) -> None:
        """Where each node's bytes begin; raises as `_starts` does where something does not fit."""
        placement, boxes, before = self.placement, now.boxes, now.starts
        slots = placement.slots
        self._begin_made(now, differs)
        if placement.sliding or not boxes.keys() <= slots.keys():
            now.starts = self._starts(now.step, now.state)
            differs.starts = differing(now.starts, before)
            return
        starts: dict[Node, tuple[Coord, ...]] = dict(self._fixed)
        retained = placement.retained
        starts |= {node: held.start for node, held in now.state.items() if node not in retained}
        starts |= now.made_starts
        now.starts, differs.starts = starts, differing(starts, before)
        for node in differs.boxes | differs.laid | differs.starts:
            box = boxes.get(node)
            if box is None:
                now.inside.forget(node)
                continue
            slot, start = slots[node], starts[node]
            if not now.inside.ask(node, (box, slot.extents, start), slot.holds, box, start):
                now.starts = self._starts(now.step, now.state)
                return
        self._check_donors(now.step, starts)

    def _begin_made(self, now: _Lowered, differs: _Differs) -> None:
        """The same of what is computed or filled: where all begins that has the same owner."""
        step, boxes, starts = now.step, now.boxes, now.made_starts
        if self.placement.sliding:
            return
        owners = dict[Node, None]()
        for node in differs.boxes | differs.laid | differs.computed | differs.filled:
            starts.pop(node, None)
            for laid in (self._laid.get(node), differs.laid_before.get(node)):
                if laid is not None:
                    owners[laid.owner] = None
        for owner in owners:
            members = [
                node
                for node in self._members.get(owner, ())
                if node in boxes and (node in step.compute or node in step.filled)
            ]
            if members:
                hull = reduce(hull_of, [boxes[node] for node in members])
                starts |= {n: self.placement.begins(n, hull) for n in members if n in self._slots}

    # --- what is put there -----------------------------------------------------------------------

    def _fill(self, now: _Lowered, state: State, differs: _Differs) -> None:
        """What of each node is lacking where somebody looks."""
        step, boxes = now.step, now.boxes
        retained, sliding = self.placement.retained, self.placement.sliding
        handed: dict[Node, Asked] = {}
        for node, region in now.asked:
            base = self.scheduled.base[node]
            handed[base] = (*handed.get(base, ()), (node, region))
        for base in {*boxes, *differs.filling} if sliding else differs.filling:
            if base not in boxes:
                now.filled.forget(base)
                now.fills.pop(base, None)
                continue
            held, left = state.get(base), None
            if held is not None and (
                base in retained
                or base in sliding
                or not (base in step.compute or base in step.filled)
            ):
                left = held.valid, step.dirty.get(base, EMPTY)
            about = now.touched.known[base].asked, left, handed.get(base, ())
            now.fills[base] = now.filled.ask(base, about, self._filled_of, base, *about)
            if not now.fills[base]:
                del now.fills[base]

    def _fills_by_reader(self, now: _Lowered) -> dict[tuple[Node | None, int], list[Instruction]]:
        """Fills, by who looks at them in which of its calls; nobody for those who asked."""
        found: dict[tuple[Node | None, int], list[Instruction]] = {}
        for base in sorted(now.fills, key=self._known.order.__getitem__):
            for reader, call, part in now.fills[base]:
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

    def _calls(self, now: _Lowered, differs: _Differs) -> Iterator[Instruction]:
        """All calls in order, each by a kernel; several as one where some kernel does that."""
        compute, known, answers = now.step.compute, now.calls.known, now.calls
        fills, handed = self._fills_by_reader(now), {node for node, _ in now.asked}
        again: Collection[Node] = _all_of(self._known.near, differs.laid | differs.starts)
        again = {*again, *differs.computed}
        if not now.segments:
            now.segments, again = list(self._segments(compute)), compute.keys()
        for node in differs.computed:
            if node not in compute:
                answers.forget(node)
        for nodes in now.segments:
            if len(nodes) > 1:
                apart = [
                    one
                    for node in nodes
                    for i, made in enumerate(self._sketches(node, compute[node]))
                    for one in (*fills.get((node, i), ()), made)
                ]
                for chain in self._folder.chains(apart, handed):
                    yield from self._chained(chain, compute, now.starts, answers)
                continue
            [node] = nodes
            if node in again:
                region = compute[node]
                about = region, self._how(node), self._place(node, now.starts)
                calls = answers.ask(node, about, self._chosen_calls, node, region)
            else:
                calls = known[node].found
            if not fills:
                yield from calls
                continue
            for i, made in enumerate(calls):
                yield from fills.get((node, i), ())
                yield made
        yield from fills.get((None, 0), ())

    def _chained(
        self,
        chain: Sequence[Calls],
        compute: Mapping[Node, Region],
        starts: Starts,
        answers: _KnownAnswers,
    ) -> Sequence[Instruction]:
        """Calls that may be one, by kernels; fills as they are."""
        first = chain[0][0]
        if first.site is None:
            return chain[0]
        about = (
            first.box,
            tuple(
                [
                    (len(calls), node, compute[node], self._how(node), self._place(node, starts))
                    for calls in chain
                    for node in (calls[0].node,)
                ]
            ),
        )
        return answers.ask(first.node, about, self._chosen_chain, chain)

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

    def _place(self, node: Node, starts: Starts) -> Hashable:
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
        return Appraised(self._any(made.node, site).kernel, _lying_still(site))

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
            return Appraised(self._best(first, there, posts).kernel, _lying_still(there))
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


def _lying_still(site: Site) -> Site:
    """A site for runs of all classes: where bytes begin may be told by symbols of one of them."""
    origin = tuple(STANDING.origin)

    def still(view: View | None) -> View | None:
        return view and replace(view, offset=at(view.offset, origin))

    out, posts = replace(site.out, offset=at(site.out.offset, origin)), site.posts
    return replace(
        site, out=out, ins=tuple(map(still, site.ins)), posts=tuple(map(_lying_still, posts))
    )
