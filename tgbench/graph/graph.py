"""The graph: immutable, hash-consed tensor values.

    Graph   = nodes in topological order, named inputs, named outputs
    Node    = op(inputs; attributes) : TensorType
    leaf    = input | parameter | constant | state       (the storage kinds)

    g = GraphBuilder()
    x = g.input("x", (4, 8))
    w = g.parameter("w", (8, 2))
    g.output("y", (x @ w) * 2.0)
    graph = g.build()

Building the same expression twice gives the same node. Shapes may hold sympy symbols
(`dim("T", max=4096)`) until `Graph.bind` puts numbers in their place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from math import prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable
from weakref import WeakValueDictionary

import numpy as np

from tgbench.base.dense import dense
from tgbench.base.errors import GraphError
from tgbench.base.known import MOST_KNOWN, ConstantData, Fact, constant_fact, followed
from tgbench.base.memo import once_each, outlives
from tgbench.base.regions import Region
from tgbench.base.words import LONGEST_NAME, is_name, shorten
from tgbench.graph.dims import declared_max, is_dim, is_symbolic, plain
from tgbench.graph.op_table import (
    FLOATS,
    HOME,
    ITEMSIZE,
    LEAVES,
    OPS,
    Attrs,
    Call,
    Dim,
    OpDef,
    TensorType,
)

if TYPE_CHECKING:
    import sympy

CONSTANT = ("parameter", "constant")  # leaves that no run changes
MOST_RANK = 24  # NumPy and PyTorch take 25 to 64, by function, and some ops add one or two inside

Scalar: TypeAlias = "bool | int | float"
Operand: TypeAlias = "Node | Scalar"
Index: TypeAlias = "int | slice | EllipsisType | None"


def _operator(op: str, *, swap: bool = False) -> Callable[[Node, Operand], Node]:
    """The method of an operator; `swap`: of its right operand."""

    def method(self: Node, other: Operand) -> Node:
        return self._binary(op, other, swap=swap)

    return method


@outlives
class Node:
    """One tensor value. Two nodes are equal when they are the same object.

    Fields:
        source: where in a user's code it comes from, in words; "" where nobody knows. It is no part
            of what a graph is: fingerprints leave it out.
    """

    __slots__ = ("_call", "attrs", "builder", "index", "inputs", "name", "op", "source", "type")

    def __init__(
        self,
        builder: GraphBuilder,
        index: int,
        op: str,
        inputs: tuple[Node, ...],
        attrs: Attrs,
        type_: TensorType,
        call: Call | None,
        name: str,
        source: str = "",
    ) -> None:
        self.builder = builder
        self.index = index
        self.op = op
        self.inputs = inputs
        self.attrs = attrs
        self.type = type_
        self.name = name
        self.source = source
        self._call = call

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.type.shape

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def is_leaf(self) -> bool:
        return self._call is None

    @property
    def call(self) -> Call:
        """The op application behind this node; leaves have none."""
        if self._call is None:
            raise GraphError(f"{self.name} is a leaf ({self.op}) and has no op to run")
        return self._call

    def __repr__(self) -> str:
        arguments = [node.name for node in self.inputs]
        arguments += [f"{key}={value}" for key, value in self.attrs.items()]
        return f"{self.name}: {self.type} = {self.op}({', '.join(arguments)})"

    __add__ = _operator("add")
    __radd__ = _operator("add", swap=True)
    __sub__ = _operator("sub")
    __rsub__ = _operator("sub", swap=True)
    __mul__ = _operator("mul")
    __rmul__ = _operator("mul", swap=True)
    __truediv__ = _operator("div")
    __rtruediv__ = _operator("div", swap=True)
    __floordiv__ = _operator("floordiv")
    __mod__ = _operator("mod")
    __pow__ = _operator("pow")
    __lt__ = _operator("less")
    __le__ = _operator("less_equal")
    __gt__ = _operator("greater")
    __ge__ = _operator("greater_equal")
    __and__ = _operator("logical_and")
    __or__ = _operator("logical_or")

    def __invert__(self) -> Node:
        return self.builder.apply("logical_not", self)

    def __neg__(self) -> Node:
        return self.builder.apply("neg", self)

    def __abs__(self) -> Node:
        return self.builder.apply("abs", self)

    def __matmul__(self, other: Node) -> Node:
        return self.builder.apply("matmul", self, other)

    def equals(self, other: Operand) -> Node:
        """Element-wise `==` (Python's `==` compares node identity)."""
        return self._binary("equal", other)

    def _binary(self, op: str, other: Operand, *, swap: bool = False) -> Node:
        if not isinstance(other, Node):
            other = self.builder.scalar(other, self.dtype)
        return self.builder.apply(op, *((other, self) if swap else (self, other)))

    def cast(self, dtype: str) -> Node:
        return self if dtype == self.dtype else self.builder.apply("cast", self, dtype=dtype)

    def reshape(self, *shape: Any) -> Node:
        """The same elements in row-major order; one dimension may be −1."""
        dims = tuple(shape[0]) if len(shape) == 1 and not is_dim(shape[0]) else shape
        if any(size == -1 for size in dims):
            known: Any = 1
            for size in dims:
                known = known * (1 if size == -1 else size)
            rest = self.type.elements // known
            dims = tuple(rest if size == -1 else size for size in dims)
        return self.builder.apply("reshape", self, shape=tuple(map(plain, dims)))

    def permute(self, *axes: int) -> Node:
        order = tuple(axis_of(self, axis) for axis in axes)
        return self.builder.apply("permute", self, axes=order)

    def transpose(self, a: int = -1, b: int = -2) -> Node:
        order = list(range(self.rank))
        if not -self.rank <= min(a, b) <= max(a, b) < self.rank:
            raise GraphError(f"cannot exchange dimensions {a} and {b} of {self.name} ({self.type})")
        order[a], order[b] = order[b], order[a]
        return self.permute(*order)

    def expand(self, *shape: Any) -> Node:
        """Repeat dimensions of size 1 (and put new ones in front) up to `shape`."""
        return self.builder.apply("expand", self, shape=tuple(map(plain, shape)))

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Node:
        """Basic indexing: integers, slices with positive or negative steps, `...`, `None`."""
        return _index(self, index if isinstance(index, tuple) else (index,))

    def __iter__(self) -> Iterator[Node]:
        raise GraphError(f"{self.name} cannot be iterated; index it (`x[0]`) or use `split`")

    def __bool__(self) -> bool:
        raise GraphError(
            f"{self.name} has no truth value while the graph is built; use `where(condition, a, b)`"
        )


def axis_of(node: Node, axis: int) -> int:
    """A dimension by its number, the last one −1; raises GraphError for one that is not there."""
    if not -node.rank <= axis < node.rank:
        raise GraphError(f"{node.name} ({node.type}) has no dimension {axis}")
    return axis % node.rank


def _index(node: Node, index: tuple[Index, ...]) -> Node:
    ranges: list[tuple[Dim, Dim, int]] = []
    shape: list[Dim] = []
    for part in _spread(index, node):
        if part is None:
            shape.append(1)
            continue
        size = node.shape[len(ranges)]
        start, stop, step = _range_of(part, node, len(ranges))
        ranges.append((start, stop, step))
        if isinstance(part, slice):
            shape.append(len(range(start, stop, step)) if isinstance(size, int) else size)
    starts, stops, steps = zip(*ranges, strict=True) if ranges else ((), (), ())
    whole = ranges == [(0, size, 1) for size in node.shape]
    sliced = (
        node
        if whole
        else node.builder.apply("slice", node, starts=starts, stops=stops, steps=steps)
    )
    return sliced if tuple(shape) == sliced.shape else sliced.reshape(*shape)


def _range_of(part: Index, node: Node, axis: int) -> tuple[Dim, Dim, int]:
    """Start, stop and step that one integer or slice picks along an axis."""
    size = node.shape[axis]
    if not isinstance(part, (int, np.integer, slice)):
        raise GraphError(
            f"{part!r} cannot index a node; use integers, slices, `...` or None, or `gather`"
        )
    if not isinstance(size, int):
        if part != slice(None):
            raise GraphError(f"dimension {size} of {node.name} is symbolic: bind before slicing")
        return 0, size, 1
    if isinstance(part, slice):
        if part.step == 0:
            raise GraphError(f"a slice of {node.name} has step 0; use a positive or negative one")
        return part.indices(size)
    if not -size <= part < size:
        raise GraphError(f"index {part} is outside dimension {axis} of {node.name} ({size})")
    return int(part) % size, int(part) % size + 1, 1


def _spread(index: tuple[Index, ...], node: Node) -> list[Index]:
    given = sum(part is not None and part is not Ellipsis for part in index)
    if given > node.rank:
        raise GraphError(f"{given} indices for {node.name}, which has {node.rank} dimensions")
    fill: list[Index] = [slice(None)] * (node.rank - given)
    dots = [i for i, part in enumerate(index) if part is Ellipsis]
    if not dots:
        return [*index, *fill]
    if len(dots) > 1:
        raise GraphError(f"more than one `...` in an index of {node.name}; leave one")
    at = dots[0]
    return [*index[:at], *fill, *index[at + 1 :]]


def _written(state: Node, value: Node, at: Node | int, axis: int) -> Node:
    """The state with slices of it replaced, as an op that says so."""
    if not isinstance(at, Node):
        start = tuple(int(at) if i == axis else 0 for i in range(state.rank))
        return state.builder.apply("update", state, value, start=start)
    if at.type.elements == 1 and value.rank > axis:
        count = value.shape[axis]
        at = at.reshape(1) if at.rank != 1 else at
        steps = state.builder.constant(np.arange(count), at.dtype)
        at = at if count == 1 else at.expand(count) + steps
    return state.builder.apply("scatter", state, at, value, axis=axis)


@dataclass
class GraphBuilder:
    """Builds a graph; every expression that exists already is found, not built again.

    Fields:
        source: where in a user's code the nodes that are made now come from.
    """

    nodes: list[Node] = field(default_factory=list)
    outputs: dict[str, Node] = field(default_factory=dict)
    updates: dict[str, Node] = field(default_factory=dict)
    given: dict[Node, Fact] = field(default_factory=dict)  # what is known of leaves beforehand
    source: str = ""
    _interned: dict[Any, Node] = field(default_factory=dict)
    _calls: dict[Any, Call] = field(default_factory=dict)
    _scope: list[str] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    _taken: dict[str, Node | None] = field(default_factory=dict)  # names, and who took them
    _frozen: set[Node] = field(default_factory=set)  # what follows from weights and constants alone

    def input(self, name: str, shape: Sequence[Dim], dtype: str = "float32") -> Node:
        """A value that every run may change."""
        return self._leaf("input", name, shape, dtype)

    def parameter(self, name: str, shape: Sequence[Dim], dtype: str = "float32") -> Node:
        """A weight: read from a file once, never changed."""
        return self._leaf("parameter", name, shape, dtype)

    def state(self, name: str, shape: Sequence[Dim], dtype: str = "float32") -> Node:
        """A persistent variable, 0 at first; `update` says what it becomes after a run."""
        return self._leaf("state", name, shape, dtype)

    def update(self, state: Node, value: Node, at: Node | int | None = None, axis: int = 0) -> None:
        """After each run the state holds `value`, and the next run sees what changed.

        With `at`, only slices of it along `axis` do, and nothing else is written: those that begin
        at that index (an integer, or a node of one element), or one for each index of a node.
        The same happens for `value = ops.scatter(state, …)` and `ops.update(state, …)`.

        Raises GraphError where the types do not go together.

        >>> g = GraphBuilder()
        >>> cache, row = g.state("cache", (8, 4)), g.input("row", (1, 4))
        >>> g.update(cache, row, at=g.input("position", (1,), "int64"))
        """
        if at is not None and state.op == "state":
            value = _written(state, value, at, axis_of(state, axis))
        if state.op != "state" or state.type != value.type:
            raise GraphError(f"cannot update {state!r} with {value.type}; types must be equal")
        self.updates[state.name] = value

    def constant(self, array: Any, dtype: str | None = None) -> Node:
        """A value fixed in the graph; raises GraphError for what is no array of numbers."""
        try:
            data, _ = dense(array)
        except (TypeError, ValueError, RuntimeError) as error:
            raise GraphError(f"a constant is no array ({error}); pass a dense one") from error
        if dtype is None or data.dtype.kind not in "biuf":
            dtype = str(data.dtype)
        if dtype not in ITEMSIZE or dtype == "bfloat16":
            raise GraphError(f"constants cannot be {dtype}; use one of {', '.join(ITEMSIZE)}")
        if not data.size:
            raise GraphError("a constant is empty; tgbench graphs hold no empty tensors")
        _check_rank("a constant", data.ndim)
        content = ConstantData(data.astype(dtype))
        key = ("constant", content)
        if key not in self._interned:
            type_ = TensorType(content.array.shape, dtype)
            self._add(key, "constant", (), {"data": content}, type_, None, self._fresh("constant"))
        return self._interned[key]

    def constant_apart(self, array: Any) -> Node:
        """A constant that is one of its own, whatever else has its content: an input that is."""
        node = self.constant(array)
        del self._interned["constant", node.attrs["data"]]
        return node

    def scalar(self, value: Scalar, dtype: str) -> Node:
        if dtype == "bfloat16":
            return self.constant(value, "float32").cast(dtype)
        if isinstance(value, float) and dtype not in ("float64", "float32", "float16"):
            raise GraphError(f"{value} does not fit {dtype}; cast the node first")
        return self.constant(value, "bool" if isinstance(value, bool) else dtype)

    def apply(self, op: str, *inputs: Node, name: str | None = None, **attrs: Any) -> Node:
        """The node `op(*inputs; attrs)`; raises GraphError with the mend if that cannot be."""
        definition = OPS.get(op)
        if definition is None:
            raise GraphError(f"unknown op {op!r}; the table has {', '.join(sorted(OPS))}")
        for node in inputs:
            if node.builder is not self:
                raise GraphError(f"{node.name} belongs to another graph; build it here")
        if len({node.type.device for node in inputs}) > 1:
            inputs = self._together(inputs)
        key = (op, tuple(node.index for node in inputs), tuple(sorted(attrs.items())))
        if key not in self._interned:
            facts = tuple(fact_of(node) for node in inputs)
            call = self._call_of(definition, attrs, inputs, facts)
            self._add(key, op, inputs, attrs, call.out, call, self._fresh(name or op))
        return self._interned[key]

    def _together(self, inputs: Sequence[Node]) -> tuple[Node, ...]:
        """Operands with weights and constants brought to where the others are, where all those are
        in one place.
        """
        where = {node.type.device for node in inputs if node not in self._frozen}
        if len(where) != 1:
            return tuple(inputs)
        [device] = where
        return tuple(
            node if node.type.device == device else self.apply("copy_to", node, device=device)
            for node in inputs
        )

    def name(self, node: Node, name: str) -> Node:
        """Call an op's node `name`, in the present scope; returns the node."""
        if node.is_leaf:
            raise GraphError(f"{node.name} is a leaf, and leaves keep their names")
        if node.name != ".".join([*self._scope, name]):
            node.name = self._fresh(name)
            self._taken[node.name] = node
        return node

    def rename(self, node: Node, name: str) -> None:
        """Let an op's node have a name, whole, that is another graph's.

        An op here that has it takes another, and of a leaf it is left: names stay apart, whatever
        graphs meet.
        """
        other = self._taken.get(name)
        if other is not None and other is not node and other.name == name:
            if other.is_leaf and other.op != "constant":
                return
            other.name = self._fresh(other.op)
            self._taken[other.name] = other
        node.name = name
        self._taken[name] = node

    def rename_new(self, node: Node, name: str, since: int) -> Node:
        """The node, renamed if it is none of the first `since` ones: those have names already."""
        if node.index >= since:
            self.rename(node, name)
        return node

    def output(self, name: str, node: Node) -> None:
        check_name("output", name)
        if name in self.outputs and self.outputs[name] is not node:
            raise GraphError(f"output {name!r} is defined twice; give the second another name")
        self.outputs[name] = node

    def scope(self, name: str) -> _Scope:
        """`with g.scope("layer_3"):` puts that in front of the names of the nodes built inside."""
        return _Scope(self, name)

    def build(self) -> Graph:
        """The graph of what the outputs need, checked."""
        if not self.outputs:
            raise GraphError("the graph has no output; call `g.output(name, node)`")
        return Graph.of(self.outputs, self.updates)

    def call_with(self, node: Node, facts: tuple[Fact | None, ...]) -> Call:
        """The call of an op's node, if this were known of its inputs."""
        return self._call_of(OPS[node.op], node.attrs, node.inputs, facts)

    def _call_of(
        self, op: OpDef, attrs: Attrs, inputs: tuple[Node, ...], facts: tuple[Fact | None, ...]
    ) -> Call:
        if op.relates is not None:
            facts = op.relates(inputs, facts)
        types = tuple(node.type for node in inputs)
        key = (op.name, tuple(sorted(attrs.items())), types, facts)
        if key not in self._calls:
            self._calls[key] = make_call(op, attrs, types, facts)
        return self._calls[key]

    def _leaf(self, kind: str, name: str, shape: Sequence[Dim], dtype: str) -> Node:
        check_name(kind, name)
        if dtype not in ITEMSIZE:
            raise GraphError(f"unknown dtype {dtype!r}; use one of {', '.join(ITEMSIZE)}")
        type_ = TensorType(tuple(map(plain, shape)), dtype)
        if not all(type(size) is int or is_symbolic(size) for size in type_.shape):
            raise GraphError(f"{kind} {name!r} has shape {type_.shape!r}; sizes are whole numbers")
        if any(isinstance(size, int) and size < 1 for size in type_.shape):
            raise GraphError(f"{kind} {name!r} is {type_}; tgbench graphs hold no empty tensors")
        _check_rank(f"{kind} {name!r}", type_.rank)
        key = ("leaf", name)
        found = self._interned.get(key)
        if found is None:
            return self._add(key, kind, (), {}, type_, None, name)
        if found.op != kind or found.type != type_:
            raise GraphError(f"{name!r} is already {found!r}; it cannot also be {kind} {type_}")
        return found

    def _fresh(self, base: str) -> str:
        stem = ".".join([*self._scope, base])
        check_name("a node", stem)
        count = self._counts.get(stem, 0)
        while (name := f"{stem}_{count}" if count else stem) in self._taken:
            count += 1
        self._counts[stem] = count
        self._taken[name] = None
        return name

    def _add(
        self,
        key: Any,
        op: str,
        inputs: tuple[Node, ...],
        attrs: Attrs,
        type_: TensorType,
        call: Call | None,
        name: str,
    ) -> Node:
        node = Node(self, len(self.nodes), op, inputs, attrs, type_, call, name, self.source)
        self.nodes.append(node)
        self._interned[key] = self._taken[name] = node
        if self._frozen.issuperset(inputs) if call is not None else op in CONSTANT:
            self._frozen.add(node)
        return node


def check_name(what: str, name: Any) -> None:
    """Raise GraphError for a name that would be more than one where it is shown."""
    if not is_name(name):
        raise GraphError(
            f"{what} {shorten(name)} is no name; give up to {LONGEST_NAME} characters that print"
        )


@dataclass
class _Scope:
    builder: GraphBuilder
    name: str

    def __enter__(self) -> None:
        self.builder._scope.append(self.name)

    def __exit__(self, *_: object) -> None:
        self.builder._scope.pop()


def make_call(
    op: OpDef, attrs: Attrs, types: tuple[TensorType, ...], facts: tuple[Fact | None, ...]
) -> Call:
    """Check, infer the output type and what is known of it; wherever that is computed."""
    device = op.device(attrs, tuple(type_.device for type_ in types))
    made = _made_at_home(op, attrs, at_home(types), facts)
    if device == HOME and made.inputs == types:
        return made
    return Call(op, attrs, types, replace(made.out, device=device), facts, made.fact)


def at_home(types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The same on the session's device."""
    return tuple(replace(type_, device=HOME) if type_.device else type_ for type_ in types)


def _made_at_home(
    op: OpDef, attrs: Attrs, types: tuple[TensorType, ...], facts: tuple[Fact | None, ...]
) -> Call:
    if op.check is not None:
        op.check(attrs, types)
    dtype = op.dtype(attrs, tuple(type_.dtype for type_ in types))
    if op.decompose is not None:
        outline = expansion(op, attrs, types, facts)
        out, fact = outline.result.type, fact_of(outline.result)
        if out.dtype != dtype:
            raise GraphError(f"{op.name} decomposes to {out.dtype}, its entry says {dtype}")
        made = Call(op, attrs, types, out, facts, fact)
        assert outline_of(made) is outline  # from here on it is there as long as the call
        return made
    assert op.forward is not None
    bare = Call(op, attrs, types, TensorType((), dtype))  # a shape does not depend on facts
    region = op.forward(bare, tuple(Region.full(type_.shape) for type_ in types))
    shape = _inferred_shape(op, bare, region)
    call = Call(op, attrs, types, TensorType(shape, dtype), facts)
    symbolic = any(is_symbolic(size) for type_ in types for size in type_.shape)
    fact = None if symbolic else _known(op, call, facts)
    return Call(op, attrs, types, call.out, facts, fact)


def _known(op: OpDef, call: Call, facts: tuple[Fact | None, ...]) -> Fact | None:
    """What follows about the output of an atomic op."""
    fact = op.known(call, facts) if op.known is not None and _few_flags(facts) else None
    is_float = call.out.dtype in FLOATS
    return followed(fact, facts, call.out.rank) if is_float and not op.tames else fact


def _few_flags(facts: Sequence[Fact | None]) -> bool:
    """Whether all that is known of inputs, put together, is as much as may be."""
    arrays = [fact.constant.array if fact.constant else fact.open.array for fact in facts if fact]
    sizes = zip_longest(*(reversed(array.shape) for array in arrays), fillvalue=1)
    return bool(prod(map(max, sizes)) <= MOST_KNOWN)


def _check_rank(what: str, rank: int) -> None:
    if rank > MOST_RANK:
        raise GraphError(f"{what} has {rank} dimensions, more than the {MOST_RANK} of kernels")


def _inferred_shape(op: OpDef, call: Call, region: Region) -> tuple[Dim, ...]:
    if region.is_empty:
        raise GraphError(
            f"{op.name} of {', '.join(map(str, call.inputs))} has no elements; "
            "tgbench graphs hold no empty tensors"
        )
    _check_rank(op.name, len(region.boxes[0]))
    return tuple(stop for _, stop in region.hull())


def fact_of(node: Node) -> Fact | None:
    """What constants say about a node."""
    if node.op == "constant":
        return constant_fact(node.attrs["data"])
    return node.builder.given.get(node) if node.is_leaf else node.call.fact


@dataclass(frozen=True)
class Expansion:
    """A fused op written out: placeholder inputs and the atomic nodes up to the result."""

    inputs: tuple[Node, ...]
    nodes: tuple[Node, ...]  # topological, without the placeholders
    result: Node


_expansions: WeakValueDictionary[Any, Expansion] = WeakValueDictionary()


def expansion(
    op: OpDef, attrs: Attrs, types: tuple[TensorType, ...], facts: tuple[Fact | None, ...]
) -> Expansion:
    """The decomposition of a fused op at given types, facts carried in."""
    key = (op.name, tuple(sorted(attrs.items())), types, facts)
    found = _expansions.get(key)
    if found is None:
        assert op.decompose is not None
        builder = GraphBuilder()
        inputs = tuple(
            _placeholder(builder, i, t, f)
            for i, (t, f) in enumerate(zip(types, facts, strict=True))
        )
        result = op.decompose(attrs, *inputs)
        result = _atomic(builder, result)
        order = [node for node in topological([result]) if node not in inputs]
        found = _expansions[key] = Expansion(inputs, tuple(order), result)
    return found


@once_each
def outline_of(call: Call) -> Expansion:
    """A call of a fused op written out."""
    return expansion(call.op, call.attrs, at_home(call.inputs), call.facts)


def _placeholder(builder: GraphBuilder, i: int, type_: TensorType, fact: Fact | None) -> Node:
    if fact is not None and fact.constant is not None:
        return builder.constant_apart(fact.constant.array).cast(type_.dtype)
    node = builder.input(f"in{i}", type_.shape, type_.dtype)
    # zeros stop here, but for flags that close: kernels of norms need them in their lines, and
    # those of attention read every flag that opens
    closes = fact is not None and type_.dtype == "bool" and fact.closes_with(0.0)
    if fact is not None and (fact.is_mask or fact.wild or closes):
        builder.given[node] = fact
    return node


def _atomic(builder: GraphBuilder, result: Node) -> Node:
    """Expand fused nodes inside a decomposition until only atomic ones are left."""
    replaced: dict[Node, Node] = {}
    for node in topological([result]):
        if node.is_leaf:
            replaced[node] = node
            continue
        inputs = tuple(replaced[parent] for parent in node.inputs)
        definition = OPS[node.op]
        if definition.decompose is not None:
            replaced[node] = _atomic(builder, definition.decompose(node.attrs, *inputs))
        else:
            replaced[node] = builder.apply(node.op, *inputs, **node.attrs)
    return replaced[result]


def topological(roots: Sequence[Node]) -> list[Node]:
    """Everything the roots need, inputs before users, in building order."""
    seen: set[Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
    return sorted(seen, key=lambda node: node.index)


@dataclass(frozen=True, slots=True)
class Write:
    """What a run puts into a state: a whole value, a block of it, or slices along one axis.

    Fields:
        value: the node whose value it takes.
        start: where the block begins; all 0 for slices.
        indices: for slices, the node that holds the index of each.
        axis: along which the slices are counted.
    """

    value: Node
    start: tuple[int, ...]
    indices: Node | None = None
    axis: int = 0

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What has to be there when a run ends."""
        return (self.value,) if self.indices is None else (self.value, self.indices)


def _writes(state: Node, node: Node) -> tuple[Write, ...] | None:
    """How `node` is the state with parts replaced, in order; None if it is something else."""
    found: list[Write] = []
    while node is not state:
        op = OPS.get(node.op)
        if op is None or op.writes is None:
            return None
        found.append(_write(node))
        node = node.inputs[0]
    return tuple(reversed(found))


def _write(node: Node) -> Write:
    """What one op replaces of its first input."""
    op = node.call.op
    assert op.writes is not None
    value = node.inputs[op.writes]
    if op.index is None:
        return Write(value, node.attrs["start"])
    return Write(value, (0,) * value.rank, node.inputs[op.index], node.attrs["axis"])


@dataclass(frozen=True)
class Graph:
    """An immutable graph: every node in topological order, and the named outputs.

    Fields:
        nodes: inputs before users; this order is the default schedule.
        outputs: by name, in the order they were declared.
        updates: state name → the node whose value it takes after a run.
    """

    nodes: tuple[Node, ...]
    outputs: Mapping[str, Node]
    updates: Mapping[str, Node] = field(default_factory=dict)

    @staticmethod
    def of(outputs: Mapping[str, Node], updates: Mapping[str, Node] | None = None) -> Graph:
        updates = updates or {}
        states = [n.builder.state(name, n.shape, n.dtype) for name, n in updates.items()]
        nodes = tuple(topological([*outputs.values(), *updates.values(), *states]))
        graph = Graph(nodes, dict(outputs), dict(updates))
        graph.check()
        return graph

    def _leaves(self, kind: str) -> dict[str, Node]:
        return {node.name: node for node in self.nodes if node.op == kind}

    @cached_property
    def inputs(self) -> dict[str, Node]:
        return self._leaves("input")

    @cached_property
    def parameters(self) -> dict[str, Node]:
        return self._leaves("parameter")

    @cached_property
    def states(self) -> dict[str, Node]:
        return self._leaves("state")

    @cached_property
    def writes(self) -> dict[str, tuple[Write, ...]]:
        """What a run puts into each state, in order: parts where the graph says so, else all."""
        found = {}
        for name, node in self.updates.items():
            parts = _writes(self.states[name], node)
            found[name] = (Write(node, (0,) * node.rank),) if parts is None else parts
        return found

    @cached_property
    def frozen(self) -> frozenset[Node]:
        """Parameters, constants, and what follows from them alone."""
        found: set[Node] = set()
        for node in self.nodes:
            if node.op in CONSTANT or (not node.is_leaf and found.issuperset(node.inputs)):
                found.add(node)
        return frozenset(found)

    @cached_property
    def ends(self) -> tuple[Node, ...]:
        """What is read after the last step of a run: outputs, and what states become."""
        written = [n for parts in self.writes.values() for write in parts for n in write.nodes]
        return tuple(dict.fromkeys([*self.outputs.values(), *written]))

    @cached_property
    def is_of_images(self) -> bool:
        """Whether windows slide over something: strides and borders say what a change reaches."""
        return any(node.call.op.on_images for node in self.nodes if not node.is_leaf)

    @cached_property
    def consumers(self) -> dict[Node, tuple[Node, ...]]:
        users: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for parent in dict.fromkeys(node.inputs):
                users[parent].append(node)
        return {node: tuple(found) for node, found in users.items()}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of structure, types, attributes and names: equal graphs have equal ones."""
        number = {node: i for i, node in enumerate(self.nodes)}
        digest = hashlib.sha256()
        for node in self.nodes:
            attrs = [
                (key, value.digest if isinstance(value, ConstantData) else repr(value))
                for key, value in sorted(node.attrs.items())
            ]
            line = (
                node.op,
                [number[parent] for parent in node.inputs],
                attrs,
                str(node.type),
                node.name,
            )
            digest.update(repr(line).encode())
        ends = [
            (name, number[node]) for name, node in [*self.outputs.items(), *self.updates.items()]
        ]
        digest.update(repr(ends).encode())
        return digest.hexdigest()

    @property
    def symbols(self) -> tuple[sympy.Symbol, ...]:
        """Symbolic dimensions that are not bound yet, by name."""
        free = {
            symbol
            for node in self.nodes
            for size in node.shape
            if is_symbolic(size)
            for symbol in size.free_symbols
        }
        return tuple(sorted(free, key=str))

    def bind(self, **sizes: int) -> Graph:
        """The same graph with numbers for symbolic dimensions."""
        names = {str(symbol): symbol for symbol in self.symbols}
        for name, size in sizes.items():
            if name not in names:
                raise GraphError(
                    f"no dimension {name!r}; the graph has {', '.join(names) or 'none'}"
                )
            most = declared_max(name)
            if most is not None and not 1 <= size <= most:
                raise GraphError(f"{name}={size} is outside 1..{most}, its declared range")
        values = {names[name]: size for name, size in sizes.items()}
        return self.rebuild(lambda builder, node, inputs: _rebound(builder, node, inputs, values))

    def rebuild(self, make: Any, end: Callable[[Node], Node] = lambda node: node) -> Graph:
        """A new graph: `make(builder, node, new_inputs)` for every node, in order, and what is
        handed out by `end`.

        Nodes made with `copy_node` keep their names; new ones get names that no old one has, and
        come from where the one does that they are made for.
        """
        builder = GraphBuilder()
        builder._taken.update((node.name, None) for node in self.nodes)
        new: dict[Node, Node] = {}
        for node in self.nodes:
            builder.source = node.source
            new[node] = make(builder, node, tuple(new[parent] for parent in node.inputs))
        return Graph.of(
            {name: end(new[node]) for name, node in self.outputs.items()},
            {name: end(new[node]) for name, node in self.updates.items()},
        )

    def check(self) -> None:
        """Raise GraphError unless every invariant of a graph holds."""
        names: dict[str, Node] = {}
        seen: set[Node] = set()
        for node in self.nodes:
            if names.setdefault(node.name, node) is not node:
                raise GraphError(
                    f"two nodes are called {node.name!r}; leaf and op names must differ"
                )
            for parent in node.inputs:
                if parent not in seen:
                    raise GraphError(f"{node.name} uses {parent.name} before it is defined")
            if node.is_leaf != (node.op in LEAVES):
                raise GraphError(f"{node.name}: {node.op!r} is not an op of the table")
            if not node.is_leaf and node.type != node.call.out:
                raise GraphError(f"{node.name} says {node.type}, its op gives {node.call.out}")
            seen.add(node)
        for name, node in {**self.outputs, **self.updates}.items():
            if node not in seen:
                raise GraphError(f"output {name!r} is not a node of this graph")
            if node.type.device:
                raise GraphError(
                    f"{name!r} is {node.type}, and runs hand out what is on the session's device; "
                    "bring it there: `ops.copy_to(x)`"
                )

    def node(self, name: str) -> Node:
        """The node of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        raise GraphError(f"no node {name!r}; print(graph) lists them")

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        lines = [repr(node) for node in self.nodes]
        lines += [f"output {name} = {node.name}" for name, node in self.outputs.items()]
        lines += [f"update {name} = {node.name}" for name, node in self.updates.items()]
        return "\n".join(lines)

    def to_dot(self) -> str:
        """Graphviz source: leaves as boxes, ops as ellipses, edges from inputs to users."""
        lines = ["digraph tgbench {", "  rankdir=TB;", '  node [fontname="sans-serif"];']
        for node in self.nodes:
            shape = "box" if node.is_leaf else "ellipse"
            label = _dot_label(node.name, node.op, str(node.type))
            lines.append(f"  n{node.index} [shape={shape}, label={label}];")
            lines += [f"  n{parent.index} -> n{node.index};" for parent in node.inputs]
        for number, (name, node) in enumerate(self.outputs.items()):
            lines.append(f"  o{number} [shape=box, style=rounded, label={_dot_label(name)}];")
            lines.append(f"  n{node.index} -> o{number};")
        return "\n".join([*lines, "}"])


def _dot_label(*lines: str) -> str:
    """Lines of text in DOT's quotes, where labels have escapes and HTML's entities of their own."""
    signs = str.maketrans({"\\": "\\\\", '"': '\\"', "&": "&amp;"})
    text = "\\n".join(line.translate(signs) for line in lines)
    return f'"{text}"'


@runtime_checkable
class Weighted(Protocol):
    """A graph that brings its weights, by parameter name: what an import gives."""

    @property
    def graph(self) -> Graph: ...
    @property
    def weights(self) -> Mapping[str, Any]: ...


def graph_of(given: Graph | Weighted) -> Graph:
    """The graph itself, or the one that brings weights; raises GraphError for anything else."""
    graph = given.graph if isinstance(given, Weighted) else given
    if not isinstance(graph, Graph):
        raise GraphError(
            f"the graph is a {type(graph).__name__}; pass what `GraphBuilder.build`, a builder of "
            "`tg.models` or `tg.from_torch(module, inputs)` gives"
        )
    return graph


def copy_node(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...], **attrs: Any) -> Node:
    """The same node, name and all, in another builder, with these attributes besides; or the equal
    one that is there already.
    """
    return _copied(builder, node, inputs, node.shape, {**node.attrs, **attrs})


def _copied(
    builder: GraphBuilder, node: Node, inputs: tuple[Node, ...], shape: Sequence[Dim], attrs: Attrs
) -> Node:
    if node.is_leaf and node.op != "constant":
        return builder._leaf(node.op, node.name, shape, node.dtype)
    count = len(builder.nodes)
    if node.op == "constant":
        made = builder.constant(node.attrs["data"].array)
    else:
        made = builder.apply(node.op, *inputs, **attrs)
    return builder.rename_new(made, node.name, since=count)


def _rebound(
    builder: GraphBuilder, node: Node, inputs: tuple[Node, ...], values: Mapping[Any, int]
) -> Node:
    try:
        attrs = {key: _subs(value, values) for key, value in node.attrs.items()}
        return _copied(builder, node, inputs, _subs(node.shape, values), attrs)
    except GraphError:
        raise
    except Exception as error:  # attributes of a file that no op's rules were meant to see
        raise GraphError(f"{shorten(node.name)} cannot be bound to these sizes: {error}") from error


def _subs(value: Any, values: Mapping[Any, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_subs(part, values) for part in value)
    return plain(value.subs(values)) if is_symbolic(value) else value
