"""Calls of PyTorch's own operators as plain data: what an opaque op computes.

    (("fft_rfft.default", (("input", 0), None, -1), ()),        name, arguments, those by name
     ("abs.default", (("result", 0, 0),), ()))

A value is None, an integer or a text as it stands, and otherwise a tuple that says what it is:

    ("bool", True)  ("float", 0.5)  ("complex", 0.5, 1.0)  ("list", …)  ("dtype", "complex64")
    ("memory_format", "contiguous_format")  ("layout",)  ("device",)  ("empty", "float32", 0, 3)
    ("input", i)    the i-th input       ("result", c, k)    the k-th result of the c-th call

So it can be hashed, compared and written to a file, and nothing that is read from a file does
more than call an operator that `refusal` has nothing against.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils import _pytree as pytree

from tgbench.base.errors import GraphError
from tgbench.base.safetensors import DTYPE_NAMES, TORCH_DTYPES
from tgbench.graph.op_table import TensorType

MOST_SCRIPTS = 10_000  # that a process knows to be allowed

Value: TypeAlias = Any  # as above
Calls: TypeAlias = "tuple[tuple[str, tuple[Value, ...], tuple[tuple[str, Value], ...]], ...]"
Results: TypeAlias = "tuple[tuple[int, int], ...]"  # (call, result) of each

_OPERATORS = "__(?:and|or|xor|lshift|rshift)__"  # as Python names them
_NAME = re.compile(rf"([A-Za-z]\w*|_[a-z]\w*|{_OPERATORS})\.([A-Za-z]\w*)", re.ASCII)
# What looks at, or hands out, memory beside the elements, or writes though it does not say so.
_UNSAFE = ("batch_norm", "empty", "instance_norm", "nested", "quantized", "resize", "sparse",
           "storage", "strid")  # fmt: skip
_MODES = ("train", "training")


# --- which operators ------------------------------------------------------------------------------


def refusal(op: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> str:
    """Why an operator may not stand in a graph with these arguments; "" if it may.

    It has to be one of ATen, take tensors and give tensors, write nothing, and give the same every
    time. Where shapes depend on values, `outline` has nothing to say and raises.
    """
    if not isinstance(op, OpOverload) or op.namespace != "aten":
        return "it is no operator of ATen: rewrite control flow and custom operators with torch's"
    schema, name = op._schema, op._schema.name.removeprefix("aten::")
    if torch.Tag.nondeterministic_seeded in op.tags and not _is_off(schema, args, kwargs or {}):
        return "it is random; call `module.eval()`, or draw outside and pass what was drawn"
    if torch.Tag.data_dependent_output in op.tags:
        return "it gives a number that Python decides by; use torch.where to choose values"
    if schema.is_mutable or not (_tensors(schema.arguments) and _only_tensors(schema.returns)):
        return "it writes into what it is given, or does not make tensors of tensors"
    if torch.Tag.pt2_compliant_tag not in op.tags or any(part in name for part in _UNSAFE):
        return "it depends on how tensors lie in memory, or keeps statistics: compute it outside"
    return ""


def _tensors(arguments: Sequence[Any]) -> bool:
    return any("Tensor" in str(argument.type) for argument in arguments)


def _only_tensors(returns: Sequence[Any]) -> bool:
    found = [str(one.type) for one in returns]
    return bool(found) and set(found) <= {"Tensor", "List[Tensor]"}


def _is_off(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator is told that nobody trains, so that it does not draw."""
    for i, argument in enumerate(schema.arguments):
        if argument.name in _MODES:
            given = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
            return given is False
    return False


def operator_of(name: str) -> OpOverload | None:
    """The operator `name.overload` of ATen; None where there is none."""
    match = _NAME.fullmatch(name)
    packet = getattr(torch.ops.aten, match[1], None) if match else None
    op = getattr(packet, match[2], None) if match and packet is not None else None
    return op if isinstance(op, OpOverload) else None


# --- values ---------------------------------------------------------------------------------------

Refer: TypeAlias = Callable[[Any], "Value | None"]
_KINDS: tuple[tuple[type, Callable[[Any], Value]], ...] = (
    (bool, lambda value: ("bool", value)),
    (int, lambda value: value),
    (str, lambda value: value),
    (float, lambda value: ("float", value)),
    (complex, lambda value: ("complex", value.real, value.imag)),
    (torch.dtype, lambda value: ("dtype", str(value).removeprefix("torch."))),
    (torch.memory_format, lambda value: ("memory_format", str(value).removeprefix("torch."))),
    (torch.layout, lambda value: ("layout",)),
    (torch.device, lambda value: ("device",)),
)


def told(value: Any, refer: Refer) -> Value:
    """An argument as data; `refer` names tensors, and gives None for anything else.

    Raises GraphError for what has no word.
    """
    if value is None:
        return None
    found = refer(value)
    if found is not None:
        return found
    if isinstance(value, (list, tuple)):
        return ("list", *(told(part, refer) for part in value))
    for kind, write in _KINDS:
        if isinstance(value, kind):
            return write(value)
    raise GraphError(
        f"an operator's argument is a {type(value).__name__}, which a graph cannot hold"
    )


