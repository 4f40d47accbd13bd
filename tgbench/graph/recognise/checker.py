"""Whether a fused op on certain inputs is the expression that stands in the graph.

    expression  from the inputs, which count as unknowns  ─→ exact term ─┐
                                                                         ├─ the same?
    form        written out on the same unknowns          ─→ exact term ─┘

A candidate may be wrong; a match is not: what is replaced has been compared with what replaces it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.base.known import ConstantData
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import LEAVES, Attrs, TensorType, numpy_dtype
from tgbench.graph.ops.broadcasting import broadcast_shape
from tgbench.graph.recognise.atomic import VIEWS, Cell, Cells
from tgbench.graph.recognise.forms import Form, Free
from tgbench.graph.recognise.matching import Bindings, Reading, Template
from tgbench.graph.recognise.normal_form import NUMBER, SUM, UNKNOWN, WEIGHT, Term, Terms, term_of

MOST_CELLS = 200  # between a root and its inputs
BUILT = (*VIEWS, "logical_not")  # what may be put before an input that is no node of the graph


@dataclass(frozen=True, eq=False)
class Match:
    """A fused op that computes what a node does.

    Fields:
        inputs: cells that the graph has as nodes, or that are made of such.
        inner: the nodes that it takes up, the replaced one included.
    """

    form: Form
    attrs: Attrs
    inputs: tuple[Cell, ...]
    inner: frozenset[Node]


@dataclass
class Checker:
    """Compares expressions of one graph with forms."""

    cells: Cells
    reading: Reading
    terms: Terms = field(default_factory=lambda: Terms(is_exact=True))
    _written: dict[Any, tuple[Graph, tuple[Node, ...], Cells] | None] = field(default_factory=dict)
    _answers: dict[Any, bool] = field(default_factory=dict)  # equal layers ask the same

    def matches(self, pattern: Template, root: Cell) -> Iterator[Match]:
        """Every way in which the value of a cell is that of a form."""
        for found in pattern.read(self.reading, self.reading.of[root]):
            inputs = self._inputs(pattern.form, found)
            if inputs is None:
                continue
            for attrs in _choices(pattern.form, found, inputs):
                match = self._checked(pattern.form, attrs, inputs, root)
                if match is not None:
                    yield match

    def _inputs(self, form: Form, found: Bindings) -> tuple[Cell, ...] | None:
        cells = [self._cell(found.inputs[i]) for i in range(len(form.shapes))]
        if any(cell is None for cell in cells):
            return None
        inputs = tuple(cell for cell in cells if cell is not None)
        is_fixed = all(inputs[i].is_fixed for i in form.fixed)
        return inputs if is_fixed else None

    # --- from terms to inputs ---------------------------------------------------------------------

    def _cell(self, term: Term) -> Cell | None:
        """A cell with the value of a plain term, if no work is needed for it in every run."""
        cell = self.reading.cells.get(term)
        if cell is not None:
            return cell if _is_built(cell) else None
        if term.op in ("permute", "reshape", "logical_not"):
            inner = self._cell(term.args[0])
            attrs = {"permute": {"axes": term.attrs}, "reshape": {"shape": term.type.shape}}.get(
                term.op, {}
            )
            return None if inner is None else self.cells.cell(term.op, (inner,), attrs, term.type)
        if term.op == NUMBER:
            return self._constant(term.numbers[0], term.type.dtype)
        return self._of_weights(term) if term.op == SUM else None

    def _constant(self, value: float, dtype: str) -> Cell | None:
        if dtype == "bfloat16":
            return None
        data = ConstantData(np.asarray(value, numpy_dtype(dtype)))
        return self.cells.cell("constant", (), {"data": data}, TensorType((), dtype))

    def _of_weights(self, term: Term) -> Cell | None:
        """A product of weights, or weights times a number."""
        constant, parts = self.reading.terms.parts(term)
        if constant or len(parts) != 1:
            return None
        ((product, number),) = parts.items()
        if any(exponent != 1 for exponent in product.numbers):
            return None
        cells = [self._cell(atom) for atom in product.args]
        if number != 1:
            cells.append(self._constant(number, term.type.dtype))
        result: Cell | None = cells[0]
        for cell in cells[1:]:
            if result is None or cell is None or not (result.is_fixed and cell.is_fixed):
                return None
            shape = broadcast_shape([result.type.shape, cell.type.shape])
            type_ = TensorType(shape, term.type.dtype)
            result = self.cells.cell("mul", (result, cell), {}, type_)
        return result

    # --- comparing --------------------------------------------------------------------------------

    def _checked(
        self, form: Form, attrs: Attrs, inputs: tuple[Cell, ...], root: Cell
    ) -> Match | None:
        unknowns = {cell for one in inputs for cell in _unknowns(one)}
        if root in unknowns or not form.accepts(attrs, inputs):
            return None
        inner = _between(root, unknowns)
        if inner is None:
            return None
        question = form, tuple(sorted(attrs.items())), _outline(root, inputs, unknowns)
        if question not in self._answers:
            expected = self._term_of_form(form, attrs, inputs, unknowns)
            is_same = expected is not None and expected.type == root.type
            self._answers[question] = is_same and self._terms_of(inner, unknowns)[root] is expected
        if not self._answers[question]:
            return None
        taken = [cell.node for cell in inner if cell not in unknowns and cell.node is not None]
        return Match(form, attrs, inputs, frozenset(node for node in taken if not node.is_leaf))

    def _term_of_form(
        self, form: Form, attrs: Attrs, inputs: Sequence[Cell], unknowns: set[Cell]
    ) -> Term | None:
        written = self._form(form, attrs, tuple(cell.type for cell in inputs))
        if written is None:
            return None
        graph, holes, cells = written
        terms: dict[Cell, Term] = {}
        for hole, cell in zip(holes, inputs, strict=True):
            within = _between(cell, unknowns)
            assert within is not None
            terms[cells.of[hole]] = self._terms_of(within, unknowns)[cell]
        for cell in cells.all:
            if cell not in terms:
                terms[cell] = term_of(self.terms, cell, [terms[parent] for parent in cell.inputs])
        return terms[cells.of[graph.outputs["y"]]]

    def _form(
        self, form: Form, attrs: Attrs, types: tuple[TensorType, ...]
    ) -> tuple[Graph, tuple[Node, ...], Cells] | None:
        """The form at these types; None where its op does not take them."""
        key = (form, tuple(sorted(attrs.items())), types)
        if key not in self._written:
            try:
                graph, holes = form.written(attrs, types)
                is_taken = form.make(attrs, *holes).type == graph.outputs["y"].type
                self._written[key] = (graph, holes, Cells.written_out(graph)) if is_taken else None
            except (GraphError, IndexError, ValueError, ZeroDivisionError):
                self._written[key] = None
        return self._written[key]

    def _terms_of(self, cells: Sequence[Cell], unknowns: set[Cell]) -> Mapping[Cell, Term]:
        terms: dict[Cell, Term] = {}
        for cell in cells:
            if cell in unknowns:
                kind = WEIGHT if cell.is_fixed else UNKNOWN
                terms[cell] = self.terms.make(kind, (), cell.type, cell.index)
            else:
                terms[cell] = term_of(self.terms, cell, [terms[parent] for parent in cell.inputs])
        return terms


def _is_built(cell: Cell) -> bool:
    if cell.node is not None or cell.op == "constant":
        return True
    return (cell.is_fixed or cell.op in BUILT) and all(map(_is_built, cell.inputs))


def _unknowns(cell: Cell) -> Iterator[Cell]:
    """The nodes of the graph that an input is made of."""
    if cell.node is not None:
        yield cell
        return
    for parent in cell.inputs:
        yield from _unknowns(parent)


def _between(root: Cell, unknowns: set[Cell]) -> list[Cell] | None:
    """Cells from the unknowns to a root, in order; None where it depends on anything else."""
    seen, stack = {root}, [root]
    while stack:
        cell = stack.pop()
        if cell in unknowns:
            continue
        if (cell.op in LEAVES and cell.op != "constant") or len(seen) > MOST_CELLS:
            return None
        for parent in cell.inputs:
            if parent not in seen:
                seen.add(parent)
                stack.append(parent)
    return sorted(seen, key=lambda cell: cell.index)


def _outline(root: Cell, inputs: Sequence[Cell], unknowns: set[Cell]) -> Any:
    """How a root and inputs follow from unknowns, whichever these are: all that comparing looks at.

    Whether two terms are one does not hang on what the unknowns in them are called.
    """
    places, found = dict[Cell, int](), []
    for end in (root, *inputs):
        for cell in _between(end, unknowns) or ():
            if cell not in places:
                how: Any = cell.is_fixed
                if cell not in unknowns:
                    how = (
                        cell.op, tuple(sorted(cell.attrs.items())),
                        tuple([places[parent] for parent in cell.inputs]),
                    )  # fmt: skip
                places[cell] = len(places)
                found.append((cell.type, how))
    return tuple(found), tuple([places[cell] for cell in (root, *inputs)])


def _choices(form: Form, found: Bindings, inputs: Sequence[Cell]) -> Iterator[Attrs]:
    """The attributes that were read off, with every choice for the others."""
    types = [cell.type for cell in inputs]
    values: list[Sequence[Any]] = []
    for name, value in form.attrs.items():
        if not isinstance(value, Free):
            values.append([value])
        elif value.choices is not None:
            values.append([*value.choices(types)])
        elif name in found.attrs:
            values.append([_shortest(found.attrs[name], types[0].dtype)])
        else:
            return
    for chosen in itertools.product(*values):
        yield dict(zip(form.attrs, chosen, strict=True))


def _shortest(value: float, dtype: str) -> float:
    """The shortest decimal that is this number in the dtype."""
    return float(str(np.dtype("float32" if dtype == "bfloat16" else dtype).type(value)))
