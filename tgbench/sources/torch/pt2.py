"""`.pt2` files of `torch.export.save`, read without running anything that they hold.

    <name>/models/model.json                          graph and signature
    <name>/data/weights/model_weights_config.json     name → file, dtype, sizes, strides
    <name>/data/weights/weight_0                      raw bytes
    <name>/data/constants/…                           the same
    <name>/data/sample_inputs/model.pt                a pickle; not opened

`torch.export.load` is no way to do this: it unpickles sample inputs, and tensors or objects that
the file says are pickled, with `weights_only=False`, gives the file's expressions to
`sympy.sympify`, which evaluates them, and compiles source text made from the file (PyTorch 2.13:
torch/export/pt2_archive/_package.py, torch/_export/serde/serialize.py). Here a call must be an op
of the importer's table, or one of a few that make constants; PyTorch computes what depends on no
input by these alone. Left out: dynamic shapes, control flow, custom classes, pickled tensors.
"""

from __future__ import annotations

import math
import operator
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, BinaryIO

import torch
from torch import fx
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument

from tgbench.base.errors import ImporterError
from tgbench.base.files import open_regular
from tgbench.base.strict_json import parsed
from tgbench.base.words import shorten
from tgbench.graph.ops.opaque.aten import operator_of, refusal
from tgbench.sources.torch.program import SHAPE_ONLY, Leaf, Tensors, TorchProgram, output_nodes
from tgbench.sources.torch.table import RULES

MOST_REPEATED_BYTES = 1 << 26  # of numbers that strides repeat
SCHEMA_MAJOR = 8  # of torch/_export/serde/schema.py in PyTorch 2.11 to 2.13
DTYPES = {
    1: torch.uint8, 2: torch.int8, 3: torch.int16, 4: torch.int32, 5: torch.int64,
    6: torch.float16, 7: torch.float32, 8: torch.float64, 10: torch.complex64,
    11: torch.complex128, 12: torch.bool, 13: torch.bfloat16,
}  # fmt: skip
MEMORY_FORMATS = {
    1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d,
    4: torch.preserve_format,
}  # fmt: skip
MAKERS = frozenset({  # of constants: masks, positions, tables
    "aten.arange.default", "aten.arange.start", "aten.arange.start_step", "aten.diff.default",
    "aten.eye.default", "aten.full.default", "aten.linspace.default", "aten.ones.default",
    "aten.outer.default", "aten.scalar_tensor.default", "aten.zeros.default",
})  # fmt: skip
SAME = ("as_int", "as_ints", "as_float", "as_floats", "as_string", "as_bool", "as_bools")
_TARGET = re.compile(r"torch\.ops\.aten\.(\w+)\.(\w+)")


class ForeignFile(Exception):  # noqa: N818 - becomes an ImporterError with the file's name
    """What is wrong with a file."""


