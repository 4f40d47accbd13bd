"""From a program to a graph, call by call; what depends on no input is computed by PyTorch.

call of constants alone    → its value        (masks, positions, RoPE tables)
call with an entry         → nodes, checked against PyTorch's shape and dtype
call without one           → an opaque op, which PyTorch computes whole
call that may not be one   → a gap, remembered with its place; a leaf stands in for it,
                             so that one import finds all gaps
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tgbench.base.errors import GraphError, ImporterError
from tgbench.base.safetensors import DTYPE_NAMES
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import TensorType
from tgbench.graph.ops.beginnings import flag_named
from tgbench.graph.ops.opaque.aten import refusal
from tgbench.sources.torch.place import SourceLine, module_path
from tgbench.sources.torch.program import SHAPE_ONLY, Leaf, TorchProgram
from tgbench.sources.torch.rows.whole import (
    FOREIGN,
    CallWriter,
    ComplexNode,
    Foreign,
    Regions,
    call_of,
    computed_whole,
    is_pick,
)
from tgbench.sources.torch.table import RULES, CallSite, UnsupportedCallError, refuse

LSTM_RANK = 4  # of states, as PyTorch 2.11 exports them, where they have 3: the second is 1
NO_ENTRY = "no entry"


@dataclass(frozen=True, slots=True)
class Gap:
    """A call that cannot be in a graph, and why."""

    op: str
    reason: str
    place: SourceLine


@dataclass
class Builder:
    """The growing graph.

    Fields:
        values: of every node so far: a graph node, a torch tensor, a Python value, a tuple, or what
            stands for a value that graphs cannot hold.
        counts: calls by op, constants left out.
        whole: the calls that became opaque ops, and why, by node.
        refused: the calls that became gaps.
        most_bytes: of all that PyTorch may compute beforehand, of a file of somebody else.
    """

    program: TorchProgram
    graph: GraphBuilder = field(default_factory=GraphBuilder)
    values: dict[fx.Node, Any] = field(default_factory=dict)
    weights: dict[str, torch.Tensor] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    places: dict[str, SourceLine] = field(default_factory=dict)
    whole: dict[fx.Node, str] = field(default_factory=dict)
    refused: set[fx.Node] = field(default_factory=set)
    most_bytes: int | None = None
    _lifted: dict[int, tuple[torch.Tensor, Node]] = field(default_factory=dict)

    def run(self) -> Builder:
        """Everything up to the outputs; gaps are left to the caller."""
        with torch.no_grad():
            for node, leaf in self.program.leaves.items():
                self.values[node] = self._leaf(node, leaf)
            for node in self.program.alive():
                self.graph.source = SourceLine.of(node.meta).short
                with self.graph.scope(module_path(node.meta) or "root"):
                    self._run(node)
        return self

    def build(self) -> Graph:
        """The graph of what was run; states take their new values."""
        self.graph.source = ""
        for name, end in self.program.outputs.items():
            if _is_empty(end):
                raise ImporterError(
                    f"output {name!r} is empty, by {end.target} at {SourceLine.of(end.meta)}; "
                    "graphs hold no empty tensors: return what has elements"
                )
            self.graph.output(name, self._as_node(self.values[end]))
        for name, end in self.program.updates.items():
            value = self._as_node(self.values[end])
            self.graph.update(self.graph.state(name, value.shape, value.dtype), value)
        return self.graph.build()

    # --- leaves -----------------------------------------------------------------------------------

    def _leaf(self, node: fx.Node, leaf: Leaf) -> Any:
        if leaf.kind == "constant":
            return leaf.value
        if leaf.kind == "parameter" and leaf.value.is_complex():
            return ComplexNode(self._parameter(leaf.name, torch.view_as_real(leaf.value)))
        type_ = tensor_type(node.meta["val"], leaf.name)
        if leaf.kind == "input":
            return self.graph.input(leaf.name, type_.shape, type_.dtype)
        if leaf.kind == "state":
            return self._state(leaf, type_)
        return self._parameter(leaf.name, leaf.value)

    def _parameter(self, name: str, value: torch.Tensor) -> Node:
        type_ = tensor_type(value, name)
        self.weights.setdefault(name, value)
        return self.graph.parameter(name, type_.shape, type_.dtype)

    def _state(self, leaf: Leaf, type_: TensorType) -> Node:
        """A state starts at 0; one that starts elsewhere is told so until it was written once."""
        state = self.graph.state(leaf.name, type_.shape, type_.dtype)
        if not bool(leaf.value.any()):
            return state
        written = self.graph.state(flag_named(leaf.name), (), "bool")
        self.graph.update(written, self.graph.constant(True))
        return self.graph.apply("where", written, state, self._as_node(leaf.value))

    # --- calls ------------------------------------------------------------------------------------

    @cached_property
    def _regions(self) -> Regions:
        return Regions.of(self.program)

    def _run(self, node: fx.Node) -> None:
        """Enter the value of a call, and of those that are computed together with it."""
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            self._count(node)
            self.values[node] = self._refused(node, A_BLOCK)
            return
        reads = [self.values[one] for one in node.all_input_nodes]
        varies = any(
            isinstance(value, (Node, ComplexNode, Foreign))
            for one in reads
            for value in _leaves(one)
        )
        if node in self.values:
            self._count(node)
        elif _is_empty(node):
            self.values[node] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
        elif not varies or str(node.target) in SHAPE_ONLY:
            self.values[node] = self._fixed(node, varies)
        elif node in self._regions.foreign:
            self._count(node)
            self.values[node] = FOREIGN
        elif any(isinstance(value, (ComplexNode, Foreign)) for value in reads):
            self._count(node)
            self._end(node)
        elif is_pick(node):
            source, index = call_of(node)
            self.values[node] = self.values[source][index]
        else:
            self._count(node)
            self.values[node] = self._varying(node)

    def _count(self, node: fx.Node) -> None:
        if not is_pick(node):
            name = str(node.target)
            self.counts[name] = self.counts.get(name, 0) + 1
            self.places.setdefault(name, SourceLine.of(node.meta))

    def _fixed(self, node: fx.Node, varies: bool) -> Any:
        """What depends on no input, by PyTorch itself; of a value that does, on its shape alone."""
        find = _shape if varies else self.values.__getitem__
        arguments: Any = fx.node.map_arg((node.args, node.kwargs), find)
        if is_pick(node):
            (results, index), _ = arguments
            return results[index]
        if not varies and str(node.target) not in RULES and _is_random(node.target):
            self._count(node)
            return self._refused(node, refusal(node.target, node.args, node.kwargs))
        return self._computed(node, *arguments)

    def _varying(self, node: fx.Node) -> Any:
        arguments: Any = fx.node.map_arg((node.args, node.kwargs), self.values.__getitem__)
        try:
            return self._lowered(node, str(node.target), *arguments)
        except (UnsupportedCallError, GraphError) as error:
            return self._opaque(node, str(error))

    # --- opaque ops -------------------------------------------------------------------------------

    def _opaque(self, node: fx.Node, reason: str) -> Any:
        """The used results of a call, computed whole; a gap where that may not be."""
        if type(node.meta["val"]) in NUMBERS:
            return self._refused(node, A_NUMBER)
        used, is_one = sorted(_used(node)), isinstance(node.meta["val"], torch.Tensor)
        try:
            _outs(node)
            made = computed_whole(self._writer(), [(node, k) for k in used])
        except (UnsupportedCallError, GraphError) as error:
            return self._refused(node, str(error) if reason == NO_ENTRY else reason)
        self.whole[node] = "" if reason == NO_ENTRY else reason
        return made[0] if is_one else dict(zip(used, made, strict=True))

    def _end(self, node: fx.Node) -> None:
        """The end of a region of foreign values, and the other ends that are at hand with it."""
        found = self._regions.ends(node, self.values.__contains__)
        ends = [one for one in found if one not in self.values]
        try:
            made = computed_whole(self._writer(), [call_of(one) for one in ends])
        except (UnsupportedCallError, GraphError) as error:
            self.values[node] = self._refused(node, str(error))
            return
        self.values |= zip(ends, made, strict=True)
        self.whole |= {call: "" for one in ends for call in self._regions.cone(one)}

    def _writer(self) -> CallWriter:
        return CallWriter(self._regions, self.values, self._as_node)

    def _refused(self, node: fx.Node, reason: str) -> Any:
        self.gaps.append(Gap(str(node.target), reason, SourceLine.of(node.meta)))
        self.refused.add(node)
        return self._stand_in(node)

    def _computed(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The value by PyTorch itself."""
        assert isinstance(node.target, torch._ops.OpOverload)
        if self.most_bytes is not None:
            self.most_bytes -= _size_bytes(node.target, args, kwargs)
            if self.most_bytes < 0:
                raise ImporterError(
                    f"{node.target} would make a constant that is too large; make it outside of "
                    "forward, and pass it as an input"
                )
        return node.target(*args, **kwargs)

    def _lowered(self, node: fx.Node, name: str, args: Any, kwargs: Any) -> Any:
        if name not in RULES:
            raise UnsupportedCallError(NO_ENTRY)
        outs = _outs(node)
        site = CallSite(self.graph, outs, _used(node))
        args, kwargs = pytree.tree_map(self._argument, (list(args), dict(kwargs)))
        found = RULES[name](site, *args, **kwargs)
        for result, out in zip(found if isinstance(found, tuple) else (found,), outs, strict=False):
            if isinstance(result, Node) and result.type != out:
                raise UnsupportedCallError(
                    f"the entry gives {result.type}, PyTorch {out}; mend the entry"
                )
        return found

    def _argument(self, value: Any) -> Any:
        """Tensors as nodes; an empty one, which no graph holds, as None."""
        if not isinstance(value, torch.Tensor):
            return value
        return self._as_node(value) if value.numel() else None

    def _as_node(self, value: Any) -> Node:
        if isinstance(value, Node):
            return value
        refuse(
            isinstance(value, (Foreign, ComplexNode)),
            "a result is complex, which graphs do not hold; return torch.view_as_real of it",
        )
        if not isinstance(value, torch.Tensor):
            return self.graph.constant(value)
        if id(value) not in self._lifted:  # the tensor is kept, so that its id stays its own
            self._lifted[id(value)] = value, self._constant(value)
        return self._lifted[id(value)][1]

    def _constant(self, value: torch.Tensor) -> Node:
        dtype = tensor_type(value, "a constant").dtype
        plain = value.detach().cpu()
        if dtype == "bfloat16":
            return self.graph.constant(plain.float().numpy()).cast(dtype)
        return self.graph.constant(plain.numpy())

    def _stand_in(self, node: fx.Node) -> Any:
        """Leaves in place of results that could not be made; a number for one that is none."""
        if (number := NUMBERS.get(type(node.meta["val"]))) is not None:
            return number
        made = []
        for i, out in enumerate(_raw_outs(node)):
            is_type = _is_static(out) and out.dtype in DTYPE_NAMES and out.numel()
            type_ = tensor_type(out, node.name) if is_type else TensorType((1,), "float32")
            made.append(self.graph.input(f"missing {node.name}.{i}", type_.shape, type_.dtype))
        return made[0] if isinstance(node.meta["val"], torch.Tensor) else tuple(made)


