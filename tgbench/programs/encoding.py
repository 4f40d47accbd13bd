"""Programs as data: what was decided for them; nothing that can be executed.

    Program ─→ key     which class, after what, under which guards, what it leaves
               calls   nodes, boxes, kernels by name, offsets inside slots
               steps   the decisions it was lowered from
            ←─         functions come from the kernels, which are asked to bind again

A key is read when a file is opened, calls at a program's first run, steps when a report asks for
them. A coordinate is a number, or `[i]` for the i-th linear form of its document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import prod
from typing import Any, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np

from tgbench.base import swept
from tgbench.base.coords import FAR, Coord, Guard, Moving, standing, value_of
from tgbench.base.errors import ProgramsError
from tgbench.base.regions import Box, Region
from tgbench.graph.graph import Graph, Node
from tgbench.kernels.registry import Site, View, frozen_inputs
from tgbench.programs.choices import BoundKernel
from tgbench.programs.folding import post
from tgbench.programs.lowering import Lowerer
from tgbench.programs.program import Instruction, Program
from tgbench.programs.sites import Buffer, place_of
from tgbench.programs.states import Alike, ValidityPattern
from tgbench.runs.buckets import SIZED, BucketClass
from tgbench.runs.propagate import Step, handed_out
from tgbench.runs.rules import row_before

Json: TypeAlias = Any
Outputs: TypeAlias = Mapping[str, tuple[tuple[Box, View], ...]]
T = TypeVar("T")
MAPS = ("dirty", "needed", "compute", "reused", "valid")  # of a step


class LazySequence(Sequence[T]):
    """A sequence of known length that is read when it is first looked into."""

    def __init__(self, count: int, read: Callable[[], Sequence[T]]) -> None:
        self._count, self._read = count, read

    @cached_property
    def found(self) -> Sequence[T]:
        """What was read."""
        return self._read()

    @overload
    def __getitem__(self, at: int) -> T: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...
    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        return self.found[at]

    def __iter__(self) -> Iterator[T]:
        return iter(self.found)

    def __len__(self) -> int:
        return self._count


# --- coordinates ----------------------------------------------------------------------------------


class CoordTables:
    """The forms and boxes of one document, each once; what is written refers to them."""

    def __init__(self) -> None:
        self._forms: dict[Moving, int] = {}
        self._swept: dict[int, int] = {}
        self._boxes: dict[Box, int] = {}
        self._ends: list[Json] = []

    def coord(self, coord: Coord) -> Json:
        """A coordinate."""
        if isinstance(coord, Moving):
            return [self._forms.setdefault(coord, len(self._forms))]
        return coord

    def box(self, box: Box) -> int:
        """The number of a box."""
        if box not in self._boxes:
            self._boxes[box] = len(self._boxes)
            self._ends.append([self.coord(end) for end in _flat(box)])
        return self._boxes[box]

    def written(self) -> dict[str, Json]:
        """All of it, for the document; where forms have tables, these count from −1 down."""
        forms = [[form.const, form.per, *_flat(self._terms(form))] for form in self._forms]
        tables = [[one.of, *one.listed] for one in map(swept.read, self._swept)]
        return {"forms": forms, "boxes": self._ends} | ({"swept": tables} if tables else {})

    def _terms(self, form: Moving) -> Iterator[tuple[int, int]]:
        for index, k in form.terms:
            is_table = index >= swept.FIRST
            yield (-1 - self._swept.setdefault(index, len(self._swept)) if is_table else index), k


class CoordReader:
    """What the numbers of a document mean."""

    def __init__(self, document: Mapping[str, Json]) -> None:
        tables = [_table(of, numbers) for of, *numbers in document.get("swept", ())]
        self._moving = [
            _form(const, _pairs(terms), per, tables) for const, per, *terms in document["forms"]
        ]
        self.boxes = [self.box(ends) for ends in document.get("boxes", ())]
        self.extents = [box.extents for box in self.boxes]
        self._reaches: dict[tuple[int, tuple[int, ...]], int] = {}

    def reach(self, box: int, steps: tuple[int, ...]) -> int:
        """How far the last element of a box lies behind its first, in such steps."""
        found = self._reaches.get((box, steps))
        if found is None:
            sides = zip(self.extents[box], steps, strict=True)
            found = sum((value_of(size) - 1) * step for size, step in sides)
            self._reaches[box, steps] = found
        return found

    def box(self, ends: Json) -> Box:
        """A box whose ends are written in a row."""
        return Box(_pairs([self.coord(end) for end in ends]))

    def coord(self, found: Json) -> Coord:
        """A coordinate as it is written."""
        number: Coord = self._moving[found[0]] if isinstance(found, list) else found
        return number


def _table(of: Any, numbers: Sequence[Any]) -> int:
    """A table as a document has it; raises ValueError for what is none."""
    if not numbers or not all(type(n) is int and abs(n) < FAR for n in (of, *numbers)) or of < 0:
        raise ValueError("a table of other things than whole numbers")
    found = swept.table(of, np.array(numbers, np.int64))
    if found is None:
        raise ValueError("more tables than are held")
    return found


def _form(const: Any, terms: Sequence[tuple[Any, Any]], per: Any, tables: Sequence[int]) -> Moving:
    """A form as a document has it; raises ValueError for what is none."""
    _check_terms(const, terms, per, len(tables))
    return Moving(const, tuple([(i if i >= 0 else tables[-1 - i], k) for i, k in terms]), per)


def _flat(pairs: Iterable[tuple[T, T]]) -> list[T]:
    return [part for pair in pairs for part in pair]


def _pairs(flat: Sequence[T]) -> tuple[tuple[T, T], ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))


# --- what a program starts from, and leaves -------------------------------------------------------


@dataclass(frozen=True)
class ProgramKey:
    """What is known of a program before it runs.

    Fields:
        kind: its class.
        state, start, after: positions in a list of patterns: what it counts on, what it was made
            with, and what it leaves then.
        renews: whether it leaves that whatever was there.
        guards: over the origin.
        made_at: an origin at which they hold.
        calls, pieces: how many.
        time_ns: what a run takes, measured or expected.
    """

    kind: BucketClass
    state: int
    start: int
    after: int
    renews: bool
    guards: frozenset[Guard]
    made_at: tuple[int, ...]
    calls: int
    pieces: int
    time_ns: float

    @staticmethod
    def of(
        kind: BucketClass, states: Sequence[int], program: Program, time_ns: float
    ) -> ProgramKey:
        """Of a program of a class; `states` are where its three are in the list of patterns."""
        state, start, after = states
        return ProgramKey(
            kind, state, start, after, program.renews, program.guards, program.made_at,
            len(program.instructions), len(program.steps), time_ns,
        )  # fmt: skip

    def written(self) -> Json:
        """As a document has it."""
        kind, guards = self.kind, sorted(self.guards, key=lambda g: (g.terms, g.const, g.modulus))
        return [
            [kind.changed, kind.demand, kind.bounds, kind.is_swept],
            self.state, self.start, self.after, self.renews,
            [[guard.const, guard.modulus, *_flat(guard.terms)] for guard in guards],
            self.made_at, self.calls, self.pieces, self.time_ns,
        ]  # fmt: skip

    @staticmethod
    def read(found: Json) -> ProgramKey:
        """Of a document."""
        kind, state, start, after, renews, guards, made_at, calls, pieces, time_ns = found
        return ProgramKey(
            _kind(kind), state, start, after, renews,
            frozenset(Guard(c, _pairs(terms), modulus) for c, modulus, *terms in guards),
            tuple(made_at), calls, pieces, time_ns,
        )  # fmt: skip

    def check(self, graph: Graph) -> None:
        """Raises ValueError or TypeError where its class is none of a graph, or a count is none."""
        kind, counts = self.kind, (self.state, self.start, self.after, self.calls, self.pieces)
        if not all(type(n) is int and n >= 0 for n in counts):
            raise ValueError("what is counted is a whole number")
        if type(self.renews) is not bool or type(self.time_ns) not in (int, float):
            raise ValueError("a flag and a time, of other types")
        if not all(type(n) is int for n in (*kind.bounds, *self.made_at)):
            raise ValueError("bounds and origins are integers")
        if len(self.made_at) != len(kind.bounds):
            raise ValueError("an origin has an entry for each bound")
        leaves = {**graph.inputs, **graph.states}
        for guard in self.guards:
            _check_terms(guard.const, guard.terms, guard.modulus)
            if any(index >= len(kind.bounds) for index, _ in guard.terms):
                raise ValueError("a guard over no entry of the origin")
        hash(kind)  # raises TypeError: classes are looked up, and some JSON is no key
        for parts, nodes in ((kind.changed, leaves), (kind.demand, graph.outputs)):
            for name, boxes in parts:
                for box in boxes:
                    _check_box(box, nodes[name].rank, len(kind.bounds))


def _kind(found: Json) -> BucketClass:
    """A class as a document has it."""
    changed, demand, bounds, is_swept = found
    if type(is_swept) is not bool:
        raise ValueError("a flag of another type")
    return BucketClass(_tuples(changed), _tuples(demand), _tuples(bounds), is_swept)


def _check_terms(const: Any, terms: Sequence[tuple[Any, Any]], per: Any, tables: int = 0) -> None:
    """Raises ValueError for what is no sum of entries of an origin, and of so many tables."""
    if not all(type(n) is int for n in (const, per, *_flat(terms))):
        raise ValueError("a sum of other things than whole numbers")
    if any(index < -tables for index, _ in terms) or per < 0:
        raise ValueError("an entry below the first one")


def _check_box(box: Sequence[Any], rank: int, symbols: int) -> None:
    """Raises ValueError for what is no box of so many dimensions, placed by so many symbols."""
    if len(box) != rank:
        raise ValueError(f"a box of {len(box)} dimensions, not {rank}")
    for symbol, extent in box:
        needed = 0 if symbol is None else 1 + (extent == SIZED)  # entries of the origin, from it on
        if type(extent) is not int or symbol not in (None, *range(symbols - needed + 1)):
            raise ValueError(f"[{symbol}, {extent}] places no box")


def _tuples(found: Json) -> Any:
    return tuple(map(_tuples, found)) if isinstance(found, list) else found


# --- everything else ------------------------------------------------------------------------------


class NodeBytes(NamedTuple):
    """Where a node's elements lie.

    Fields:
        buffer: the arena, another device's, or a tensor of the pool.
        first, elements: of those that it may show, its base's.
        steps: elements per step along each dimension.
    """

    buffer: Buffer
    first: int
    elements: int
    steps: tuple[int, ...]


def bytes_of(lowerer: Lowerer, node: Node) -> NodeBytes:
    """Of a node in a memory map."""
    laid = lowerer.layout_of(node)
    if isinstance(laid.buffer, str):
        return NodeBytes(laid.buffer, 0, prod(laid.base.shape), laid.steps)
    slot = lowerer.placement.slots[laid.base]
    _, at = place_of(slot.offset_bytes, lowerer.scheduled)
    first = at // laid.base.type.itemsize
    return NodeBytes(laid.buffer, first, slot.elements, laid.steps)


class Codec:
    """Writes and reads programs of one memory map.

    Args:
        lowerer: says where nodes lie, and binds kernels.
    """

    def __init__(self, lowerer: Lowerer) -> None:
        self.lowerer, self.graph = lowerer, lowerer.scheduled.graph
        self.nodes = self.graph.nodes
        self.number = {node: i for i, node in enumerate(self.nodes)}
        self._bytes_of = cache(partial(bytes_of, lowerer))

    # patterns

    def patterns(self, patterns: Iterable[ValidityPattern]) -> Json:
        """What holds values before and after programs."""
        tables = CoordTables()
        found = [
            [
                [
                    self.number[node],
                    [[tables.coord(end) for end in _flat(box)] for box in region],
                    [tables.coord(form) for form in start],
                ]
                for node, region, start in pattern.entries
            ]
            for pattern in patterns
        ]
        return {"patterns": found, **tables.written()}

    def read_patterns(self, document: Json) -> list[ValidityPattern]:
        """Of what `patterns` wrote."""
        coords = CoordReader(document)

        def part(node: int, boxes: Json, start: Json) -> Alike:
            of, region = self.nodes[node], Region(tuple(map(coords.box, boxes)))
            first = tuple(map(coords.coord, start))
            if any(len(place) != of.rank for place in (*region.boxes, first)):
                raise ValueError(f"{of.name} has {of.rank} dimensions")
            sides = [side for box in region for interval in box for side in interval]
            if not all(type(coord) in (int, Moving) for coord in (*sides, *first)):
                raise ValueError(f"{of.name}: a coordinate is no number")
            return Alike(region, first, (of,))

        return [
            ValidityPattern.joined(part(*found) for found in pattern)
            for pattern in document["patterns"]
        ]

    # what is handed out

    def outputs(self, kind: BucketClass, program: Program) -> Json:
        """Where a program's results lie."""
        tables, handed = CoordTables(), handed_out(self.graph, kind, program.made_at)
        found = [
            [
                name,
                [[tables.box(b), self._offset(handed[name][0], v, tables)] for b, v in parts],
            ]
            for name, parts in program.outputs.items()
        ]
        return {"outputs": found, **tables.written()}

    def read_outputs(self, document: Json, kind: BucketClass, origin: tuple[int, ...]) -> Outputs:
        """Of what `outputs` wrote."""
        coords, handed = CoordReader(document), handed_out(self.graph, kind, origin)
        with standing(origin):
            return {
                name: tuple(
                    (coords.boxes[box], self._view(handed[name][0], box, offset, coords))
                    for box, offset in parts
                )
                for name, parts in document["outputs"]
            }

    # calls

    def calls(self, program: Program) -> Json:
        """What a program calls."""
        tables, sites = CoordTables(), _SiteTable()
        with standing(program.made_at):
            calls = [self._call(made, tables, sites) for made in program.instructions]
        return {"calls": calls, "sites": sites.rows, **tables.written()}

    def _call(self, made: Instruction, tables: CoordTables, sites: _SiteTable) -> Json:
        """Nodes, a site and offsets; of a fill, or where a window slides, the box, as a negative
        number.
        """
        node, there = made.node, made.site
        if there is None:
            views = (one for one in made.arguments if isinstance(one, View))
            offsets = [self._offset(node, view, tables) for view in views]
            return [[self.number[node]], -1 - tables.box(made.box), *offsets]
        operands = (made.result, *_operands(node, there.out_box))
        parts = [*zip(operands, (there.out, *there.ins), strict=True)]
        for one, done in zip(made.posts, there.posts, strict=True):
            parts += zip(one.inputs, done.ins, strict=True)
        return [
            [self.number[one] for one in (node, *made.posts)],
            sites.number(made, self.lowerer.canonical(node, there, made.posts), tables),
            *(None if view is None else self._offset(one, view, tables) for one, view in parts),
        ]

    def _offset(self, node: Node, view: View, tables: CoordTables) -> Json:
        """Where a view of a node begins, from where its bytes do."""
        return tables.coord(view.offset - self._bytes_of(node).first)

    def read_calls(self, document: Json, origin: tuple[int, ...]) -> tuple[Instruction, ...]:
        """Of what `calls` wrote; raises ProgramsError for what does not fit this memory map."""
        coords = CoordReader(document)
        sites = [_SiteRow(out, ins, kernel) for out, ins, kernel in document["sites"]]
        with standing(origin):
            return tuple(self._read_call(row, sites, coords) for row in document["calls"])

    def _read_call(self, row: Json, sites: Sequence[_SiteRow], coords: CoordReader) -> Instruction:
        numbers, which, offset, *offsets = row
        (node, *posts), lowerer = [self.nodes[number] for number in numbers], self.lowerer
        if which < 0:
            box, out = coords.boxes[-1 - which], self._view(node, -1 - which, offset, coords)
            if not offsets:
                return lowerer.filled(node, box, out)
            [begins] = offsets
            return lowerer.slid(node, box, out, self._view(node, -1 - which, begins, coords))
        site, boxes, count = sites[which], coords.boxes, len(node.inputs)
        ins = tuple(
            None if box is None else self._view(one, box, at, coords)
            for one, box, at in zip(
                _operands(node, boxes[site.out_box]), site.in_boxes, offsets[:count], strict=True
            )
        )
        reads = tuple(None if box is None else boxes[box] for box in site.in_boxes)
        out = self._view((node, *posts)[-1], site.out_box, offset, coords)
        frozen = frozenset() if node.call in lowerer.rules.unpacked else frozen_inputs(ins)
        done = tuple(self._read_posts(posts, site.out_box, out, offsets[count:], coords))
        there = Site(node.call, boxes[site.out_box], reads, out, ins, lowerer.device, frozen, done)
        if site.bound is None:
            site.bound = lowerer.bound_again(node, there, site.kernel, posts)
        return lowerer.placed(node, there, site.bound, posts)

    def _read_posts(
        self, posts: Sequence[Node], box: int, out: View, offsets: Json, coords: CoordReader
    ) -> Iterator[Site]:
        """What is done to each number of a result; an input without an offset is that result."""
        for node in posts:
            own, offsets = offsets[: len(node.inputs)], offsets[len(node.inputs) :]
            ins = tuple(
                None if at is None else self._view(one, box, at, coords)
                for one, at in zip(node.inputs, own, strict=True)
            )
            there = coords.boxes[box]
            site = Site(node.call, there, (there,) * len(ins), out, ins, self.lowerer.device)
            yield post(site, [view is None for view in ins])

    def _view(self, node: Node, box: int, offset: Json, coords: CoordReader) -> View:
        """A view of a node; raises ProgramsError for one that leaves the node's bytes."""
        extents, begins, there = coords.extents[box], coords.coord(offset), self._bytes_of(node)
        least, last = value_of(begins), value_of(begins) + coords.reach(box, there.steps)
        if not 0 <= least <= last < there.elements:
            raise ProgramsError(f"{node.name}: elements {least} to {last} are not its own")
        return View(there.buffer, node.dtype, extents, there.steps, begins + there.first)

    # steps

    def steps(self, program: Program) -> Json:
        """What a program was lowered from."""
        tables = CoordTables()
        steps = [
            [
                *(self._regions(getattr(step, name), tables) for name in MAPS),
                [self.number[node] for node in step.unusable],
                [self.number[node] for node in step.filled],
            ]
            for step in program.steps
        ]
        return {"steps": steps, **tables.written()}

    def _regions(self, regions: Mapping[Node, Region], tables: CoordTables) -> Json:
        return [
            [self.number[node], *(tables.box(box) for box in region)]
            for node, region in regions.items()
        ]

    def read_steps(self, document: Json) -> tuple[Step, ...]:
        """Of what `steps` wrote."""
        coords = CoordReader(document)

        def regions(found: Json) -> dict[Node, Region]:
            return {
                self.nodes[node]: Region(tuple(coords.boxes[box] for box in boxes))
                for node, *boxes in found
            }

        def nodes(found: Json) -> tuple[Node, ...]:
            return tuple(self.nodes[node] for node in found)

        found = []
        for dirty, needed, compute, reused, valid, unusable, fills in document["steps"]:
            maps = regions(dirty), regions(needed), regions(compute), regions(reused)
            found.append(Step(*maps, regions(valid), nodes(unusable), frozenset(nodes(fills))))
        return tuple(found)


def _operands(node: Node, box: Box) -> list[Node]:
    """Whose bytes computing a box reads: its own, where it goes on from what is there."""
    goes_on = row_before(node.call, box) is not None
    first = node.call.op.continues if goes_on else None
    return [node if i == first else parent for i, parent in enumerate(node.inputs)]


class _SiteTable:
    """The sites of one document, each once."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Site, str], int] = {}
        self.rows: list[Json] = []

    def number(self, made: Instruction, site: Site, tables: CoordTables) -> int:
        """The number of the site that an instruction's is, wherever operands lie."""
        key = site, made.kernel
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            ins = [None if box is None else tables.box(box) for box in site.in_boxes]
            self.rows.append([tables.box(site.out_box), ins, made.kernel])
        return self._numbers[key]


@dataclass
class _SiteRow:
    """A site that is read: numbers of boxes, a kernel's name; bound at the first call there."""

    out_box: int
    in_boxes: list[int | None]
    kernel: str
    bound: BoundKernel | None = None
