"""Patterns: reading the inputs and attributes of a form off the plain term of an expression.

Sums and products are matched in any order, numbers where numbers stand. What is found may be wrong,
since shapes are not looked at; `checker` says whether it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tgbench.graph.op_table import TensorType
from tgbench.graph.ops.broadcasting import broadcast_shape
from tgbench.graph.recognise.atomic import Cell, Cells
from tgbench.graph.recognise.forms import Form, Free
from tgbench.graph.recognise.normal_form import (
    BOUNDARY,
    COMMUTATIVE,
    NUMBER,
    SUM,
    Term,
    Terms,
    kind_of,
    term_of,
)

SENTINEL_ERROR = 1e-5  # relative


@dataclass
class Reading:
    """The plain terms of a graph's cells: what is read twice is a boundary.

    Fields:
        whole: of a boundary, the term behind it.
        cells: a cell of every term.
    """

    terms: Terms
    of: dict[Cell, Term]  # as a root
    whole: dict[Term, Term]
    cells: dict[Term, Cell]

    @staticmethod
    def of_cells(cells: Cells, ends: Sequence[Cell]) -> Reading:
        counts = cells.readers(ends)
        reading = Reading(Terms(is_exact=False), {}, {}, {})
        seen: dict[Cell, Term] = {}
        for cell in list(cells.all):
            if cell not in counts and cell not in ends:
                continue
            root = term_of(reading.terms, cell, [seen[parent] for parent in cell.inputs])
            reading.of[cell] = root
            reading._hold(root, cell)
            seen[cell] = root
            if counts.get(cell, 0) > 1 and cell.inputs:
                seen[cell] = reading.terms.make(BOUNDARY, (), cell.type, cell.index)
                reading.whole[seen[cell]] = root
                reading._hold(seen[cell], cell)
        return reading

    def _hold(self, term: Term, cell: Cell) -> None:
        if term not in self.cells or self.cells[term].node is None:
            self.cells[term] = cell

    def behind(self, term: Term) -> Term:
        return self.whole.get(term, term)

    def outline(self, root: Term) -> frozenset[str]:
        """The op of a root, and of a sum those of the atoms in it: what to look for first."""
        products = root.args if root.op == SUM else ()
        atoms = {self.behind(atom).op for product in products for atom in product.args}
        return frozenset((root.op, *atoms))


@dataclass(frozen=True)
class Bindings:
    """What was read off so far: terms by input place, numbers by attribute."""

    inputs: Mapping[int, Term] = field(default_factory=dict)
    attrs: Mapping[str, float] = field(default_factory=dict)

    def with_input(self, place: int, term: Term) -> Bindings:
        return replace(self, inputs={**self.inputs, place: term})

    def with_number(self, name: str, value: float) -> Bindings:
        return replace(self, attrs={**self.attrs, name: value})


Items = list[tuple[Any, float]]  # products with their factors, or atoms with their exponents


@dataclass
class Template:
    """A form's example, as a plain term with holes."""

    form: Form
    reading: Reading
    root: Term
    holes: Mapping[Term, int]
    sizes: Mapping[Term, int]
    outline: frozenset[str] = frozenset()

    @staticmethod
    def of(form: Form) -> Template:
        graph, inputs = form.written(form.example, form.types())
        cells = Cells.written_out(graph)
        root = cells.of[graph.outputs["y"]]
        reading = Reading.of_cells(cells, [root])
        holes = {reading.of[cells.of[node]]: i for i, node in enumerate(inputs)}
        pattern = Template(form, reading, reading.of[root], holes, {})
        pattern.sizes = _sizes(pattern)
        pattern.outline = reading.outline(pattern.root) - {"input"}
        return pattern

    @property
    def size(self) -> int:
        """How much of a graph it takes: larger ones come first."""
        return self.sizes[self.root]

    # --- one term with another --------------------------------------------------------------------

    def read(self, target: Reading, root: Term) -> Iterator[Bindings]:
        """Every way to see this form in a term."""
        return self._terms(target, self.root, root, Bindings())

    def _terms(self, target: Reading, p: Term, t: Term, found: Bindings) -> Iterator[Bindings]:
        if p in self.holes:
            yield from self._hole(target, self.holes[p], t, found)
            return
        p, whole = self.reading.behind(p), target.behind(t)
        if p.op == NUMBER:
            if whole.op == NUMBER:
                yield from self._number(p.numbers[0], whole.numbers[0], found)
        elif p.op == SUM:
            if whole.op != NUMBER:
                yield from self._sum(target, p, whole, found)
        elif p.op in ("permute", "reshape") and p.args[0] in self.holes:
            for under in self._under_view(target, p, t):
                yield from self._hole(target, self.holes[p.args[0]], under, found)
        elif p.op == whole.op and len(p.args) == len(whole.args):
            yield from self._args(target, p, whole, found)

    def _hole(self, target: Reading, place: int, t: Term, found: Bindings) -> Iterator[Bindings]:
        bound = found.inputs.get(place)
        if bound is None:
            yield found.with_input(place, t)
        elif target.behind(bound) is target.behind(t):
            yield found

    def _under_view(self, target: Reading, p: Term, t: Term) -> Iterator[Term]:
        """What an input is, of which the form sees a view: the view undone, or what is below it.

        Weights stay as they are stored: a product with transposed rows took 40 × as long.
        """
        whole = target.behind(t)
        is_weight = self.holes[p.args[0]] in self.form.fixed
        if p.op == "permute" and is_weight and whole.op != "permute":
            return
        undone = (_turned_back if p.op == "permute" else _folded_back)(target.terms, p, t, whole)
        if undone is not None:
            yield undone
        elif p.op == whole.op:
            yield whole.args[0]

    def _args(self, target: Reading, p: Term, t: Term, found: Bindings) -> Iterator[Bindings]:
        orders = [t.args, t.args[::-1]] if p.op in COMMUTATIVE else [t.args]
        for order in orders:
            yield from self._in_turn(target, p.args, order, found)

    def _in_turn(
        self, target: Reading, ps: Sequence[Term], ts: Sequence[Term], found: Bindings
    ) -> Iterator[Bindings]:
        if not ps:
            yield found
            return
        for more in self._terms(target, ps[0], ts[0], found):
            yield from self._in_turn(target, ps[1:], ts[1:], more)

    def _number(self, p: float, t: float, found: Bindings) -> Iterator[Bindings]:
        """Numbers that are no attribute depend on shapes, or are compared later."""
        for name, free in self.form.attrs.items():
            if not isinstance(free, Free) or free.choices is not None:
                continue
            for value, read in ((free.example, t), (-free.example, -t)):
                if _is_near(p, value):
                    if name not in found.attrs:
                        yield found.with_number(name, read)
                    elif _is_near(found.attrs[name], read):
                        yield found
                    return
        root = self._root_of_number(p, t, found)
        yield from [found] if root is None else [root]

    def _root_of_number(self, p: float, t: float, found: Bindings) -> Bindings | None:
        """An attribute whose square root stands there."""
        for name, free in self.form.attrs.items():
            is_number = isinstance(free, Free) and free.choices is None
            if is_number and free.example > 0 and _is_near(p, free.example**0.5):
                return found if name in found.attrs else found.with_number(name, t * t)
        return None

    # --- sums and products ------------------------------------------------------------------------

    def _sum(self, target: Reading, p: Term, t: Term, found: Bindings) -> Iterator[Bindings]:
        constant, parts = self.reading.terms.parts(p)
        other, rest = target.terms.parts(t)
        starts = [found] if constant == 0 else list(self._number(constant, other, found))
        left = other if constant == 0 else 0.0
        wanted = sorted(parts.items(), key=lambda part: -self.sizes[part[0]])
        for start in starts:
            yield from self._parts(target, wanted, list(rest.items()), left, t.type, start)

    def _parts(
        self,
        target: Reading,
        wanted: Items,
        rest: Items,
        left: float,
        type_: TensorType,
        found: Bindings,
    ) -> Iterator[Bindings]:
        """Each product of the pattern with one of the target; the last hole takes what is left."""
        if not wanted:
            if not rest and not left:
                yield found
            return
        (product, factor), others = wanted[0], wanted[1:]
        place = self._lone_hole(product)
        takes_rest = place is not None and not others and factor == 1 and bool(rest or left)
        if place is not None and takes_rest and place not in found.inputs:
            total = target.terms.sum(left, dict(rest), _wide(rest, type_))
            yield from self._hole(target, place, total, found)
            return
        for i, (candidate, number) in enumerate(rest):
            remaining = [*rest[:i], *rest[i + 1 :]]
            for more in self._product(target, product, factor, candidate, number, found):
                yield from self._parts(target, others, remaining, left, type_, more)

    def _lone_hole(self, product: Term) -> int | None:
        is_lone = product.numbers == (1.0,)
        return self.holes.get(product.args[0]) if is_lone else None

    def _product(
        self, target: Reading, p: Term, factor: float, t: Term, number: float, found: Bindings
    ) -> Iterator[Bindings]:
        takes_number = factor == 1 and self._has_open_hole(p, found)
        starts = [found] if takes_number else self._number(factor, number, found)
        wanted = sorted(zip(p.args, p.numbers, strict=True), key=lambda item: -self.sizes[item[0]])
        rest = list(zip(t.args, t.numbers, strict=True))
        for start in starts:
            left = number if takes_number else 1.0
            yield from self._factors(target, wanted, rest, left, start)

    def _has_open_hole(self, p: Term, found: Bindings) -> bool:
        return any(
            exponent == 1 and atom in self.holes and self.holes[atom] not in found.inputs
            for atom, exponent in zip(p.args, p.numbers, strict=True)
        )

    def _factors(
        self, target: Reading, wanted: Items, rest: Items, left: float, found: Bindings
    ) -> Iterator[Bindings]:
        if not wanted:
            if not rest and left == 1:
                yield found
            return
        (atom, exponent), others = wanted[0], wanted[1:]
        place = self.holes.get(atom)
        if place is not None and exponent == 1 and not others and place not in found.inputs:
            if rest:
                yield from self._hole(target, place, _multiplied(target.terms, rest, left), found)
            return
        for i, (candidate, power) in enumerate(rest):
            if power != exponent:
                continue
            remaining = [*rest[:i], *rest[i + 1 :]]
            for more in self._terms(target, atom, candidate, found):
                yield from self._factors(target, others, remaining, left, more)


