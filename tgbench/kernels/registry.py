"""What a kernel is, and the one table of them.

A *site* is one place where a kernel is wanted: an op application, the box of the output to
compute, and strided views of where the inputs lie and the output goes. A kernel says whether it
takes a site, what it would cost, what scratch memory it needs, and then binds itself: it returns
a function and its arguments, with every view prepared, so that running it is `function(*args)`.

Views are descriptions, not tensors: a program binds them to memory once, and points them
elsewhere when the same program runs at another origin. A kernel that wants another view of an
operand (a row, a transpose) derives the description.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from tgbench.base.coords import (
    Coord,
    largest,
    moves_freely,
    same,
    same_anywhere,
    unguarded,
    value_of,
)
from tgbench.base.errors import KernelError
from tgbench.base.known import ConstantData, SparsityPattern
from tgbench.base.memo import Memo, once_each, outlives
from tgbench.base.regions import Box, row_major
from tgbench.graph.op_table import ITEMSIZE, Call
from tgbench.kernels import beside


class Unnamed(Enum):
    """Where a view lies, if not in a tensor of the pool: those have names, which may be any.

    Fields:
        SCRATCH: a kernel's own scratch memory, until the kernel has a place.
        OUT: the result, where operands have numbers.
    """

    ARENA = "arena"
    SCRATCH = "scratch"
    OUT = "out"

    __hash__ = object.__hash__  # there is one of each, and views are looked up all the time


ARENA, SCRATCH, OUT = Unnamed.ARENA, Unnamed.SCRATCH, Unnamed.OUT
Function: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class OnDevice:
    """The bytes of a session on another device than its own."""

    device: str


@dataclass(frozen=True, slots=True)
class View:
    """A strided view of a buffer; sizes, strides and offset in elements of `dtype`.

    Fields:
        buffer: `ARENA`, `OnDevice`, or the key of a tensor in the pool (weights, constants).
    """

    buffer: Hashable
    dtype: str
    shape: tuple[Coord, ...]
    strides: tuple[Coord, ...]
    offset: Coord

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> int:
        """How many elements, where one stands."""
        count = 1
        for size in self.shape:
            count *= size if type(size) is int else value_of(size)
        return count

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEMSIZE[self.dtype]

    def _laid(self, shape: tuple[Coord, ...], strides: tuple[Coord, ...], offset: Coord) -> View:
        """The same memory, seen in another way."""
        return View(self.buffer, self.dtype, shape, strides, offset)

    def permute(self, *axes: int) -> View:
        order = [axis % self.rank for axis in axes]
        return self._laid(
            tuple(self.shape[axis] for axis in order),
            tuple(self.strides[axis] for axis in order),
            self.offset,
        )

    def transpose(self) -> View:
        """The last two dimensions exchanged."""
        return self.permute(*range(self.rank - 2), -1, -2)

    def select(self, axis: int, index: Coord) -> View:
        """Drop a dimension by fixing its index."""
        axis %= self.rank
        return self._laid(
            self.shape[:axis] + self.shape[axis + 1 :],
            self.strides[:axis] + self.strides[axis + 1 :],
            self.offset + self.strides[axis] * index,
        )

    def narrow(self, axis: int, start: Coord, size: Coord) -> View:
        axis %= self.rank
        return self._laid(
            (*self.shape[:axis], size, *self.shape[axis + 1 :]),
            self.strides,
            self.offset + self.strides[axis] * start,
        )

    def insert(self, axis: int) -> View:
        """A new dimension of size 1 at `axis` (0 ≤ axis ≤ rank)."""
        return self._laid(
            (*self.shape[:axis], 1, *self.shape[axis:]),
            (*self.strides[:axis], 0, *self.strides[axis:]),
            self.offset,
        )

    def expand(self, *shape: Coord) -> View:
        """Repeat dimensions of size 1, and put new ones in front."""
        lead = len(shape) - self.rank
        strides: list[Coord] = [0] * lead
        for small, size, stride in zip(self.shape, shape[lead:], self.strides, strict=True):
            strides.append(0 if same(small, 1) and not same(size, 1) else stride)
        return self._laid(shape, tuple(strides), self.offset)

    def flatten(self, start: int, stop: int) -> View | None:
        """Dimensions start..stop (exclusive) as one; None where their strides do not allow it, or
        where two of them have sizes that go with a place.
        """
        axes = [axis for axis in range(start, stop) if not same(self.shape[axis], 1)]
        if sum(moves_freely(self.shape[axis]) for axis in axes) > 1:
            return None
        for outer, inner in pairwise(axes):
            if not same_anywhere(self.strides[outer], self.strides[inner] * self.shape[inner]):
                return None
        size: Coord = 1
        for axis in axes:
            size = size * self.shape[axis]
        stride = self.strides[axes[-1]] if axes else 1
        return self._laid(
            (*self.shape[:start], size, *self.shape[stop:]),
            (*self.strides[:start], stride, *self.strides[stop:]),
            self.offset,
        )

    def rows(self) -> View | None:
        """All but the last dimension as one: [rows, last]; None where strides do not allow it."""
        flat = self.insert(0) if self.rank == 1 else self
        return flat.flatten(0, flat.rank - 1)

    @property
    def is_row_contiguous(self) -> bool:
        """Whether the last dimension is contiguous."""
        return same(self.strides[-1], 1) or same(self.shape[-1], 1)


@dataclass(frozen=True, slots=True)
class Host:
    """Marks an argument that is bound as a NumPy array over the view's memory (CPU kernels)."""

    view: View