NUMBERS: dict[type, Any] = {torch.SymInt: 1, torch.SymFloat: 1.0, torch.SymBool: True}
A_NUMBER = (
    "a number that depends on values (`item()`, how many are true): what a graph computes has "
    "fixed sizes and factors; keep it a tensor, or make it before and pass it as an input"
)
A_BLOCK = (
    "a block of code that runs as often as values say, or that nobody may look into: what a graph "
    "computes is fixed; write a loop of so many rounds in Python, which export unrolls, and "
    "torch.where or torch.cond for what depends on values"
)


def tensor_type(value: torch.Tensor, name: str) -> TensorType:
    """Our type of a tensor; raises UnsupportedCallError for foreign dtypes, unknown sizes."""
    if value.dtype not in DTYPE_NAMES:
        raise UnsupportedCallError(
            f"{name} is {value.dtype}; graphs hold {', '.join(DTYPE_NAMES.values())}: write "
            "complex numbers as pairs of real ones, cast others"
        )
    if not _is_static(value):
        raise UnsupportedCallError(
            f"the shape {list(value.shape)} of {name} depends on values, or is dynamic; shapes of "
            "a graph are fixed: use torch.where to choose values, and export without dynamic_shapes"
        )
    return TensorType(tuple(value.shape), DTYPE_NAMES[value.dtype])


