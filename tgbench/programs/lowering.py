"""From a decided run to instructions: where every operand lies, and which kernel computes it.

    Step (what to compute)  +  Placement (where bytes lie)  →  instructions on view descriptions

Equal layers differ in where their bytes lie and in nothing else: a kernel is chosen and bound
once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import count
from typing import Any, NamedTuple

from tgbench.base.coords import (
    Coord,
    Moving,
    fixed,
    here,
    origin_symbol,
    same,
    value_of,
)
from tgbench.base.errors import ExactnessError, KernelError, TgbenchError
from tgbench.base.regions import EMPTY, NOTHING, Box, Left, Region, row_major
from tgbench.base.sweeps import is_free
from tgbench.base.swept import bases
from tgbench.base.words import shorten
from tgbench.graph.graph import Node
from tgbench.graph.op_table import ITEMSIZE
from tgbench.kernels.copied import of_tiling
from tgbench.kernels.registry import (
    ARENA,
    KERNELS,
    OUT,
    SCRATCH,
    Function,
    Host,
    Kernel,
    Prepared,
    Ranking,
    Scratch,
    Site,
    Unnamed,
    View,
    candidates,
    frozen_inputs,
    is_by_team,
    scratch_bytes,
    scratch_views,
)
from tgbench.kernels.torch.elementwise import fill_
from tgbench.kernels.torch.layout import slide_
from tgbench.memory.draft import Draft
from tgbench.memory.placement import Placement, Slot, touched
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.folding import Calls, Folder, chains_in, joined, joined_site
from tgbench.programs.program import Instruction, site_at
from tgbench.programs.teamwork import Teamwork
from tgbench.runs.pausing import Pausing, at_once
from tgbench.runs.propagate import Step
from tgbench.runs.rules import Rules, row_before

UNDECIDED = ""  # the kernel of a call before one is chosen
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
Seen = tuple[tuple[Node, Box], ...]
Starts = Mapping[Node, tuple[Coord, ...]]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a node's elements are laid out, wherever its base begins in a run.

    Fields:
        base: the node whose bytes it shows, and its strides.
        steps: elements of the base per step along each dimension.
        first: offset of coordinate 0 when the base begins at its own coordinate 0.
        buffer: the arena, or a tensor of the pool.
    """

    base: Node
    strides: tuple[int, ...]
    steps: tuple[int, ...]
    first: int
    buffer: Unnamed | str


def layout(node: Node, scheduled: ScheduledGraph, slots: Mapping[Node, Slot]) -> Layout:
    """The layout of a node: in its slot, or whole in the pool if it is frozen."""
    base, mapped = scheduled.base[node], scheduled.maps[node]
    buffer: Unnamed | str = base.name if base in scheduled.frozen else ARENA
    if base in scheduled.frozen:
        strides, offset = row_major(base.shape), 0
    else:
        slot = slots[base]
        strides, offset = slot.strides, slot.offset_bytes // base.type.itemsize
    steps = tuple(0 if to is None else strides[to[0]] * to[1] for to in mapped.dims)
    first = offset + sum(a * stride for a, stride in zip(mapped.start, strides, strict=True))
    return Layout(base, strides, steps, first, buffer)


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
        """What of a box holds nothing yet."""
        written = self._boxes.get(node, ())
        if box in written:
            return EMPTY
        missing = Region((box,)).subtract(Region.of(*written))
        return self._left.get(node, NOTHING).lacking(missing)


class Addresser:
    """Views of any node's boxes, given where its bytes start in this run."""

    def __init__(
        self, layouts: Callable[[Node], Layout], starts: Mapping[Node, tuple[Coord, ...]]
    ) -> None:
        self.layouts = layouts
        self.starts = starts
        self._views: dict[tuple[Node, Box], View] = {}

    def view(self, node: Node, box: Box) -> View:
        found = self._views.get((node, box))
        if found is None:
            found = self._views[node, box] = self._view(node, box)
        return found

    def _view(self, node: Node, box: Box) -> View:
        laid = self.layouts(node)
        where: Coord = laid.first
        for (start, _), step in zip(box, laid.steps, strict=True):
            if type(start) is not int or start:
                where = where + start * step
        if laid.buffer == ARENA:
            for begins, stride in zip(self.starts[laid.base], laid.strides, strict=True):
                if type(begins) is not int or begins:
                    where = where - begins * stride
        return View(laid.buffer, node.dtype, box.extents, laid.steps, where)


def site_of(
    node: Node, box: Box, addresser: Addresser, rules: Rules, device: str, *, prepares: bool = False
) -> Site:
    """Where a box of a node is computed, and reads what; `prepares` if weights may be laid out."""
    reads = rules.reads(node.call, box)
    ins = tuple(
        None if read is None else addresser.view(parent, read)
        for parent, read in zip(node.inputs, reads, strict=True)
    )
    before = row_before(node.call, box)
    if before is not None:
        row = addresser.view(node, before)
        ins = tuple(row if i == node.call.op.continues else view for i, view in enumerate(ins))
    frozen = frozen_inputs(ins) if prepares else frozenset()
    return Site(node.call, box, reads, addresser.view(node, box), ins, device, frozen)


