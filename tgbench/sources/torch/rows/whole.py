"""What has no entry, as opaque ops: PyTorch computes it whole.

    x ─→ fft_rfft ─→ mul ─→ irfft ─→ y       between them values are complex, and no node holds such
         └──── one opaque op ────┘

A call whose result graphs cannot hold is *foreign*. It is told together with what reads it, up to
the first results that graphs can hold, its *ends*. Ends of one region whose other operands are
there already become one op, so that nothing foreign is computed twice for them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx

from tgbench.base.safetensors import DTYPE_NAMES
from tgbench.graph.graph import Node
from tgbench.graph.ops.opaque.aten import Value, refusal, told
from tgbench.graph.ops.opaque.op import opaque
from tgbench.sources.torch.program import TorchProgram
from tgbench.sources.torch.table import refuse

End: TypeAlias = "tuple[fx.Node, int]"  # a call, and which of its results


@dataclass(frozen=True)
class ComplexNode:
    """A complex tensor as a node with real and imaginary parts along its last dimension."""

    node: Node


class Foreign:
    """Stands for the value of a foreign call."""


FOREIGN = Foreign()


def foreign_calls(program: TorchProgram) -> frozenset[fx.Node]:
    """The calls, and picks of their results, whose values graphs cannot hold.

    Of several results that come from something foreign each is picked by itself.
    """
    varying, found = program.varying(), set[fx.Node]()
    for node in program.alive():
        several = not isinstance(node.meta["val"], torch.Tensor)
        reads_foreign = any(one in found for one in node.all_input_nodes)
        if node in varying and (_is_foreign(node) or (several and reads_foreign)):
            found.add(node)
    return frozenset(found)


def _is_foreign(node: fx.Node) -> bool:
    value = node.meta["val"]
    if isinstance(value, torch.Tensor):
        return value.dtype not in DTYPE_NAMES
    picks = [user for user in node.users if is_pick(user) and user.users]
    return any(map(_is_foreign, picks))


def is_pick(node: fx.Node) -> bool:
    return node.target is operator.getitem


def call_of(node: fx.Node) -> End:
    """The call behind a value, and which of its results it is."""
    if not is_pick(node):
        return node, 0
    source, index = node.args
    assert isinstance(source, fx.Node)
    assert isinstance(index, int)
    return source, index


@dataclass(frozen=True)
class Regions:
    """Foreign calls, and what is computed together with them.

    Fields:
        order: the place of every call that an output or a state needs.
    """

    foreign: frozenset[fx.Node]
    order: Mapping[fx.Node, int]

    @staticmethod
    def of(program: TorchProgram) -> Regions:
        order = {node: i for i, node in enumerate(program.alive())}
        return Regions(foreign_calls(program), order)

    def cone(self, node: fx.Node) -> list[fx.Node]:
        """The foreign values that a value is made of, and itself, in order."""
        seen, stack = {node}, [node]
        while stack:
            found = stack.pop().all_input_nodes
            fresh = [one for one in found if one in self.foreign and one not in seen]
            seen.update(fresh)
            stack += fresh
        return sorted(seen, key=self.order.__getitem__)

    def operands(self, cone: Iterable[fx.Node]) -> set[fx.Node]:
        """What a cone reads that is not foreign."""
        read = {one for node in cone for one in node.all_input_nodes}
        return {one for one in read if one not in self.foreign}

    def ends(self, node: fx.Node, is_there: Callable[[fx.Node], bool]) -> list[fx.Node]:
        """An end, and every other one of its region whose operands are there."""
        found = [
            one
            for one in self._around(node)
            if one is node or all(map(is_there, self.operands(self.cone(one))))
        ]
        return sorted(found, key=self.order.__getitem__)

    def _around(self, node: fx.Node) -> set[fx.Node]:
        """All ends of the foreign values that hang together with those of an end."""
        stack = [one for one in self.cone(node) if one in self.foreign]
        seen, ends = set(stack), {node}
        while stack:
            one = stack.pop()
            users = {user for user in one.users if user in self.order and user.op != "output"}
            ends |= {
                user for user in users if user not in self.foreign and (user.users or user is node)
            }
            near = {*users, *one.all_input_nodes} & self.foreign - seen
            seen |= near
            stack += near
        return ends


@dataclass
class CallWriter:
    """Calls of a program, told as data, one after the other.

    Fields:
        values: of everything that the calls read and that is not foreign.
        as_node: a tensor or node as a node.
    """

    regions: Regions
    values: Mapping[fx.Node, Any]
    as_node: Callable[[Any], Node]
    inputs: list[Node] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    _places: dict[fx.Node, int] = field(default_factory=dict)

    def write(self, end: fx.Node) -> None:
        """A call, and before it those that it needs; picks of results are no calls."""
        for node in self.regions.cone(call_of(end)[0]):
            if node not in self._places and not is_pick(node):
                reason = refusal(node.target, node.args, node.kwargs)
                refuse(bool(reason), f"{node.target} cannot be computed whole: {reason}")
                self._places[node] = self._call(node.target, node.args, node.kwargs)

    def result(self, end: End) -> tuple[int, int]:
        return self._places[end[0]], end[1]

    def _call(self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        arguments = tuple(told(value, self._referred) for value in args)
        named = tuple((key, told(value, self._referred)) for key, value in kwargs.items())
        self.calls.append((str(target).removeprefix("aten."), arguments, named))
        return len(self.calls) - 1

    def _referred(self, value: Any) -> Value | None:
        """How an operand is read: a result of a call before, an input, or a value by itself."""
        if not isinstance(value, fx.Node):
            return None
        call, k = call_of(value)
        if call in self._places:
            return ("result", self._places[call], k)
        found = self.values[value]
        if isinstance(found, (Node, torch.Tensor, ComplexNode)):
            return self._given(found)
        return told(found, self._referred)

    def _given(self, value: Node | torch.Tensor | ComplexNode) -> Value:
        if isinstance(value, Node):
            return self._input(value)
        if isinstance(value, ComplexNode):
            return self._joined(value.node)
        if value.is_complex():
            return self._joined(self.as_node(torch.view_as_real(value.resolve_conj())))
        if not value.numel():
            return ("empty", DTYPE_NAMES[value.dtype], *value.shape)
        return self._input(self.as_node(value))

    def _input(self, node: Node) -> Value:
        if node not in self.inputs:
            self.inputs.append(node)
        return ("input", self.inputs.index(node))

    def _joined(self, node: Node) -> Value:
        self.calls.append(("view_as_complex.default", (self._input(node),), ()))
        return ("result", len(self.calls) - 1, 0)


def computed_whole(writer: CallWriter, ends: Sequence[End]) -> list[Node]:
    """A node for each of these results."""
    for call, _ in ends:
        writer.write(call)
    results = tuple(map(writer.result, ends))
    return list(opaque(writer.inputs, tuple(writer.calls), results))
