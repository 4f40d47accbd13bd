"""From a module to a functional exported program of ops that have entries.

Checks come before `torch.export`, whose own errors are wrapped. Ops without an entry that PyTorch
can write in others are written so, and no others: what has an entry (attention, norms, linear,
convolutions) stays whole.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import threading
import traceback
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr
from functools import cache
from typing import Any

import torch
from torch import fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from tgbench.base.errors import ImporterError
from tgbench.sources.torch.apart import write_apart
from tgbench.sources.torch.branches import write_in_line
from tgbench.sources.torch.place import SourceLine
from tgbench.sources.torch.program import NO_CACHE, TorchProgram, read
from tgbench.sources.torch.table import RULES

_exporting = threading.RLock()  # PyTorch's tracing is one for the whole process
LONGEST = 400  # characters of PyTorch's own message
HINTS = re.compile(r"\s*(Caused by: \(|For more information, run with ).*", re.DOTALL)
STORES = re.compile(r"\]\s*[-+*/]?=(?!=)")  # a line that writes into a part of a tensor
BATCHING = "torch._functorch.predispatch"  # has the calls that begin and end a `torch.vmap`
AROUND = (os.path.dirname(torch.__file__) + os.sep, contextlib.__file__, __file__)  # a forward
BY_AUTOGRAD = "use torch.autograd.grad inside `with torch.enable_grad()`"
ASSIGNED = re.compile("The tensor attributes? (.+?) (?:was|were) assigned during export")


def exported_program(
    module: nn.Module, args: Any, kwargs: Mapping[str, Any] | None
) -> ExportedProgram:
    """`torch.export.export` with fixed shapes; raises ImporterError with the mend."""
    module = getattr(module, "_orig_mod", module)  # what `torch.compile` wraps
    checked = check_inputs(args, kwargs or {})
    check_module(module, pytree.tree_leaves((checked, dict(kwargs or {}))))
    try:
        with (
            _exporting, torch.no_grad(), _quiet() as told, _row_by_row(module),
            _with_its_buffers(module), _masks_as_given(), _as_made(module.parameters()),
        ):  # fmt: skip
            found = torch.export.export(module, checked, dict(kwargs or {}), strict=False)
    except Exception as error:
        raise ImporterError(_explained(module, error)) from error
    _check_forgets_nothing(found, told)
    check_differentiates_nothing(found)
    return found


def check_differentiates_nothing(exported: ExportedProgram) -> None:
    """Raise ImporterError where what `torch.func` makes of an input became a constant: a stand-in
    for it, without numbers.
    """
    constants = [one for one in exported.constants.values() if isinstance(one, torch.Tensor)]
    if any(map(torch._C._functorch.is_gradtrackingtensor, constants)):
        raise ImporterError(
            f"forward differentiates by torch.func, which PyTorch does not export; {BY_AUTOGRAD}"
        )


def _check_forgets_nothing(exported: ExportedProgram, told: Sequence[Any]) -> None:
    """Raise ImporterError for an attribute that a forward assigns, by what PyTorch tells of it, and
    that another forward would read: a constant, to PyTorch.
    """
    for warning in told:
        names = ASSIGNED.match(str(warning.message))
        for name in names[1].split(", ") if names else ():
            owner, own = name.rsplit(".", 1)
            if name.removeprefix("self.") in exported.constants:
                raise ImporterError(
                    f"forward assigns {name}, and the next one reads it; make it a buffer, which "
                    f"is a state of the graph: {owner}.register_buffer({own!r}, …)"
                )


@contextmanager
def _quiet() -> Iterator[Sequence[warnings.WarningMessage]]:
    """Without torch's own reports of what an error of ours says (it prints the whole graph, some
    thousand lines of it); what it warns of meanwhile.
    """
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(record=True) as told, redirect_stderr(io.StringIO()):
            warnings.simplefilter("always")
            yield told
    finally:
        logger.setLevel(level)


@contextmanager
def _row_by_row(module: nn.Module) -> Iterator[None]:
    """Mixtures of experts of `transformers` with a product for each row, as long as this lasts.

    Sorted by expert, as they are by default, every row lies elsewhere when one goes to another.
    """
    configs: list[Any] = [getattr(part, "config", None) for part in module.modules()]
    before = [
        (config, config._experts_implementation)
        for config in {id(config): config for config in configs}.values()
        if isinstance(getattr(config, "_experts_implementation", None), str)
    ]
    try:
        for config, _ in before:
            config._experts_implementation = "batched_mm"
        yield
    finally:
        for config, implementation in before:
            config._experts_implementation = implementation


@contextmanager
def _masks_as_given() -> Iterator[None]:
    """Layers of transformers take a mask as it is, as long as this lasts.

    PyTorch compares it with a causal one, which is a branch on values, for a hint alone: the same
    is computed without it.
    """
    layers: Any = nn.modules.transformer
    before = layers._detect_is_causal_mask
    layers._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        yield
    finally:
        layers._detect_is_causal_mask = before


@contextmanager
def _with_its_buffers(module: nn.Module) -> Iterator[None]:
    """A module has the buffers that it had, when this is over: some keep there what they computed
    last, and what they compute while they are exported are stand-ins that hold no numbers.
    """
    before = [(part, dict(part._buffers)) for part in module.modules()]
    try:
        yield
    finally:
        for part, buffers in before:
            part._buffers.clear()
            part._buffers.update(buffers)


def _as_made(parameters: Iterable[nn.Parameter]) -> AbstractContextManager[Any]:
    """PyTorch exports parameters that were made in inference mode in that mode alone."""
    is_inference = any(parameter.is_inference() for parameter in parameters)
    return torch._C._InferenceMode(True) if is_inference else nullcontext()


def check_inputs(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Example inputs as a tuple of contiguous tensors that share no bytes, and Python values."""
    if isinstance(args, torch.Tensor) or not isinstance(args, (tuple, list)):
        raise ImporterError(
            f"example_inputs is a {type(args).__name__}; pass a tuple of what forward takes: "
            "tg.from_torch(module, (x,))"
        )
    owners: dict[int, str] = {}
    for path, value in pytree.tree_leaves_with_path((tuple(args), dict(kwargs))):
        where, *rest = path
        side = "kwargs" if where == pytree.SequenceKey(1) else "example_inputs"
        _check_input(side + pytree.keystr(tuple(rest)), value, owners)
    return tuple(args)


