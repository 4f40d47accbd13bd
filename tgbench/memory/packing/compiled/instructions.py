"""The instructions of one function, in LLVM's language, as they are put together."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from tgbench.memory.packing.compiled.kinds import (
    FLOAT,
    INT,
    TRUTH,
    UNSIGNED,
    Array,
    ArrayKind,
    KindError,
    Number,
    NumberKind,
    Operand,
)

BITS = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor"}
OPERATIONS: dict[NumberKind, dict[type[ast.operator], str]] = {
    TRUTH: {**BITS},
    INT: {
        **BITS, ast.LShift: "shl", ast.RShift: "ashr",
        ast.Add: "add nsw", ast.Sub: "sub nsw", ast.Mult: "mul nsw",
    },
    UNSIGNED: {
        **BITS, ast.LShift: "shl", ast.RShift: "lshr",
        ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Mod: "urem",
    },
    FLOAT: {ast.Add: "fadd", ast.Sub: "fsub", ast.Mult: "fmul", ast.Div: "fdiv"},
}  # fmt: skip
COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
CASTS = {
    (TRUTH, INT): "zext", (TRUTH, UNSIGNED): "zext", (TRUTH, FLOAT): "uitofp",
    (INT, FLOAT): "sitofp", (UNSIGNED, FLOAT): "uitofp",
    (FLOAT, INT): "fptosi", (FLOAT, UNSIGNED): "fptoui",
}  # fmt: skip
WIDENING = (TRUTH, INT, FLOAT)  # what holds all that is before it


class Instructions:
    """Lines in blocks; variables are slots on the stack, which LLVM turns into registers.

    Fields:
        lines: so far, without those that make the slots.
        slots: the variables, and the kind of each.
        block: the label of the present block.
        is_open: whether the present block goes on; what follows its end cannot be reached.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.slots: dict[str, NumberKind] = {}
        self.block, self.is_open = "entry", True
        self._count = 0
        self._reached: set[str] = set()

    # --- blocks ---

    def labels(self, *names: str) -> list[str]:
        self._count += 1
        return [f"{name}.{self._count}" for name in names]

    def begin(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block, self.is_open = label, True

    def begin_if_reached(self, label: str) -> bool:
        if label in self._reached:
            self.begin(label)
        return label in self._reached

    def end(self, code: str, *labels: str) -> None:
        """The block ends, and goes on at one of the labels; unless it ended before."""
        if self.is_open:
            self.lines.append(f"  {code}")
            self._reached.update(labels)
        self.is_open = False

    def jump(self, label: str) -> None:
        self.end(f"br label %{label}", label)

    def fork(self, truth: Number, then: str, other: str) -> None:
        self.end(f"br {truth.typed}, label %{then}, label %{other}", then, other)

    def joined(self, found: Sequence[tuple[Number, str]]) -> Number:
        """The value of the block that this one was reached from."""
        kinds = {value.kind for value, _ in found}
        if len(kinds) > 1:
            raise KindError(f"one of {sorted(kind.value for kind in kinds)}, none of which is kept")
        (kind,) = kinds
        pairs = ", ".join(f"[{value.text}, %{block}]" for value, block in found)
        return self.number(kind, f"phi {kind.llvm} {pairs}")

    # --- variables and arrays ---

    def register(self, code: str) -> str:
        self._count += 1
        self.lines.append(f"  %.{self._count} = {code}")
        return f"%.{self._count}"

    def number(self, kind: NumberKind, code: str) -> Number:
        return Number(kind, self.register(code))

    def read(self, name: str) -> Number:
        kind = self.slots[name]
        return self.number(kind, f"load {kind.llvm}, ptr %{name}.slot")

    def write(self, name: str, value: Number) -> None:
        kind = self.slots.setdefault(name, value.kind)
        self.lines.append(f"  store {self.fitted(value, kind).typed}, ptr %{name}.slot")

    def at(self, array: Array, places: Sequence[Number]) -> Array:
        """An element, as an array without axes; or a row."""
        if len(places) > array.kind.axes:
            raise KindError(f"{len(places)} indices into {array.kind.axes} axes")
        index = self.fitted(places[0], INT).text
        for axis in range(1, array.kind.axes):
            index = self.register(f"mul nsw i64 {index}, {array.lengths[axis]}")
            if axis < len(places):
                index = self.register(f"add nsw i64 {index}, {self.fitted(places[axis], INT).text}")
        code = f"getelementptr inbounds {array.kind.llvm}, ptr {array.first}, i64 {index}"
        left = ArrayKind(array.kind.dtype, array.kind.axes - len(places))
        return Array(left, self.register(code), array.lengths[len(places) :])

    def load(self, array: Array) -> Operand:
        """The number at an element; a row stays one."""
        if array.kind.axes:
            return array
        found = self.register(f"load {array.kind.llvm}, ptr {array.first}")
        if array.kind.dtype == "uint8":
            found = self.register(f"zext i8 {found} to i64")
        return Number(array.kind.element, found)

    def store(self, array: Array, value: Number) -> None:
        if array.kind.axes:
            raise KindError("a number where a row is")
        typed = self.fitted(value, array.kind.element).typed
        if array.kind.dtype == "uint8":
            typed = f"i8 {self.register(f'trunc {typed} to i8')}"
        self.lines.append(f"  store {typed}, ptr {array.first}")

    # --- numbers ---

    def operation(self, op: ast.operator, left: Number, right: Number) -> Number:
        left, right = self.alike(left, right)
        kind = FLOAT if isinstance(op, ast.Div) else left.kind
        if kind is TRUTH and type(op) not in BITS:
            kind = INT
        left, right = self.cast(left, kind), self.cast(right, kind)
        if kind is INT and isinstance(op, ast.Mod):
            return self._remainder(left, right)
        if type(op) not in OPERATIONS[kind]:
            raise KindError(f"{type(op).__name__} of {kind.value}")
        return self.number(kind, f"{OPERATIONS[kind][type(op)]} {left.typed}, {right.text}")

    def _remainder(self, left: Number, right: Number) -> Number:
        """With the sign of the divisor, as in Python."""
        rest = self.register(f"srem {left.typed}, {right.text}")
        moved = self.register(f"add nsw i64 {rest}, {right.text}")
        return self.number(INT, f"srem i64 {moved}, {right.text}")

    def compared(self, comparison: str, left: Number, right: Number) -> Number:
        left, right = self.alike(left, right)
        if left.kind is FLOAT:
            code = f"fcmp {'u' if comparison == 'ne' else 'o'}{comparison}"
        elif comparison in ("eq", "ne"):
            code = f"icmp {comparison}"
        else:
            code = f"icmp {'s' if left.kind is INT else 'u'}{comparison}"
        return self.number(TRUTH, f"{code} {left.typed}, {right.text}")

    def extreme(self, comparison: str, left: Number, right: Number) -> Number:
        """The right one if it compares so with the left one, else the left one."""
        left, right = self.alike(left, right)
        wins = self.compared(comparison, right, left)
        return self.number(left.kind, f"select {wins.typed}, {right.typed}, {left.typed}")

    def negative(self, value: Number) -> Number:
        if value.kind is FLOAT:
            return self.number(FLOAT, f"fneg {value.typed}")
        return self.number(INT, f"sub nsw i64 0, {self.fitted(value, INT).text}")

    # --- kinds ---

    def alike(self, left: Number, right: Number) -> tuple[Number, Number]:
        """Both of the kind that holds both."""
        kind = _wider(left.kind, right.kind)
        return self.cast(left, kind), self.cast(right, kind)

    def fitted(self, value: Number, kind: NumberKind) -> Number:
        """As a number of a kind that holds it."""
        if _wider(value.kind, kind) is not kind:
            raise KindError(f"{value.kind.value} where {kind.value} is kept")
        return self.cast(value, kind)

    def cast(self, value: Number, kind: NumberKind) -> Number:
        if value.kind is kind:
            return value
        if value.kind.llvm == kind.llvm:
            return Number(kind, value.text)
        if kind is TRUTH:
            code = "fcmp une double {}, 0.0" if value.kind is FLOAT else "icmp ne i64 {}, 0"
            return self.number(TRUTH, code.format(value.text))
        return self.number(kind, f"{CASTS[value.kind, kind]} {value.typed} to {kind.llvm}")


def _wider(a: NumberKind, b: NumberKind) -> NumberKind:
    if a is b:
        return a
    if UNSIGNED in (a, b):
        raise KindError(f"{a.value} together with {b.value}")
    return max(a, b, key=WIDENING.index)
