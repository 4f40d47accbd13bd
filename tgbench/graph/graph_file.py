"""Graph files: a graph as JSON that any process can read, and that executes nothing.

    {"version": 1, "fingerprint": "9f…",
     "dimensions": {"T": 4096},                     symbolic ones, their largest value or null
     "nodes": [
       {"op": "input", "name": "x", "type": ["float32", ["T", 8]], "inputs": [], "attrs": {}},
       {"op": "constant", …, "attrs": {"data": {"values": [2.0]}}},
       {"op": "mul", …, "inputs": [0, 1], …}],
     "outputs": {"y": 2}, "updates": {}}

A dimension is a number, the name of a symbolic one, or an expression in prefix form,
`["*", 4, "T"]`: nothing is parsed as a formula. Constants are listed, or, where they are many,
deflated and in base64 with a digest. Every node is made anew through the op table, so that a file
cannot say what the table would not; its type and, at the end, the fingerprint of the whole are
compared. The schema is `schemas/graph-1.json`. Parameters are no part of it: they are weight files.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tgbench.graph.ops  # noqa: F401  (fills the op table)
from tgbench.base.atomic import atomic_path
from tgbench.base.errors import MOST_INTEGER, GraphError
from tgbench.base.known import ConstantData
from tgbench.base.regions import Box
from tgbench.base.strict_json import parsed, read_text
from tgbench.base.words import is_name, shorten
from tgbench.graph.dims import declared_max, dim, is_symbolic, plain
from tgbench.graph.graph import Graph, GraphBuilder, Node, Weighted, expansion, graph_of
from tgbench.graph.op_table import ITEMSIZE, LEAVES, OPS

VERSION = 1
LISTED = 16  # constants of up to this many elements are written as numbers
MOST_ELEMENTS = 2**44  # of one tensor
MOST_CONSTANT_BYTES = 2**28  # of all constants of a file
MOST_INPUTS = 4096  # of one op; rules look at each beside the others
MOST_DEPTH = 16  # of a dimension's expression, and of nested attributes
INT_LIMIT = 2**62
MEND = "restore the file, or save the graph again with `save_graph`"
FIELDS = ("version", "fingerprint", "dimensions", "nodes", "outputs", "updates")
NODE_FIELDS = ("op", "name", "type", "inputs", "attrs")


def save_graph(graph: Graph | Weighted, path: str | Path) -> Path:
    """Write a graph atomically: a reader sees the old file or the new one.

    Of an imported module its graph is written, not its weights.

    Raises GraphError for what is no graph, and an attribute that a file cannot hold.

    >>> g = GraphBuilder(); g.output("y", g.input("x", (3,)) * 2.0)
    >>> saved = save_graph(g.build(), "/tmp/twice.json")
    >>> print(load_graph(saved))
    x: float32[3] = input()
    constant: float32[] = constant(data=2.0)
    mul: float32[3] = mul(x, constant)
    output y = mul
    """
    text = graph_to_json(graph_of(graph))
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)


def load_graph(path: str | Path) -> Graph:
    """Read and check a graph file; raises GraphError naming the file, the field and the mend."""
    text = read_text(path, lambda fault: GraphError(f"{path}: cannot be read ({fault}); {MEND}"))
    try:
        return graph_from_json(text)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from error


# --- writing --------------------------------------------------------------------------------------


def graph_to_json(graph: Graph) -> str:
    """The same graph gives the same text, byte for byte."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    head = {
        "version": VERSION,
        "fingerprint": graph.fingerprint,
        "dimensions": {str(symbol): declared_max(str(symbol)) for symbol in graph.symbols},
        "outputs": {name: number[node] for name, node in graph.outputs.items()},
        "updates": {name: number[node] for name, node in graph.updates.items()},
    }
    lines = ",\n  ".join(_node_line(node, number) for node in graph.nodes)
    return f'{json.dumps(head, indent=1)[:-2]},\n "nodes": [\n  {lines}\n ]\n}}\n'


