"""An e-graph: a graph builder, and which of its nodes have equal values.

    e-node    a node of the builder; its inputs stand for their classes
    e-class   nodes of equal value, shown by the first of them: its *name*

    x·(a + b)  ═══  x·a + x·b        one class, two e-nodes

So an e-node has its op's rules, type and facts like every node, and what a rule makes is written
with the functions that people build graphs with. Two nodes of one op and attributes whose inputs
are of the same classes are one e-node (congruence); the inputs of ops that commute are a set.

Source: egg, fast and extensible equality saturation (Willsey and others, POPL 2021), §3: merging is
cheap, and the invariants are restored at once by `rebuild`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tgbench.base.errors import GraphError
from tgbench.graph.graph import Graph, GraphBuilder, Node, copy_node
from tgbench.graph.op_table import OPS

Key: TypeAlias = Any  # what two nodes share that are one e-node
GIVEN = ""  # the rule of what the graph itself says


@dataclass(eq=False)
class EGraph:
    """Classes of nodes with equal values.

    Fields:
        builder: holds all nodes, also those that turned out to be there already.
        ends: the classes of outputs and updates, in the order of the graph.
        rules: of each e-node, the name of the rule that made it; `GIVEN` for the graph's own.
        of: the e-node of every node of the graph that it was made of.
        memo: what rules remember of it.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (4,)); g.output("y", (x + x) * 2.0)
    >>> egraph = EGraph.of_graph(g.build())
    >>> y = egraph.ends[0]; b = egraph.builder
    >>> egraph.merge(y, egraph.add(y.inputs[0] + y.inputs[0], "doubled"))
    True
    >>> [node.op for node in egraph.members(y)]
    ['mul', 'add']
    """

    builder: GraphBuilder = field(default_factory=GraphBuilder)
    ends: tuple[Node, ...] = ()
    rules: dict[Node, str] = field(default_factory=dict)
    of: dict[Node, Node] = field(default_factory=dict)
    memo: dict[Any, Any] = field(default_factory=dict)
    _above: dict[Node, Node] = field(default_factory=dict)
    _members: dict[Node, list[Node]] = field(default_factory=dict)
    _readers: dict[Node, list[Node]] = field(default_factory=dict)
    _by_key: dict[Key, Node] = field(default_factory=dict)
    _filed: dict[Node, Key] = field(default_factory=dict)
    _fixed: set[Node] = field(default_factory=set)
    _merged: list[Node] = field(default_factory=list)
    _changed: list[Node] = field(default_factory=list)

    @staticmethod
    def of_graph(graph: Graph) -> EGraph:
        """Every node a class of its own."""
        egraph = EGraph()
        for node in graph.nodes:
            inputs = tuple(egraph.of[parent] for parent in node.inputs)
            egraph.of[node] = copy_node(egraph.builder, node, inputs)
            egraph.add(egraph.of[node])
        ends = (*graph.outputs.values(), *graph.updates.values())
        egraph.ends = tuple(egraph.of[node] for node in ends)
        return egraph

    # --- asking -----------------------------------------------------------------------------------

    def find(self, node: Node) -> Node:
        """The name of a node's class."""
        above = self._above
        while (parent := above[node]) is not node:
            above[node] = above[parent]
            node = parent
        return node

    def members(self, node: Node) -> list[Node]:
        """The e-nodes of a node's class, in the order in which they were found."""
        return self._members[self.find(node)]

    def readers(self, node: Node) -> list[Node]:
        """The e-nodes that read a node's class."""
        readers = dict.fromkeys(self._readers[self.find(node)])
        return [reader for reader in readers if reader in self._filed]

    def is_fixed(self, node: Node) -> bool:
        """Whether a class follows from parameters and constants alone: nothing runs for it.

        One e-node that says so is enough.
        """
        return self.find(node) in self._fixed

    def inputs(self, node: Node) -> tuple[Node, ...]:
        """The classes that an e-node reads, by name."""
        return tuple(map(self.find, node.inputs))

    def classes(self) -> Iterator[Node]:
        """The name of every class, in building order."""
        return iter(tuple(self._members))

    def nodes(self) -> Iterator[Node]:
        """Every e-node."""
        for members in self._members.values():
            yield from members

    def __len__(self) -> int:
        """How many e-nodes there are."""
        return len(self._by_key)

    def key(self, node: Node) -> Key:
        """What makes a node the e-node that it is."""
        if node.is_leaf:
            return node
        inputs = [self.find(parent).index for parent in node.inputs]
        if OPS[node.op].commutes:
            inputs.sort()
        return node.op, tuple(inputs), tuple(sorted(node.attrs.items()))

    # --- changing ---------------------------------------------------------------------------------

    def add(self, node: Node, rule: str = GIVEN) -> Node:
        """A node and what it is made of, each as an e-node; the name of its class."""
        if node in self._above:
            return self.find(node)
        if node.builder is not self.builder:
            raise GraphError(f"{node.name} was not built with the builder of this e-graph")
        for parent in node.inputs:
            self.add(parent, rule)
        key = self.key(node)
        twin = self._by_key.get(key)
        if twin is not None:
            self._above[node] = self.find(twin)
            return self.find(twin)
        self._file(node, key)
        self._above[node], self.rules[node] = node, rule
        self._members[node], self._readers[node] = [node], []
        self._changed.append(node)
        for parent in dict.fromkeys(self.inputs(node)):
            self._readers[parent].append(node)
        if self._follows(node):
            self._fixed.add(node)
        return node

    def _follows(self, node: Node) -> bool:
        """Whether an e-node is a weight, or made of such alone."""
        if node.is_leaf:
            return node.op in ("parameter", "constant")
        return self._fixed.issuperset(self.inputs(node))

    def merge(self, a: Node, b: Node) -> bool:
        """Make two classes one; False where they are. Raises GraphError where their types differ.

        Readers are put in order by `rebuild`.
        """
        kept, gone = sorted((self.find(a), self.find(b)), key=lambda node: node.index)
        if kept is gone:
            return False
        if kept.type != gone.type:
            raise GraphError(f"{kept!r} and {gone!r} differ in type and cannot be equal")
        self._above[gone] = kept
        self._members[kept] += self._members.pop(gone)
        self._readers[kept] += self._readers.pop(gone)
        if gone in self._fixed:
            self._fixed.add(kept)
        self._merged.append(kept)
        return True

    def rebuild(self) -> list[Node]:
        """Congruence: e-nodes that came to be equal are one, and so are their classes.

        Returns the classes that are new, or have grown, since it was done last.
        """
        while self._merged:
            touched = dict.fromkeys(map(self.find, self._merged))
            self._merged.clear()
            self._changed += touched
            for name in touched:
                self._restore(name)
        self.ends = tuple(map(self.find, self.ends))
        changed = list(dict.fromkeys(map(self.find, self._changed)))
        self._changed.clear()
        return changed

    def _restore(self, name: Node) -> None:
        for reader in dict.fromkeys(self._readers.get(name, ())):
            if reader in self._filed:
                self._refile(reader)
            if not self.is_fixed(reader) and self._follows(reader):
                self._fixed.add(self.find(reader))
                self._merged.append(self.find(reader))

    def _refile(self, node: Node) -> None:
        """File an e-node under what it is now; of two that are one, the first built stays."""
        old, key = self._filed[node], self.key(node)
        if old == key:
            return
        del self._by_key[old], self._filed[node]
        twin = self._by_key.get(key)
        if twin is None:
            self._file(node, key)
            return
        kept, gone = sorted((node, twin), key=lambda one: one.index)
        self._filed.pop(twin)
        self._file(kept, key)
        self.merge(kept, gone)
        self._members[self.find(kept)].remove(gone)

    def _file(self, node: Node, key: Key) -> None:
        self._by_key[key] = node
        self._filed[node] = key

    def check(self) -> None:
        """Raise GraphError unless every invariant of an e-graph holds."""
        keys: dict[Key, Node] = {}
        for name, members in self._members.items():
            if self.find(name) is not name:
                raise GraphError(f"{name.name} names a class and is not its root")
            for node in members:
                if self.find(node) is not name or node.type != name.type:
                    raise GraphError(f"{node!r} is not of the class {name!r}")
                if keys.setdefault(self.key(node), node) is not node:
                    raise GraphError(f"{node!r} and {keys[self.key(node)]!r} are one e-node")


def roots_first(egraph: EGraph, ends: Iterable[Node]) -> list[Node]:
    """Names of the classes that the ends can be made of, in the order they are come upon."""
    seen: dict[Node, None] = {}
    stack = [egraph.find(end) for end in ends]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen[name] = None
        stack += [parent for node in egraph.members(name) for parent in egraph.inputs(node)]
    return list(seen)