def read_pt2(path: str | os.PathLike[str]) -> TorchProgram:
    """The program in a file; raises ImporterError for one that is damaged or holds more."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return _Pt2Reader(_Archive(archive, _Allowance.of(file))).program()
    except ForeignFile as error:
        raise ImporterError(f"{path}: {error}") from None
    except (OSError, zipfile.BadZipFile) as error:
        raise ImporterError(f"{path}: cannot be read ({error}); save it again") from error
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError,
            OverflowError, StopIteration, AssertionError, RuntimeError) as error:  # fmt: skip
        raise ImporterError(
            f"{path}: is damaged, or of another schema than {SCHEMA_MAJOR} "
            f"({type(error).__name__}: {error}); save it again with torch.export.save"
        ) from error


@dataclass
class _Allowance:
    """The bytes that a file may take in memory: as many as it has, and some for views.

    Members that lie over each other, or numbers that a stride of 0 repeats, would take more.
    """

    left_bytes: int

    @staticmethod
    def of(file: BinaryIO) -> _Allowance:
        return _Allowance(os.fstat(file.fileno()).st_size + MOST_REPEATED_BYTES)

    def take(self, size_bytes: int) -> None:
        """Have so many of them."""
        self.left_bytes -= size_bytes
        if self.left_bytes < 0:
            raise ForeignFile("holds more bytes than it has; it is damaged: save it again")


@dataclass
class _Archive:
    """Members by name, without the folder that all lie in."""

    zip: zipfile.ZipFile
    room: _Allowance

    @cached_property
    def members(self) -> dict[str, list[zipfile.ZipInfo]]:
        found: dict[str, list[zipfile.ZipInfo]] = {}
        for member in self.zip.infolist():
            found.setdefault(member.filename.split("/", 1)[-1], []).append(member)
        return found

    def bytes(self, name: str) -> bytes:
        found = self.members.get(name, [])
        if len(found) != 1:
            raise ForeignFile(
                f"has {len(found)} members {name}; save it again: torch.export.save writes one"
            )
        if found[0].compress_type != zipfile.ZIP_STORED:  # a few bytes could be any number
            raise ForeignFile(
                f"has {name} compressed; save it again: torch.export.save compresses nothing"
            )
        self.room.take(found[0].file_size)
        return self.zip.read(found[0])

    def json(self, name: str) -> Any:
        return _parsed(self.bytes(name), name)

    def tensors(self, kind: str) -> dict[str, torch.Tensor]:
        """Weights or constants by name, those of one member sharing their storage."""
        config = self.json(f"data/{kind}/model_{kind}_config.json")["config"]
        storages: dict[str, torch.Tensor] = {}
        return {name: self._tensor(kind, name, entry, storages) for name, entry in config.items()}

    def _tensor(
        self, kind: str, name: str, entry: Any, storages: dict[str, torch.Tensor]
    ) -> torch.Tensor:
        if entry["use_pickle"]:
            raise ForeignFile(f"{name} is a pickle, which could run code; save plain tensors")
        member = str(entry["path_name"])
        if member not in storages:
            raw = bytearray(self.bytes(f"data/{kind}/{member}"))
            storages[member] = torch.frombuffer(raw or bytearray(1), dtype=torch.uint8)
        meta = entry["tensor_meta"]
        dtype = _dtype(meta["dtype"])
        flat = storages[member]
        whole = flat[: flat.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
        offset = _int(meta["storage_offset"])
        sizes = _ints(meta["sizes"])
        self.room.take(max(0, math.prod(sizes) * dtype.itemsize - flat.numel()))
        return torch.as_strided(whole, sizes, _ints(meta["strides"]), offset)


def _parsed(text: str | bytes, where: str) -> Any:
    """JSON as PyTorch writes it, which has infinite numbers."""
    return parsed(
        text,
        lambda fault: ForeignFile(f"{where} is not JSON ({fault}); save it again"),
        infinite=True,
    )


def _dtype(code: int) -> torch.dtype:
    if code not in DTYPES:
        raise ForeignFile(f"has a tensor of dtype {code}, which graphs do not hold; cast it")
    return DTYPES[code]


def _int(value: Any) -> int:
    if "as_int" not in value:
        raise ForeignFile("has dynamic shapes; export without dynamic_shapes")
    return int(value["as_int"])


def _ints(values: Any) -> list[int]:
    return [_int(value) for value in values]


# --- the graph ------------------------------------------------------------------------------------


@dataclass
class _Pt2Reader:
    archive: _Archive
    graph: fx.Graph = field(default_factory=fx.Graph)
    nodes: dict[str, fx.Node] = field(default_factory=dict)
    metas: dict[str, Any] = field(default_factory=dict)

    def program(self) -> TorchProgram:
        model = self.archive.json("models/model.json")
        if model["schema_version"]["major"] != SCHEMA_MAJOR:
            raise ForeignFile(
                f"has schema {model['schema_version']}; save it with PyTorch 2.11 to 2.13"
            )
        if self.archive.bytes("byteorder") != b"little":
            raise ForeignFile("was written on a big-endian machine; save it on a little-endian one")
        module = model["graph_module"]
        self.metas = module["graph"]["tensor_values"]
        root = module["module_call_graph"][0]["signature"]
        names = _input_names(
            _parsed(root["in_spec"], "in_spec")[1], root["forward_arg_names"] or []
        )
        mutated, results = _outputs(module["signature"]["output_specs"])
        leaves, inputs = self._leaves(module, names, set(mutated))
        for call in module["graph"]["nodes"]:
            self._call(call)
        ends = [self.nodes[name] if name is not None else None for name in results]
        paths = _paths(_parsed(root["out_spec"], "out_spec")[1], "")
        outputs = output_nodes(zip(paths, ends, strict=True))
        updates = {state: self.nodes[name] for state, name in mutated.items()}
        return TorchProgram(self.graph, leaves, outputs, updates, tuple(inputs))

    def _leaves(
        self, module: Any, names: list[str], mutated: set[str]
    ) -> tuple[dict[fx.Node, Leaf], list[str]]:
        weights = {**self.archive.tensors("constants"), **self.archive.tensors("weights")}
        tensors, given = Tensors(weights, mutated), iter(names)
        leaves: dict[fx.Node, Leaf] = {}
        inputs: list[str] = []
        for spec in module["signature"]["input_specs"]:
            ((kind, what),) = spec.items()
            if kind == "constant_input":
                inputs.append(next(given))
                node = self.graph.placeholder(f"constant_{len(inputs)}")
                leaves[node] = Leaf("constant", inputs[-1], self._argument(what["value"]))
            elif kind == "user_input":
                inputs.append(next(given))
                leaves[self._placeholder(what["arg"]["as_tensor"])] = Leaf("input", inputs[-1])
            else:
                leaves[self._placeholder(what["arg"])] = tensors.leaf(_spec(kind, what))
        return leaves, inputs

    def _placeholder(self, argument: Any) -> fx.Node:
        node = self.graph.placeholder("leaf")
        self._enter(argument["name"], node)
        return node

    def _enter(self, name: str, node: fx.Node) -> None:
        node.meta["val"] = self._meta(name)
        self.nodes[name] = node

    def _meta(self, name: str) -> torch.Tensor:
        meta = self.metas[name]
        return torch.empty(_ints(meta["sizes"]), dtype=_dtype(meta["dtype"]), device="meta")

    def _call(self, call: Any) -> None:
        target = _target(call["target"])
        given = [(a["name"], self._argument(a["arg"]), a.get("kind", 1)) for a in call["inputs"]]
        positional = tuple(value for _, value, kind in given if kind != 2)
        named = {name: value for name, value, kind in given if kind == 2}
        node = self.graph.call_function(target, positional, named)
        node.meta.update(_place(call["metadata"]))
        results = [name for out in call["outputs"] for name in _names(out)]
        is_one = len(call["outputs"]) == 1 and "as_tensor" in call["outputs"][0]
        if is_one:
            self._enter(str(results[0]), node)
            return
        node.meta["val"] = tuple(None if name is None else self._meta(name) for name in results)
        for i, name in enumerate(results):
            if name is not None:
                self._enter(name, self.graph.call_function(operator.getitem, (node, i)))

    def _argument(self, argument: Any) -> Any:
        """A JSON argument as what the op takes."""
        ((kind, value),) = argument.items()
        if kind in SAME:
            return value
        if kind not in _ARGUMENTS:
            raise ForeignFile(
                f"has an argument of kind {kind}, which no entry takes; import the module itself "
                "(`from_torch`) to see where"
            )
        return _ARGUMENTS[kind](self, value)


def _target(name: str) -> Any:
    """A known op of ATen, and nothing else that a name could lead to."""
    match = _TARGET.fullmatch(name)
    found = None if match is None else operator_of(f"{match[1]}.{match[2]}")
    if found is None or (str(found) not in RULES.keys() | SHAPE_ONLY | MAKERS and refusal(found)):
        raise ForeignFile(
            f"calls {name!r}, which has no entry and cannot be computed whole; save "
            "`program.run_decompositions()`, or import the module itself to see what is missing"
        )
    return found


_ARGUMENTS: dict[str, Callable[[_Pt2Reader, Any], Any]] = {
    "as_none": lambda reader, value: None,
    "as_tensor": lambda reader, value: reader.nodes[value["name"]],
    "as_tensors": lambda reader, value: [reader.nodes[one["name"]] for one in value],
    "as_optional_tensor": lambda reader, value: reader._argument(value),
    "as_optional_tensors": lambda reader, value: [reader._argument(one) for one in value],
    "as_sym_int": lambda reader, value: _int(value),
    "as_sym_ints": lambda reader, value: _ints(value),
    "as_scalar_type": lambda reader, value: _dtype(value),
    "as_memory_format": lambda reader, value: MEMORY_FORMATS[value],
    "as_layout": lambda reader, value: torch.strided,
    "as_device": lambda reader, value: torch.device("cpu"),
}


def _names(output: Any) -> Iterator[str | None]:
    ((kind, value),) = output.items()
    if kind == "as_none":
        yield None
    elif kind in ("as_tensors", "as_optional_tensors"):
        for one in value:
            yield from [one["name"]] if "name" in one else _names(one)
    elif kind in ("as_tensor", "as_optional_tensor"):
        yield from [value["name"]] if "name" in value else _names(value)
    else:
        raise ForeignFile(
            f"has a result of kind {kind}, and sizes that depend on values have no graph; return "
            "tensors of fixed sizes"
        )


def _place(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Stack trace and module stack; the latter is `key,path,type` joined by semicolons."""
    rows = [row.split(",") for row in metadata.get("nn_module_stack", "").split(";") if row]
    stack = {key: (".".join(path), kind) for key, *path, kind in rows if path}
    return {"stack_trace": metadata.get("stack_trace", ""), "nn_module_stack": stack}


