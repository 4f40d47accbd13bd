"""From a decided run to instructions: where every operand lies, and which kernel computes it.

    Step (what to compute)  +  Placement (where bytes lie)  →  instructions on view descriptions

Equal layers differ in where their bytes lie and in nothing else: a kernel is chosen and bound
once for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tgbench.base.coords import (
    Coord,
    same,
    value_of,
)
from tgbench.base.errors import KernelError, TgbenchError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Node
from tgbench.graph.op_table import ITEMSIZE
from tgbench.kernels.registry import (
    KERNELS,
    OUT,
    SCRATCH,
    Host,
    Prepared,
    Ranking,
    Site,
    View,
    candidates,
    is_by_team,
)
from tgbench.kernels.torch.elementwise import fill_
from tgbench.kernels.torch.layout import slide_
from tgbench.memory.placement import Placement, touched
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.choices import BoundKernel, Choices, KnownBindings, Option, moving_sizes
from tgbench.programs.folding import Calls, Folder, joined
from tgbench.programs.held import Held, State, Written
from tgbench.programs.program import Instruction
from tgbench.programs.sites import (
    Addresser,
    canonical,
    held_here,
    is_there,
    layout,
    place_of,
    site_of,
    taken,
)
from tgbench.programs.teamwork import Teamwork
from tgbench.runs.pausing import Pausing, at_once
from tgbench.runs.propagate import Step
from tgbench.runs.rules import Rules

UNDECIDED = ""  # the kernel of a call before one is chosen
FILL = "fill"  # of a call that puts what is known, or zeros, where somebody will look
SLIDE = "slide"  # of a call that moves a window


class DoesNotFit(TgbenchError):  # noqa: N818  (a signal to split or plan anew)
    """A run needs more room than the placement gives a node; the session splits or plans anew."""

    def __init__(self, node: Node, needs: object, has: object) -> None:
        super().__init__(f"{node.name} needs {needs} but the plan has {has}")
        self.node = node


class Unreadable(Exception):  # noqa: N818  (a signal to compute again)
    """A cached slice lies where this run cannot read it whole; it has to be computed again."""

    def __init__(self, node: Node) -> None:
        super().__init__(node.name)
        self.node = node


Seen = tuple[tuple[Node, Box], ...]
Starts = Mapping[Node, tuple[Coord, ...]]


@dataclass(frozen=True)
class Lowering:
    """A lowered run, before it is bound to an origin's guards."""

    instructions: tuple[Instruction, ...]
    after: dict[Node, Held]
    outputs: dict[str, tuple[tuple[Box, View], ...]]


