"""The fixed shape of a graph in memory: who has bytes, who shows another's, who lives when.

    leaf       input and state: in the arena, always kept; parameter and constant: in the pool
    frozen     depends on no input or state: computed once, then in the pool
    view       reshape, permute, slice, expand: no bytes, a strided look at its base
    elsewhere  on another device: bytes there, whole, and kept
    stored     everything else: bytes in the arena

A plan may give a view bytes of its own all the same: it is *copied* out of its base then, and is
computed like any other node. So a part of a node can be kept without the rest:

    qkv ──┬─ q                    qkv ──┬─ q
          ├─ k    kept: qkv             ├─ [k]    kept: k, v
          └─ v                          └─ [v]

A schedule may name a node more than once: it is computed again then, and what runs is the unfolded
graph, in which every time is a node of its own (`graph.unfold`).

Nothing here depends on sizes chosen later (which nodes are retained, which buckets run).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tgbench.base.regions import Box, row_major
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import HOME, LINE_RANK, OPS, ViewMap
from tgbench.graph.unfold import named, unfold
from tgbench.runs.propagate import Propagator, Storage
from tgbench.runs.rules import Rules

ROW_MAJOR = frozenset({1, 2})  # dimensions that run on from the one before in row-major order only


@dataclass(frozen=True)
class LiveRange:
    """Half-open: from the step that defines a value to the first step that no longer reads it."""

    start: int
    stop: int


def channels_last(rank: int) -> tuple[int, ...]:
    """Dimensions from the outermost to the innermost where channels lie side by side.

    >>> channels_last(4)
    (0, 2, 3, 1)
    """
    return (0, *range(2, rank), 1)


def identity_map(rank: int) -> ViewMap:
    return ViewMap(tuple((axis, 1) for axis in range(rank)), (0,) * rank)


def compose(
    outer: ViewMap, inner: ViewMap, shape: Sequence[int], base: Sequence[int]
) -> ViewMap | None:
    """The map of a view of a view onto the base, or None where memory order does not allow it.

    Args:
        outer: the view of the middle.
        inner: the middle as a view of the base.
        shape: the middle's shape.
        base: the base's shape.
    """
    strides = row_major(base)
    start = list(inner.start)
    dense = set(inner.dense)
    for axis, index in enumerate(outer.start):
        mapped = inner.dims[axis]
        if mapped is not None:
            start[mapped[0]] += index * mapped[1]
        elif index:
            pass  # a repeated dimension: every index shows the same element
    for axis in outer.dense:
        joined = _joined(axis, inner, shape, strides)
        if joined is None:
            return None
        dense |= joined
    dims: list[tuple[int, int] | None] = []
    for mapped in outer.dims:
        through = inner.dims[mapped[0]] if mapped is not None else None
        if mapped is None or (through is None and shape[mapped[0]] == 1):
            dims.append(None)
        elif through is None:
            dims.append(None)  # steps along a repeated dimension stay where they are
        else:
            dims.append((through[0], through[1] * mapped[1]))
    return ViewMap(tuple(dims), tuple(start), frozenset(dense))


def _joined(
    axis: int, inner: ViewMap, shape: Sequence[int], strides: Sequence[int]
) -> set[int] | None:
    """Base dimensions to keep dense so that the middle's `axis` runs on from the one before."""
    outer_axis = axis - 1
    while outer_axis >= 0 and shape[outer_axis] == 1:
        outer_axis -= 1
    near, far = inner.dims[axis], inner.dims[outer_axis] if outer_axis >= 0 else None
    if near is None or far is None:
        return None
    if strides[far[0]] * far[1] != strides[near[0]] * near[1] * shape[axis]:
        return None
    return set(range(far[0] + 1, near[0] + 1))