def _check_input(name: str, value: Any, owners: dict[int, str]) -> None:
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype, torch.device)):
        return
    if not isinstance(value, torch.Tensor):
        raise ImporterError(
            f"{name} is a {type(value).__name__}; pass torch tensors "
            "(torch.from_numpy makes one of an array), numbers, bools or None"
        )
    if value.dtype.is_complex:
        raise ImporterError(f"{name} is {value.dtype}; pass real and imaginary parts")
    if value.layout is not torch.strided or not value.is_contiguous():
        raise ImporterError(f"{name} is not contiguous; pass `.contiguous()` of it")
    if not value.numel():
        raise ImporterError(
            f"{name} is empty, and graphs hold no empty tensors; leave it out, or pass what has "
            "elements"
        )
    other = owners.setdefault(value.untyped_storage().data_ptr(), name)
    if other != name:
        raise ImporterError(
            f"{other} and {name} share their bytes; pass `.clone()` of one: inputs "
            "change one by one"
        )


def check_module(module: nn.Module, inputs: Sequence[Any]) -> None:
    """In evaluation mode, and on the device of the inputs."""
    if not isinstance(module, nn.Module):
        raise ImporterError(f"{type(module).__name__} is not a torch.nn.Module; wrap it in one")
    training = [name or "the module" for name, part in module.named_modules() if part.training]
    if training:
        raise ImporterError(
            f"{training[0]} is in training mode, where dropout and batch norm compute something "
            "else; call `module.eval()` first"
        )
    devices = {value.device for value in inputs if isinstance(value, torch.Tensor)}
    own = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    if len(devices | own) > 1:
        raise ImporterError(
            f"example inputs are on {_listed(devices)}, the module on {_listed(own)}; move them to "
            "one device"
        )


def _listed(devices: set[torch.device]) -> str:
    return ", ".join(sorted(map(str, devices))) or "no device"


def _explained(module: nn.Module, error: Exception) -> str:
    """What PyTorch said, where, and what to do."""
    text = " ".join(HINTS.sub("", str(error)).split())
    brief = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    name, place = type(module).__name__, _place(error)
    follows = "data-dependent" in text.lower() or "GuardOnDataDependent" in type(error).__name__
    if place and STORES.search(place.code) and (follows or "SymInt" in text):
        mend = (
            "where it writes follows from values of tensors; write "
            "`buffer.index_copy_(dim, index, x)`, whose index is a tensor"
        )
    elif follows:
        mend = (
            "its Python code branches on, or takes sizes from, values of tensors; use torch.where "
            "instead, or wrap the module so that what it branches on is made inside"
        )
    elif isinstance(error, FileNotFoundError) and not _is_somewhere():
        mend = "PyTorch loads what it exports with in a folder that is there; `os.chdir` to one"
    elif "Expected FakeTensor" in text:  # so PyTorch 2.11 says it
        mend = (
            f"where it differentiates by torch.func, which PyTorch does not export, {BY_AUTOGRAD}"
        )
    elif "cache" in text.lower():
        mend = NO_CACHE
    else:
        mend = (
            f"does {name} take these example inputs when it is called? If so, "
            f"torch.export.export({name}, …, strict=False) tells more"
        )
    where = f" at {place}" if place else ""
    return f"torch.export of {name} failed{where}: {mend}. {type(error).__name__}: {brief}"