def _turned_back(terms: Terms, p: Term, t: Term, whole: Term) -> Term | None:
    """The transpose of a term, through a permute that it is already."""
    if t.type.rank != len(p.attrs):
        return None
    back = [p.attrs.index(axis) for axis in range(len(p.attrs))]
    base, axes = (whole.args[0], whole.attrs) if whole.op == "permute" else (t, range(len(back)))
    chosen = tuple(axes[axis] for axis in back)
    if chosen == tuple(range(len(chosen))):
        return base
    shape = tuple(base.type.shape[axis] for axis in chosen)
    return terms.make("permute", (base,), TensorType(shape, t.type.dtype), chosen)


def _folded_back(terms: Terms, p: Term, t: Term, whole: Term) -> Term | None:
    """A term without the dimensions of size 1 that the form has put in."""
    kept = _without_new_ones(p.type.shape, p.args[0].type.shape)
    lead = t.type.rank - p.type.rank
    if kept is None or lead < 0:
        return None
    shape = tuple(t.type.shape[lead + axis] for axis in kept)
    base = whole.args[0] if whole.op == "reshape" else t
    if base.type.shape == shape:
        return base
    if base.type.elements != TensorType(shape, "bool").elements:
        return None
    return terms.make("reshape", (base,), TensorType(shape, t.type.dtype))


