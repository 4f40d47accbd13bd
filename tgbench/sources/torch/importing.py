"""Graphs from PyTorch: modules, exported programs, and what of a module is supported.

imported = tg.from_torch(model.eval(), (ids,), kwargs={"use_cache": False})
session = tg.GraphSession(imported)
session.run({"input_ids": ids})["logits"]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram

import tgbench.sources.torch.rows.elementwise
import tgbench.sources.torch.rows.indexing
import tgbench.sources.torch.rows.layout
import tgbench.sources.torch.rows.neural
import tgbench.sources.torch.rows.recurrent
import tgbench.sources.torch.rows.reduction  # noqa: F401  (these fill the table)
from tgbench.base.collector import give_back_with
from tgbench.base.errors import ImporterError, TgbenchError
from tgbench.base.surroundings import plainly
from tgbench.base.words import one_or_more, shorten
from tgbench.graph.ops.opaque.aten import refusal
from tgbench.graph.recognise import recognise
from tgbench.graph.simplify import simplify
from tgbench.sources.torch.build import Builder
from tgbench.sources.torch.exporting import (
    check_differentiates_nothing,
    exported_program,
    lowered,
    written_from,
)
from tgbench.sources.torch.imported import Imported
from tgbench.sources.torch.pt2 import read_pt2
from tgbench.sources.torch.states import told_as_states
from tgbench.sources.torch.support import Support
from tgbench.sources.torch.table import RULES

# What PyTorch writes in ops that have no entry either: to find that out takes two more passes.
STAYING = ("aten.grid_sampler.default",)
MOST_CONSTANT_BYTES = 1 << 28  # of what a file has PyTorch compute beforehand


@plainly
def from_torch(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    fixed: str | Sequence[str] = (),
    share: bool = False,
) -> Imported:
    """The graph of a module, with its weights as they are now.

    Shapes are those of the example inputs; their values do not count, but for Python values and
    for `fixed` tensors, which become constants. Parameters and buffers keep their names in the
    state dict. Buffers that forward writes become states. Inputs are called as `forward` calls
    them, nested ones by path (`batch.ids`); outputs by field or path, a single one `output`.

    Args:
        module: in evaluation mode; or what `torch.export.export` gave, without `dynamic_shapes`.
        example_inputs: what forward takes by position, as a tuple; left out for a program.
        kwargs: what it takes by name.
        names: other names for inputs and outputs, by the name they would have.
        fixed: names of tensor inputs, or one, that never change: masks, positions.
        share: take the module's own tensors instead of a copy of them. Nobody may write into them
            as long as sessions use them. A run that finds that somebody did (an optimiser,
            `load_state_dict`, `weight.mul_`) raises WeightsError; what PyTorch does not count
            (`weight.data.mul_`, NumPy views) goes unseen and mixes old and new weights.

    Raises:
        UnsupportedOpError: for random ops and values that decide shapes, all, with their places.
        ImporterError: for anything else that no graph can be made of.

    >>> import torch, tgbench as tg
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval()
    >>> print(tg.from_torch(model, (torch.zeros(3, 4),)))
    imported module
    nodes: 5, 2 of them computed
    parameters: 2, 40 B
    fused ops: 1 linear, 1 relu
    input input: float32[3, 4]
    output output: float32[3, 2]
    """
    with _exported(module, example_inputs, kwargs) as exported:
        built = _built(exported, one_or_more(fixed), names or {})
    Support.of(built).check()
    imported = _imported(built)
    weights = imported.weights if share else _copies(imported.weights)
    found = replace(imported, weights=weights, shared=share)
    give_back_with(found, found.parameter_bytes)  # a session folds them into its own
    return found


@plainly
def from_pt2(path: str | os.PathLike[str], *, names: Mapping[str, str] | None = None) -> Imported:
    """The graph in a file that `torch.export.save` wrote; nothing in the file is executed.

    Its ops must have entries: save `program.run_decompositions()` of a program where one has none.

    Raises:
        ImporterError: for a damaged file, and for one that holds pickles or foreign ops.
    """
    program = read_pt2(path).renamed(names or {})
    try:
        built = Builder(program, most_bytes=MOST_CONSTANT_BYTES).run()
        Support.of(built).check()
        return _imported(built)
    except (TgbenchError, MemoryError):
        raise
    except Exception as error:  # arguments that neither PyTorch nor an entry was meant to see
        raise ImporterError(
            f"{path}: holds calls that make no sense ({type(error).__name__}: "
            f"{shorten(str(error))}); save it again with torch.export.save"
        ) from error


@plainly
def supported(
    module: nn.Module | ExportedProgram,
    example_inputs: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    fixed: str | Sequence[str] = (),
) -> Support:
    """Every op of a module, how often it stands there, and whether the importer knows it.

    An opaque one is computed whole, by PyTorch, whenever anything that it reads has changed.

    >>> import torch, tgbench as tg
    >>> class Volume(torch.nn.Module):
    ...     def forward(self, x):
    ...         return torch.linalg.det(x.relu())
    >>> for row in tg.supported(Volume().eval(), (torch.eye(3),)).ops:
    ...     print(row.op, row.answer)
    aten.linalg_det.default opaque: recomputed whole
    aten.relu.default yes
    """
    with _exported(module, example_inputs, kwargs) as exported:
        return Support.of(_built(exported, one_or_more(fixed), {}))


@contextmanager
def _exported(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Iterator[ExportedProgram]:
    """The program of a module; or a given one, whose calls may be changed while this lasts."""
    if not isinstance(module, ExportedProgram):
        with told_as_states(exported_program(module, args, kwargs)) as program:
            yield program
        return
    if len(args) or kwargs:
        raise ImporterError("an exported program has its inputs already; leave example_inputs out")
    check_differentiates_nothing(module)
    theirs = module.graph_module.graph
    module.graph_module.graph = deepcopy(theirs)
    try:
        with told_as_states(module):
            yield module
    finally:
        module.graph_module.graph = theirs


def _copies(weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same numbers, which are nobody else's."""
    return {name: torch.empty_like(w, memory_format=torch.contiguous_format).copy_(w)
            for name, w in weights.items()}  # fmt: skip


