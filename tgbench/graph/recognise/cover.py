"""Which nodes become fused ops, and the graph with these in place.

From the outputs backwards, every node that is needed takes the largest match there is. What a match
takes up is not needed any more, unless somebody else reads it: then it is computed twice, which
pays only where more is saved (maximal munch; Appel, Modern Compiler Implementation, §9.1).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import OPS
from tgbench.graph.recognise.atomic import VIEWS, Cell, Cells
from tgbench.graph.recognise.checker import Checker, Match
from tgbench.graph.recognise.forms import Form, forms
from tgbench.graph.recognise.matching import Reading, Template

PRODUCTS = ("matmul", "linear", "gated_linear", "attention", "conv", "conv_transpose")
UNBOUND = 256


@cache
def _pattern(form: Form) -> Template:
    return Template.of(form)


def patterns() -> tuple[Template, ...]:
    """Of every form, the largest first."""
    return tuple(sorted(map(_pattern, forms()), key=lambda pattern: -pattern.size))


def cover(graph: Graph) -> Mapping[Node, Match]:
    """The matches that are taken, by the node that they replace."""
    cells = Cells.written_out(graph)
    ends = [cells.of[node] for node in (*graph.outputs.values(), *graph.updates.values())]
    checker = Checker(cells, Reading.of_cells(cells, ends))
    return _Cover(graph, checker, patterns()).run()


@dataclass
class _Cover:
    graph: Graph
    checker: Checker
    patterns: Iterable[Template]
    needed: set[Node] = field(default_factory=set)
    decided: set[Node] = field(default_factory=set)

    def run(self) -> Mapping[Node, Match]:
        graph = self.graph
        self.needed |= {*graph.outputs.values(), *graph.updates.values()}
        taken: dict[Node, Match] = {}
        for node in reversed(graph.nodes):
            self.decided.add(node)
            if node.is_leaf or node not in self.needed:
                continue
            match = self.best(node)
            if match is None:
                self.needed.update(node.inputs)
            else:
                taken[node] = match
                self.needed.update(n for cell in match.inputs for n in nodes_of(cell))
        return taken

    def best(self, node: Node) -> Match | None:
        """The match of a node that takes up most, of those that are worth taking."""
        root = self.checker.cells.of[node]
        if root.node is not node:
            return None
        reading = self.checker.reading
        outline = reading.outline(reading.of[root])
        likely = (pattern for pattern in self.patterns if pattern.outline <= outline)
        found = (match for pattern in likely for match in self.checker.matches(pattern, root))
        worthy = [match for match in found if self.pays(node, match)]
        return max(worthy, key=lambda match: len(match.inner), default=None)

    def pays(self, node: Node, match: Match) -> bool:
        """Whether nodes vanish, and more of them than are computed twice, of these no products."""
        inner = _read_by(node, match.inner)
        work = [n for n in inner if n is not node and n.op not in VIEWS]
        work = [n for n in work if not self.checker.cells.of[n].is_fixed]
        if OPS[node.op].is_fused and not self._takes_up(node, match, inner):
            return False
        twice = [n for n in work if self.is_read_elsewhere(n, match)]
        gone = sum(_elements(n) for n in work if n not in twice)
        is_less = not twice or sum(map(_elements, twice)) < gone
        return is_less and not any(n.op in PRODUCTS for n in twice)

    def _takes_up(self, node: Node, match: Match, inner: Collection[Node]) -> bool:
        """Whether a fused op would read less far than the one that is there."""
        read = {n for cell in match.inputs for n in nodes_of(cell)}
        return any(n is not node and n not in read for n in inner)

    def is_read_elsewhere(self, node: Node, match: Match) -> bool:
        if node in self.graph.outputs.values() or node in self.graph.updates.values():
            return True
        return any(
            reader not in match.inner and (reader in self.needed or reader not in self.decided)
            for reader in self.graph.consumers[node]
        )


def _read_by(node: Node, inner: Collection[Node]) -> list[Node]:
    """A node, and what of some nodes it is computed from, through these alone: others have the
    value of a part of it, as exponentials beside a softmax do.
    """
    found, left = {node: None}, [node]
    while left:
        fresh = [n for n in left.pop().inputs if n in inner and n not in found]
        found |= dict.fromkeys(fresh)
        left += fresh
    return list(found)


def _elements(node: Node) -> int:
    """How many elements a node has; dimensions that are not bound count as many."""
    sizes = [size if isinstance(size, int) else UNBOUND for size in node.shape]
    return math.prod(sizes)


def nodes_of(cell: Cell) -> Iterable[Node]:
    """The nodes of the graph that an input of a match is made of."""
    if cell.node is not None:
        return [cell.node]
    return [node for parent in cell.inputs for node in nodes_of(parent)]


# --- the new graph --------------------------------------------------------------------------------


def covered(graph: Graph, taken: Mapping[Node, Match]) -> Graph:
    """The graph with fused ops in place of what they match; they have the names of these."""
    made: dict[Node, Node] = {}

    def make(builder: GraphBuilder, node: Node, inputs: tuple[Node, ...]) -> Node:
        match = taken.get(node)
        if match is None:
            made[node] = copy_node(builder, node, inputs)
            return made[node]
        count = len(builder.nodes)
        result = replacement(builder, match, made)
        made[node] = builder.rename_new(result, node.name, since=count)
        return made[node]

    return graph.rebuild(make)


def replacement(builder: GraphBuilder, match: Match, made: Mapping[Node, Node]) -> Node:
    """The fused op of a match, on what stands for the nodes that it reads."""
    arguments = [_built(builder, cell, made) for cell in match.inputs]
    return match.form.make(match.attrs, *arguments)


def _built(builder: GraphBuilder, cell: Cell, made: Mapping[Node, Node]) -> Node:
    if cell.node is not None:
        return made[cell.node]
    if cell.op == "constant":
        return builder.constant(cell.attrs["data"].array)
    inputs = [_built(builder, parent, made) for parent in cell.inputs]
    return builder.apply(cell.op, *inputs, **cell.attrs)