def _leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


def _size_bytes(target: Any, args: Any, kwargs: Any) -> int:
    """What the results of a call will take, found out on tensors without numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        found = _leaves(target(*args, **kwargs))
    tensors = [value for value in found if isinstance(value, torch.Tensor)]
    return sum(value.numel() * value.element_size() for value in tensors)


def _shape(node: fx.Node) -> Any:
    """An empty tensor of a value's shape, for ops that look at nothing else, and its strides, which
    what is made like it takes over.
    """
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)


def _is_random(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return True  # control flow and the like: not to be computed here
    return torch.Tag.nondeterministic_seeded in target.tags


def _is_static(out: Any) -> bool:
    return isinstance(out, torch.Tensor) and all(isinstance(size, int) for size in out.shape)


def _is_empty(node: fx.Node) -> bool:
    out = node.meta["val"]
    return _is_static(out) and not out.numel()


def _raw_outs(node: fx.Node) -> tuple[Any, ...]:
    value = node.meta["val"]
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _outs(node: fx.Node) -> tuple[TensorType | None, ...]:
    """What PyTorch says of the results; None for what is no tensor, and for foreign unread ones."""
    used, is_lstm = _used(node), node.target is torch.ops.aten.lstm.input
    return tuple(
        tensor_type(out.squeeze(1) if is_lstm and out.dim() == LSTM_RANK else out, "a result")
        if isinstance(out, torch.Tensor) and (i in used or out.dtype in DTYPE_NAMES)
        else None
        for i, out in enumerate(_raw_outs(node))
    )


def _used(node: fx.Node) -> frozenset[int]:
    """Which results are read; the one result of most ops is number 0."""
    if isinstance(node.meta["val"], torch.Tensor):
        return frozenset((0,))
    picks = [user for user in node.users if user.target is operator.getitem and user.users]
    return frozenset(int(user.args[1]) for user in picks)  # type: ignore[arg-type]
