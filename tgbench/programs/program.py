"""A program: a flat list of bound calls, right wherever its guards hold.

Program.bind     → (function, arguments) with real tensors; the hot loop is

                       for function, arguments in program.calls:
                           function(*arguments)

Program.move_to  → the same tensors, re-pointed for another origin
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np
import torch

from tgbench.base.coords import Coord, Domain, Guard, Moving, at
from tgbench.base.forms import Forms
from tgbench.base.memo import Memo
from tgbench.base.regions import Box
from tgbench.base.words import counted
from tgbench.graph.graph import Node
from tgbench.kernels.binding import argument_of, array_of
from tgbench.kernels.numba.chain import Loop, LoopChain
from tgbench.kernels.registry import Function, Host, Prepared, Site, View
from tgbench.kernels.views import Bound
from tgbench.programs.pace import Pace
from tgbench.programs.places import Follower, Spared, ViewForms, moves, pointed
from tgbench.runs.pausing import Pausing, at_once
from tgbench.runs.propagate import Step
from tgbench.runs.work import Work

MOST_CLASSES = 16  # of changes, of which it is remembered what becomes of other values
MOST_NEW, KNOWN_COUNTS = 8, 4  # beginnings in a row, and how many of them a known one outweighs
IN_NUMBERS, LOOKED_AT = 64, 2  # runs in numbers, and how many then look for known beginnings


@dataclass(frozen=True)
class Instruction:
    """One call: what it computes, and how.

    Fields:
        node: the value it computes, fills a part of, or moves a window of.
        box: which elements.
        kernel: the kernel's name; `fill` puts a known value in place, and `slide` moves a window.
        function, arguments: `View`s among the arguments stand for tensors.
        scratch_bytes: temporary memory it was given.
        allocates: bytes the called library takes for itself.
        site: where the kernel runs; None for a fill, and where a window slides.
        posts: the values computed on the way to memory, in order: what is there in the end is the
            last one's, and no other's (see `folding`).
    """

    node: Node
    box: Box
    kernel: str
    function: Function
    arguments: tuple[Any, ...]
    scratch_bytes: int = 0
    allocates: int = 0
    site: Site | None = None
    posts: tuple[Node, ...] = ()

    @property
    def result(self) -> Node:
        """Whose bytes it writes."""
        return self.posts[-1] if self.posts else self.node

    @property
    def how(self) -> str:
        """The kernel, and what it does besides."""
        return " + ".join((self.kernel, *(node.op for node in self.posts)))

    def __str__(self) -> str:
        return f"{self.node.name}{self.box} ← {self.how}"


def site_at(site: Site, origin: Sequence[int]) -> Site:
    """A site in plain numbers."""

    def number(coords: Iterable[Coord]) -> tuple[Coord, ...]:
        return tuple(at(coord, origin) for coord in coords)

    def view(given: View) -> View:
        shape, strides = number(given.shape), number(given.strides)
        return replace(given, shape=shape, strides=strides, offset=at(given.offset, origin))

    return replace(
        site,
        out_box=site.out_box.at(origin),
        in_boxes=tuple(box and box.at(origin) for box in site.in_boxes),
        out=view(site.out),
        ins=tuple(given and view(given) for given in site.ins),
        posts=tuple(site_at(post, origin) for post in site.posts),
    )


LAST_COUNTED = 16  # runs of which a mean tells
SURE = 3  # runs, of which the least time is not far from what one takes


@dataclass
class Use:
    """How often a program ran, and how long that takes.

    The least of the first few times counts: the first time nothing was warm, and who is put aside
    in the second is not asked again. From then on it is a mean, in the long run of the last sixteen
    or so, and no run counts for more than twice of what is usual.

    All times are those of a run where the program was made: what one took elsewhere counts for as
    much as it would have taken there (see `Program.share`).

    Fields:
        ran: how often.
        time_ns: how long it takes.
        instead_ns: what it was made for to be quicker than.
        modelled_ns: how long a model expects it to take, if that was asked.
        since: how many runs there were before it.
    """

    ran: int = 0
    time_ns: float = 0.0
    instead_ns: float = inf
    modelled_ns: float = inf
    since: int = 0

    @property
    def is_warm(self) -> bool:
        """Whether it ran often enough to know what it takes."""
        return self.ran >= SURE

    @property
    def takes_ns(self) -> float:
        """What a run takes; the first one also took what was cold then."""
        return self.time_ns if self.is_warm else min(self.time_ns or inf, self.modelled_ns)

    @property
    def ratio(self) -> float | None:
        """Measured over modelled time; None where one is not known."""
        return self.time_ns / self.modelled_ns if self.ran and 0 < self.modelled_ns < inf else None

    def note(self, took_ns: float) -> None:
        self.ran = ran = self.ran + 1
        usual_ns = self.time_ns
        late = took_ns - usual_ns
        if ran > SURE:
            counted_ns = late if late < usual_ns else usual_ns
            self.time_ns = usual_ns + counted_ns / (ran - 1 if ran < LAST_COUNTED else LAST_COUNTED)
        elif ran == 1 or late < 0:
            self.time_ns = took_ns


@dataclass(slots=True)
class Beginnings:
    """Whether what is there when a program begins is the same time and again, over its place.

    What it leaves is known then, wherever that is. Where edits are anywhere, it is another one in
    every run, and worked out in numbers: a third of the time. Whether it has become the same ones
    again is looked at now and then.
    """

    new: int = 0

    def began(self, is_known: bool) -> None:
        """What was there was known as something to begin with, or was not."""
        self.new = max(self.new - KNOWN_COUNTS, 0) if is_known else self.new + 1

    def recur(self) -> bool:
        """Whether it is worth looking for what is there among what was there before."""
        if self.new < MOST_NEW:
            return True
        self.new += 1
        if self.new > MOST_NEW + IN_NUMBERS:
            self.new = MOST_NEW - LOOKED_AT
        return False


@dataclass
class Program:
    """A flat list of calls for one (state, bucket class), at any origin its guards allow.

    Fields:
        instructions: in execution order.
        guards: over the origin; where they hold the program is right.
        after: the number of the state it leaves behind (see `states`), when it began with `start`.
        counts_on: the number of the state that has to be there: what it looks at.
        renews: whether it leaves the same whatever was there.
        afters: what it leaves when it begins with other states, each under guards.
        beginnings: whether these are the same ones time and again.
        fates: what becomes of what it does not count on, where changes are of a class.
        outputs: per output name, the demanded boxes and views of them.
        steps: the decisions it was lowered from, one per piece.
        made_at: an origin at which it is right.
        calls: what is executed; consecutive loops are one call (see `numba.chain`).
        spared: for runs that keep nothing: what is written over, and its copies.
        use: how often it ran.
        work: how long it is expected to take at any place; None where no model was asked.
        pace: what runs take beside that.
        binds: makes the tensors at the first move, where they are not made with the program.
        tryout: what is being found out about the kernels of its calls.
        regained: how often threads gained something else when these were last chosen together.
        by_team: whether a team computes a part of it.
        shown: of `results`, where it stands, what was handed out, as views.
        size_bytes: what keeping it takes, about; known once it is kept.
    """

    instructions: Sequence[Instruction]
    guards: frozenset[Guard]
    after: int
    outputs: Mapping[str, tuple[tuple[Box, View], ...]]
    steps: Sequence[Step]
    made_at: tuple[int, ...] = ()
    counts_on: int = 0
    start: int = -1
    renews: bool = False
    afters: dict[int, list[tuple[Domain, int]]] = field(default_factory=dict)
    beginnings: Beginnings = field(default_factory=Beginnings)
    fates: Memo = field(default_factory=partial(Memo, MOST_CLASSES))
    calls: list[Bound] = field(default_factory=list)
    results: dict[str, list[tuple[Box, torch.Tensor]]] = field(default_factory=dict)
    origin: tuple[int, ...] | None = None
    spared: Spared | None = None
    use: Use = field(default_factory=Use)
    work: Work | None = None
    pace: Pace = field(default_factory=Pace)
    binds: Callable[[Program, tuple[int, ...]], None] | None = None
    tryout: Any = None
    regained: int = 0
    by_team: bool = False
    shown: dict[Any, Any] = field(default_factory=dict)
    size_bytes: int = 0
    _tensors: dict[View, torch.Tensor] = field(default_factory=dict)
    _forms: ViewForms = field(default_factory=ViewForms)
    _moving: list[Follower] = field(default_factory=list)
    _rebuilt: list[_Rebuilt] = field(default_factory=list)
    _numbers: Forms = field(default_factory=Forms)  # that are arguments
    _chains: dict[int, LoopChain] = field(default_factory=dict)  # by number of the call
    _shows_elsewhere: bool = True  # whether what is handed out is elsewhere at another origin

    def __post_init__(self) -> None:
        self.domain = Domain(self.guards)

    @property
    def summary(self) -> str:
        """How much it does, and how often with which kernel."""
        kernels = Counter(made.how for made in self.instructions).most_common()
        used = ", ".join(f"{count} × {kernel}" for kernel, count in kernels)
        return (
            f"{counted(len(self.instructions), 'instruction')} in "
            f"{counted(len(self.calls), 'call')} and {counted(len(self.steps), 'piece')}, "
            f"{counted(len(self.guards), 'guard')}; {used}"
        )

    def bind(
        self,
        buffers: Mapping[tuple[Any, str], torch.Tensor],
        origin: tuple[int, ...],
        prepared: Callable[[Prepared], Any],
    ) -> None:
        """Make the tensors, once, for the origin at hand; the pool has what is `prepared`."""
        at_once(self.binding(buffers, origin, prepared))

    def binding(
        self,
        buffers: Mapping[tuple[Any, str], torch.Tensor],
        origin: tuple[int, ...],
        prepared: Callable[[Prepared], Any],
    ) -> Pausing[None]:
        self.shown.clear()
        self.calls, self.results, self._tensors = [], {}, {}  # of a bind that was interrupted
        self._moving, self._rebuilt, self._chains = [], [], {}
        self._forms = ViewForms()
        self._numbers = Forms()

        def tensor(view: View) -> torch.Tensor:
            return self._tensor(view, buffers, origin)

        for instruction in self.instructions:
            yield
            if isinstance(instruction.function, Loop):
                chain, given = self._chain(origin), instruction.arguments
                chain.add(instruction.function, given, buffers, prepared)
                continue
            arguments = _arguments(instruction, origin, tensor, prepared)
            places, arrays = [], []
            for position, argument in enumerate(instruction.arguments):
                if type(argument) is Moving:
                    places.append((position, self._numbers.number(argument)))
                elif type(argument) is Host and moves(argument.view):
                    arrays.append((position, tensor(argument.view)))
            if places or arrays:
                rebuilt = _Rebuilt(len(self.calls), instruction.function, arguments, places, arrays)
                self._rebuilt.append(rebuilt)
            self.calls.append((instruction.function, tuple(arguments)))
        for i, chain in self._chains.items():
            chain.close()
            self.calls[i] = chain.execute, (0, len(chain))
        self.by_team = any(chain.by_team for chain in self._chains.values())
        for parts in self.outputs.values():
            for _, view in parts:
                tensor(view)
        for name, parts in self.outputs.items():
            self.results[name] = [(box, self._tensors[view]) for box, view in parts]
        every = [part for parts in self.outputs.values() for part in parts]
        self._shows_elsewhere = any(box.moves or moves(view) for box, view in every)
        self.origin = origin

    def _chain(self, origin: tuple[int, ...]) -> LoopChain:
        """The chain that the last call is, if more may be in it; else a new one."""
        last = self._chains.get(len(self.calls) - 1)
        if last is None or last.is_full:
            last = self._chains[len(self.calls)] = LoopChain(origin)
            self.calls.append((last.execute, ()))
        return last

    @property
    def each(self) -> list[Bound]:
        """The calls one by one, as many as there are instructions."""
        return [one for i, call in enumerate(self.calls) for one in self._apart(i, call)]

    def _apart(self, i: int, call: Bound) -> Iterable[Bound]:
        chain = self._chains.get(i)
        if chain is None:
            return (call,)
        return ((chain.execute, (k, k + 1)) for k in range(len(chain)))

    def exchange(
        self,
        changed: Mapping[int, Instruction],
        guards: Iterable[Guard],
        binds: Callable[[Program, tuple[int, ...]], None],
    ) -> None:
        """Other calls in place of some, right where these guards hold; bound at the next move."""
        self.origin = None  # whatever interrupts this, the next run binds all of it
        self.binds = binds
        self.guards |= frozenset(guards)
        self.domain = Domain(self.guards)
        self.instructions = [changed.get(i, made) for i, made in enumerate(self.instructions)]

    def _tensor(
        self, view: View, buffers: Mapping[tuple[Any, str], torch.Tensor], origin: tuple[int, ...]
    ) -> torch.Tensor:
        found = self._tensors.get(view)
        if found is None:
            found = self._tensors[view] = pointed(view, buffers, origin)
            if moves(view):
                self._moving.append(Follower(found, view, buffers, self._forms))
        return found

    def share(self, origin: tuple[int, ...]) -> float:
        """How many times as long a run is expected to take as one where this was made."""
        work = self.work
        if work is None or not work.moves:
            return 1.0
        return self.pace.share(work.at(origin), work.at(self.made_at))

    def takes_ns(self, origin: tuple[int, ...]) -> float:
        """What a run takes there."""
        return self.use.takes_ns * self.share(origin)

    def is_good(self, origin: tuple[int, ...]) -> bool:
        """Whether it is as quick there as was hoped."""
        use = self.use
        if use.instead_ns == inf or not use.is_warm:
            return True
        return use.time_ns * self.share(origin) <= use.instead_ns

    def ran(self, took_ns: float) -> None:
        """A run where it stands took so long."""
        work = self.work
        if work is None or not work.moves:
            self.use.note(took_ns)
            return
        place = self.origin or self.made_at
        if self.use.ran:  # the first time nothing was warm
            self.pace.note(work.at(place), took_ns)
        self.use.note(took_ns / self.share(place))

    def move_to(self, origin: tuple[int, ...]) -> None:
        """Point every moving tensor at another origin's memory."""
        if self.binds is not None:
            self.binds(self, origin)
            self.binds = None
            return
        self.origin = None  # an interrupt in between leaves it nowhere: the next run moves it again
        if self._shows_elsewhere:
            self.shown.clear()
        if self._moving:
            here = self._forms.at(origin)
            for moving in self._moving:
                moving.move(here)
        if self._chains:
            words = np.array(origin, np.int64)
            for chain in self._chains.values():
                chain.move_to(words)
        numbers = self._numbers.at(origin) if self._rebuilt else ()
        for rebuilt in self._rebuilt:
            arguments = rebuilt.arguments
            for position, which in rebuilt.places:
                arguments[position] = numbers[which]
            for position, follows in rebuilt.arrays:
                arguments[position] = array_of(follows)
            self.calls[rebuilt.index] = (rebuilt.function, tuple(arguments))
        self.origin = origin

    @property
    def moving_views(self) -> int:
        """How many tensors a move re-points, and how many numbers it writes."""
        words = sum(chain.moves for chain in self._chains.values())
        return len(self._moving) + len(self._numbers) + words

    def __len__(self) -> int:
        return len(self.instructions)

    def __str__(self) -> str:
        return "\n".join(map(str, self.instructions))

    __repr__ = __str__


def called(
    made: Instruction,
    buffers: Mapping[tuple[Any, str], torch.Tensor],
    origin: tuple[int, ...],
    prepared: Callable[[Prepared], Any],
) -> Bound:
    """One call alone, at an origin."""

    def tensor(view: View) -> torch.Tensor:
        return pointed(view, buffers, origin)

    return made.function, tuple(_arguments(made, origin, tensor, prepared))


def _arguments(
    made: Instruction,
    origin: tuple[int, ...],
    tensor: Callable[[View], torch.Tensor],
    prepared: Callable[[Prepared], Any],
) -> list[Any]:
    """What a call is given at an origin."""
    return [
        a.at(origin) if isinstance(a, Moving) else argument_of(a, tensor, prepared)
        for a in made.arguments
    ]


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    """A call some of whose arguments are made anew at each origin."""

    index: int
    function: Function
    arguments: list[Any]
    places: list[tuple[int, int]]  # position among the arguments, which number
    arrays: list[tuple[int, torch.Tensor]]  # position, the tensor over whose memory an array is
