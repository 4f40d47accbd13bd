"""What the language of loops computes with: kinds of numbers and arrays, and their operands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias


class KindError(Exception):
    """Something is not in the language."""


class NumberKind(Enum):
    """The kinds of numbers, by their names in NumPy."""

    TRUTH = "bool"
    INT = "int64"
    UNSIGNED = "uint64"
    FLOAT = "float64"

    @property
    def llvm(self) -> str:
        return {"float64": "double", "bool": "i1"}.get(self.value, "i64")


TRUTH, INT, UNSIGNED, FLOAT = NumberKind
READ_AS = {"int64": INT, "uint64": UNSIGNED, "float64": FLOAT, "uint8": INT}  # elements, by dtype


@dataclass(frozen=True, slots=True)
class ArrayKind:
    """Arrays of a dtype, with so many axes."""

    dtype: str
    axes: int

    @property
    def element(self) -> NumberKind:
        return READ_AS[self.dtype]

    @property
    def llvm(self) -> str:
        """The type of an element where it is kept."""
        return "i8" if self.dtype == "uint8" else self.element.llvm


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a register, or a literal."""

    kind: NumberKind
    text: str

    @property
    def typed(self) -> str:
        return f"{self.kind.llvm} {self.text}"


@dataclass(frozen=True, slots=True)
class Array:
    """Registers: the address of the first element, and the length of each axis."""

    kind: ArrayKind
    first: str
    lengths: tuple[str, ...]

    @property
    def typed(self) -> str:
        return ", ".join([f"ptr {self.first}", *(f"i64 {length}" for length in self.lengths)])


Kind: TypeAlias = NumberKind | ArrayKind
Operand: TypeAlias = Number | Array
Results: TypeAlias = tuple[NumberKind, ...]
