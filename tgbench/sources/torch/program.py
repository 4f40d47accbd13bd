"""An exported program, read as what the importer needs: leaves, calls, outputs, updates.

torch.export            here
PARAMETER               parameter, by storage: tied ones are one leaf; state where forward writes
                        it; constant where it is empty (no registers, no prompt)
BUFFER, persistent      parameter; state where forward writes it; constant where it is no float
                        or holds a mask's infinities
BUFFER, other           constant: tables that the module makes for itself
CONSTANT_TENSOR         constant
USER_INPUT              input; constant where it is a Python value or named in `fixed`
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    TensorArgument,
)
from torch.utils import _pytree as pytree

from tgbench.base.errors import ImporterError
from tgbench.sources.torch.place import SourceLine

WRITTEN = ("BUFFER_MUTATION", "PARAMETER_MUTATION")  # kinds of outputs that are states
MASKED = -1e9  # a buffer that goes this low is an additive mask, not a weight
SHAPE_ONLY = frozenset({  # ops whose result follows from the shape of their operand
    "aten.full_like.default", "aten.zeros_like.default", "aten.ones_like.default",
    "aten.new_zeros.default", "aten.new_ones.default", "aten.new_full.default",
})  # fmt: skip
OF_THE_MODULE = ("parameter", "state")  # kinds of leaves, whose names the module gives
CACHE = "past_key_values"
NO_CACHE = (
    "a cache of keys and values is among the outputs; pass kwargs={'use_cache': False}: "
    "tgbench keeps what is worth keeping by itself"
)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that the program is given.

    Fields:
        kind: input, parameter, constant or state.
        value: of a parameter or constant; what a state holds at first; None for an input.
    """

    kind: str
    name: str
    value: Any = None


@dataclass(frozen=True)
class TorchProgram:
    """Calls in order, and what stands at both ends.

    Fields:
        leaves: by placeholder node.
        outputs: name → node.
        updates: state name → node whose value it takes.
        inputs: every input name as called, the specialised and unused ones too.
    """

    graph: fx.Graph
    leaves: Mapping[fx.Node, Leaf]
    outputs: Mapping[str, fx.Node]
    updates: Mapping[str, fx.Node]
    inputs: tuple[str, ...]

    @property
    def specialised(self) -> dict[str, Any]:
        leaves = self.leaves.values()
        return {x.name: x.value for x in leaves if x.name in self.inputs and x.kind == "constant"}

    def alive(self) -> list[fx.Node]:
        """The calls that an output or a state needs, in order."""
        seen = {*self.outputs.values(), *self.updates.values()}
        for node in reversed(self.graph.nodes):
            if node in seen:
                seen.update(node.all_input_nodes)
        return [node for node in self.graph.nodes if node in seen and node.op == "call_function"]

    def varying(self) -> set[fx.Node]:
        """Nodes whose value is no constant."""
        found = {node for node, leaf in self.leaves.items() if leaf.kind != "constant"}
        for node in self.graph.nodes:
            if str(node.target) in SHAPE_ONLY:
                continue
            if any(parent in found for parent in node.all_input_nodes):
                found.add(node)
        return found

    def renamed(self, names: Mapping[str, str]) -> TorchProgram:
        """The same program with other names for inputs and outputs."""
        for name in names:
            if name not in self.inputs and name not in self.outputs:
                raise ImporterError(
                    f"names={{{name!r}: …}}: there is no such input or output; there are "
                    f"{', '.join([*self.inputs, *self.outputs])}"
                )
        leaves = {
            node: replace(leaf, name=names.get(leaf.name, leaf.name))
            if leaf.name in self.inputs and leaf.kind not in OF_THE_MODULE
            else leaf
            for node, leaf in self.leaves.items()
        }
        given = {leaf.name for leaf in leaves.values() if leaf.kind == "input"}
        for leaf in leaves.values():
            if leaf.kind in OF_THE_MODULE and leaf.name in given:
                name = next((old for old, new in names.items() if new == leaf.name), leaf.name)
                raise ImporterError(
                    f"{leaf.name!r} is an input and a {leaf.kind} of the module; give the input "
                    f"another name: names={{{name!r}: {leaf.name + '_in'!r}}}"
                )
        outputs = {names.get(name, name): node for name, node in self.outputs.items()}
        inputs = tuple(names.get(name, name) for name in self.inputs)
        return replace(self, leaves=leaves, outputs=outputs, inputs=inputs)