def _node_line(node: Node, number: Mapping[Node, int]) -> str:
    record = {
        "op": node.op,
        "name": node.name,
        "type": [node.dtype, [_dimension(size) for size in node.shape]],
        "inputs": [number[parent] for parent in node.inputs],
        "attrs": {key: _value(value, f"{node.name}.{key}") for key, value in node.attrs.items()},
        **({"source": node.source} if node.source else {}),
    }
    return json.dumps(record, allow_nan=False)


def _dimension(size: Any) -> Any:
    """A size as JSON: a number, a name, or an expression in prefix form."""
    if not is_symbolic(size):
        return int(size)
    from tgbench.graph.expressions import prefix_form

    return prefix_form(size)


def _value(value: Any, where: str) -> Any:
    """An attribute as JSON; what JSON has no word for is an object of one field."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, tuple):
        return [_value(part, where) for part in value]
    if isinstance(value, ConstantData):
        return _constant(value)
    if is_symbolic(value):
        return {"dimension": _dimension(value)}
    raise GraphError(f"{where} is a {type(value).__name__}, which a graph file cannot hold")


def _constant(data: ConstantData) -> dict[str, Any]:
    array = data.array
    if array.size <= LISTED and bool(np.isfinite(array).all()):
        return {"values": array.reshape(-1).tolist()}
    raw = zlib.compress(np.ascontiguousarray(array).tobytes(), 6)
    return {"deflated": base64.b64encode(raw).decode(), "sha256": data.digest}


# --- reading --------------------------------------------------------------------------------------


def graph_from_json(text: str) -> Graph:
    """The graph that a file's text describes; raises GraphError naming the field and the mend."""
    damaged = "the file is damaged"
    data = parsed(text, lambda fault: GraphError(f"not JSON ({fault}); {damaged}: {MEND}"))
    if not isinstance(data, dict):
        raise GraphError(f"a graph file is a JSON object, not {shorten(data)}; {MEND}")
    if "slots" in data:
        raise GraphError("a plan, not a graph; pass a file that `save_graph` wrote")
    if type(data.get("version")) is not int or data["version"] != VERSION:
        raise GraphError(
            f"version: {shorten(data.get('version'))} is not {VERSION}; "
            "save the graph again with this release"
        )
    _fields(data, FIELDS, "")
    return _GraphReader(data).graph()


def _fields(item: Any, names: Sequence[str], where: str) -> None:
    """Exactly these fields."""
    if not isinstance(item, dict):
        raise GraphError(f"{where}: {shorten(item)} is not an object; {MEND}")
    for name in [*names, *item]:
        if name not in item:
            raise GraphError(f"{_path(where, name)}: missing; {MEND}")
        if name not in names:
            raise GraphError(f"{_path(where, shorten(name))}: not a field of a graph file; {MEND}")


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _is_count(value: Any, limit: int = INT_LIMIT) -> bool:
    return type(value) is int and 0 <= value < limit


