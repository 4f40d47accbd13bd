"""Loops that were written out, rolled up again.

    f(x[0]), f(x[1]), … put together             ─→  f'(x)              every step at once
    where       hᵢ = aᵢ · hᵢ₋₁ + bᵢ              ─→  linear_recurrence  all steps in one op
    a step of a recurrent cell                   ─→  lstm, gru, rnn    the same
    hᵢ alone                                     ─→  a row of that

An export runs Python's loops: a hundred steps of a layer are a thousand nodes of a few numbers
each. What the steps give is put together in the end, by a concat or one write after the other, and
there their results are looked at: nodes that do the same with slices next to each other are one
node that does it with all of them, and so are their inputs. A step that needs the one before it is
a linear recurrence, if it is one.

What is found is right by construction: it is built of nodes that are there, each as a stack
[steps, …] of what the steps compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import NamedTuple, TypeAlias, cast

from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node, topological
from tgbench.graph.op_table import FLOATS
from tgbench.graph.ops.layout import concat, flip, groups
from tgbench.graph.ops.scan import linear_recurrence
from tgbench.graph.recognise.cells import RecurrentCell, cell_of
from tgbench.graph.recognise.layout import ELEMENTS, ROWS
from tgbench.graph.recognise.linear import Number, along, as_linear, path_to
from tgbench.graph.recognise.normal_form import ELEMENTWISE

LEAST = 4  # steps that are a loop
TWICE = 8  # what is computed twice, once by steps, is at least so much smaller than what needs it

ALIKE = ELEMENTWISE | {*ELEMENTS, "where", "cast", "softplus"}
REDUCTIONS = ("sum", "mean", "max", "min", "prod")
ALONG = ("softmax", "log_softmax", "cumsum")

Steps: TypeAlias = "tuple[Node, ...]"  # the same node of every step


def rolled_up(graph: Graph) -> Graph:
    """The graph with loops rolled up; itself where none was written out.

    >>> import tgbench.graph.ops as ops
    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x, decay = g.input("x", (5, 8)), g.parameter("decay", (8,))
    >>> h, rows = g.constant([0.0] * 8, "float32"), []
    >>> for t in range(5):
    ...     h = decay * h + x[t]
    ...     rows.append(h)
    >>> g.output("y", ops.stack(rows))
    >>> [n.op for n in rolled_up(g.build()).nodes if n.op not in ("reshape", "expand", "permute")]
    ['input', 'parameter', 'constant', 'linear_recurrence']
    """
    together = _put_together(graph)
    if not together:
        return graph
    loops = _Loops(graph, together)
    found = graph.rebuild(loops.make)
    return _with_rows(found, loops.rows) if loops.any_found else graph


class _Parts(NamedTuple):
    """What is put together of parts of one shape, one behind the other along an axis."""

    axis: int
    parts: Steps


def _put_together(graph: Graph) -> dict[Node, _Parts]:
    """Nodes that are put together of enough parts."""
    found, writes = dict[Node, _Parts](), dict[Node, int]()
    for node in graph.nodes:
        if node.op == "concat" and len(node.inputs) >= LEAST:
            found[node] = _Parts(node.attrs["axis"], node.inputs)
        elif node.op == "update":
            target, part = node.inputs
            writes[node] = count = writes.get(target, 0) + 1
            if count >= LEAST and count * part.type.elements == node.type.elements:
                parts = _written(node, count)
                if parts is not None:
                    found[node] = parts
    return found


def _written(last: Node, count: int) -> _Parts | None:
    """What so many writes leave, where each has a place of its own along one axis."""
    axes = [i for i, (a, b) in enumerate(zip(last.shape, last.inputs[1].shape, strict=True))
            if a != b]  # fmt: skip
    if len(axes) != 1:
        return None
    [axis] = axes
    parts, node = dict[int, Node](), last
    for _ in range(count):
        parts[node.attrs["start"][axis]] = node.inputs[1]
        node = node.inputs[0]
    wide = last.shape[axis] // count
    is_all = sorted(parts) == [i * wide for i in range(count)]
    alike = all(part.shape == last.inputs[1].shape for part in parts.values())
    return _Parts(axis, tuple([parts[i] for i in sorted(parts)])) if is_all and alike else None


class _Line(NamedTuple):
    """Slices of one node, 1 wide: `length` of them from `start` on, every `step`."""

    axis: int
    start: int
    step: int
    length: int

    @property
    def range(self) -> tuple[int, int, int]:
        """Start, stop and step of a slice that has them all."""
        return self.start, self.start + self.length * self.step, self.step


class _Loops:
    """Rolls up the loops of one graph while it is rebuilt.

    Fields:
        rows: of nodes that are rows of a recurrence, that and which one.
    """

    def __init__(self, graph: Graph, together: Mapping[Node, _Parts]) -> None:
        self.any_found = False
        self.rows: dict[Node, tuple[Node, int]] = {}
        self._readers, self._ends = graph.consumers, frozenset(graph.ends)
        self._together = together
        self._old, self._new = dict[Node, Node](), dict[Node, Node]()
        self._stacks: dict[Steps, Node | None] = {}

    def make(self, builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        if node in self._together:
            axis, parts = self._together[node]
            count, (scope, dot, _) = len(builder.nodes), node.name.rpartition(".")
            with builder.scope(scope) if dot else nullcontext():
                found = self._whole(tuple([self._new[part] for part in parts]), axis)
            if found is not None and found.type == node.type:
                self.any_found = True
                self._new[node] = builder.rename_new(found, node.name, since=count)
                return found
        made = self._new[node] = copy_node(builder, node, inputs)
        self._old.setdefault(made, node)
        return made

    def _whole(self, parts: Steps, axis: int) -> Node | None:
        """Parts of one shape, one behind the other along an axis."""
        stack = self._stack(parts)
        if stack is None or stack.shape[0] != len(parts):
            return None
        others = range(1, stack.rank)
        shape = list(parts[0].shape)
        shape[axis] *= len(parts)
        return stack.permute(*others[:axis], 0, *others[axis:]).reshape(*shape)

    # --- stacks ----------------------------------------------------------------------------------

    def _stack(self, nodes: Steps) -> Node | None:
        """[steps, …] of these nodes, or [1, …] where all are the same; None if they do not do the
        same in every step.
        """
        if nodes not in self._stacks:
            self._stacks[nodes] = None  # of one that follows from itself
            self._stacks[nodes] = self._new_stack(nodes)
        return self._stacks[nodes]

    def _new_stack(self, nodes: Steps) -> Node | None:
        first, *others = nodes
        if all(node is first for node in others):
            return first.reshape(1, *first.shape)
        if first.is_leaf or any(node.type != first.type for node in others):
            return None
        recurrence = self._recurrence(nodes)
        if recurrence is not None:
            return recurrence
        if nodes[-1].op == "reshape":
            return self._reshape(nodes)
        if any(node.op != first.op for node in others):
            return None
        if first.op == "slice" and all(node.inputs == first.inputs for node in others):
            return self._slices(nodes)
        does = DOES.get(first.op)
        if does is None or any(node.attrs != first.attrs for node in others):
            return None
        return does(self, nodes)

    def _inputs(self, nodes: Steps) -> list[Node] | None:
        """The stacks of all inputs, each with as many dimensions as the results have."""
        rank, found = nodes[0].rank, []
        for i, first in enumerate(nodes[0].inputs):
            stack = self._stack(tuple([node.inputs[i] for node in nodes]))
            if stack is None:
                return None
            found.append(_raised(stack, max(rank, first.rank)))
        return found

    def _alike(self, nodes: Steps) -> Node | None:
        inputs = self._inputs(nodes)
        return None if inputs is None else _again(nodes[0], inputs)

    def _first_input(self, nodes: Steps) -> Node | None:
        """The stack of the first input, where all others are the same in every step."""
        first, *others = nodes
        if any(node.inputs[1:] != first.inputs[1:] for node in others):
            return None
        return self._stack(tuple([node.inputs[0] for node in nodes]))

    def _rowwise(self, nodes: Steps) -> Node | None:
        x = self._first_input(nodes)
        return None if x is None else _again(nodes[0], [x, *nodes[0].inputs[1:]])

    def _product(self, nodes: Steps) -> Node | None:
        if any(operand.rank < 2 for operand in nodes[0].inputs):
            return None
        return self._alike(nodes)

    def _reshape(self, nodes: Steps) -> Node | None:
        """What the first step gives, which has none before it, may have been in another shape."""
        inputs = [node.inputs[0] if node.op == "reshape" else node for node in nodes]
        shape = inputs[-1].shape
        x = self._stack(tuple([x if x.shape == shape else x.reshape(*shape) for x in inputs]))
        return None if x is None else x.reshape(x.shape[0], *nodes[0].shape)

    def _permute(self, nodes: Steps) -> Node | None:
        x = self._first_input(nodes)
        return None if x is None else x.permute(0, *(1 + i for i in nodes[0].attrs["axes"]))

    def _expand(self, nodes: Steps) -> Node | None:
        x = self._first_input(nodes)
        return None if x is None else _raised(x, nodes[0].rank).expand(x.shape[0], *nodes[0].shape)

    def _part(self, nodes: Steps) -> Node | None:
        x = self._first_input(nodes)
        return None if x is None else _cut(x, [(0, x.shape[0], 1), *_ranges(nodes[0])])

    def _reduced(self, nodes: Steps) -> Node | None:
        x = self._first_input(nodes)
        axes = tuple([1 + axis for axis in nodes[0].attrs["axes"]])
        return None if x is None else _again(nodes[0], [x], axes=axes)

    def _along(self, nodes: Steps) -> Node | None:
        x = self._first_input(nodes)
        return None if x is None else _again(nodes[0], [x], axis=1 + nodes[0].attrs["axis"])

    # --- slices next to each other ---------------------------------------------------------------

    def _slices(self, nodes: Steps) -> Node | None:
        """Slices of one node, as many as there are steps, each as far behind the one before."""
        first = nodes[0]
        starts = [node.attrs["starts"] for node in nodes]
        moving = [i for i, (a, b) in enumerate(zip(*starts[:2], strict=True)) if a != b]
        if len(moving) != 1 or any(node.attrs["steps"] != first.attrs["steps"] for node in nodes):
            return None
        [axis] = moving
        step = starts[1][axis] - starts[0][axis]
        as_expected = all(
            b == (*a[:axis], a[axis] + step, *a[axis + 1 :]) for a, b in pairwise(starts)
        )
        wide = first.shape[axis]
        if not as_expected or first.attrs["steps"][axis] != 1 or (wide > 1 and step != wide):
            return None
        [base], ranges = first.inputs, _ranges(first)
        if wide > 1:
            start = ranges[axis][0]
            ranges[axis] = (start, start + wide * len(nodes), 1)
            cut = _cut(base, ranges)
            split = cut.reshape(*cut.shape[:axis], len(nodes), wide, *cut.shape[axis + 1 :])
            return _in_front(split, axis)
        ranges[axis] = (0, base.shape[axis], 1)
        rest = _cut(base, ranges)
        line = _Line(axis, first.attrs["starts"][axis], step, len(nodes))
        users = {self._old[node] for node in nodes if node in self._old}
        if rest is base and users and len(nodes) == len(users):
            return self._led(base, line, users, first.type.elements * len(nodes))
        return _led_by(rest, line)

    def _led(self, node: Node, line: _Line, users: set[Node], most: int) -> Node:
        """[length, …] of slices of a node, 1 wide where they were taken. Where few others look at
        it, that is done with its inputs, and it is computed in that order.
        """
        old = self._old.get(node)
        is_theirs = (
            old is not None and old not in self._ends and users.issuperset(self._readers[old])
        )
        if node.is_leaf or not (is_theirs or TWICE * node.type.elements <= most):
            return _led_by(node, line)
        mine = {old} if old is not None else set[Node]()

        def led(operand: Node, axis: int) -> Node:
            return self._led(operand, line._replace(axis=axis), mine, most)

        if node.op in ALIKE:
            found = []
            for operand in node.inputs:
                axis = line.axis - (node.rank - operand.rank)
                if axis < 0 or operand.shape[axis] == 1:
                    found.append(_raised(operand.reshape(1, *operand.shape), node.rank))
                else:
                    found.append(_raised(led(operand, axis), node.rank))
            return _again(node, found)
        if node.op == "permute":
            axes = node.attrs["axes"]
            return led(node.inputs[0], axes[line.axis]).permute(0, *(1 + axis for axis in axes))
        if node.op == "reshape":
            for before, after in groups(node.inputs[0].shape, node.shape):
                wide = [axis for axis in before if node.inputs[0].shape[axis] > 1]
                if line.axis in after and len(wide) == 1 and _are_ones(node, after, line.axis):
                    one = led(node.inputs[0], wide[0])
                    shape = [1 if i == line.axis else n for i, n in enumerate(node.shape)]
                    return one.reshape(line.length, *shape)
        return _led_by(node, line)

    # --- recurrences -----------------------------------------------------------------------------

    def _recurrence(self, nodes: Steps) -> Node | None:
        """Steps each of which is the one before it, times something, and something added."""
        if nodes[0].dtype not in FLOATS:
            return None
        rows = self._forward(nodes)
        if rows is None:  # from the last step to the first
            rows = self._forward(nodes[::-1])
            return None if rows is None else flip(rows, 0)
        return rows

    def _forward(self, nodes: Steps) -> Node | None:
        rows = self._linear(nodes)
        cell = cell_of(nodes) if rows is None else None
        return rows if cell is None else self._cell(cell)

    def _linear(self, nodes: Steps) -> Node | None:
        first, second, *_ = nodes
        path = path_to(first, second)
        if not path:
            return None
        state = along(path, first, second)
        rows = None
        if state is not None and state.type == first.type:
            rows = self._rows_of(state, nodes)
        return rows if rows is not None else self._behind(first, nodes[1:])

    def _behind(self, state: Node, nodes: Steps) -> Node | None:
        """The same where the first one is what the others follow from."""
        if len(nodes) < LEAST:
            return None
        rows = self._rows_of(state, nodes)
        return None if rows is None else concat([state.reshape(1, *state.shape), rows], 0)

    def _rows_of(self, state: Node, nodes: Steps) -> Node | None:
        parts = [as_linear(node, before) for before, node in pairwise((state, *nodes))]
        factors, shape = [part.times for part in parts if part is not None], state.shape
        if len(factors) < len(nodes) or None in factors:
            return None
        last = [part for part in parts[-1] or () if isinstance(part, Node)]
        if not set(nodes).isdisjoint(topological(last)):
            return None  # what is added follows from steps before
        decay = self._stack_of(state, factors)
        added = self._stack_of(state, [part.more for part in parts if part is not None])
        if decay is None or added is None:
            return None
        added = added.expand(len(nodes), *shape)
        rows = linear_recurrence(decay, added, state.reshape(1, *shape))
        self.rows |= {node: (rows, i) for i, node in enumerate(nodes)}
        return rows

    def _cell(self, cell: RecurrentCell) -> Node | None:
        """All steps of a recurrent cell: h of each."""
        first = cell.steps[0]
        gates, (h, *_) = self._stack(tuple([step.of_input for step in cell.steps])), first.before
        if gates is None:
            return None
        samples, units = h.type.elements // h.shape[-1], h.shape[-1]
        _, weight, *bias = first.of_state.inputs
        gates = gates.expand(len(cell.steps), *first.of_input.shape)
        gates = gates.reshape(len(cell.steps), samples, weight.shape[0])
        none = h.builder.constant([0.0] * weight.shape[0], h.dtype)
        states = [one.reshape(1, samples, units) for one in first.before]
        attrs = {"activation": cell.activation} if cell.activation else {}
        rows = h.builder.apply(
            cell.kind, gates, weight, bias[0] if bias else none, concat(states, -1), **attrs
        )
        for i, state in enumerate(zip(*(step.after for step in cell.steps), strict=True)):
            part = rows[..., i * units : (i + 1) * units].reshape(len(cell.steps), *h.shape)
            self.rows |= {node: (part, t) for t, node in enumerate(state)}
        return rows[..., :units].reshape(len(cell.steps), *h.shape)

    def _stack_of(self, state: Node, parts: Sequence[Number]) -> Node | None:
        """[steps or 1, …] of parts that are nodes, or all the same number."""
        nodes = tuple([part for part in parts if isinstance(part, Node)])
        if not nodes and all(part == parts[0] for part in parts):
            number = 0.0 if parts[0] is None else float(cast("float", parts[0]))
            return state.builder.scalar(number, state.dtype).reshape(*[1] * (1 + state.rank))
        stack = self._stack(nodes) if len(nodes) == len(parts) else None
        return None if stack is None else _raised(stack, state.rank)


Does: TypeAlias = "Callable[[_Loops, Steps], Node | None]"
DOES: Mapping[str, Does] = {
    **dict.fromkeys(ALIKE, _Loops._alike),
    **dict.fromkeys((*ROWS[:2], "linear"), _Loops._rowwise),
    **dict.fromkeys(REDUCTIONS, _Loops._reduced),
    **dict.fromkeys(ALONG, _Loops._along),
    "matmul": _Loops._product,
    "permute": _Loops._permute,
    "expand": _Loops._expand,
    "slice": _Loops._part,
}


# --- shapes --------------------------------------------------------------------------------------


def _raised(stack: Node, rank: int) -> Node:
    """A stack with dimensions of size 1 put in behind the first one, up to a rank of its steps."""
    lead, *shape = stack.shape
    return stack.reshape(lead, *[1] * (rank - len(shape)), *shape)


def _again(node: Node, inputs: Sequence[Node], **attrs: object) -> Node:
    return node.builder.apply(node.op, *inputs, **{**node.attrs, **attrs})


def _ranges(node: Node) -> list[tuple[int, int, int]]:
    """Start, stop and step of a slice, by dimension."""
    attrs = node.attrs
    return list(zip(attrs["starts"], attrs["stops"], attrs["steps"], strict=True))


def _cut(x: Node, ranges: Sequence[tuple[int, int, int]]) -> Node:
    if list(ranges) == [(0, size, 1) for size in x.shape]:
        return x
    starts, stops, steps = zip(*ranges, strict=True)
    return x.builder.apply("slice", x, starts=starts, stops=stops, steps=steps)


def _led_by(node: Node, line: _Line) -> Node:
    """[length, …] of slices of a node, 1 wide where they were taken."""
    ranges = [(0, size, 1) for size in node.shape]
    ranges[line.axis] = line.range
    cut, axis = _cut(node, ranges), line.axis
    return _in_front(cut.reshape(*cut.shape[: axis + 1], 1, *cut.shape[axis + 1 :]), axis)


def _in_front(x: Node, axis: int) -> Node:
    """A dimension moved to the front; where nothing lies before it, that is a reshape."""
    order = [axis, *(i for i in range(x.rank) if i != axis)]
    if all(size == 1 for size in x.shape[:axis]):
        return x.reshape(*(x.shape[i] for i in order))
    return x.permute(*order)


def _are_ones(node: Node, axes: Sequence[int], besides: int) -> bool:
    return all(axis == besides or node.shape[axis] == 1 for axis in axes)


# --- what only one step's result is wanted of ---------------------------------------------------


def _is_row(node: Node, of: Node, rows: Mapping[Node, tuple[Node, int]]) -> bool:
    return node in rows and rows[node][0] is of


def _with_rows(graph: Graph, rows: Mapping[Node, tuple[Node, int]]) -> Graph:
    """The graph with rows of recurrences in place of steps that somebody else looks at."""
    steps = [node for node in graph.nodes if node in rows]
    if not steps:
        return graph
    of_steps = {rows[node][0] for node in steps}
    follows = {of for of in of_steps if any(_is_row(one, of, rows) for one in topological([of]))}
    sources = {node: rows[node] for node in rows if rows[node][0] in of_steps - follows}
    new: dict[Node, Node] = {}
    todo = [*graph.outputs.values(), *graph.updates.values()]
    while todo:
        node = todo[-1]
        inputs = (sources[node][0],) if node in sources else node.inputs
        missing = [one for one in inputs if one not in new]
        if missing and node not in new:
            todo += missing
            continue
        todo.pop()
        if node not in new:
            made = tuple([new[one] for one in inputs])
            if node in sources:
                new[node] = made[0][sources[node][1]]
            else:
                new[node] = node if made == inputs else _again(node, made)
    return Graph.of(
        {name: new[node] for name, node in graph.outputs.items()},
        {name: new[node] for name, node in graph.updates.items()},
    )
