"""What forward writes, as the one state that it is.

PyTorch exports a tensor that is a plain attribute as a constant, also where a call writes into it,
and also where it is a buffer under another name: Hugging Face's static cache is both. Where that
buffer is written such a constant is it; one that is no buffer, and is written, becomes one.

    key_cache_0   buffer ──────────────╮
    lifted_tensor_2   constant ──index_copy_──→     ─→     key_cache_0   state ──index_copy_──→
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from tgbench.sources.torch.exporting import writes_over
from tgbench.sources.torch.program import bytes_of


@contextmanager
def told_as_states(exported: ExportedProgram) -> Iterator[ExportedProgram]:
    """A program with its states, while this lasts: what it says of its inputs is changed."""
    specs, constants = exported.graph_signature.input_specs, exported.constants
    before = list(specs), dict(constants)
    _tell(exported)
    try:
        yield exported
    finally:
        specs[:] = before[0]
        constants.update(before[1])


def _tell(exported: ExportedProgram) -> None:
    signature, graph = exported.graph_signature, exported.graph
    places = [node for node in graph.nodes if node.op == "placeholder"]
    tensors = {**exported.constants, **exported.state_dict}
    inputs = list(zip(places, signature.input_specs, strict=True))
    buffers = {
        bytes_of(tensors[str(spec.target)]): place
        for place, spec in inputs
        if spec.kind is InputKind.BUFFER
    }
    written, found = set(map(_owner, _written(exported))), []
    for place, spec in inputs:
        value = tensors.get(str(spec.target))
        if spec.kind is InputKind.CONSTANT_TENSOR and isinstance(value, torch.Tensor):
            buffer = buffers.get(bytes_of(value))
            if buffer is not None and not written.isdisjoint((place, buffer)):
                place.replace_all_uses_with(buffer)
                graph.erase_node(place)
                del exported.constants[str(spec.target)]
                continue
            if place in written:
                spec = replace(spec, kind=InputKind.BUFFER, persistent=False)
        found.append(spec)
    signature.input_specs[:] = found


def _written(exported: ExportedProgram) -> Iterator[fx.Node]:
    """The operands that calls write into."""
    for node in writes_over(exported):
        if isinstance(node.target, torch._ops.OpOverload):
            arguments = node.target._schema.arguments
            for given, argument in zip(node.args, arguments, strict=False):
                if argument.is_write and isinstance(given, fx.Node):
                    yield given


def _owner(node: fx.Node) -> fx.Node:
    """Of whose bytes a value is."""
    while isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
        node = node.all_input_nodes[0]
    return node
