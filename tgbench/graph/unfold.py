"""A graph in which some nodes are computed more than once: a node for every time.

    a ─→ b ─→ c ─→ d       sequence  a b c a d
    └──────────────↑                 a ─→ b ─→ c ─→ d
                                     a again ───────↑

A sequence is valid if everything was computed before it is read; what is read is the latest one.
The nodes share their ops' applications, so that rules, kernels and records know them already.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import count
from typing import NamedTuple
from weakref import WeakValueDictionary

from tgbench.base.errors import GraphError
from tgbench.base.words import shorten
from tgbench.graph.graph import Graph, Node

AGAIN = re.compile(r"(.+) again(?: \d+)?", re.DOTALL)


class Unfolded(NamedTuple):
    """A sequence of computations as a graph.

    Fields:
        graph: leaves, and what depends on weights alone, are those of the graph it was made from.
        schedule: a node for every computation, in order; repeated ones are called `name again`.
    """

    graph: Graph
    schedule: tuple[Node, ...]


def unfold(graph: Graph, sequence: Sequence[Node]) -> Unfolded:
    """The graph of a sequence of a graph's executable nodes, of which some come several times.

    Outputs and states are what was computed last. The same sequence gives the same nodes, as long
    as somebody has them. Raises GraphError for a sequence that lacks a node, has one that is not
    executed, or computes one before what it reads.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> a = g.name(g.input("x", (2,)) * 2.0, "a")
    >>> c = g.name(abs(a), "c")
    >>> g.output("d", g.name(a + c, "d"))
    >>> for node in unfold(g.build(), [a, c, a, g.outputs["d"]]).schedule:
    ...     print(node)
    a: float32[2] = mul(x, constant)
    c: float32[2] = abs(a)
    a again: float32[2] = mul(x, constant)
    d: float32[2] = add(a again, c)
    """
    check_sequence(graph, sequence)
    key = tuple(sequence), *graph.outputs.items(), *graph.updates.items()
    found = _unfolded.get(key)
    if found is None:
        found = _unfolded[key] = _made(graph, sequence)
    return Unfolded(found, found.nodes[len(found.nodes) - len(sequence) :])


_unfolded: WeakValueDictionary[Hashable, Graph] = WeakValueDictionary()


def _made(graph: Graph, sequence: Sequence[Node]) -> Graph:
    latest: dict[Node, Node] = {}
    first = 1 + max(node.index for node in graph.nodes)
    made = []
    for i, (node, name) in enumerate(zip(sequence, _names(graph, sequence), strict=True), first):
        inputs = tuple(latest.get(parent, parent) for parent in node.inputs)
        latest[node] = Node(
            node.builder, i, node.op, inputs, node.attrs, node.type, node.call, name, node.source
        )
        made.append(latest[node])
    found = Graph(
        (*(node for node in graph.nodes if node not in latest), *made),
        {name: latest.get(node, node) for name, node in graph.outputs.items()},
        {name: latest.get(node, node) for name, node in graph.updates.items()},
    )
    found.check()
    return found


def check_sequence(graph: Graph, sequence: Sequence[Node]) -> None:
    """Raise GraphError unless all that a run may execute is there, each behind what it reads."""
    executable = {node for node in graph.nodes if not node.is_leaf} - graph.frozen
    if set(sequence) != executable:
        raise GraphError("not the graph's nodes")
    seen: set[Node] = set()
    for node in sequence:
        for parent in node.inputs:
            if parent in executable and parent not in seen:
                raise GraphError(f"{node.name} comes before {parent.name}, which it reads")
        seen.add(node)


def _names(graph: Graph, sequence: Iterable[Node]) -> list[str]:
    """Names of computations: `a`, `a again`, `a again 2`, …; none is another node's."""
    taken, seen = {node.name for node in graph.nodes}, set[Node]()
    names = []
    for node in sequence:
        again = (name for name in _again(node.name) if name not in taken)
        names.append(next(again) if node in seen else node.name)
        taken.add(names[-1])
        seen.add(node)
    return names


def _again(name: str) -> Iterator[str]:
    yield f"{name} again"
    yield from (f"{name} again {times}" for times in count(2))


def named(graph: Graph, names: Iterable[str]) -> list[Node]:
    """The nodes whose computations have these names; raises GraphError for one that is unknown.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> g.output("y", g.name(abs(g.input("x", (2,))), "y"))
    >>> [node.name for node in named(g.build(), ["y", "y again"])]
    ['y', 'y']
    """
    nodes = {node.name: node for node in graph.nodes}
    found = []
    for name in names:
        again = None if name in nodes else AGAIN.fullmatch(name)
        meant = name if again is None else again[1]
        if meant not in nodes:
            raise GraphError(f"the graph has no node {shorten(name)}")
        found.append(nodes[meant])
    return found