@dataclass(frozen=True)
class Option:
    """A kernel that takes a site, and the scratch memory it wants there."""

    kernel: Kernel
    shapes: tuple[Scratch, ...]
    used_bytes: Coord


@dataclass(frozen=True)
class BoundKernel:
    """A kernel bound over operands at offset 0.

    Fields:
        kernel: its name.
        function, arguments: what it is called with, as views of these operands.
        scratch_bytes: of temporary memory that it is given.
        allocates: bytes the called library takes for itself at a site.
    """

    kernel: str
    function: Function
    arguments: tuple[Any, ...]
    scratch_bytes: Coord
    allocates: Callable[[Site], int]


class Choices:
    """The kernels that take each site, best first; remembered for operands that lie alike.

    Args:
        ranking: which kernels take a site, the best first; by their own models if left out.
    """

    def __init__(self, rules: Rules, ranking: Ranking = candidates) -> None:
        self.rules = rules
        self.ranking = ranking
        self._next = count()  # no number comes twice
        self.forget()

    def forget(self) -> None:
        """More is known of what kernels take: they are ranked anew."""
        memo = self.rules.allowance.memo
        self._numbers, self._kernels, self._options = memo(), memo(), memo()

    def key(self, site: Site) -> int:
        """A number for what of a canonical site counts."""
        place, sizes = _place(site), _moving_sizes(site)
        what = (site.call, place, site.out, site.ins, site.frozen, sizes, site.posts)
        return self._numbers.get(what, self._next.__next__)

    def at(self, key: int, site: Site) -> Iterator[Option]:
        """The kernels for a canonical site with this key, best first; few ask for the last."""
        for kernel in self._kernels.get(key, self._ranked, site):
            yield self._options.get((key, kernel.name), _option, kernel, site)

    def _ranked(self, site: Site) -> Iterable[Kernel]:
        """Where bits must agree, it is the one of the tiling: none, where that takes each place by
        itself, but no call that serves them all.
        """
        tiling = self.rules.tilings.get(site.call)
        if tiling is None:
            return self.ranking(site)
        try:
            return [of_tiling(site, tiling)]
        except ExactnessError:
            if is_free(Region((site.out_box,))):
                return []
            raise

    def named(self, site: Site, name: str) -> Option:
        """The kernel of a name, for a site; raises KernelError if it does not take that."""
        tiling = self.rules.tilings.get(site.call)
        known = KERNELS.get(site.call.op.name, ()) if tiling is None else [of_tiling(site, tiling)]
        for kernel in known:
            if kernel.name == name and kernel.takes(site):
                return _option(kernel, site)
        op, box = site.call.op.name, site.out_box
        raise KernelError(f"{op}: no kernel {shorten(name)} computes {box}; make programs anew")


class KnownBindings:
    """Kernels chosen and bound over operands at offset 0, by how these lie: it holds wherever that
    is, and over every placement of a graph.

    Args:
        choices: the kernels that take each site.
    """

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self._hows: dict[Hashable, int] = {}  # never forgotten: lowerers remember the numbers
        self.forget()

    def forget(self) -> None:
        """More is known of what kernels take."""
        memo = self.choices.rules.allowance.memo
        self.by_choice, self.by_how = memo(), memo()

    def number(self, how: Hashable) -> int:
        """One number for equal ways of how operands lie."""
        return self._hows.setdefault(how, len(self._hows))


def _option(kernel: Kernel, site: Site) -> Option:
    shapes = kernel.scratch(site)
    return Option(kernel, shapes, scratch_bytes(shapes))


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
        return Instruction(node, box, "fill", fill_, (view, value))

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
        alike = (self._how(node), made.box, there.in_boxes, inplace, _moving_sizes(there))
        return self.placed(node, there, self._bindings.by_how.get(alike, self._any, node, there))

    def _teaming(self, made: list[Instruction]) -> Pausing[list[Instruction]]:
        """The same calls, none of whose threads meet, where that is expected to take less in all.

        Not where bits must agree: tiles do.
        """
        if self.team is None or self.rules.tilings or not self.team.is_there:
            return made
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
            if posts or not _moving_sizes(site):
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
        lie = tuple([n in laid and (laid[n].steps, laid[n].buffer == ARENA) for n in node.inputs])
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
            if posts or not _moving_sizes(site):
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
        return self._bindings.by_choice.get(key, lambda: _bound(site, named(site, kernel)))

    def _bound(self, site: Site, key: Hashable, option: Option) -> BoundKernel:
        """A kernel bound at a canonical site; for sites with this key it is the same."""
        return self._bindings.by_choice.get((key, option.kernel.name), _bound, site, option)

    def placed(
        self, node: Node, there: Site, bound: BoundKernel, posts: Sequence[Node] = ()
    ) -> Instruction:
        """The call where its operands really lie."""
        room = self.placement.scratch.get(node)
        places: dict[Any, Any] = dict(enumerate(there.ins))
        places |= {(k, i): view for k, post in enumerate(there.posts) for i, view in _others(post)}
        places |= {OUT: there.out, SCRATCH: room.offset_bytes if room is not None else 0}
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