class Lowerer:
    """Turns steps into instructions over one placement.

    Args:
        ranking: which kernels take a site, the best first; by their own models if left out.
        team: who may compute what kernels' threads would meet for; None for nobody.
        bindings: what is known of kernels already.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        placement: Placement,
        rules: Rules,
        device: str,
        ranking: Ranking = candidates,
        team: Teamwork | None = None,
        bindings: KnownBindings | None = None,
    ) -> None:
        self.team = team
        self.scheduled = scheduled
        self.placement = placement
        self.rules = rules
        self.device = device
        self._bindings = bindings or KnownBindings(Choices(rules, ranking))
        self._slots = placement.slots
        self._hows: dict[Node, int] = {}  # no `cache`, which would hold on to who has it
        self._taken = cache(lambda node: taken(node, scheduled, placement.donors))
        self.layout_of = cache(lambda node: layout(node, scheduled, placement.slots))
        self._folder = Folder(scheduled, placement)
        self._fixed = {
            node: slot.start for node, slot in placement.slots.items() if node in placement.retained
        }

    def lower(
        self,
        step: Step,
        state: State,
        demand: Mapping[str, tuple[Node, Region]] | None = None,
    ) -> Lowering:
        """Instructions for a step, and views of what was demanded, by name.

        Raises DoesNotFit where the placement is too small, Unreadable where a cached slice does
        not hold all that a kernel would touch.
        """
        return at_once(self.lowering(step, state, demand))

    def lowering(
        self,
        step: Step,
        state: State,
        demand: Mapping[str, tuple[Node, Region]] | None = None,
    ) -> Pausing[Lowering]:
        starts = self._starts(step, state)
        addresser = Addresser(self.layout_of, starts)
        state, instructions = self._slid(state, starts)
        written = Written.before(step, state, self.placement)
        for node, region in step.compute.items():
            for box in self.rules.parts(node.call, region):
                yield
                instructions += self._fills_for(node, box, written, addresser)
                instructions.append(self._instruction(node, box, addresser))
                written.add(node, box)
        for node, region in (demand or {}).values():
            for box in region:
                instructions += self._fills(node, box, written, addresser)
        handed = {node for node, _ in (demand or {}).values()}
        instructions = yield from self._folding(instructions, handed)
        instructions = yield from self._choosing(instructions)
        instructions = yield from self._teaming(instructions)
        after = self._after(step, instructions, starts)
        return Lowering(tuple(instructions), after, _demanded(demand or {}, addresser))

    def _after(self, step: Step, made: Sequence[Instruction], starts: Starts) -> dict[Node, Held]:
        """What is there afterwards; what was only passed on between calls that are one is not."""
        folded = [one for one in made if one.posts]
        passed = {node for one in folded for node in (one.node, *one.posts[:-1])}
        if passed:
            passed -= {one.result for one in made}
        after = {
            node: self._in_window(node, Held(region, starts[node]))
            for node, region in step.valid.items()
            if node in starts and node not in passed  # a planner may retain what no run touches
        }
        return {node: held for node, held in after.items() if held.valid.boxes}

    # --- windows ----------------------------------------------------------------------------------

    def _slid(self, state: State, starts: Starts) -> tuple[State, list[Instruction]]:
        """What is there once windows lie where a run wants them, and the copies that this takes."""
        there, made = dict(state), list[Instruction]()
        for node in self.placement.sliding:
            held = state.get(node)
            if held is None or all(map(same, held.start, starts[node])):
                continue
            there[node] = now = self._in_window(node, Held(held.valid, starts[node]))
            if now.valid.boxes:
                made.append(self._moved(node, now.valid.hull(), held.start, now.start))
        return there, made

    def _in_window(self, node: Node, held: Held) -> Held:
        """What of it lies in the window that begins there."""
        axis = self.placement.sliding.get(node)
        if axis is None:
            return held
        sides: list[tuple[Coord, Coord]] = [(0, size) for size in node.shape]
        first = held.start[axis]
        sides[axis] = first, first + self._slots[node].extents[axis]
        return Held(held.valid.intersect(Region((Box(sides),))), held.start)

    def _moved(
        self, node: Node, box: Box, before: tuple[Coord, ...], now: tuple[Coord, ...]
    ) -> Instruction:
        source, target = (
            Addresser(self.layout_of, {node: start}).view(node, box) for start in (before, now)
        )
        return self.slid(node, box, target, source)

    def slid(self, node: Node, box: Box, target: View, source: View) -> Instruction:
        """A call that copies what a window still covers to where it lies from now on."""
        return Instruction(node, box, SLIDE, slide_, (target, source))

    def _starts(self, step: Step, state: State) -> dict[Node, tuple[Coord, ...]]:
        """Where each node's bytes begin in this run; checks that everything fits."""
        placement = self.placement
        boxes = touched(step, self.scheduled, self.rules)
        groups: dict[Node, Box] = {}
        for node, box in boxes.items():
            if node.is_leaf:
                continue
            if node not in placement.slots:
                raise DoesNotFit(node, box, "no place for it")
            if node in step.compute or node in step.filled:
                first = placement.group(node)
                groups[first] = groups[first].hull(box) if first in groups else box
        starts: dict[Node, tuple[Coord, ...]] = dict(self._fixed)
        for node, held in state.items():
            if node not in placement.retained:
                starts[node] = held.start
        for node in (*step.compute, *step.filled):
            if node in boxes:
                starts[node] = placement.begins(node, groups[placement.group(node)])
        for node, box in boxes.items():
            if not node.is_leaf:
                cached = node not in step.compute and node not in step.filled
                if cached and node in placement.sliding and not self._is_inside(node, box, starts):
                    starts[node] = placement.begins(node, box)
                self._check_inside(node, box, starts[node], cached)
        self._check_donors(step, starts)
        return starts

    def _is_inside(self, node: Node, box: Box, starts: Starts) -> bool:
        return node in starts and self.placement.slots[node].holds(box, starts[node])

    def _check_inside(self, node: Node, box: Box, start: tuple[Coord, ...], cached: bool) -> None:
        slot = self.placement.slots[node]
        if slot.holds(box, start):
            return
        if cached and node not in self.placement.retained and node not in self.placement.sliding:
            raise Unreadable(node)
        raise DoesNotFit(node, box, f"{list(slot.extents)} from {list(start)}")

    def _check_donors(self, step: Step, starts: Mapping[Node, tuple[Coord, ...]]) -> None:
        """A cached operand that is overwritten in place must start where the result does."""
        for node in step.compute:
            operand = self.placement.donors.get(node)
            if operand is None or operand in step.compute or operand not in step.reused:
                continue
            if any(a < b or b < a for a, b in zip(starts[node], starts[operand], strict=True)):
                raise Unreadable(operand)

    def _fills_for(
        self, node: Node, box: Box, written: Written, addresser: Addresser
    ) -> list[Instruction]:
        """Fills of all that computing a box reads."""
        seen = self._seen(node, box)
        return [fill for base, part in seen for fill in self._put(base, part, written, addresser)]

    def _seen(self, node: Node, box: Box) -> Seen:
        """What computing a box reads of nodes with bytes, and is not known to be computed; what is
        needed, and no view, was.
        """
        key = node, box, self.scheduled.copied
        found: Seen = self.rules.seen.get(key, self._seen_besides, node, box)
        return found

    def _seen_besides(self, node: Node, box: Box) -> Seen:
        reads = self.rules.reads(node.call, box)
        are_needed = self.rules.reads_needed(node.call, box)
        return tuple(
            self.scheduled.base_box(parent, read, self.rules)
            for parent, read, is_needed in zip(node.inputs, reads, are_needed, strict=True)
            if read is not None and not (is_needed and self.scheduled.base[parent] is parent)
        )

    def _fills(
        self, node: Node, box: Box, written: Written, addresser: Addresser
    ) -> list[Instruction]:
        """Fills of what is handed out."""
        return self._put(*self.scheduled.base_box(node, box, self.rules), written, addresser)

    def _put(
        self, base: Node, inside: Box, written: Written, addresser: Addresser
    ) -> list[Instruction]:
        """Calls that put known values, or zeros nobody cares about, where somebody will look.

        A mask is put there as closed as it is: what is read beside a maximum stays below it.
        """
        if base.is_leaf or base in self.scheduled.frozen:
            return []
        missing = written.lacking(base, inside)
        for part in missing:
            written.add(base, part)
        return [self.filled(base, part, addresser.view(base, part)) for part in missing]

    def filled(self, node: Node, box: Box, view: View) -> Instruction:
        """A call that puts there what is known of a node."""
        fact = node.call.fact
        value = fact.value if fact is not None and fact.value is not None else 0.0
        return Instruction(node, box, FILL, fill_, (view, value))

    def _site(self, node: Node, box: Box, addresser: Addresser) -> Site:
        prepares = node.call not in self.rules.unpacked
        return site_of(node, box, addresser, self.rules, self.device, prepares=prepares)

    def _instruction(self, node: Node, box: Box, addresser: Addresser) -> Instruction:
        """A call that no kernel was chosen for yet: it may become part of another one."""
        return Instruction(node, box, UNDECIDED, fill_, (), site=self._site(node, box, addresser))

    def _choosing(self, made: list[Instruction]) -> Pausing[list[Instruction]]:
        """The same calls, each by a kernel."""
        found: list[Instruction] = []
        for one in made:
            found.append(self._chosen_for(one) if one.kernel == UNDECIDED else one)
            yield
        return found

    def _chosen_for(self, made: Instruction) -> Instruction:
        """One bound call. Equal layers differ in where their bytes lie and in nothing else, so
        a kernel is chosen and bound once, over operands at offset 0, and then moved.
        """
        node, there = made.node, made.site
        assert there is not None
        inplace = tuple([_lies_there(there, i) for i in self._taken(node)])
        alike = (self._how(node), made.box, there.in_boxes, inplace, moving_sizes(there))
        return self.placed(node, there, self._bindings.by_how.get(alike, self._any, node, there))

    @property
    def teams(self) -> bool:
        """Whether threads that meet are weighed against a team, for a program as a whole."""
        return self.team is not None and not self.rules.tilings and self.team.is_there

    def _teaming(self, made: list[Instruction]) -> Pausing[list[Instruction]]:
        """The same calls, none of whose threads meet, where that is expected to take less in all.

        Not where bits must agree: tiles do.
        """
        if not self.teams:
            return made
        assert self.team is not None
        found = self.team.instead((one.site, one.kernel) for one in made if one.site is not None)
        if found is None:
            return made
        kernels, others = iter(found), list[Instruction]()
        with suppress(DoesNotFit):
            for one in made:
                yield
                others.append(one if one.site is None else self._named(one, next(kernels)))
            return others
        return made

    def _named(self, made: Instruction, kernel: str) -> Instruction:
        return made if made.kernel == kernel else self.by(made, kernel)

    def choose_anew(self) -> None:
        """More is known of what kernels take."""
        self._bindings.choices.forget()
        if self.team is not None:
            self.team.forget()
        self._bindings.forget()

    def again(self, made: Instruction) -> Instruction:
        """A call, and all that it does besides, by the kernel that would be chosen now; as it is if
        none would be.
        """
        assert made.site is not None
        if is_by_team(made.site, made.kernel):  # chosen for the whole program
            return made
        return self._by_itself(made)

    def all_again(self, made: Sequence[Instruction]) -> list[Instruction]:
        """All calls of a program by the kernels that would be chosen now, a team's included."""
        return at_once(self._teaming([self._by_itself(one) for one in made]))

    def _by_itself(self, made: Instruction) -> Instruction:
        """A call by the kernel that is chosen for it, whatever computes the others."""
        if made.site is None:
            return made
        with suppress(DoesNotFit, KernelError):
            site = self._chosen_at(made.node, made.site, made.posts)
            bound = self._fastest(site, made.node)
            return self.placed(made.node, made.site, bound, made.posts)
        return made

    def by(self, made: Instruction, kernel: str) -> Instruction:
        """A call by another kernel that might be chosen; raises KernelError or DoesNotFit for one
        that does not suit.
        """
        assert made.site is not None
        site = self._chosen_at(made.node, made.site, made.posts)
        bound = self._fitting(self._named_at(site, kernel), made.node)
        return self.placed(made.node, made.site, bound, made.posts)

    def _best(self, node: Node, there: Site, posts: Sequence[Node] = ()) -> BoundKernel:
        """The fastest kernel at a site that the node's scratch memory is enough for."""
        return self._fastest(self.canonical(node, there, posts), node)

    def _any(self, node: Node, there: Site) -> BoundKernel:
        """The same, by all means."""
        return self._fastest(self._chosen_at(node, there), node)

    def _chosen_at(self, node: Node, there: Site, posts: Sequence[Node] = ()) -> Site:
        """The canonical site that a call's kernel is chosen at.

        Where sizes move, fewer kernels take it, or none; memory may have been reserved for one of
        the others. Then the sizes are held to what they are here, but not for what is done besides:
        that can be a call of its own.
        """
        site = self.canonical(node, there, posts)
        try:
            self._fastest(site, node)
        except (DoesNotFit, KernelError):
            if posts or not moving_sizes(site):
                raise
            return held_here(site)
        return site

    def _fastest(self, site: Site, node: Node) -> BoundKernel:
        key = self._bindings.choices.key(site)
        return self._bound(site, key, self._chosen(self._bindings.choices.at(key, site), node))

    def _how(self, node: Node) -> int:
        """One number for all nodes of a call whose operands lie alike; some are never read, and
        lie nowhere.
        """
        found = self._hows.get(node)
        if found is None:
            found = self._hows[node] = self._number_of_how(node)
        return found

    def _number_of_how(self, node: Node) -> int:
        base, frozen = self.scheduled.base, self.scheduled.frozen
        there = [n for n in (node, *node.inputs) if base[n] in frozen or base[n] in self._slots]
        laid = {n: self.layout_of(n) for n in there}
        lie = tuple(
            [
                n in laid and (laid[n].steps, not isinstance(laid[n].buffer, str))
                for n in node.inputs
            ]
        )
        how = node.call, laid[node].steps, lie, self._taken(node), self._reserved(node)
        return self._bindings.number(how)

    def canonical(self, node: Node, there: Site, posts: Sequence[Node] = ()) -> Site:
        """A node's site with every operand at offset 0; `posts` are the nodes of the site's."""
        return canonical(there, *map(self._taken, (node, *posts)))

    def _folding(
        self, made: list[Instruction], handed: Collection[Node]
    ) -> Pausing[list[Instruction]]:
        """The same calls, as fewer where a kernel does several at once, and is quicker so.

        Not where bits must agree: tiles do.
        """
        if self.rules.tilings:
            return made
        found: list[Instruction] = []
        for chain in self._folder.chains(made, handed):
            found += self._shortened(chain)
            yield
        return found

    def _shortened(self, chain: Sequence[Calls]) -> list[Instruction]:
        """A chain of calls, as many of them as may be in one each."""
        for stop in range(len(chain), 1, -1):
            found = [self._as_one(calls) for calls in zip(*chain[:stop], strict=True)]
            done = [one for one in found if one is not None]
            if len(done) == len(found):
                return done + [one for calls in chain[stop:] for one in calls]
        return [one for calls in chain for one in calls]

    def _as_one(self, calls: Calls) -> Instruction | None:
        """Several calls as one; None where no kernel does that, or none as quickly."""
        first, *posts = (made.node for made in calls)
        there = joined(calls)
        with suppress(DoesNotFit):
            return self.placed(first, there, self._best(first, there, posts), posts)
        return None

    def bound_again(
        self, node: Node, there: Site, kernel: str, posts: Sequence[Node] = ()
    ) -> BoundKernel:
        """A kernel that was chosen before; raises KernelError or DoesNotFit if it does not suit.

        If it was chosen where sizes were held, they are the same here: the program's guards say so.
        """
        site = self.canonical(node, there, posts)
        try:
            return self._fitting(self._named_at(site, kernel), node)
        except (DoesNotFit, KernelError):
            if posts or not moving_sizes(site):
                raise
        return self._fitting(self._named_at(held_here(site), kernel), node)

    def _fitting(self, found: BoundKernel, node: Node) -> BoundKernel:
        """The kernel, if what is reserved for the node is enough for it; raises DoesNotFit."""
        if found.scratch_bytes > self._reserved(node):
            raise DoesNotFit(node, f"{found.scratch_bytes} bytes of scratch", self._reserved(node))
        return found

    def _named_at(self, site: Site, kernel: str) -> BoundKernel:
        key = self._bindings.choices.key(site), kernel
        named = self._bindings.choices.named
        return self._bindings.by_choice.get(key, lambda: named(site, kernel).bound_at(site))

    def _bound(self, site: Site, key: Hashable, option: Option) -> BoundKernel:
        """A kernel bound at a canonical site; for sites with this key it is the same."""
        return self._bindings.by_choice.get((key, option.kernel.name), option.bound_at, site)

    def placed(
        self, node: Node, there: Site, bound: BoundKernel, posts: Sequence[Node] = ()
    ) -> Instruction:
        """The call where its operands really lie."""
        room = self.placement.scratch.get(node)
        places: dict[Any, Any] = dict(enumerate(there.ins))
        places |= {(k, i): view for k, post in enumerate(there.posts) for i, view in _others(post)}
        at = room.offset_bytes if room is not None else 0
        places |= {OUT: there.out, SCRATCH: place_of(at, self.scheduled)}
        moved = tuple([_moved(argument, places) for argument in bound.arguments])
        return Instruction(
            node, there.out_box, bound.kernel, bound.function, moved,
            value_of(bound.scratch_bytes), bound.allocates(there), there, tuple(posts),
        )  # fmt: skip

    def _reserved(self, node: Node) -> int:
        room = self.placement.scratch.get(node)
        return room.size_bytes if room is not None else 0

    def _chosen(self, options: Iterable[Option], node: Node) -> Option:
        """The fastest kernel whose scratch memory fits what is reserved."""
        reserved, wanted = self._reserved(node), []
        for option in options:
            if option.used_bytes <= reserved:
                return option
            wanted.append(option.used_bytes)
        raise DoesNotFit(node, f"{wanted[0]} bytes of scratch" if wanted else "a kernel", reserved)