def _are(kind: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Several of a kind."""
    return lambda value: isinstance(value, tuple) and all(map(kind, value))


def _is_size(value: Any) -> bool:
    return type(value) is int or is_symbolic(value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_word(value: Any) -> bool:
    return type(value) is str


def _is_flag(value: Any) -> bool:
    return type(value) is bool


_are_sizes = _are(_is_size)
ATTRIBUTES: Mapping[str, Callable[[Any], bool]] = {  # what each holds, in whatever op
    **dict.fromkeys(("activation", "approximate", "device", "dtype", "mode"), _is_word),
    "arithmetic": lambda value: value == "bfloat16",
    **dict.fromkeys(("add", "align_corners", "keepdims", "largest"), _is_flag),
    **dict.fromkeys(("alpha", "beta", "eps", "scale", "slope", "threshold", "value"), _is_number),
    **dict.fromkeys(("axis", "groups", "k"), _is_size),
    **dict.fromkeys(
        ("axes", "count", "dilation", "kernel", "output_padding", "shape", "size", "start",
         "starts", "steps", "stops", "stride"), _are_sizes,
    ),
    **dict.fromkeys(("low", "high"), lambda value: _is_number(value) or _are_sizes(value)),
    "padding": lambda value: _are_sizes(value) or _are(_are_sizes)(value),
    "scales": _are(lambda value: value is None or _is_number(value)),
    "results": _are(_are_sizes),
    "calls": lambda value: isinstance(value, tuple),  # the op itself looks at every one
}  # fmt: skip


@dataclass
class _GraphReader:
    """Node by node, with the path of the field in every message."""

    data: Mapping[str, Any]
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    nodes: list[Node] = field(default_factory=list)
    left_bytes: int = MOST_CONSTANT_BYTES

    def graph(self) -> Graph:
        self._dimensions()
        records = self.data["nodes"]
        if not isinstance(records, list):
            raise GraphError(f"nodes: {shorten(records)} is not a list; {MEND}")
        for i, record in enumerate(records):
            self.nodes.append(self._node(record, f"nodes[{i}]"))
        outputs, updates = self._ends("outputs"), self._ends("updates")
        if not outputs:
            raise GraphError(f"outputs: there are none; {MEND}")
        self._check_updates(updates)
        graph = Graph.of(outputs, updates)
        if graph.fingerprint != self.data["fingerprint"]:
            raise GraphError(
                f"fingerprint: {shorten(self.data['fingerprint'])} is not that of these nodes, "
                f"{graph.fingerprint[:12]}…; the file was changed: {MEND}"
            )
        return graph

    def _dimensions(self) -> None:
        found = self.data["dimensions"]
        if not isinstance(found, dict):
            raise GraphError(f"dimensions: {shorten(found)} is not an object; {MEND}")
        for name, most in found.items():
            if not is_name(name) or not (most is None or (_is_count(most) and most)):
                raise GraphError(
                    f"dimensions.{shorten(name)}: {shorten(most)} is not a largest size or null, "
                    f"or the name is none; {MEND}"
                )
        self.symbols = {name: dim(name, max=most) for name, most in found.items()}

    def _node(self, record: Any, where: str) -> Node:
        has_source = isinstance(record, dict) and "source" in record
        _fields(record, (*NODE_FIELDS, *(["source"] if has_source else [])), where)
        name, op, self.builder.source = record["name"], record["op"], record.get("source", "")
        if has_source and not is_name(self.builder.source):
            raise GraphError(f"{where}.source: {shorten(record['source'])} is no line; {MEND}")
        if not is_name(name):
            raise GraphError(f"{where}.name: {shorten(name)} is not a name; {MEND}")
        if not isinstance(op, str) or (op not in OPS and op not in LEAVES):
            raise GraphError(
                f"{where}.op: {shorten(op)} is unknown; the table has "
                f"{', '.join([*LEAVES, *sorted(OPS)])}: load it with the release that saved it"
            )
        dtype, shape = self._type(record["type"], f"{where}.type")
        inputs = self._inputs(record["inputs"], f"{where}.inputs")
        count = len(self.builder.nodes)
        if op == "constant":
            node = self._constant(record["attrs"], dtype, shape, f"{where}.attrs")
        else:
            attrs = self._attrs(record["attrs"], f"{where}.attrs")
            node = self._made(op, name, dtype, shape, inputs, attrs, where)
        if len(self.builder.nodes) != count + 1:
            raise GraphError(f"{where}: it repeats {node.name}; {MEND}")
        if (node.dtype, node.shape) != (dtype, shape):
            raise GraphError(
                f"{where}.type: {op} gives {node.type}, not {shorten(record['type'])}; {MEND}"
            )
        node.name = name
        self.builder._taken[name] = node
        return node

    def _made(
        self,
        op: str,
        name: str,
        dtype: str,
        shape: tuple[Any, ...],
        inputs: tuple[Node, ...],
        attrs: dict[str, Any],
        where: str,
    ) -> Node:
        """Through the builder, whose table decides what can be."""
        if op in LEAVES and (inputs or attrs):
            raise GraphError(f"{where}: {op} takes no inputs and no attributes; {MEND}")
        try:
            if op in LEAVES:
                leaf: Callable[..., Node] = getattr(self.builder, op)
                return leaf(name, shape, dtype)
            node = self.builder.apply(op, *inputs, **attrs)
            _try_rules(node)
            return node
        except GraphError as error:
            raise GraphError(f"{where}: {error}") from error
        except Exception as error:  # attributes that an op's rules were never meant to see
            raise GraphError(
                f"{where}: {op} cannot be made of these inputs and attributes "
                f"({type(error).__name__}: {shorten(str(error))}); {MEND}"
            ) from error

    def _type(self, item: Any, where: str) -> tuple[str, tuple[Any, ...]]:
        known = isinstance(item, list) and len(item) == 2 and isinstance(item[1], list)
        if not known or not isinstance(item[0], str) or item[0] not in ITEMSIZE:
            raise GraphError(f"{where}: {shorten(item)} is not [dtype, [sizes]]; {MEND}")
        shape = tuple(self._dimension(size, f"{where}[1]") for size in item[1])
        elements = math.prod(size for size in shape if isinstance(size, int))
        if any(isinstance(n, int) and n < 1 for n in shape) or elements > MOST_ELEMENTS:
            raise GraphError(
                f"{where}: {shorten(item[1])} is empty, or has more than 2**44 elements; {MEND}"
            )
        return item[0], shape

    def _inputs(self, item: Any, where: str) -> tuple[Node, ...]:
        if not isinstance(item, list) or not all(_is_count(i, len(self.nodes)) for i in item):
            raise GraphError(
                f"{where}: {shorten(item)} is not a list of earlier nodes (below "
                f"{len(self.nodes)}); {MEND}"
            )
        if len(item) > MOST_INPUTS:
            raise GraphError(f"{where}: {len(item)} inputs are more than {MOST_INPUTS}; {MEND}")
        return tuple(self.nodes[i] for i in item)

    def _attrs(self, item: Any, where: str) -> dict[str, Any]:
        if not isinstance(item, dict):
            raise GraphError(f"{where}: {shorten(item)} is not an object; {MEND}")
        found = {}
        for key, value in item.items():
            place = f"{where}.{shorten(key)}"
            found[key] = self._value(value, place)
            if key not in ATTRIBUTES or not ATTRIBUTES[key](found[key]):
                raise GraphError(f"{place}: {shorten(value)} is no such attribute of an op; {MEND}")
        return found

    def _value(self, item: Any, where: str, depth: int = 0) -> Any:
        if item is None or type(item) in (bool, float, str):
            return item
        if type(item) is int and -MOST_INTEGER <= item < MOST_INTEGER:  # slices end at the largest
            return item
        if isinstance(item, list) and depth < MOST_DEPTH:
            return tuple(self._value(part, where, depth + 1) for part in item)
        if isinstance(item, dict) and item.keys() == {"dimension"}:
            return self._dimension(item["dimension"], where)
        if isinstance(item, dict) and item.keys() == {"float"} and item["float"] in NOT_FINITE:
            return float(item["float"])
        raise GraphError(f"{where}: {shorten(item)} is not an attribute's value; {MEND}")

    def _dimension(self, item: Any, where: str, depth: int = 0) -> Any:
        """A number, a symbol or an expression of a few operators; never the text of a formula."""
        if type(item) is int and -INT_LIMIT < item < INT_LIMIT:
            return item
        if isinstance(item, str) and item in self.symbols:
            return self.symbols[item]
        if not isinstance(item, list) or not item or depth >= MOST_DEPTH or len(item) > 64:
            raise GraphError(f"{where}: {shorten(item)} is not a dimension; {MEND}")
        sign, *parts = item
        arguments = [self._dimension(part, where, depth + 1) for part in parts]
        from tgbench.graph.expressions import expression

        made = expression(sign, arguments)
        if made is None:
            raise GraphError(f"{where}: {shorten(item)} is not a dimension; {MEND}")
        return plain(made)

    def _constant(self, attrs: Any, dtype: str, shape: tuple[Any, ...], where: str) -> Node:
        _fields(attrs, ("data",), where)
        data, where = attrs["data"], f"{where}.data"
        if not all(isinstance(size, int) for size in shape) or dtype == "bfloat16":
            raise GraphError(f"{where}: a constant of {dtype}{list(shape)} cannot be; {MEND}")
        size_bytes = math.prod(shape) * ITEMSIZE[dtype]
        self.left_bytes -= size_bytes
        if self.left_bytes < 0:
            raise GraphError(
                f"{where}: constants take more than {MOST_CONSTANT_BYTES} bytes; make large ones "
                "parameters, which are read from weight files"
            )
        if isinstance(data, dict) and data.keys() == {"values"}:
            array = _listed(data["values"], dtype, math.prod(shape), where)
        else:
            _fields(data, ("deflated", "sha256"), where)
            array = _inflated(data["deflated"], size_bytes, where)
            array = array != 0 if dtype == "bool" else array.view(dtype)
        node = self.builder.constant(array.reshape(shape), dtype)
        if "sha256" in data and node.attrs["data"].digest != data["sha256"]:
            raise GraphError(
                f"{where}.sha256: not that of the values; the file was changed: {MEND}"
            )
        return node

    def _ends(self, key: str) -> dict[str, Node]:
        found = self.data[key]
        if not isinstance(found, dict):
            raise GraphError(f"{key}: {shorten(found)} is not an object; {MEND}")
        for name, i in found.items():
            if not is_name(name) or not _is_count(i, len(self.nodes)):
                raise GraphError(f"{key}.{shorten(name)}: {shorten(i)} is not a node; {MEND}")
        return {name: self.nodes[i] for name, i in found.items()}

    def _check_updates(self, updates: Mapping[str, Node]) -> None:
        states = {node.name: node for node in self.nodes if node.op == "state"}
        for name, node in updates.items():
            if name not in states or states[name].type != node.type:
                raise GraphError(
                    f"updates.{shorten(name)}: no state of that name and of {node.type}; {MEND}"
                )


def _try_rules(node: Node) -> None:
    """Ask for all that a node reads, so that attributes that make no sense are found here."""
    if any(map(is_symbolic, node.shape)):
        return
    call = node.call
    calls = [call]
    if call.op.is_fused:
        nodes = expansion(call.op, call.attrs, call.inputs, call.facts).nodes
        calls = [one.call for one in nodes if not one.is_leaf]
    for one in calls:
        assert one.op.needed is not None
        one.op.needed(one, Box.full(one.out.shape))


NOT_FINITE = ("inf", "-inf", "nan")


def _listed(values: Any, dtype: str, count: int, where: str) -> np.ndarray[Any, Any]:
    """A constant that is written as numbers."""
    kinds = (bool,) if dtype == "bool" else (int, float) if "float" in dtype else (int,)
    if not isinstance(values, list) or len(values) != count:
        raise GraphError(f"{where}.values: not a list of {count} numbers; {MEND}")
    for value in values:
        if type(value) not in kinds or not _fits(value, dtype):
            raise GraphError(f"{where}.values: {shorten(value)} is no {dtype}; {MEND}")
    return np.array(values, dtype)


def _fits(value: Any, dtype: str) -> bool:
    if dtype == "bool":
        return True
    if "float" in dtype:
        return bool(abs(value) <= np.finfo(dtype).max)
    limits = np.iinfo(dtype)
    return bool(limits.min <= value <= limits.max)


def _inflated(text: Any, size_bytes: int, where: str) -> np.ndarray[Any, Any]:
    """A constant's bytes, never more than its type says."""
    if not isinstance(text, str):
        raise GraphError(f"{where}.deflated: {shorten(text)} is not text; {MEND}")
    inflater = zlib.decompressobj()
    try:
        raw = inflater.decompress(base64.b64decode(text, validate=True), size_bytes + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise GraphError(f"{where}.deflated: {error}; the file is damaged: {MEND}") from error
    if len(raw) != size_bytes or not inflater.eof:
        raise GraphError(
            f"{where}.deflated: not the {size_bytes} bytes of its type; the file is damaged: {MEND}"
        )
    array: np.ndarray[Any, Any] = np.frombuffer(raw, np.uint8)
    return array