def _built(exported: ExportedProgram, fixed: Sequence[str], names: Mapping[str, str]) -> Builder:
    """A builder that has run.

    What PyTorch writes in other ops is so written if each of them has an entry. If one has none,
    the op stays as it is, and is opaque as a whole.
    """
    whole = set(STAYING)
    while True:
        built = Builder(lowered(exported, fixed, whole).renamed(names)).run()
        broken = _broken(exported, (*built.whole, *built.refused)) - whole
        if not broken:
            return built
        whole |= broken


def _broken(exported: ExportedProgram, without_entry: Iterable[fx.Node]) -> set[str]:
    """The ops that these calls are parts of, if they may be opaque themselves."""
    calls: dict[str, list[fx.Node]] = {}
    for node in exported.graph.nodes:
        calls.setdefault(str(node.target), []).append(node)
    found = set()
    for node in without_entry:
        origin = next((op for op in reversed(written_from(node)) if op in calls), "")
        is_part = origin not in ("", str(node.target), *RULES)
        if is_part and not any(map(_refusal, calls[origin])):
            found.add(origin)
    return found


def _refusal(node: fx.Node) -> str:
    return refusal(node.target, node.args, node.kwargs)


def _imported(built: Builder) -> Imported:
    program, graph = built.program, recognise(simplify(built.build()))
    kept = {name: built.weights[name] for name in graph.parameters}
    specialised = program.specialised
    unused = [n for n in program.inputs if n not in graph.inputs and n not in specialised]
    return Imported(graph, kept, specialised, tuple(unused))