@dataclass(frozen=True)
class ScheduledGraph:
    """A graph and an order: which nodes have bytes, when, and how the others look at them.

    Fields:
        graph: what runs; unfolded, where some node is computed more than once.
        folded: the graph that was asked for, with every node once; `graph` itself if that runs.
        schedule: the executable nodes (not leaves, not frozen) of what runs, in order.
        frozen: nodes computed once, before the first run.
        base: for every node, the node whose bytes it shows (itself, unless it is a view).
        maps: for every node, how its coordinates run through the base.
        dense: for every base, dimensions to be stored whole.
        copied: views of the folded graph that have bytes of their own, whenever they are computed.
    """

    graph: Graph
    folded: Graph
    schedule: tuple[Node, ...]
    frozen: frozenset[Node]
    base: Mapping[Node, Node]
    maps: Mapping[Node, ViewMap]
    dense: Mapping[Node, frozenset[int]]
    copied: frozenset[Node]

    @staticmethod
    def of(
        folded: Graph, schedule: Sequence[Node] | None = None, copied: Iterable[Node] = ()
    ) -> ScheduledGraph:
        """A graph's, in its own order or another one; raises GraphError for one that is none.

        >>> from tgbench.graph.graph import GraphBuilder
        >>> g = GraphBuilder()
        >>> both = g.name(g.input("x", (4, 6)) * 2.0, "both")
        >>> left = g.name(both[:, :3], "left")
        >>> g.output("y", g.name(left + both[:, 3:], "y"))
        >>> graph = g.build()
        >>> [node.name for node in ScheduledGraph.of(graph).stored]
        ['both', 'y']
        >>> [node.name for node in ScheduledGraph.of(graph, copied=[left]).stored]
        ['both', 'left', 'y']
        """
        graph, frozen, copied = folded, folded.frozen, frozenset(copied)
        order = tuple(
            node for node in (schedule or graph.nodes) if not node.is_leaf and node not in frozen
        )
        meant = order
        if len(set(order)) < len(order):
            graph, order = unfold(folded, order)
        own = {node for node, one in zip(order, meant, strict=True) if one in copied}
        base: dict[Node, Node] = {}
        maps: dict[Node, ViewMap] = {}
        dense: dict[Node, frozenset[int]] = {}
        for node in graph.nodes:
            base[node], maps[node] = node, identity_map(node.rank)
            dense[node] = frozenset()
            if node in own or not is_look(node):
                continue
            mapped = _view_of(node, base, maps)
            if mapped is not None:
                parent = base[node.inputs[0]]
                base[node], maps[node] = parent, mapped
                dense[parent] |= mapped.dense
        return ScheduledGraph(graph, folded, order, frozen, base, maps, dense, copied)

    @property
    def repeats(self) -> bool:
        """Whether some node is computed more than once in a run."""
        return self.graph is not self.folded

    @property
    def once(self) -> ScheduledGraph:
        """The same graph with every node computed once."""
        return ScheduledGraph.of(self.folded, copied=self.copied) if self.repeats else self

    def copying(self, views: Iterable[Node]) -> ScheduledGraph:
        """The same order, in which these views of the folded graph have bytes, and no others."""
        wanted = frozenset(views)
        if wanted == self.copied:
            return self
        order = named(self.folded, [node.name for node in self.schedule])
        return ScheduledGraph.of(self.folded, order, wanted)

    @cached_property
    def position(self) -> dict[Node, int]:
        return {node: step for step, node in enumerate(self.schedule)}

    @cached_property
    def views(self) -> dict[Node, Node]:
        return {node: base for node, base in self.base.items() if base is not node}

    @cached_property
    def stored(self) -> tuple[Node, ...]:
        """Executable nodes with bytes of their own, in schedule order."""
        return tuple(node for node in self.schedule if self.base[node] is node)

    @cached_property
    def channels_last(self) -> frozenset[Node]:
        """Images, and what convolutions read of one dimension, whose channels lie side by side.

        What changes of an image is a window of it. With the channels innermost, a line of a window
        is one piece of memory, not one for each channel; and convolutions want them so. What is
        handed out lies row-major, as its receivers expect, and so does what another node shows as
        fewer dimensions; but one that takes lines and points for one dimension sees them as well.
        """
        handed_out = {self.base[node] for node in self.graph.ends}
        found: set[Node] = set()
        for node in self.stored:
            is_joined = not self.dense[node].isdisjoint(ROW_MAJOR)
            if node.rank < LINE_RANK or is_joined or node in handed_out:
                continue
            op = OPS[node.op]
            is_like_one = any(
                (op.keeps_axes or source.shape == node.shape) and _shown_whole(source) in found
                for source in op.alike(node.inputs)
            )
            is_part = _keeps_dimensions(node) and node.inputs[0] in found
            if op.on_images or is_like_one or is_part:
                found.add(node)
        return frozenset(found)

    def order(self, node: Node) -> tuple[int, ...]:
        """Dimensions of a stored node from the outermost to the innermost; () for row-major."""
        return channels_last(node.rank) if node in self.channels_last else ()

    @cached_property
    def kept(self) -> tuple[Node, ...]:
        """Inputs and states: always in the arena."""
        return tuple(n for n in self.graph.nodes if n.op in ("input", "state"))

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """Those beside the session's on which something of a run is computed, in order."""
        return tuple(sorted({node.type.device for node in self.schedule} - {HOME}))

    @cached_property
    def elsewhere(self) -> tuple[Node, ...]:
        """Stored nodes on other devices: what is computed there is kept there."""
        return tuple(node for node in self.stored if node.type.device)

    @cached_property
    def leaves(self) -> tuple[str, ...]:
        """Their names."""
        return tuple([n.name for n in self.kept])

    @cached_property
    def live(self) -> dict[Node, LiveRange]:
        """When each stored node's bytes must stay untouched, in whatever run computes it."""
        end = len(self.schedule) + 1
        last = {node: self.position[node] + 1 for node in self.stored}
        for node in self.schedule:
            for parent in node.inputs:
                base = self.base[parent]
                if base in last and self.base[node] is node:
                    last[base] = max(last[base], self.position[node] + 1)
        for node in self.graph.ends:
            if self.base[node] in last:
                last[self.base[node]] = end
        return {node: LiveRange(self.position[node], stop) for node, stop in last.items()}

    def retaining(self, nodes: Iterable[Node]) -> Storage:
        """A memory that retains these nodes, beside inputs, states and what is on other devices,
        and shares no bytes.
        """
        kept = frozenset([*nodes, *self.kept, *self.elsewhere])
        return Storage(self.views, self.frozen, kept, {})

    def propagator(self, rules: Rules, retained: Iterable[Node]) -> Propagator:
        """How runs are decided in such a memory, in this schedule."""
        return Propagator(self.graph, self.retaining(retained), rules, self.schedule)

    def base_box(self, node: Node, box: Box, rules: Rules) -> tuple[Node, Box]:
        """A box of a view as a box of its base."""
        base = self.base[node]
        while node is not base:
            node, box = node.inputs[0], rules.shown(node.call, box)
        return base, box

    def stored_box(self, node: Node, box: Box) -> Box:
        """A box rounded up to the dimensions that must be stored whole."""
        dense = self.dense[node]
        if not dense:
            return box
        return Box(
            (0, node.shape[axis]) if axis in dense else interval
            for axis, interval in enumerate(box)
        )


