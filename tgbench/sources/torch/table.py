"""The importer's table: one entry per PyTorch op, from its arguments to nodes.

    @lowers("aten.addcmul.default")
    def _addcmul(site, x, a, b, *, value=1):
        return x + a * b * value

An entry takes a `CallSite` and the op's arguments in the order of its schema (tensors as nodes, the
rest as Python values) and gives a node, or a tuple of nodes for an op with several results. What it
gives is compared with the shape and dtype that PyTorch says, so a slip is an error at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import torch

from tgbench.base.errors import ImporterError
from tgbench.base.safetensors import DTYPE_NAMES, TORCH_DTYPES
from tgbench.graph.graph import GraphBuilder, Node, Scalar
from tgbench.graph.op_table import TensorType

Value: TypeAlias = Any  # a node, a number, or None
Rule: TypeAlias = Callable[..., Any]
Entry = TypeVar("Entry", bound=Rule)

RULES: dict[str, Rule] = {}


class UnsupportedCallError(ImporterError):
    """An entry does not take these arguments; says which, and the mend."""


@dataclass(frozen=True)
class CallSite:
    """One place where an op stands.

    Fields:
        outs: types of the results, as PyTorch says; None for one that is no tensor.
        used: which results are read.
    """

    builder: GraphBuilder
    outs: tuple[TensorType | None, ...]
    used: frozenset[int]

    @property
    def out(self) -> TensorType:
        """The type of the only, or the first, result."""
        first = self.outs[0]
        assert first is not None
        return first

    @property
    def shape(self) -> tuple[int, ...]:
        return self.out.shape

    @property
    def dtype(self) -> str:
        return self.out.dtype

    def node(self, value: Node | Scalar, dtype: str) -> Node:
        """An operand in a dtype: a node is cast, a number becomes a constant."""
        if isinstance(value, Node):
            return value.cast(dtype)
        is_float = dtype in ("float64", "float32", "float16", "bfloat16")
        plain = float(value) if is_float else bool(value) if dtype == "bool" else int(value)
        return self.builder.scalar(plain, dtype)

    def full(self, shape: tuple[int, ...], value: Scalar, dtype: str) -> Node:
        """A constant of one value."""
        return self.builder.constant(
            torch.full(shape, value, dtype=TORCH_DTYPES[dtype]).numpy()
            if dtype != "bfloat16"
            else torch.full(shape, value, dtype=torch.float32).numpy()
        ).cast(dtype)


def lowers(*names: str) -> Callable[[Entry], Entry]:
    """Enter a rule for these ops, named as `torch.export` prints them."""

    def enter(rule: Entry) -> Entry:
        for name in names:
            assert name not in RULES, f"{name} has an entry already"
            RULES[name] = rule
        return rule

    return enter


def refuse(condition: bool, message: str) -> None:
    """Raise `UnsupportedCallError` where a condition holds."""
    if condition:
        raise UnsupportedCallError(message)


def promoted(*values: Node | Scalar) -> str:
    """The dtype in which PyTorch computes an element-wise op of these.

    Dimensioned tensors decide before 0-dimensional ones, and those before Python numbers
    (pytorch.org/docs, "Tensor Attributes", type promotion).
    """
    like = [
        torch.empty((1,) * min(value.rank, 1), dtype=TORCH_DTYPES[value.dtype], device="meta")
        if isinstance(value, Node)
        else value
        for value in values
    ]
    found: Any = like[0]
    for other in like[1:]:
        found = torch.empty(
            (1,) * max(_rank(found), _rank(other)),
            dtype=torch.result_type(found, other),
            device="meta",
        )
    dtype = found.dtype if isinstance(found, torch.Tensor) else torch.result_type(found, found)
    return DTYPE_NAMES[dtype]


def _rank(value: Any) -> int:
    return value.dim() if isinstance(value, torch.Tensor) else 0


def pair(value: Any, rank: int) -> tuple[int, ...]:
    """One number per dimension, where PyTorch allows a single one for all."""
    numbers = [int(v) for v in value] if isinstance(value, (list, tuple)) else [int(value)]
    return tuple(numbers * rank if len(numbers) == 1 else numbers)
