"""What the tests draw: boxes, regions, graphs over the op table, edits, storages; and one slow run.

graphs()             → (graph, make): make(seed) gives exact small-integer values by leaf name
changes(graph)       → {input name: Region}
edited(…)            → the values after such an edit
storages(graph)      → views, retained nodes, overlaps that the live ranges allow
Memory               runs a `Step` box by box on poisoned arrays: the obvious executor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

import tgbench.graph.ops as ops
from tgbench.base.known import Fact
from tgbench.base.regions import EMPTY, Box, Region
from tgbench.graph.graph import Graph, GraphBuilder, Node
from tgbench.graph.op_table import numpy_dtype
from tgbench.runs.propagate import Step, Storage
from tgbench.runs.rules import Rules, row_before

Array = np.ndarray[Any, Any]
Maker = Callable[[int], dict[str, Array]]

VIEWS = ("reshape", "permute", "slice", "expand")
LIMIT = 2**20  # float32 integers below this add up exactly


# --- boxes and regions ----------------------------------------------------------------------------


def boxes(shape: Sequence[int]) -> st.SearchStrategy[Box]:
    """Boxes inside a shape, none empty."""

    def interval(size: int) -> st.SearchStrategy[tuple[int, int]]:
        return st.integers(0, size - 1).flatmap(
            lambda start: st.tuples(st.just(start), st.integers(start + 1, size))
        )

    return st.tuples(*map(interval, shape)).map(Box)


def regions(shape: Sequence[int], most: int = 3) -> st.SearchStrategy[Region]:
    """Unions of up to `most` boxes; sometimes empty."""
    return st.lists(boxes(shape), max_size=most).map(lambda found: Region.of(*found))


def random_box(rng: np.random.Generator, shape: Sequence[int]) -> Box:
    intervals = []
    for size in shape:
        start = int(rng.integers(0, size))
        intervals.append((start, int(rng.integers(start + 1, size + 1))))
    return Box(intervals)


def mask_of(region: Region, shape: Sequence[int]) -> Array:
    """A region as a boolean array."""
    mask = np.zeros(tuple(shape), dtype=bool)
    for box in region:
        mask[box.slices()] = True
    return mask


def closed_of(fact: Fact | None, shape: Sequence[int]) -> Array:
    """Where a hard fact says that elements are known (a constant is not such a fact)."""
    if fact is None or not fact.hard or fact.constant is not None:
        return np.zeros(tuple(shape), dtype=bool)
    return ~np.broadcast_to(fact.open.array, tuple(shape))


def garbage(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    """Large finite numbers (for indices: valid ones), different on every call."""
    if dtype == "bool":
        return np.asarray(rng.integers(0, 2, tuple(shape))).astype(bool)
    if dtype.startswith(("int", "uint")):
        return np.asarray(rng.integers(0, 2, tuple(shape))).astype(dtype)
    numbers = rng.integers(1000, 9000, tuple(shape)) * rng.choice([-1, 1], tuple(shape))
    return np.asarray(numbers).astype(numpy_dtype(dtype))


# --- graphs ---------------------------------------------------------------------------------------


class _Drawing:
    """A graph being drawn: every node with a bound on its absolute value."""

    def __init__(self, draw: Any, kinds: Sequence[str]) -> None:
        self.draw = draw
        self.g = GraphBuilder()
        self.kinds = kinds
        self.bound: dict[Node, int] = {}
        self.ranges: dict[str, int] = {}  # leaf name → exclusive bound of its integers
        self.leaves = 0

    def integer(self, low: int, high: int) -> int:
        return int(self.draw(st.integers(low, high)))

    def pick(self, values: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(values)))

    def leaf(self, shape: Sequence[int], *, index_below: int = 0) -> Node:
        name = f"in{self.leaves}"
        self.leaves += 1
        if index_below:
            node = self.g.input(name, shape, "int64")
        else:
            kinds = ["input", "input", "parameter"] if self.leaves > 1 else ["input"]
            kind = self.pick(kinds)
            node = getattr(self.g, kind)(name, shape)
        self.ranges[name] = index_below
        self.bound[node] = 3
        return node

    def constant_mask(self, shape: Sequence[int], *, rows_open: bool = False) -> Node:
        """Causal-like bands and random bitmaps, of the shape or broadcasting to it."""
        kind = self.pick(["band", "random", "rows", "columns"])
        rng = np.random.default_rng(self.integer(0, 1000))
        small = list(shape)
        if len(shape) >= 2 and kind == "band":
            i, j = np.indices(shape[-2:])
            low, high = sorted((self.integer(-2, 3), self.integer(-2, 3)))
            mask = (j - i >= low) & (j - i <= high)
        else:
            if small and kind == "rows":
                small[-1] = 1
            if kind == "columns":
                small = small[-1:]
            mask = rng.integers(0, 3, small) > 0
        mask = np.array(mask)
        if rows_open and mask.ndim:
            mask[..., 0] = True
        return self.g.constant(mask)

    def node(self) -> Node:
        return self.pick(list(self.bound))

    def grow(self) -> None:
        x = self.node()
        if x.dtype != "float32":
            return
        made = getattr(self, "_" + self.pick(self.kinds))(x)
        if made is None:
            return
        node, bound = made
        if bound < LIMIT and node.type.elements <= 150 and node.rank <= 4:
            self.bound[node] = bound

    def _partner(self, x: Node) -> Node:
        """Something that broadcasts with x."""
        fits = [
            n
            for n in self.bound
            if n.dtype == "float32" and n.rank <= x.rank
            and all(s in (1, t) for s, t in zip(n.shape[::-1], x.shape[::-1], strict=False))
        ]  # fmt: skip
        if self.integer(0, 3):
            return self.pick(fits)
        shape = [self.pick([1, size]) for size in x.shape[self.integer(0, x.rank) :]]
        return self.leaf(shape)

    def _binary(self, x: Node) -> tuple[Node, int]:
        y = self._partner(x)
        op = self.pick(["add", "sub", "maximum", "minimum"])
        return self.g.apply(op, x, y), self.bound[x] + self.bound[y]

    def _mul(self, x: Node) -> tuple[Node, int] | None:
        y = self._partner(x)
        bound = self.bound[x] * self.bound[y]
        return (x * y, bound) if bound < LIMIT else None

    def _scale(self, x: Node) -> tuple[Node, int]:
        factor = self.pick([-2.0, -1.0, 2.0, 0.0])
        return x * factor, 2 * self.bound[x]

    def _zeroed(self, x: Node) -> tuple[Node, int]:
        mask = self.constant_mask(x.shape)
        return self.pick([ops.where(mask, x, 0.0), x * mask.cast("float32")]), self.bound[x]

    def _where(self, x: Node) -> tuple[Node, int]:
        y = self._partner(x)
        condition = self.pick([lambda: x > y, lambda: self.constant_mask(x.shape)])()
        condition = self.pick([lambda: condition, lambda: self._partly(condition, x.shape)])()
        return ops.where(condition, x, y), max(self.bound[x], self.bound[y])

    def _partly(self, condition: Node, shape: Sequence[int]) -> Node:
        """A condition that is known in some elements."""
        known = self.constant_mask(shape)
        return self.pick([lambda: condition & known, lambda: condition | known, lambda: ~(
            condition & known)])()  # fmt: skip

    def _masked_max(self, x: Node) -> tuple[Node, int] | None:
        if not x.rank:
            return None
        masked = ops.where(self.constant_mask(x.shape, rows_open=True), x, -np.inf)
        return ops.max_(masked, -1, keepdims=True), self.bound[x]

    def _unary(self, x: Node) -> tuple[Node, int]:
        return self.pick([ops.relu, lambda n: -n, abs, ops.sign])(x), self.bound[x]

    def _reduce(self, x: Node) -> tuple[Node, int] | None:
        if not x.rank:
            return None
        count = self.integer(1, x.rank)
        axes = sorted(self.draw(st.permutations(range(x.rank)))[:count])
        function = self.pick([ops.sum_, ops.max_, ops.min_])
        node = function(x, axes, keepdims=self.pick([True, False]))
        return node, self.bound[x] * int(np.prod([x.shape[a] for a in axes]))

    def _matmul(self, x: Node) -> tuple[Node, int] | None:
        if x.rank < 2:
            return None
        depth = x.shape[-1]
        fits = [
            n
            for n in self.bound
            if n.dtype == "float32" and n.rank >= 2 and n.shape[-2] == depth
            and (n.rank == 2 or n.shape[:-2] == x.shape[:-2])
        ]  # fmt: skip
        other = self.pick(fits) if fits and self.integer(0, 2) else None
        if other is None:
            other = self.leaf((depth, self.integer(1, 4)))
        bound = depth * self.bound[x] * self.bound[other]
        return (x @ other, bound) if bound < LIMIT else None

    def _scores(self, x: Node) -> tuple[Node, int] | None:
        """x·xᵀ under a zero mask, times x: what attention does, without the exp."""
        if x.rank < 2:
            return None
        length = x.shape[-2]
        bound = self.bound[x] ** 3 * x.shape[-1] * length
        if bound >= LIMIT:
            return None
        mask = self.constant_mask((length, length))
        if self.integer(0, 1):  # as with a mask of words that are there, beside a causal one
            mask = mask & (x[..., :1].transpose() > 0.0)
        weights = ops.where(mask, x @ x.transpose(), 0.0)
        return weights @ x, bound

    def _reshape(self, x: Node) -> tuple[Node, int]:
        size, shape = x.type.elements, []
        while size > 1 and len(shape) < 3:
            divisor = self.pick([d for d in range(1, size + 1) if size % d == 0])
            shape.append(divisor)
            size //= divisor
        return x.reshape((*shape, size)), self.bound[x]

    def _permute(self, x: Node) -> tuple[Node, int]:
        return x.permute(*self.draw(st.permutations(range(x.rank)))), self.bound[x]

    def _slice(self, x: Node) -> tuple[Node, int] | None:
        index = []
        for size in x.shape:
            start = self.integer(0, size - 1)
            stop = self.integer(start + 1, size)
            step = self.pick([1, 1, 2, 3])
            flipped = slice(stop - 1, start - 1 if start else None, -step)
            index.append(self.pick([slice(start, stop, step), slice(None), flipped]))
        return x[tuple(index)], self.bound[x]

    def _expand(self, x: Node) -> tuple[Node, int]:
        sizes = [self.integer(1, 3) if size == 1 else size for size in x.shape]
        return x.expand(*([2] if self.integer(0, 1) else []), *sizes), self.bound[x]

    def _pad(self, x: Node) -> tuple[Node, int]:
        low = [self.integer(0, 2) for _ in x.shape]
        high = [self.integer(0, 1) for _ in x.shape]
        return ops.pad(x, low, high, self.pick([0.0, 0.0, 2.0])), self.bound[x] + 2

    def _concat(self, x: Node) -> tuple[Node, int] | None:
        if not x.rank:
            return None
        axis = self.integer(0, x.rank - 1)
        fits = [
            n
            for n in self.bound
            if n.dtype == "float32" and n.rank == x.rank
            and (*n.shape[:axis], *n.shape[axis + 1 :]) == (*x.shape[:axis], *x.shape[axis + 1 :])
        ]  # fmt: skip
        others = [self.pick(fits) for _ in range(self.integer(1, 2))]
        return ops.concat([x, *others], axis), max(self.bound[n] for n in [x, *others])

    def _gather(self, x: Node) -> tuple[Node, int] | None:
        if not x.rank:
            return None
        axis = self.integer(0, x.rank - 1)
        shape = self.draw(st.lists(st.integers(1, 3), max_size=2))
        indices = self.leaf(shape, index_below=x.shape[axis])
        return ops.gather(x, indices, axis), self.bound[x]

    def _scatter(self, x: Node) -> tuple[Node, int] | None:
        if not x.rank:
            return None
        axis, count = self.integer(0, x.rank - 1), self.integer(1, 3)
        indices = self.leaf((count,), index_below=x.shape[axis])
        value = self.leaf([*x.shape[:axis], count, *x.shape[axis + 1 :]])
        return ops.scatter(x, indices, value, axis), self.bound[x] + 3

    def _update(self, x: Node) -> tuple[Node, int]:
        start = [self.integer(0, size - 1) for size in x.shape]
        sizes = [self.integer(1, size - a) for size, a in zip(x.shape, start, strict=True)]
        return ops.update(x, self.leaf(sizes), start), self.bound[x] + 3


KINDS = (
    "binary", "mul", "scale", "zeroed", "where", "masked_max", "unary", "reduce", "matmul",
    "scores", "reshape", "permute", "slice", "expand", "pad", "concat", "gather", "scatter",
    "update",
)  # fmt: skip


@st.composite
def graphs(draw: Any, *, most_ops: int = 10, kinds: Sequence[str] = KINDS) -> tuple[Graph, Maker]:
    """A random graph of small tensors, and a maker of values under which arithmetic is exact.

    `make(seed)` returns float32 integers in −3..3 (or valid int64 indices) for every input and
    parameter; parameters do not depend on the seed.
    """
    d = _Drawing(draw, kinds)
    for _ in range(d.integer(1, 2)):
        d.leaf([d.integer(1, 5) for _ in range(d.integer(1, 3))])
    for _ in range(d.integer(1, most_ops)):
        d.grow()
    made = [node for node in d.bound if not node.is_leaf]
    if not made:
        x = next(iter(d.bound))
        made = [x + x if x.dtype == "float32" else x.cast("float32")]
    d.g.output("y0", made[-1])
    for i in range(d.integer(0, 2)):
        extra = d.pick(made)
        if extra not in d.g.outputs.values():
            d.g.output(f"y{i + 1}", extra)
    return d.g.build(), maker(d.g.build(), d.ranges)


def maker(graph: Graph, index_below: Mapping[str, int]) -> Maker:
    """make(seed) → leaf values: integers in −3..3, or indices below a bound where one is given."""

    def make(seed: int) -> dict[str, Array]:
        values = {}
        for place, node in enumerate({**graph.inputs, **graph.parameters}.values()):
            rng = np.random.default_rng([place, 0 if node.op == "parameter" else seed + 1])
            bound = index_below.get(node.name, 0)
            low, high = (0, bound) if bound else (-3, 4)
            numbers = np.asarray(rng.integers(low, high, node.shape))
            values[node.name] = numbers.astype(numpy_dtype(node.dtype))
        return values

    return make


@st.composite
def changes(draw: Any, graph: Graph, *, most_inputs: int = 2) -> dict[str, Region]:
    """Parts of some inputs, by name; at least one element of one input where there is any."""
    if not graph.inputs:
        return {}
    names = draw(
        st.lists(st.sampled_from(list(graph.inputs)), min_size=1, max_size=most_inputs, unique=True)
    )
    found = {}
    for name in names:
        shape = graph.inputs[name].shape
        found[name] = Region.of(*draw(st.lists(boxes(shape), min_size=1, max_size=2)))
    return found


def edited(
    values: Mapping[str, Array], change: Mapping[str, Region], fresh: Mapping[str, Array]
) -> dict[str, Array]:
    """`values` with the changed parts taken from `fresh`."""
    result = dict(values)
    for name, region in change.items():
        result[name] = np.where(
            mask_of(region, values[name].shape), fresh[name], values[name]
        ).astype(values[name].dtype)
    return result


@st.composite
def demands(draw: Any, graph: Graph) -> dict[Node, Region]:
    """Parts of some outputs, by node."""
    names = draw(st.lists(st.sampled_from(list(graph.outputs)), min_size=1, unique=True))
    found: dict[Node, Region] = {}
    for name in names:
        node = graph.outputs[name]
        found[node] = Region.of(*draw(st.lists(boxes(node.shape), min_size=1, max_size=2)))
    return found


# --- storages -------------------------------------------------------------------------------------


def frozen_nodes(graph: Graph) -> frozenset[Node]:
    """Nodes that no input and no state reaches."""
    moved: set[Node] = set()
    for node in graph.nodes:
        if node.op in ("input", "state") or any(parent in moved for parent in node.inputs):
            moved.add(node)
    return frozenset(node for node in graph.nodes if node not in moved and not node.is_leaf)


def view_bases(graph: Graph, frozen: frozenset[Node]) -> dict[Node, Node]:
    """Views of unfrozen bytes, each with the node that has them."""
    bases: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op in VIEWS and node not in frozen:
            parent = node.inputs[0]
            bases[node] = bases.get(parent, parent)
    return bases


def live_ranges(graph: Graph, views: Mapping[Node, Node]) -> dict[Node, tuple[int, int]]:
    """Half-open, in schedule positions: from the step that defines to after the last that reads."""
    position = {node: i for i, node in enumerate(graph.nodes)}
    stops = {node: i + 1 for node, i in position.items()}
    for node in graph.nodes:
        for parent in node.inputs:
            base = views.get(parent, parent)
            stops[base] = max(stops[base], position[node] + 1)
    for node in graph.outputs.values():
        stops[views.get(node, node)] = len(graph.nodes) + 1
    return {node: (position[node], stops[node]) for node in graph.nodes}


@st.composite
def storages(draw: Any, graph: Graph) -> Storage:
    """Random retained nodes, and random overlaps that the live ranges allow, among all."""
    frozen = frozen_nodes(graph)
    views = view_bases(graph, frozen) if draw(st.booleans()) else {}
    stored = [n for n in graph.nodes if not n.is_leaf and n not in views and n not in frozen]
    chosen = draw(st.sets(st.sampled_from(stored))) if stored else set()
    live = live_ranges(graph, views)
    overlaps: dict[Node, list[Node]] = {node: [] for node in stored}
    for i, a in enumerate(stored):
        for b in stored[i + 1 :]:
            apart = live[a][1] <= live[b][0] or live[b][1] <= live[a][0]
            if apart and draw(st.booleans()):
                overlaps[a].append(b)
                overlaps[b].append(a)
    shared = {node: tuple(others) for node, others in overlaps.items()}
    return Storage(views, frozen, frozenset(chosen), shared)


# --- the obvious executor -------------------------------------------------------------------------


class Memory:
    """Every node's bytes as one full array; a step writes only the boxes that it computes.

    Whatever was never written, or was written over by an overlapping node, holds large finite
    garbage, fresh each time. Known elements hold their value wherever they are read: that is the
    executor's part of the bargain (it fills them in where nothing has computed them).
    """

    def __init__(self, graph: Graph, storage: Storage, seed: int = 0) -> None:
        self.graph = graph
        self.storage = storage
        self.rng = np.random.default_rng(seed)
        self.arrays: dict[Node, Array] = {}
        self.ran: list[tuple[str, Region]] = []

    def load(self, values: Mapping[str, Array]) -> None:
        """Set the leaves; compute the frozen nodes; poison what was never computed."""
        for node in self.graph.nodes:
            if node.op == "constant":
                self.arrays[node] = node.attrs["data"].array
            elif node.is_leaf:
                self.arrays[node] = values[node.name]
            elif node in self.storage.frozen:
                call = node.call
                inputs = [self.read(parent) for parent in node.inputs]
                self.arrays[node] = call.op.reference(call.attrs, *inputs)
            elif node not in self.storage.views and node not in self.arrays:
                self._poison(node)

    def read(self, node: Node) -> Array:
        """A node's whole array as a kernel would find it."""
        if node in self.storage.views:
            call = node.call
            array = call.op.reference(call.attrs, self.read(node.inputs[0]))
        else:
            array = self.arrays[node]
        fact = None if node.is_leaf else node.call.fact
        closed = closed_of(fact, node.shape)
        if fact is not None and closed.any():
            array = np.where(closed, array.dtype.type(fact.value), array)
        return np.asarray(array)

    def run(self, step: Step) -> None:
        self.ran = []
        for node, region in step.compute.items():
            made = self._made(node, region)
            if node not in self.storage.retained:
                self._poison(node)
            for box, part in zip(region, made, strict=True):
                self.arrays[node][box.slices()] = part
            for other in self.storage.overlaps.get(node, ()):
                self._poison(other)
            self.ran.append((node.name, region))

    def _made(self, node: Node, region: Region) -> list[Array]:
        """What a step computes of a node, box by box."""
        call, inputs = node.call, [self.read(parent) for parent in node.inputs]
        if call.op.continues is None:
            result = call.op.reference(call.attrs, *inputs)
            return [result[box.slices()] for box in region]
        found = []
        for box in region:  # behind a row that is there
            reads = zip(inputs, Rules().reads(call, box), strict=True)
            parts = [array[read.slices()] for array, read in reads]
            before = row_before(call, box)
            if before is not None:
                parts[call.op.continues] = self.arrays[node][before.slices()]
            found.append(call.op.reference(call.attrs, *parts))
        return found

    def _poison(self, node: Node) -> None:
        self.arrays[node] = garbage(self.rng, node.shape, node.dtype).copy()


def affected(rules: Rules, node: Node, changed: Mapping[Node, Region]) -> Region:
    """What of one node's output a change of its inputs dirties."""
    return rules.dirty(node.call, tuple(changed.get(parent, EMPTY) for parent in node.inputs))
