"""One form for the many ways of writing the same arithmetic.

    term   = atom | number | sum
    sum    = number + Σ number · product        x − y   is   0 + 1·x + (−1)·y
    product = Π atom^number                     x / √y  is   x^1 · y^-½
    atom   = anything else: a leaf, a product of matrices, exp of a term, …

Equal terms are one object, so two expressions that are brought to the same term have the same value
up to rounding. Numbers are equal when they differ by no more than a few roundings of their dtype.

Two grades. *Exact* terms also merge views and multiply sums out by numbers: they decide whether two
expressions are equal. *Plain* ones leave boundaries where the graph has them, so that inputs and
attributes can be read off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from tgbench.base.errors import GraphError
from tgbench.graph.op_table import FLOATS, Dim, TensorType
from tgbench.graph.ops.broadcasting import broadcast_shape
from tgbench.graph.recognise.atomic import Cell

Shape: TypeAlias = "tuple[Dim, ...]"
# Bits of a number that count, a few less than its dtype has.
BITS = {"float64": 48, "float32": 20, "float16": 8, "bfloat16": 5}
# What a term is besides an atom; the brackets keep these apart from the names of ops.
SUM, PRODUCT, NUMBER, FULL, TOTAL = "<sum>", "<product>", "<number>", "<full>", "<total>"
BOUNDARY, UNKNOWN, WEIGHT = "<boundary>", "<unknown>", "<weight>"
CHANGING = ("input", "state", BOUNDARY, UNKNOWN)
COMMUTATIVE = frozenset(
    ("maximum", "minimum", "equal", "not_equal", "logical_and", "logical_or", "logical_xor",
     "add", "mul")
)  # fmt: skip
ELEMENTWISE = COMMUTATIVE | frozenset(
    ("sub", "div", "pow", "less", "less_equal", "where", "neg", "sqrt", "rsqrt", "reciprocal",
     "exp", "log", "tanh", "erf", "sigmoid", "greater", "greater_equal")
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Term:
    """A node of the one form; equal terms are one object.

    Fields:
        op: `SUM`, `PRODUCT`, `NUMBER`, a leaf, or the op of an atom.
        numbers: of a sum the constant and the factors of its products; of a product its exponents;
            of a number the number.
        is_fixed: nothing in it changes from run to run.
    """

    index: int
    op: str
    args: tuple[Term, ...]
    numbers: tuple[float, ...]
    attrs: Any
    type: TensorType
    is_fixed: bool

    def __repr__(self) -> str:
        inner = [*map(repr, self.args), *(f"{number:g}" for number in self.numbers)]
        return f"{self.op}({', '.join(inner)})"


# Atoms with their kind of exponent, and the exponents. Only exponents of one kind are added: √x·√x
# is not x below 0, and x / x is not 1 at 0.
Factors: TypeAlias = "Mapping[tuple[Term, float], float]"


@dataclass
class Terms:
    """The terms made so far."""

    is_exact: bool
    _interned: dict[Any, Term] = field(default_factory=dict)
    _numbers: dict[Any, float] = field(default_factory=dict)
    _alone: dict[Term, Term] = field(default_factory=dict)  # atoms as products

    # --- making -----------------------------------------------------------------------------------

    def make(
        self,
        op: str,
        args: Iterable[Term],
        type_: TensorType,
        attrs: Any = (),
        numbers: Iterable[float] = (),
    ) -> Term:
        args = tuple(args)
        kept = tuple(self._rounded(number, type_.dtype) for number in numbers)
        key = (op, tuple(term.index for term in args), kept, attrs, type_)
        found = self._interned.get(key)
        if found is None:
            is_fixed = op not in CHANGING and all(term.is_fixed for term in args)
            found = Term(len(self._interned), op, args, kept, attrs, type_, is_fixed)
            self._interned[key] = found
        return found

    def _rounded(self, value: float, dtype: str) -> float:
        """The first number seen that is equal up to rounding."""
        bits = BITS.get(dtype)
        if bits is None or value == 0 or not math.isfinite(value):
            return float(value)
        mantissa, exponent = math.frexp(value)
        place = round(mantissa * 2**bits)
        for near in (place, place - 1, place + 1):
            found = self._numbers.get((near, exponent, bits))
            if found is not None:
                return found
        self._numbers[place, exponent, bits] = value
        return value

    def number(self, value: float, dtype: str) -> Term:
        return self.make(NUMBER, (), TensorType((), dtype), (), (value,))

    def product(self, factors: Factors, dtype: str) -> Term:
        """Π atom^exponent."""
        ordered = sorted(factors.items(), key=lambda item: (item[0][0].index, item[0][1]))
        atoms = [atom for (atom, _), _ in ordered]
        kinds = tuple(kind for (_, kind), _ in ordered)
        type_ = TensorType(broadcast_shape([atom.type.shape for atom in atoms]), dtype)
        return self.make(PRODUCT, atoms, type_, kinds, (exponent for _, exponent in ordered))

    def sum(self, constant: float, parts: Mapping[Term, float], type_: TensorType) -> Term:
        """constant + Σ number · product, as an atom or a number where it is nothing more."""
        if not parts:
            return self.number(constant, type_.dtype)
        ordered = sorted(parts.items(), key=lambda item: item[0].index)
        if constant == 0 and len(ordered) == 1:
            product, factor = ordered[0]
            if factor == 1 and product.numbers == (1.0,) and product.args[0].type == type_:
                return product.args[0]
        numbers = (constant, *(factor for _, factor in ordered))
        return self.make(SUM, (product for product, _ in ordered), type_, (), numbers)

    # --- arithmetic -------------------------------------------------------------------------------

    def parts(self, term: Term) -> tuple[float, dict[Term, float]]:
        """Any term as a sum: its constant, and its products with the numbers before them."""
        if term.op == NUMBER:
            return term.numbers[0], {}
        if term.op == SUM:
            return term.numbers[0], dict(zip(term.args, term.numbers[1:], strict=True))
        if term not in self._alone:
            self._alone[term] = self.product({(term, 1.0): 1.0}, term.type.dtype)
        return 0.0, {self._alone[term]: 1.0}

    def add(self, a: Term, b: Term, type_: TensorType, sign: float = 1.0) -> Term:
        constant, parts = self.parts(a)
        more, others = self.parts(self.scaled(b, sign))
        for product, factor in others.items():
            parts[product] = parts.get(product, 0.0) + factor
        return self.sum(constant + more, parts, type_)

    def scaled(self, term: Term, by: float) -> Term:
        """A term times a number; plain sums stay whole behind it."""
        if by == 1:
            return term
        constant, parts = self.parts(term)
        if not self.is_exact and len(parts) + bool(constant) > 1:
            constant, parts = 0.0, {self.product({(term, 1.0): 1.0}, term.type.dtype): 1.0}
        many = {product: factor * by for product, factor in parts.items()}
        return self.sum(constant * by, many, term.type)

    def mul(self, a: Term, b: Term, type_: TensorType) -> Term:
        if a.op == NUMBER:
            a, b = b, a
        if b.op == NUMBER:
            return self._typed(self.scaled(a, b.numbers[0]), type_)
        expanded = self._multiplied_out(a, b, type_) if self.is_exact else None
        if expanded is not None:
            return expanded
        first, left = self._single(a)
        second, right = self._single(b)
        factors = dict(left)
        for key, more in right.items():
            factors[key] = factors.get(key, 0.0) + more
        return self.sum(0.0, {self.product(factors, type_.dtype): first * second}, type_)

    def _typed(self, term: Term, type_: TensorType) -> Term:
        """The term with the shape that broadcasting gave it."""
        if term.type == type_ or term.op == NUMBER:
            return term
        constant, parts = self.parts(term)
        return self.sum(constant, parts, type_)

    def _single(self, term: Term) -> tuple[float, Factors]:
        """A term as one product: a number, and atoms with exponents. A sum is an atom of it."""
        constant, parts = self.parts(term)
        if constant == 0 and len(parts) == 1:
            ((product, factor),) = parts.items()
            return factor, factors_of(product)
        content = 1.0
        if self.is_exact:
            content = constant or next(iter(parts.values()))
            content = content if content and math.isfinite(content) else 1.0
        return content, {(self.scaled(term, 1 / content), 1.0): 1.0}

    def _multiplied_out(self, a: Term, b: Term, type_: TensorType) -> Term | None:
        """x · (1 + x²) as x + x³: a polynomial of one atom has one way to be written."""
        bases = {
            atom for term in (a, b) for product in self.parts(term)[1] for atom in product.args
        }
        sizes = [len(self.parts(term)[1]) + bool(self.parts(term)[0]) for term in (a, b)]
        if len(bases) != 1 or max(sizes) < 2 or not _is_polynomial(self, a, b):
            return None
        (base,) = bases
        by_power: dict[float, float] = {}
        for i, x in self._powers(a).items():
            for j, y in self._powers(b).items():
                by_power[i + j] = by_power.get(i + j, 0.0) + x * y
        constant = by_power.pop(0.0, 0.0)
        parts = {
            self.product({(base, 1.0): power}, type_.dtype): factor
            for power, factor in by_power.items()
        }
        return self.sum(constant, parts, type_)

    def _powers(self, term: Term) -> dict[float, float]:
        constant, parts = self.parts(term)
        powers = {product.numbers[0]: factor for product, factor in parts.items()}
        return powers | ({0.0: constant} if constant else {})

    def power(self, term: Term, exponent: float, type_: TensorType) -> Term:
        if term.op == NUMBER:
            with np.errstate(all="ignore"):
                return self.number(float(np.power(term.numbers[0], exponent)), type_.dtype)
        if exponent == -1 and (turned := self._sigmoid(term)) is not None:
            return turned
        factor, factors = self._raisable(term, exponent)
        raised: dict[tuple[Term, float], float] = {}
        for (atom, kind), old in factors.items():
            is_pure = kind in (old, 1.0, -1.0)
            raised[atom, kind_of(old * exponent) if is_pure else kind] = old * exponent
        if len(raised) < len(factors):  # a power of x · x⁻¹
            factor, raised = 1.0, {(term, kind_of(exponent)): exponent}
        return self.sum(0.0, {self.product(raised, type_.dtype): factor**exponent}, type_)

    def _raisable(self, term: Term, exponent: float) -> tuple[float, Factors]:
        """A number and factors, each of which may be raised by itself: √(x²) is not x."""
        whole: Factors = {(term, 1.0): 1.0}
        constant, parts = self.parts(term)
        if constant or len(parts) != 1:
            return 1.0, whole
        ((product, factor),) = parts.items()
        factors = factors_of(product)
        if float(exponent).is_integer():
            return (factor, factors) if factor else (1.0, whole)
        return (factor, factors) if factor > 0 and [*factors.values()] == [1.0] else (1.0, whole)

    def _sigmoid(self, term: Term) -> Term | None:
        """1 / (1 + exp(−x))."""
        constant, parts = self.parts(term)
        if constant != 1 or [*parts.values()] != [1.0]:
            return None
        (product,) = parts
        if product.numbers != (1.0,) or product.args[0].op != "exp":
            return None
        inner = self.scaled(product.args[0].args[0], -1.0)
        return self.make("sigmoid", (inner,), term.type)


def kind_of(exponent: float) -> float:
    """1 or −1 for whole exponents, others are of their own kind."""
    return math.copysign(1.0, exponent) if float(exponent).is_integer() else exponent


def factors_of(product: Term) -> Factors:
    return dict(zip(zip(product.args, product.attrs, strict=True), product.numbers, strict=True))


def _is_polynomial(terms: Terms, *given: Term) -> bool:
    """Whether every product is a positive whole power of one atom."""
    return all(product.attrs == (1.0,) for term in given for product in terms.parts(term)[1])


# --- from cells to terms --------------------------------------------------------------------------

Rule: TypeAlias = "Callable[[Terms, Cell, list[Term]], Term]"


def term_of(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    """The term of a cell whose inputs are these terms."""
    if not cell.inputs and cell.op != "constant":
        return terms.make(cell.op, (), cell.type, tuple(sorted(cell.attrs.items())))
    if cell.op in ELEMENTWISE:
        args = _narrowed(terms, cell, args)
    else:
        args = [_of_shape(terms, arg, one) for arg, one in zip(args, cell.inputs, strict=True)]
    rule = _RULES.get(cell.op, _atom)
    needs_float = cell.op in _ARITHMETIC
    return _atom(terms, cell, args) if needs_float and not _is_float(cell) else rule(
        terms, cell, args
    )  # fmt: skip


def _is_float(cell: Cell) -> bool:
    return cell.type.dtype in FLOATS


def _atom(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    if cell.op in COMMUTATIVE:
        args = sorted(args, key=lambda term: term.index)
    return terms.make(cell.op, args, cell.type, tuple(sorted(cell.attrs.items())))


def _of_shape(terms: Terms, arg: Term, cell: Cell) -> Term:
    """A number as a tensor, for ops that do not broadcast."""
    if arg.op != NUMBER:
        return arg
    return terms.make(FULL, (), cell.type, (), arg.numbers)


def _narrowed(terms: Terms, cell: Cell, args: list[Term]) -> list[Term]:
    """Operands without what broadcasting does by itself: leading ones, expands, full constants."""
    args = list(args)
    for i, arg in enumerate(args):
        others = [one for j, one in enumerate(args) if j != i]
        is_weight = arg.is_fixed and not all(one.is_fixed for one in others)
        inner = _inner_of_broadcast(terms, arg, is_weight)
        while inner is not None:
            shapes = [inner.type.shape, *(a.type.shape for j, a in enumerate(args) if j != i)]
            if _broadcast(shapes) != cell.type.shape:
                break
            args[i] = inner
            inner = _inner_of_broadcast(terms, inner, is_weight)
    return args


def _broadcast(shapes: list[Shape]) -> Shape | None:
    try:
        return broadcast_shape(shapes)
    except GraphError:
        return None


def _inner_of_broadcast(terms: Terms, term: Term, is_weight: bool) -> Term | None:
    if term.op == FULL:
        return terms.number(term.numbers[0], term.type.dtype)
    if term.op == "expand":
        return term.args[0]
    if term.type.shape[:1] != (1,):
        return None
    if term.op == "reshape" or (is_weight and terms.is_exact):
        return _viewed(terms, "reshape", term, TensorType(term.type.shape[1:], term.type.dtype))
    return None


def _constant(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    array = cell.attrs["data"].array
    first = array.flat[0]
    if not _is_float(cell) or first != first or not (array.flat[:16] == first).all():
        return _atom(terms, cell, args)
    if not first and np.signbit(array).any():  # not every op takes -0.0 for 0
        return _atom(terms, cell, args)
    if array.size == 1:
        return terms.number(float(first), cell.type.dtype)
    if (array == first).all():
        return terms.make(FULL, (), cell.type, (), (float(first),))
    return _atom(terms, cell, args)


def _mean(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    sizes = [cell.inputs[0].type.shape[axis] for axis in cell.attrs["axes"]]
    if not all(isinstance(size, int) for size in sizes):
        return _atom(terms, cell, args)
    return _total(terms, cell, args, 1 / math.prod(sizes))


def _total(terms: Terms, cell: Cell, args: list[Term], by: float = 1.0) -> Term:
    """A sum over axes, times a number; always with keepdims, and a view where it has none."""
    inner, factor = _without_number(terms, args[0])
    total = terms.make(TOTAL, (inner,), _with_kept(cell), cell.attrs["axes"])
    return _viewed(terms, "reshape", terms.scaled(total, factor * by), cell.type)


def _with_kept(cell: Cell) -> TensorType:
    """What a reduction gives with keepdims."""
    axes, shape = cell.attrs["axes"], cell.inputs[0].type.shape
    kept = tuple(1 if i in axes else size for i, size in enumerate(shape))
    return TensorType(kept, cell.type.dtype)


def _without_number(terms: Terms, term: Term) -> tuple[Term, float]:
    """A term that is a number times another, in two."""
    constant, parts = terms.parts(term)
    if term.op == NUMBER or constant or len(parts) != 1:
        return term, 1.0
    ((product, factor),) = parts.items()
    return (terms.sum(0.0, {product: 1.0}, term.type), factor) if factor else (term, 1.0)


def _reduced(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    """max, min and prod, always with keepdims."""
    found = terms.make(cell.op, args, _with_kept(cell), cell.attrs["axes"])
    return _viewed(terms, "reshape", found, cell.type)


def _viewed(terms: Terms, op: str, term: Term, type_: TensorType) -> Term:
    """A reshape or expand; merged with one below where terms are exact, or where it undoes that."""
    inner, factor = _without_number(terms, term)
    is_undone = op == "reshape" and inner.op == op and inner.args[0].type == type_
    if is_undone or (terms.is_exact and inner.op == op):
        inner = inner.args[0]
    view = inner if inner.type == type_ else terms.make(op, (inner,), type_)
    return terms.scaled(view, factor)


def _permuted(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    axes = cell.attrs["axes"]
    inner, factor = _without_number(terms, args[0])
    if terms.is_exact and inner.op == "permute":
        axes = tuple(inner.attrs[axis] for axis in axes)
        inner = inner.args[0]
    if axes != tuple(range(len(axes))):
        inner = terms.make("permute", (inner,), cell.type, axes)
    return terms.scaled(inner, factor)


def _pow(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    base, exponent = args
    if exponent.op != NUMBER:
        return _atom(terms, cell, args)
    return terms.power(base, exponent.numbers[0], cell.type)


def _powered(exponent: float) -> Rule:
    return lambda terms, cell, args: terms.power(args[0], exponent, cell.type)


def _div(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    return terms.mul(args[0], terms.power(args[1], -1.0, args[1].type), cell.type)


def _chosen(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    """where, a number that it may give in the last place."""
    condition, a, b = args
    if a.op == NUMBER and b.op != NUMBER:
        condition = terms.make("logical_not", (condition,), condition.type)
        if condition.args[0].op == "logical_not":
            condition = condition.args[0].args[0]
        a, b = b, a
    return terms.make("where", (condition, a, b), cell.type)


def _swapped(op: str) -> Rule:
    return lambda terms, cell, args: terms.make(op, args[::-1], cell.type)


def _clamped(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    """max(min(x, high), low) as min(max(x, low), high)."""
    numbers = [arg for arg in args if arg.op == NUMBER]
    others = [arg for arg in args if arg.op != NUMBER]
    if len(numbers) != 1 or others[0].op != "minimum":
        return _atom(terms, cell, args)
    low, inner = numbers[0], others[0].args
    high = [arg for arg in inner if arg.op == NUMBER]
    if len(high) != 1 or not low.numbers[0] <= high[0].numbers[0]:
        return _atom(terms, cell, args)
    x = next(arg for arg in inner if arg.op != NUMBER)
    raised = terms.make("maximum", sorted((x, low), key=lambda t: t.index), cell.type)
    return terms.make("minimum", sorted((raised, high[0]), key=lambda t: t.index), cell.type)


def _cast(terms: Terms, cell: Cell, args: list[Term]) -> Term:
    """A number keeps its value, but for rounding."""
    if args[0].op == FULL and _is_float(cell):
        return terms.make(FULL, (), cell.type, (), args[0].numbers)
    return args[0] if args[0].type == cell.type else _atom(terms, cell, args)


_ARITHMETIC = frozenset(
    ("add", "sub", "mul", "div", "neg", "pow", "sqrt", "rsqrt", "reciprocal", "sum", "mean")
)
_RULES: dict[str, Rule] = {
    "constant": _constant,
    "add": lambda terms, cell, args: terms.add(args[0], args[1], cell.type),
    "sub": lambda terms, cell, args: terms.add(args[0], args[1], cell.type, -1.0),
    "mul": lambda terms, cell, args: terms.mul(args[0], args[1], cell.type),
    "div": _div,
    "neg": lambda terms, cell, args: terms.scaled(args[0], -1.0),
    "pow": _pow,
    "sqrt": _powered(0.5),
    "rsqrt": _powered(-0.5),
    "reciprocal": _powered(-1.0),
    "sum": _total,
    "mean": _mean,
    "max": _reduced,
    "min": _reduced,
    "prod": _reduced,
    "reshape": lambda terms, cell, args: _viewed(terms, "reshape", args[0], cell.type),
    "expand": lambda terms, cell, args: _viewed(terms, "expand", args[0], cell.type),
    "permute": _permuted,
    "where": _chosen,
    "greater": _swapped("less"),
    "greater_equal": _swapped("less_equal"),
    "maximum": _clamped,
    "cast": _cast,
}