class _Wanted(NamedTuple):
    """What calls of a node want, which compute these regions and whose operands lie so."""

    regions: tuple[Region, ...]
    how: Hashable
    wanted: frozenset[tuple[int, ...]]


class Sizer:
    """How much scratch memory the kernels of calls want, before anything has an offset.

    That depends on how operands lie, not where. Attempts at one plan differ in few of them: what is
    known of a call whose operands lie alike is not asked again.
    """

    def __init__(
        self, scheduled: ScheduledGraph, rules: Rules, device: str, choices: Choices
    ) -> None:
        self.scheduled = scheduled
        self.rules = rules
        self.device = device
        self.choices = choices
        self._wants = rules.allowance.memo()
        self._hows: dict[Hashable, int] = {}
        self._last: dict[Node, _Wanted] = {}
        self._chains: dict[Node, list[tuple[Node, ...]]] = {}  # by the node that they begin with
        for chain in () if rules.tilings else chains_in(scheduled):
            self._chains.setdefault(chain[0], []).append(chain)

    def wants(
        self, computed: Iterable[tuple[Node, tuple[Region, ...]]], draft: Draft
    ) -> dict[Node, frozenset[tuple[int, ...]]]:
        """Of every node, what each of its calls would take: the best kernel's bytes first."""
        views = _Unplaced(self.scheduled, draft, self._hows)
        found: dict[Node, frozenset[tuple[int, ...]]] = {}
        for node, regions in computed:
            last, how = self._last.get(node), self._how(node, views)
            if last is None or last.regions is not regions or last.how != how:
                wanted = frozenset[tuple[int, ...]]().union(
                    *(
                        self._wants.get((node, region, how), self._wanted, node, region, views)
                        for region in regions
                    )
                )
                last = self._last[node] = _Wanted(regions, how, wanted)
            found[node] = found[node] | last.wanted if node in found else last.wanted
        return found

    def _how(self, node: Node, views: _Unplaced) -> Hashable:
        chains = self._chains.get(node)
        return tuple(map(views.how, chains[-1])) if chains else views.how(node)

    def _wanted(self, node: Node, region: Region, views: _Unplaced) -> frozenset[tuple[int, ...]]:
        found = set[tuple[int, ...]]()
        for box in self.rules.parts(node.call, region):
            found.add(self._asked((node,), box, views))
            for chain in self._chains.get(node, ()):
                if all(one in views.draft.slots for one in chain):
                    found.add((*self._asked(chain, box, views), 0))  # or they are calls apart
        return frozenset(found)

    def _asked(self, chain: Sequence[Node], box: Box, views: _Unplaced) -> tuple[int, ...]:
        """What kernels want that compute a box of all these nodes at once, the best one first."""
        there = joined_site(chain, [self._site(node, box, views) for node in chain])
        donors = views.draft.donors
        site = canonical(there, *(taken(node, self.scheduled, donors) for node in chain))
        options = self.choices.at(self.choices.key(site), site)
        return tuple(value_of(option.used_bytes) for option in options)

    def _site(self, node: Node, box: Box, views: _Unplaced) -> Site:
        prepares = node.call not in self.rules.unpacked
        return site_of(node, box, views.addresser, self.rules, self.device, prepares=prepares)


class _Unplaced:
    """How the operands of calls lie in a draft: their strides, and what is taken over in place."""

    def __init__(
        self, scheduled: ScheduledGraph, draft: Draft, numbers: dict[Hashable, int]
    ) -> None:
        self.scheduled, self.draft, self._numbers = scheduled, draft, numbers
        self._layout = cache(lambda node: layout(node, scheduled, draft.slots))
        self._hows: dict[Node, int] = {}

    @cached_property
    def addresser(self) -> Addresser:
        """Every slot begins at coordinate 0: wherever it does, its strides are the same."""
        starts = {node: (0,) * node.rank for node in self.draft.slots}
        return Addresser(self._layout, starts)

    def how(self, node: Node) -> int:
        """A number for the strides of what a node writes and reads; some inputs are never looked
        at.
        """
        found = self._hows.get(node)
        if found is not None:
            return found
        scheduled, slots = self.scheduled, self.draft.slots
        there = (one for one in (node, *node.inputs) if scheduled.base[one] in slots)
        strides = tuple([slots[scheduled.base[one]].strides for one in there])
        how = strides, node in self.draft.donors
        found = self._hows[node] = self._numbers.setdefault(how, len(self._numbers))
        return found


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