def _without_new_ones(shape: Sequence[int], inner: Sequence[int]) -> list[int] | None:
    """The dimensions of a shape that are left when ones are dropped to get the inner one."""
    kept: list[int] = []
    for axis, size in enumerate(shape):
        if len(kept) < len(inner) and size == inner[len(kept)]:
            kept.append(axis)
        elif size != 1:
            return None
    return kept if len(kept) == len(inner) else None


def _wide(rest: Items, type_: TensorType) -> TensorType:
    shapes = [product.type.shape for product, _ in rest]
    return TensorType(broadcast_shape(shapes), type_.dtype) if shapes else type_


def _multiplied(terms: Terms, factors: Items, number: float) -> Term:
    dtype = factors[0][0].type.dtype
    product = terms.product({(atom, kind_of(power)): power for atom, power in factors}, dtype)
    return terms.sum(0.0, {product: number}, product.type)


def _is_near(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= SENTINEL_ERROR * abs(b)


def _sizes(pattern: Template) -> dict[Term, int]:
    """How many terms lie below each one, boundaries opened."""
    sizes: dict[Term, int] = {}

    def size(term: Term) -> int:
        if term not in sizes:
            if term in pattern.holes:
                sizes[term] = 0
            else:
                whole = pattern.reading.behind(term)
                sizes[term] = 1 + sum(size(arg) for arg in whole.args)
        return sizes[term]

    for term in [*pattern.reading.of.values(), *pattern.reading.whole]:
        size(term)
        for arg in pattern.reading.behind(term).args:
            size(arg)
    return sizes
