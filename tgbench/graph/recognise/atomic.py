"""A graph written out in atomic ops: every fused op is its decomposition here.

    node   a tensor value of the graph, fused or not
    cell   an atomic one; equal expressions are one cell, whoever wrote them

Facts about masks play no part: a cell says what is computed, not what is known of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tgbench.graph.graph import Graph, Node, expansion
from tgbench.graph.op_table import OPS, Attrs, TensorType

VIEWS = ("reshape", "permute", "expand", "slice")


@dataclass(eq=False, slots=True)
class Cell:
    """One atomic value.

    Fields:
        index: inputs before readers.
        is_fixed: it depends on parameters and constants alone.
        node: the graph's node of this value; None inside a fused op.
    """

    index: int
    op: str
    inputs: tuple[Cell, ...]
    attrs: Attrs
    type: TensorType
    is_fixed: bool
    node: Node | None = None

    def __repr__(self) -> str:
        name = "" if self.node is None else f"{self.node.name} = "
        inputs = ", ".join(f"%{parent.index}" for parent in self.inputs)
        return f"%{self.index}: {self.type} = {name}{self.op}({inputs})"


@dataclass
class Cells:
    """The cells of one graph, and those that are asked for later."""

    of: dict[Node, Cell] = field(default_factory=dict)
    all: list[Cell] = field(default_factory=list)
    _interned: dict[Any, Cell] = field(default_factory=dict)

    @staticmethod
    def written_out(graph: Graph) -> Cells:
        cells = Cells()
        for node in graph.nodes:
            cell = cells._of_node(node)
            cells.of[node] = cell
            if cell.node is None:
                cell.node = node
        return cells

    def _of_node(self, node: Node) -> Cell:
        if node.is_leaf:
            return self.leaf(node)
        inputs = tuple(self.of[parent] for parent in node.inputs)
        if OPS[node.op].is_fused:
            return self.expanded(node.op, node.attrs, inputs)
        return self.cell(node.op, inputs, node.attrs, node.type)

    def leaf(self, node: Node) -> Cell:
        attrs = node.attrs if node.op == "constant" else {"name": node.name}
        return self.cell(node.op, (), attrs, node.type)

    def cell(self, op: str, inputs: Sequence[Cell], attrs: Attrs, type_: TensorType) -> Cell:
        """The cell of an atomic op; the one that is there, where there is one."""
        key = (op, tuple(one.index for one in inputs), tuple(sorted(attrs.items())), type_)
        found = self._interned.get(key)
        if found is None:
            is_fixed = op not in ("input", "state") and all(one.is_fixed for one in inputs)
            found = Cell(len(self.all), op, tuple(inputs), attrs, type_, is_fixed)
            self._interned[key] = found
            self.all.append(found)
        return found

    def expanded(self, op: str, attrs: Attrs, inputs: Sequence[Cell]) -> Cell:
        """The result of a fused op, its decomposition around it."""
        types = tuple(one.type for one in inputs)
        outline = expansion(OPS[op], attrs, types, (None,) * len(types))
        return self.grafted(outline.nodes, outline.result, outline.inputs, inputs)

    def grafted(
        self, nodes: Iterable[Node], result: Node, holes: Sequence[Node], inputs: Sequence[Cell]
    ) -> Cell:
        """Nodes of another graph with cells in place of some of its leaves."""
        made = dict(zip(holes, inputs, strict=True))
        for node in nodes:
            if node in made:
                continue
            if node.is_leaf:
                made[node] = self.leaf(node)
            else:
                within = [made[parent] for parent in node.inputs]
                made[node] = self.cell(node.op, within, node.attrs, node.type)
        return made[result]

    def readers(self, ends: Iterable[Cell]) -> Mapping[Cell, int]:
        """How many different cells read each one that the ends need."""
        counts: dict[Cell, int] = {}
        stack = list(ends)
        seen = set(stack)
        while stack:
            for parent in dict.fromkeys(stack.pop().inputs):
                counts[parent] = counts.get(parent, 0) + 1
                if parent not in seen:
                    seen.add(parent)
                    stack.append(parent)
        return counts