@dataclass(frozen=True)
class _Frame:
    """What the values of a call are read with."""

    inputs: Sequence[Tensor]
    made: list[tuple[Tensor, ...]]

    def read(self, value: Value) -> Any:
        if not isinstance(value, tuple):
            return value
        kind, *rest = value
        return _READ[kind](self, *rest)

    def list(self, *values: Value) -> list[Any]:
        return [self.read(value) for value in values]

    def input(self, i: int) -> Tensor:
        return self.inputs[i]

    def result(self, call: int, k: int) -> Tensor:
        return self.made[call][k]

    def empty(self, dtype: str, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=_torch(torch.dtype, dtype), device=self.inputs[0].device)


def _torch(kind: type, name: str) -> Any:
    """A dtype or a memory format by its name, and nothing else of that name."""
    found = getattr(torch, name) if isinstance(name, str) and name.isidentifier() else None
    if not isinstance(found, kind):
        raise GraphError(f"{name!r} is no {kind.__name__} of PyTorch")
    return found


_READ: dict[str, Callable[..., Any]] = {
    "bool": lambda frame, value: bool(value),
    "float": lambda frame, value: float(value),
    "complex": lambda frame, real, imag: complex(real, imag),
    "dtype": lambda frame, name: _torch(torch.dtype, name),
    "memory_format": lambda frame, name: _torch(torch.memory_format, name),
    "layout": lambda frame: torch.strided,
    "device": lambda frame: frame.inputs[0].device,
    "list": _Frame.list,
    "input": _Frame.input,
    "result": _Frame.result,
    "empty": _Frame.empty,
}


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Script:
    """Calls that were checked, in order, and which of their results are wanted."""

    operators: tuple[OpOverload, ...]
    calls: Calls
    results: Results

    @staticmethod
    @lru_cache(MOST_SCRIPTS)
    def of(calls: Calls, results: Results) -> Script:
        """Raises GraphError for an operator that may not stand in a graph."""
        operators = [operator_of(name) for name, _, _ in calls]
        for (name, _, _), op in zip(calls, operators, strict=True):
            if op is None:
                raise GraphError(f"aten.{name} is no operator of PyTorch {torch.__version__}")
        return Script(tuple(op for op in operators if op is not None), calls, results)

    def run(self, *inputs: Tensor) -> list[Tensor]:
        """The wanted results; raises whatever PyTorch does."""
        made = self._made(inputs)
        return [made[call][k] for call, k in self.results]

    def _made(self, inputs: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        frame = _Frame(inputs, [])
        for op, (_, args, kwargs) in zip(self.operators, self.calls, strict=True):
            found = op(*map(frame.read, args), **{key: frame.read(value) for key, value in kwargs})
            frame.made.append(tuple(pytree.tree_leaves(found)))
        return frame.made

    def check(self) -> None:
        """Raise GraphError for the first call that `refusal` has something against."""
        nothing = _Frame((), [])
        for op, (name, args, kwargs) in zip(self.operators, self.calls, strict=True):
            flags = [_flag(nothing, value) for value in args]
            named = {key: _flag(nothing, value) for key, value in kwargs}
            reason = refusal(op, flags, named)
            if reason:
                raise GraphError(f"aten.{name} cannot stand in a graph: {reason}")


def _flag(frame: _Frame, value: Value) -> Any:
    is_flag = isinstance(value, tuple) and value[:1] == ("bool",)
    return frame.read(value) if is_flag else value


@dataclass(frozen=True, slots=True)
class Outline:
    """What a script gives, found without computing.

    Fields:
        types: of the results.
        size_bytes: of everything that its calls make on the way.
    """

    types: tuple[TensorType, ...]
    size_bytes: int


@lru_cache(MOST_SCRIPTS)
def outline(calls: Calls, results: Results, inputs: tuple[TensorType, ...]) -> Outline:
    """Shapes and dtypes, by PyTorch's own rules; raises GraphError for calls that cannot be."""
    script = Script.of(calls, results)
    script.check()
    try:
        with FakeTensorMode():
            made = script._made([
                torch.empty(type_.shape, dtype=TORCH_DTYPES[type_.dtype]) for type_ in inputs
            ])  # fmt: skip
            types = tuple(_type(made[call][k]) for call, k in results)
            tensors = [one for one in pytree.tree_leaves(made) if isinstance(one, Tensor)]
            size = sum(one.numel() * one.element_size() for one in tensors)
    except GraphError:
        raise
    except DataDependentOutputException as error:
        raise GraphError(
            f"{_listed(calls)} looks at values, by {error}, before it computes: compute it "
            "outside, or write it in ops that do not"
        ) from error
    except Exception as error:  # whatever an operator has against its arguments
        raise GraphError(f"{_listed(calls)} does not take these arguments: {error}") from error
    return Outline(types, int(size))


def _listed(calls: Calls) -> str:
    return ", ".join(f"aten.{name}" for name, _, _ in calls)


def _type(value: Tensor) -> TensorType:
    is_static = all(isinstance(size, int) for size in value.shape)
    if value.dtype not in DTYPE_NAMES or not is_static or value.layout is not torch.strided:
        raise GraphError(f"a result is {value.dtype}{list(value.shape)}, which graphs do not hold")
    return TensorType(tuple(value.shape), DTYPE_NAMES[value.dtype])