def _is_somewhere() -> bool:
    """Whether the working folder is there."""
    try:
        return bool(os.getcwd())
    except FileNotFoundError:
        return False


def _place(error: BaseException | None) -> SourceLine | None:
    """The innermost line of the module's own code, or of a library that it is made with."""
    while error is not None:  # PyTorch says some errors anew, outside of the call that raised them
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if not frame.filename.startswith(AROUND) and "/sympy/" not in frame.filename:
                return SourceLine("", frame.filename, frame.lineno or 0, frame.line or "")
        error = error.__cause__ or error.__context__
    return None


# --- ops written in others ------------------------------------------------------------------------


def lowered(
    exported: ExportedProgram, fixed: Sequence[str], whole: Collection[str] = ()
) -> TorchProgram:
    """A functional program whose ops have entries wherever PyTorch can give that.

    Those in `whole` are not written in others. Calls that write over an operand are written apart
    in the program itself, as far as that is easily seen to give the same.
    """
    tried: set[Any] = set()
    write_in_line(exported.graph_module)
    if writes_over(exported):
        write_apart(exported.graph_module)
    must = bool(writes_over(exported)) or _is_batched(exported)
    while True:
        program = None if must else read(exported, fixed)
        without = [] if program is None else _without_entry(program)
        known = _decompositions(without) if without else {}
        table = {
            op: known[op]
            for op in without
            if op in known and op not in tried and str(op) not in whole
        }
        if program is not None and not table:
            return program
        exported = _written_in_others(exported, table)
        tried, must = tried | set(table), False


def _decompositions(ops: Collection[torch._ops.OpOverload]) -> Mapping[Any, Any]:
    """How PyTorch writes ops in others: its own never change, those of others may be new."""
    if all(op.namespace == "aten" for op in ops):
        return _decompositions_of_pytorch()
    return torch.export.default_decompositions()


@cache
def _decompositions_of_pytorch() -> Mapping[Any, Any]:
    """Asked for once: PyTorch walks every operator that anybody has registered."""
    return dict(torch.export.default_decompositions().items())


def _written_in_others(exported: ExportedProgram, table: dict[Any, Any]) -> ExportedProgram:
    try:
        with _exporting, _quiet(), _as_made(exported.parameters()):
            written: ExportedProgram = exported.run_decompositions(table)
            return written
    except Exception as error:
        brief = " ".join(str(error).split())[:LONGEST]
        raise ImporterError(
            "PyTorch cannot write the exported program without assignments; register tensors that "
            f"forward writes as buffers. {type(error).__name__}: {brief}"
        ) from error


def _without_entry(program: TorchProgram) -> list[Any]:
    varying = program.varying()
    targets = [node.target for node in program.alive() if node in varying]
    overloads = [t for t in targets if isinstance(t, torch._ops.OpOverload)]
    return [op for op in dict.fromkeys(overloads) if str(op) not in RULES]


def writes_over(exported: ExportedProgram) -> list[fx.Node]:
    """The calls that write into an operand, or are blocks of code."""
    calls = (node for node in exported.graph.nodes if node.op == "call_function")
    return [node for node in calls if _mutates(node.target)]


def _is_batched(exported: ExportedProgram) -> bool:
    """Whether calls stand inside of a `torch.vmap`, which PyTorch writes as calls of batches."""
    calls = (node for node in exported.graph.nodes if node.op == "call_function")
    return any(node.target.__module__ == BATCHING for node in calls)


def _mutates(target: Any) -> bool:
    """Ops that write into an operand, and blocks of code, which lowering puts in line."""
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.is_mutable and str(target) != "aten.detach_.default"
    return isinstance(target, torch._ops.HigherOrderOperator)


def written_from(node: fx.Node) -> list[str]:
    """The ops that a call comes from, of which PyTorch wrote each in the one before it."""
    found, sources = [], node.meta.get("from_node")
    while sources:
        found.append(str(sources[0].target))
        sources = sources[0].from_node
    return found