class Surveyor(Lowerer):
    """Lowers a step to see its sites; chooses and binds nothing.

    Fields:
        sites: of every call that was lowered, in order.
    """

    def __init__(
        self, scheduled: ScheduledGraph, placement: Placement, rules: Rules, device: str
    ) -> None:
        super().__init__(scheduled, placement, rules, device)
        self.sites: list[Site] = []

    def _instruction(self, node: Node, box: Box, addresser: Addresser) -> Instruction:
        made = super()._instruction(node, box, addresser)
        assert made.site is not None
        self.sites.append(made.site)
        return made

    def _chosen_for(self, made: Instruction) -> Instruction:
        return made

    def _as_one(self, calls: Calls) -> Instruction | None:
        """Several calls as one are one more site, where some kernel takes that."""
        site = joined(calls)
        if not any(k.is_there and k.takes(site) for k in KERNELS[site.call.op.name]):
            return None
        self.sites.append(site)
        return calls[0]


def _others(post: Site) -> Iterator[tuple[int, View]]:
    """The operands that something done to each number reads besides, by number."""
    return ((i, view) for i, view in enumerate(post.ins) if view is not None)


def _lies_there(site: Site, i: int) -> bool:
    """Whether an input lies exactly where the output does."""
    view = site.ins[i]
    return view is not None and is_there(view, site.out)


def _moved(argument: Any, places: Mapping[Any, Any]) -> Any:
    """An argument bound over canonical operands, where the operands really lie."""
    if type(argument) is Host:
        return Host(_moved(argument.view, places))
    if type(argument) is Prepared:
        return replace(argument, view=_moved(argument.view, places))
    if type(argument) is not View:
        return argument
    place = places[argument.buffer]
    if isinstance(place, View):
        return View(
            place.buffer,
            argument.dtype,
            argument.shape,
            argument.strides,
            argument.offset + place.offset,
        )
    buffer, at = place
    offset = argument.offset + at // ITEMSIZE[argument.dtype]
    return View(buffer, argument.dtype, argument.shape, argument.strides, offset)


def _demanded(
    demand: Mapping[str, tuple[Node, Region]], addresser: Addresser
) -> dict[str, tuple[tuple[Box, View], ...]]:
    return {
        name: tuple((box, addresser.view(node, box)) for box in region)
        for name, (node, region) in demand.items()
    }
