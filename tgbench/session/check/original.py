"""Values inside the original, by the names that the graph's nodes have.

a mapping      by node name, as it is
a function     of the inputs, giving such a mapping
a module       what each submodule gives, for the last node of that shape in its scope
a program      the same, from the calls of an exported program
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch.export import ExportedProgram

from tgbench.base.errors import InputError
from tgbench.graph.graph import Graph
from tgbench.session.check.compare import Array
from tgbench.session.check.pairs import as_array
from tgbench.sources.torch.place import module_path

Values: TypeAlias = "Mapping[str, Any]"
Original: TypeAlias = (
    "Values | Callable[[Mapping[str, Array]], Values] | torch.nn.Module | ExportedProgram"
)


def values_of(
    original: Original | None, graph: Graph, inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """The original's values by node name, for one pair of inputs.

    Raises InputError where no node can be told to be one of the original's values.
    """
    if original is None:
        return {}
    if isinstance(original, ExportedProgram):
        found = _named(_calls(original, inputs), graph)
    elif isinstance(original, torch.nn.Module):
        found = _named(_modules(original, inputs), graph)
    else:
        given = original(inputs) if callable(original) else original
        names = {node.name for node in graph.nodes}
        found = {name: as_array(value) for name, value in given.items() if name in names}
    if not found:
        raise InputError(
            "no node of the graph has the name of one of the original's values; import the graph "
            "with `from_torch`, or pass against={node name: array}"
        )
    return found


def _tensors(inputs: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in inputs.items()}


def _modules(module: torch.nn.Module, inputs: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    """What each submodule gives; those that are called twice are left out."""
    found: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}

    def hook(path: str) -> Callable[..., None]:
        def keep(_: Any, __: Any, out: Any) -> None:
            counts[path] = counts.get(path, 0) + 1
            if isinstance(out, torch.Tensor):
                found[path] = out.detach()

        return keep

    hooks = [m.register_forward_hook(hook(path)) for path, m in module.named_modules() if path]
    try:
        with torch.no_grad():
            module(**_tensors(inputs))
    finally:
        for handle in hooks:
            handle.remove()
    return {path: value for path, value in found.items() if counts[path] == 1}


class _Kept(torch.fx.Interpreter):
    """Runs a program and keeps the last tensor of each module's scope."""

    def __init__(self, program: torch.fx.GraphModule) -> None:
        super().__init__(program)
        self.found: dict[str, torch.Tensor] = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        made = super().run_node(n)
        path = module_path(n.meta) if n.op == "call_function" else ""
        if path and isinstance(made, torch.Tensor):
            self.found[path] = made.detach()
        return made


def _calls(program: ExportedProgram, inputs: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    module = program.module()
    assert isinstance(module, torch.fx.GraphModule)
    kept = _Kept(module)
    with torch.no_grad():
        kept.run(*_tensors(inputs).values())
    return kept.found


def _named(values: Mapping[str, torch.Tensor], graph: Graph) -> dict[str, Array]:
    """For each path, the last node in its scope, where that has the value's shape and is no weight:
    one that others were folded into stands for what is gone of its scope.
    """
    last = {}
    for node in graph.nodes:
        scope = node.name
        while "." in scope:
            scope = scope.rpartition(".")[0]
            last[scope] = node
    return {
        last[path].name: as_array(value)
        for path, value in values.items()
        if path in last and not last[path].is_leaf and last[path].shape == tuple(value.shape)
    }