# --- signature and names --------------------------------------------------------------------------


_KINDS = {
    "parameter": (InputKind.PARAMETER, "parameter_name"),
    "buffer": (InputKind.BUFFER, "buffer_name"),
    "tensor_constant": (InputKind.CONSTANT_TENSOR, "tensor_constant_name"),
}


WRITTEN = {"buffer_mutation": "buffer_name", "parameter_mutation": "parameter_name"}


def _spec(kind: str, what: Any) -> InputSpec:
    if kind not in _KINDS:
        raise ForeignFile(
            f"takes a {kind}, and the importer takes tensors; make it one, and export again"
        )
    found, key = _KINDS[kind]
    argument = TensorArgument(name=what["arg"]["name"])
    if not isinstance(what[key], str):
        raise ForeignFile(f"names a {kind} {shorten(what[key])}; save it again")
    return InputSpec(found, argument, what[key], what.get("persistent"))


def _outputs(specs: Any) -> tuple[dict[str, str], list[str | None]]:
    """State name → result, and the results that forward returns; None for what is no tensor."""
    mutated, results = {}, []
    for spec in specs:
        ((kind, what),) = spec.items()
        if kind in WRITTEN:
            mutated[what[WRITTEN[kind]]] = what["arg"]["name"]
        elif kind == "user_output":
            results.append(what["arg"].get("as_tensor", {}).get("name"))
        else:
            raise ForeignFile(f"its forward makes a {kind}; return a value instead")
    return mutated, results


def _input_names(spec: Any, known: list[str]) -> list[str]:
    positional, named = spec["children_spec"]
    found: list[str] = []
    for i, child in enumerate(positional["children_spec"]):
        found += _paths(child, known[i] if i < len(known) else f"args[{i}]")
    return found + _paths(named, "")


def _paths(spec: Any, name: str) -> list[str]:
    """Names of the leaves of a saved tree, as `program.paths` gives them for a live one."""
    if spec["type"] is None:
        return [name or "output"]
    context = _parsed(spec["context"], "context") if spec["context"] else None
    keys = context if isinstance(context, list) else None
    found = []
    for i, child in enumerate(spec["children_spec"]):
        if keys is not None and len(keys) == len(spec["children_spec"]):
            inner = f"{name}.{keys[i]}" if name else str(keys[i])
        else:
            inner = f"{name or 'output'}[{i}]"
        found += _paths(child, inner)
    return found