def is_look(node: Node) -> bool:
    """Whether a node shows elements of another one; it is a view, unless it has to be copied.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> x = GraphBuilder().input("x", (4, 6))
    >>> is_look(x), is_look(x[:, :3]), is_look(x * 2.0)
    (False, True, False)
    """
    return not node.is_leaf and OPS[node.op].view is not None


def _keeps_dimensions(node: Node) -> bool:
    """Whether a node shows another one's dimensions as they are, or parts of them: a slice does."""
    view = OPS[node.op].view
    own = view(node.call) if view is not None else None
    return own is not None and all(
        to is not None and to[0] == axis for axis, to in enumerate(own.dims)
    )


def _shown_whole(node: Node) -> Node:
    """What a node shows with its dimensions in the same order; itself where they are others."""
    while not node.is_leaf and _keeps_dimensions(node):
        node = node.inputs[0]
    return node


def _view_of(node: Node, base: Mapping[Node, Node], maps: Mapping[Node, ViewMap]) -> ViewMap | None:
    """A node as a view of its input's base, or None if it has to be copied."""
    view = OPS[node.op].view
    own = view(node.call) if view is not None else None
    if own is None:
        return None
    parent = node.inputs[0]
    return compose(own, maps[parent], parent.shape, base[parent].shape)