@dataclass(frozen=True, slots=True)
class Prepared:
    """Marks an argument that is made once, from a view of something that never changes.

    Fields:
        view: of the pool: weights, say.
        make: (tensor, *details) → the argument, such as the weights in a library's own layout.
        details: what else that depends on.
    """

    view: View
    make: Callable[..., Any]
    details: tuple[Hashable, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """A place where a kernel is wanted.

    Fields:
        out_box: which elements of the output, in the node's coordinates.
        in_boxes: which elements of each input the kernel may touch (None: nothing of it).
        out, ins: views of exactly those boxes.
        home: the session's device, "cpu" or "cuda:0".
        frozen: the inputs that never change, of which something may be `Prepared`.
        posts: what is done to each number of the result before it is written: element-wise calls
            over boxes that begin at 0, each on what the one before it gives. That operand is None.
        found: what kernels worked out of it; see `once_a_site`.
    """

    call: Call
    out_box: Box
    in_boxes: tuple[Box | None, ...]
    out: View
    ins: tuple[View | None, ...]
    home: str
    frozen: frozenset[int] = frozenset()
    posts: tuple[Site, ...] = ()
    found: Memo = field(default_factory=Memo, init=False, repr=False, compare=False)

    @property
    def device(self) -> str:
        """Where it is computed."""
        return self.call.out.device or self.home

    @property
    def read(self) -> list[View]:
        """The views of what is read, in order; inputs of which nothing is are left out."""
        return [view for view in self.ins if view is not None]

    @property
    def views(self) -> list[View]:
        """The views of what is written and of what is read."""
        return [self.out, *self.read]

    def operand(self, i: int) -> View:
        """The view of an input that must be there."""
        view = self.ins[i]
        if view is None:
            raise KernelError(f"{self.call.op.name} at {self.out_box} reads nothing of input {i}")
        return view

    def is_all_open(self, i: int) -> bool:
        """Whether a constant boolean mask input is True over the whole box that is read."""
        fact, box = self.call.facts[i], self.in_boxes[i]
        if fact is None or fact.constant is None or box is None:
            return False
        return mask_pattern(fact.constant).all_open(box)


def apart(site: Site) -> Iterator[Site]:
    """The calls of a site one by one, each of the later ones in place."""
    yield replace(site, posts=())
    for post in site.posts:
        ins = tuple(site.out if view is None else view for view in post.ins)
        yield replace(post, in_boxes=(post.out_box,) * len(ins), ins=ins)


Found = TypeVar("Found")
Details = TypeVarTuple("Details")


def once_a_site(find: Callable[[Site, *Details], Found]) -> Callable[[Site, *Details], Found]:
    """What is found of a site, remembered there: each kernel asks, and for each purpose again."""
    return once_each(find)


@once_each
def mask_pattern(data: ConstantData) -> SparsityPattern:
    """The open elements of a constant mask: True, or 0 of an additive one."""
    array = data.array
    return SparsityPattern.of(array if array.dtype == bool else array == 0)


ONE, OPENMP, TEAM = "one", "openmp", "team"  # whose threads a kernel is computed by
GRAIN = 32_768  # elements up to which torch leaves a loop to one thread: `at::internal::GRAIN_SIZE`

Scratch: TypeAlias = "tuple[tuple[Coord, ...], str]"  # shape, dtype


def _no_scratch(site: Site) -> tuple[Scratch, ...]:
    return ()


def _as_many(call: Call, i: int) -> int:
    return int(call.inputs[i].elements)


@outlives
@dataclass(frozen=True)
class Kernel:
    """One implementation of an op.

    Fields:
        name: unique; plans and records name kernels by it.
        op: the op it computes.
        accepts: whether it can run at a site (shapes, strides, dtypes, masks).
        cost_ns: modelled time at a site; advisory, never guarded.
        bind: (site, scratch views) → function and arguments; views among the arguments become
            tensors when the program is bound.
        scratch: shapes and dtypes of the temporary memory it writes; taken from the arena.
        devices: device types it runs on.
        allocates: bytes a call takes from the allocator all the same, inside the library it
            calls; 0 for kernels that truly write in place.
        prepares: inputs that have to be frozen, as it keeps them in another layout.
        layout: which one that is, where others are in its place: the weights of a call are in one
            of those (see `costs.model.CostModel.suiting`); "" for one that may be there besides.
        prepared: (call, input) → elements of that layout.
        by_size: whether machine code for each size is made where that is first met.
        repeats: whether on a CPU the same operands in the same places are known to give the same
            bits, so that this needs no trial, which random operands may not suit.
        posts: ops that it does to each number of a result (`Site.posts`), where it `accepts` that.
        threads: "openmp" for a library's, which meet at a barrier where a call is long; "one" for
            the caller's alone; "team" for threads that never meet, which are not mixed with those
            that do: `candidates` leaves such kernels out.
        alone: of a team's, the kernel by which one thread computes the same.
        rounds: the dtype that it rounds what it multiplies to, only for calls whose attribute
            `arithmetic` allows that; "" for none.
        is_fixed: whether it takes no sizes that move, so that it cannot be the one for all tiles.
        is_asked: whether only sessions have it that ask for it by name (`costs.admission`).
        compiles: whether it is compiled where it is first bound on a machine: nobody has it while
            that is done beside.
    """

    name: str
    op: str
    accepts: Callable[[Site], bool]
    cost_ns: Callable[[Site], float]
    bind: Callable[[Site, tuple[View, ...]], tuple[Function, tuple[Any, ...]]]
    scratch: Callable[[Site], tuple[Scratch, ...]] = field(default=_no_scratch)
    devices: tuple[str, ...] = ("cpu", "cuda")
    allocates: Callable[[Site], int] = field(default=lambda site: 0)
    prepares: tuple[int, ...] = ()
    layout: str = ""
    prepared: Callable[[Call, int], int] = field(default=_as_many)
    by_size: bool = False
    repeats: bool = False
    posts: frozenset[str] = frozenset()
    threads: str = OPENMP
    alone: str = ""
    rounds: str = ""
    is_fixed: bool = False
    is_asked: bool = False
    compiles: bool = False

    @property
    def is_there(self) -> bool:
        """Whether its machine code is, or would be made when it is bound."""
        return not self.compiles or beside.is_there()

    def may(self, call: Call, device: str) -> bool:
        """Whether it computes calls of these attributes, on such a device."""
        kind = (call.out.device or device).split(":")[0]
        return kind in self.devices and self.rounds in ("", call.attrs.get("arithmetic"))

    def takes(self, site: Site) -> bool:
        """Whether it runs on the site's device, and at the site; code for one size not where that
        goes with the place of a sweep, as it would hold a program to it.
        """
        if not self.may(site.call, site.device):
            return False
        if self.by_size and any(map(moves_freely, site.out.shape)):
            return False
        if site.posts and any(post.call.op.name not in self.posts for post in site.posts):
            return False
        return site.frozen.issuperset(self.prepares) and self.accepts(site)

    def meets(self, site: Site) -> bool:
        """Whether threads may meet at a barrier: torch shares what has more than `GRAIN` elements,
        libraries share products of as many multiply–adds.
        """
        if self.threads != OPENMP:
            return False
        op = site.call.op
        read = [v for i, v in enumerate(site.ins) if v is not None and i not in op.picks]
        work = op.flops(site.call, site.out_box) if op.multiplies else 0
        return max(work, *(view.elements for view in (site.out, *read))) > GRAIN


KERNELS: dict[str, list[Kernel]] = {}
_names: set[str] = set()


def register(kernel: Kernel) -> Kernel:
    """Put a kernel into the table."""
    if kernel.name in _names:
        raise KernelError(f"kernel {kernel.name!r} is registered twice; choose another name")
    _names.add(kernel.name)
    KERNELS.setdefault(kernel.op, []).append(kernel)
    return kernel


def known_as(op: str, name: str) -> Kernel | None:
    """A kernel of the table; None for one that is not there."""
    return next((kernel for kernel in KERNELS.get(op, ()) if kernel.name == name), None)


def kernel_named(op: str, name: str) -> Kernel:
    """A kernel of the table; raises KernelError for one that is not there."""
    if (kernel := known_as(op, name)) is not None:
        return kernel
    raise KernelError(f"{op}: kernel {name!r} is gone; register it, or make the session anew")


def by_team(site: Site) -> Kernel | None:
    """The kernel by which a team computes this site."""
    known = KERNELS.get(site.call.op.name, ())
    return next((k for k in known if k.threads == TEAM and k.is_there and k.takes(site)), None)


def is_by_team(site: Site, name: str) -> bool:
    """Whether a kernel of this name computes a site by a team."""
    known = KERNELS.get(site.call.op.name, ())
    return any(k.name == name and k.threads == TEAM for k in known)


def candidates(site: Site, asked: Collection[str] = (), layout: str = "") -> list[Kernel]:
    """Kernels that take this site, the modelled fastest first; none may do more (`posts`).

    Args:
        asked: names of kernels that only who asks for them has.
        layout: that the call's weights have: who lays them out in another way is not asked, unless
            nobody else takes the site. "" for none.
    """
    known = [
        k
        for k in KERNELS.get(site.call.op.name, ())
        if k.threads != TEAM and k.is_there and (not k.is_asked or k.name in asked)
    ]
    suiting = [k for k in known if k.layout in ("", layout)] if layout else known
    found = [k for k in suiting if k.takes(site)]
    if not found and suiting is not known:
        found = [k for k in known if k.layout not in ("", layout) and k.takes(site)]
    if not found and not site.posts:
        raise KernelError(
            f"no kernel for {site.call.op.name} on {site.device} at {site.out_box} of "
            f"{', '.join(map(str, site.call.inputs))}; register one (tgbench.kernels.register)"
        )
    if len(found) > 1:
        with unguarded():
            found.sort(key=lambda k: (k.cost_ns(site), k.name))
    return found


def lays_out(call: Call, device: str) -> bool:
    """Whether some kernel lays weights of such calls out in a way of its own."""
    return any(kernel.layout for kernel in _that_may(call, device))


Ranking: TypeAlias = Callable[[Site], Iterable[Kernel]]  # who takes a site, the fastest first


def prepared_inputs(call: Call, device: str) -> frozenset[int]:
    """Inputs of a call that some kernel of a device keeps in another layout, where frozen."""
    return frozenset(i for kernel in _that_may(call, device) for i in kernel.prepares)


def prepared_bytes(call: Call, i: int, device: str) -> int:
    """At most what layouts of an input take: one in its own dtype, and one in each that is less.

    Programs for many rows and for few may have other kernels, so all of them may be there.
    """
    found = dict[str, int]()
    for kernel in _that_may(call, device):
        if i in kernel.prepares:
            dtype = kernel.rounds or call.inputs[i].dtype
            size = ITEMSIZE[dtype] * kernel.prepared(call, i)
            found[dtype] = max(found.get(dtype, 0), size)
    return sum(found.values())


def _that_may(call: Call, device: str) -> list[Kernel]:
    return [kernel for kernel in KERNELS.get(call.op.name, ()) if kernel.may(call, device)]


def frozen_inputs(ins: Iterable[View | None]) -> frozenset[int]:
    """Those of a site's inputs that lie in the pool, where nothing ever changes, and at one place
    there, wherever a run is.
    """
    return frozenset(i for i, v in enumerate(ins) if v is not None and _stays(v))


def _stays(view: View) -> bool:
    if view.buffer == ARENA or isinstance(view.buffer, OnDevice):
        return False
    return all(type(n) is int for n in (view.offset, *view.shape))


SCRATCH_PADDING = 64  # bytes after each piece, so that the next may start anywhere


def scratch_bytes(shapes: tuple[Scratch, ...]) -> Coord:
    """Bytes that these pieces of scratch memory take, padding included: of sizes that go with a
    place, what they take where they are largest.
    """
    total: Coord = 0
    for shape, dtype in shapes:
        count: Coord = ITEMSIZE[dtype]
        for size in shape:
            count = count * largest(size)
        total = total + count + SCRATCH_PADDING
    return total


def scratch_views(shapes: Sequence[Scratch]) -> tuple[View, ...]:
    """Row-major views of pieces of scratch memory, one behind the other, from offset 0."""
    views = []
    at_bytes: Coord = 0
    for shape, dtype in shapes:
        views.append(View(SCRATCH, dtype, shape, row_major(shape), at_bytes // ITEMSIZE[dtype]))
        at_bytes = at_bytes + scratch_bytes(((shape, dtype),))
    return tuple(views)