def _place(site: Site) -> Hashable:
    """What of a box's place a kernel can tell; all of it where something is known, or moves.

    Guards of a choice are about the coordinates that it was made at. What is read for a box that
    moves may be numbers that are the same only here: elsewhere, it begins elsewhere in it.
    """
    call, box = site.call, site.out_box
    if any(fact is not None for fact in call.facts) or any(
        type(side) is not int for interval in box for side in interval
    ):
        return box, site.in_boxes
    return call.op.place(call, box)


def _moving_sizes(site: Site) -> tuple[int, ...]:
    """About how large operands are whose sizes move, in half octaves.

    The fastest kernel may be another where they are much larger. A program serves all the sizes
    that its guards allow, so what chooses its kernels need not tell close ones apart.
    """
    return half_octaves(size for view in site.views for size in view.shape)


def half_octaves(sizes: Iterable[Coord]) -> tuple[int, ...]:
    """About how large those are that move."""
    moving = [size for size in sizes if type(size) is Moving]
    return tuple([(value_of(size) ** 2).bit_length() for size in moving])


def _bound(site: Site, option: Option) -> BoundKernel:
    kernel = option.kernel
    function, arguments = kernel.bind(site, scratch_views(option.shapes))
    return BoundKernel(kernel.name, function, arguments, option.used_bytes, kernel.allocates)


def taken(node: Node, scheduled: ScheduledGraph, donors: Mapping[Node, Node]) -> frozenset[int]:
    """The inputs whose bytes a node's result takes over."""
    donor = donors.get(node)
    if donor is None:
        return frozenset()
    return frozenset(i for i, n in enumerate(node.inputs) if scheduled.base[n] is donor)


def _others(post: Site) -> Iterator[tuple[int, View]]:
    """The operands that something done to each number reads besides, by number."""
    return ((i, view) for i, view in enumerate(post.ins) if view is not None)


def canonical(site: Site, taken: frozenset[int], *taken_by_posts: frozenset[int]) -> Site:
    """The site with every operand at offset 0 of a buffer of its own.

    An input that lies exactly where the output does keeps that: kernels may ask. It can only be one
    of those whose bytes are `taken`, and at other coordinates it may lie elsewhere: `same` guards.
    """
    out = site.out
    plain = View(OUT, out.dtype, out.shape, out.strides, 0)

    def put(view: View | None, key: Hashable, may_be_there: bool) -> View | None:
        if view is None:
            return None
        there = may_be_there and is_there(view, out)
        return View(OUT if there else key, view.dtype, view.shape, view.strides, 0)

    ins = tuple(put(view, i, i in taken) for i, view in enumerate(site.ins))
    posts = tuple(
        replace(
            post,
            out=plain,
            ins=tuple(put(view, (k, i), i in own) for i, view in enumerate(post.ins)),
        )
        for k, (post, own) in enumerate(zip(site.posts, taken_by_posts, strict=True))
    )
    return Site(site.call, site.out_box, site.in_boxes, plain, ins, site.device, site.frozen, posts)


def held_here(site: Site) -> Site:
    """A site in the numbers of where one stands; it is guarded that they are these."""
    origin = here()
    for i in sorted(_entries(site)):
        same(origin_symbol(i), origin[i])
    return site_at(site, origin)


def _entries(site: Site) -> set[int]:
    """The entries of an origin that a site's coordinates depend on."""
    boxes = [site.out_box, *(box for box in site.in_boxes if box is not None)]
    coords = [side for box in boxes for interval in box for side in interval]
    coords += [c for view in site.views for c in (*view.shape, *view.strides, view.offset)]
    found = {i for coord in coords if isinstance(coord, Moving) for i in bases(coord.terms)}
    return found.union(*(_entries(post) for post in site.posts))


def _lies_there(site: Site, i: int) -> bool:
    """Whether an input lies exactly where the output does."""
    view = site.ins[i]
    return view is not None and is_there(view, site.out)


def is_there(view: View, out: View) -> bool:
    alike = view.buffer == out.buffer and view.dtype == out.dtype
    return alike and same(view.offset, out.offset)


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
    offset = argument.offset + place // ITEMSIZE[argument.dtype]
    return View(ARENA, argument.dtype, argument.shape, argument.strides, offset)


def _demanded(
    demand: Mapping[str, tuple[Node, Region]], addresser: Addresser
) -> dict[str, tuple[tuple[Box, View], ...]]:
    return {
        name: tuple((box, addresser.view(node, box)) for box in region)
        for name, (node, region) in demand.items()
    }