def paths(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """The leaves of nested containers with names: `batch.ids`, `states[0]`, `logits`."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            inner = f"{name}.{key}" if name and isinstance(key, str) else f"{name}[{key}]"
            yield from paths(value, inner if name or not isinstance(key, str) else key)
    elif isinstance(tree, (list, tuple)):
        fields = getattr(tree, "_fields", None)
        for i, value in enumerate(tree):
            inner = f"{name}.{fields[i]}" if fields and name else f"{name or 'output'}[{i}]"
            yield from paths(value, fields[i] if fields and not name else inner)
    elif not pytree.tree_is_leaf(tree):
        for i, value in enumerate(pytree.tree_leaves(tree)):
            yield f"{name or 'output'}[{i}]", value
    else:
        yield name or "output", tree


def read(exported: ExportedProgram, fixed: Sequence[str] = ()) -> TorchProgram:
    """A functional exported program as ours; raises ImporterError for what has no graph."""
    signature = exported.graph_signature
    placeholders = [node for node in exported.graph.nodes if node.op == "placeholder"]
    names = iter(input_names(exported))
    examples = iter(pytree.tree_leaves(exported.example_inputs or ()))
    mutated = {str(one.target) for one in signature.output_specs if one.kind.name in WRITTEN}
    tensors = Tensors({**exported.constants, **exported.state_dict}, mutated)
    leaves: dict[fx.Node, Leaf] = {}
    inputs: list[str] = []
    for node, spec in zip(placeholders, signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(next(names))
            leaves[node] = _user_input(node, spec, inputs[-1], next(examples, None), fixed)
        elif spec.kind is InputKind.TOKEN:  # the order of side effects, which no result needs
            leaves[node] = Leaf("constant", node.name)
        else:
            leaves[node] = tensors.leaf(spec)
    _check_fixed(fixed, inputs)
    outputs, updates = _ends(exported)
    return TorchProgram(exported.graph, leaves, outputs, updates, tuple(inputs))


def input_names(exported: ExportedProgram) -> list[str]:
    """Names of the flat inputs: the parameters of `forward`, and paths below them."""
    spec = exported.call_spec.in_spec
    assert spec is not None
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    root = exported.module_call_graph[0].signature
    known = list(root.forward_arg_names or ()) if root is not None else []
    found: list[tuple[str, int]] = []
    for i, value in enumerate(args):
        found += paths(value, known[i] if i < len(known) else f"args[{i}]")
    for key, value in kwargs.items():
        found += paths(value, key)
    return [name for name, _ in sorted(found, key=lambda pair: pair[1])]


def _user_input(
    node: fx.Node, spec: InputSpec, name: str, example: Any, fixed: Sequence[str]
) -> Leaf:
    if isinstance(spec.arg, ConstantArgument):
        return Leaf("constant", name, spec.arg.value)
    if not isinstance(spec.arg, TensorArgument):
        raise ImporterError(f"input {name!r} is {type(spec.arg).__name__}; pass a tensor or number")
    check_static(name, node.meta["val"])
    if name not in fixed:
        return Leaf("input", name)
    if not isinstance(example, torch.Tensor):
        raise ImporterError(
            f"fixed={name!r} needs the example inputs, which are not in a file; import the module "
            f"itself: tg.from_torch(module, inputs, fixed={name!r})"
        )
    return Leaf("constant", name, example)


def check_static(name: str, value: torch.Tensor) -> None:
    """Refuse a shape with symbols in it."""
    if not all(isinstance(size, int) for size in value.shape):
        raise ImporterError(
            f"{name} has the dynamic shape {list(value.shape)}; export without dynamic_shapes: "
            "a graph has fixed sizes, and runs compute just what changed"
        )


def _check_fixed(fixed: Sequence[str], inputs: Sequence[str]) -> None:
    for name in fixed:
        if name not in inputs:
            raise ImporterError(f"fixed={name!r}: no such input; there are {', '.join(inputs)}")


@dataclass(frozen=True)
class Tensors:
    """Parameters and buffers by storage: what shares bytes gets the name that comes first."""

    held: Mapping[str, Any]
    mutated: set[str]
    first: dict[tuple[Any, ...], str] = field(default_factory=dict)

    def leaf(self, spec: InputSpec) -> Leaf:
        """What a parameter, buffer or constant is to the graph."""
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            raise ImporterError(
                f"{spec.target} is a {spec.kind.name}, and the importer takes tensors; hold it as "
                "one, or compute with it outside of forward"
            )
        assert spec.target is not None
        value = self.held.get(spec.target)
        if not isinstance(value, torch.Tensor):
            raise ImporterError(
                f"{spec.target} is {type(value).__name__}, not a tensor; register it as a buffer"
            )
        if spec.target in self.mutated:
            return self._state(spec.target, value.detach())
        is_buffer = spec.kind is InputKind.BUFFER
        is_weight = bool(value.numel()) and spec.kind is not InputKind.CONSTANT_TENSOR
        if not is_weight or (is_buffer and _is_table(spec, value)):
            return Leaf("constant", spec.target, value.detach())
        name = self.first.setdefault(bytes_of(value), spec.target)
        return Leaf("parameter", name, value.detach())

    def _state(self, name: str, value: torch.Tensor) -> Leaf:
        """What forward writes; another name for the same bytes would not see it."""
        for other, tensor in self.held.items():
            if other != name and _shares(tensor, value):
                raise ImporterError(
                    f"forward writes into {name}, which shares its bytes with {other}; "
                    "clone one of them"
                )
        return Leaf("state", name, value)


def _shares(other: Any, value: torch.Tensor) -> bool:
    is_tensor = isinstance(other, torch.Tensor) and bool(other.numel())
    return is_tensor and other.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()


def bytes_of(value: torch.Tensor) -> tuple[Any, ...]:
    """Tensors of the same elements in the same bytes have the same."""
    storage = value.untyped_storage().data_ptr()
    return storage, value.storage_offset(), tuple(value.shape), value.stride(), value.dtype


def _is_table(spec: InputSpec, value: torch.Tensor) -> bool:
    """A buffer that the module made for itself, of indices or flags, or an additive mask."""
    if not spec.persistent or not value.is_floating_point():
        return True
    return bool(value.amin() <= MASKED)


def _ends(exported: ExportedProgram) -> tuple[dict[str, Any], dict[str, fx.Node]]:
    """Outputs by name and new values of states."""
    (last,) = [node for node in exported.graph.nodes if node.op == "output"]
    signature, results = exported.graph_signature, last.args[0]
    assert isinstance(results, (list, tuple))
    given: list[Any] = []
    updates: dict[str, fx.Node] = {}
    for spec, node in zip(signature.output_specs, results, strict=True):
        if spec.kind is OutputKind.USER_OUTPUT:
            given.append(node)
        elif spec.kind.name in WRITTEN:
            assert isinstance(node, fx.Node)
            assert spec.target is not None
            updates[spec.target] = node
        elif spec.kind is not OutputKind.TOKEN:
            raise ImporterError(_mutation(spec.kind, spec.target, node))
    tree = pytree.tree_unflatten(given, exported.call_spec.out_spec)
    return output_nodes(paths(tree, "")), updates


def output_nodes(named: Iterable[tuple[str, Any]]) -> dict[str, fx.Node]:
    """The outputs that are tensors."""
    outputs = {name: node for name, node in named if isinstance(node, fx.Node)}
    if any(name.split("[")[0].split(".")[0] == CACHE for name in outputs):
        raise ImporterError(NO_CACHE)
    if not outputs:
        raise ImporterError("the module returns no tensor; return the tensors that are wanted")
    return outputs


def _mutation(kind: OutputKind, target: str | None, node: Any) -> str:
    place = SourceLine.of(node.meta) if isinstance(node, fx.Node) else ""
    if "register_buffer(" in str(place):  # PyTorch takes that for writing into what comes first
        return f"forward registers a buffer at {place}; call the module once before importing it"
    if kind is OutputKind.USER_INPUT_MUTATION:
        return f"forward writes into its input {target!r} at {place}; clone it first"
    return f"forward makes a {kind.name.lower()} of {target!r} at {place}; return a value instead"
