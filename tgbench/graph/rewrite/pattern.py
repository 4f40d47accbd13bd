"""What a rule looks for: an expression with holes.

"x"                       any class, the same one wherever the name stands again
0.5                       a class that is this number throughout
("add", "x", "y")         an op of these; commuting ops match in both orders
("permute:p", "x")        and its attributes, under a name
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

from tgbench.graph.graph import Node
from tgbench.graph.op_table import OPS, Attrs
from tgbench.graph.recognise.affine import is_far, is_large
from tgbench.graph.rewrite.egraph import EGraph

Pattern: TypeAlias = "str | float | tuple[Pattern, ...]"


@dataclass(frozen=True)
class PatternMatch:
    """Where a pattern was found.

    Fields:
        egraph: it was found in.
        nodes: the class of every hole, by name.
        attrs: the attributes of ops that were asked for them, by name.
    """

    egraph: EGraph
    nodes: Mapping[str, Node] = field(default_factory=dict)
    attrs: Mapping[str, Attrs] = field(default_factory=dict)

    def are_fixed(self, *names: str) -> bool:
        """Whether holes are filled by what follows from weights alone."""
        return all(self.egraph.is_fixed(self.nodes[name]) for name in names)

    def are_moderate(self, *names: str) -> bool:
        """Whether nothing that is added to what fills these holes is rounded away (`is_large`)."""
        return not any(holds(self.egraph, self.nodes[name], is_large) for name in names)

    def are_near(self, *names: str) -> bool:
        """Whether products may be taken in another order with what fills these holes (`is_far`)."""
        return not any(holds(self.egraph, self.nodes[name], is_far) for name in names)

    def with_node(self, name: str, node: Node) -> PatternMatch | None:
        found = self.nodes.get(name)
        if found is not None:
            return self if found is node else None
        return PatternMatch(self.egraph, {**self.nodes, name: node}, self.attrs)

    def with_attrs(self, name: str, attrs: Attrs) -> PatternMatch:
        return PatternMatch(self.egraph, self.nodes, {**self.attrs, name: attrs}) if name else self


def matches(egraph: EGraph, pattern: Pattern, node: Node) -> Iterator[PatternMatch]:
    """Every way in which an e-node is a pattern whose holes are classes.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder(); x = g.input("x", (2,)); g.output("y", x * (x + 1.0))
    >>> egraph = EGraph.of_graph(g.build())
    >>> [match.nodes["b"].name for match in matches(egraph, ("mul", "a", ("add", "a", "b")),
    ...                                             egraph.ends[0])]
    ['constant']
    """
    assert isinstance(pattern, tuple)
    return _node(pattern, node, PatternMatch(egraph))


def op_of(pattern: Pattern) -> str:
    """The op at the root of a pattern."""
    assert isinstance(pattern, tuple)
    assert isinstance(pattern[0], str)
    return pattern[0].partition(":")[0]


def _node(pattern: tuple[Pattern, ...], node: Node, found: PatternMatch) -> Iterator[PatternMatch]:
    head, *parts = pattern
    assert isinstance(head, str)
    op, _, label = head.partition(":")
    if node.op != op or len(node.inputs) != len(parts):
        return
    found = found.with_attrs(label, node.attrs)
    inputs = found.egraph.inputs(node)
    yield from _in_turn(parts, inputs, found)
    if OPS[op].commutes and inputs[0] is not inputs[1]:
        yield from _in_turn(parts, inputs[::-1], found)


def _in_turn(
    parts: list[Pattern], inputs: tuple[Node, ...], found: PatternMatch
) -> Iterator[PatternMatch]:
    if not parts:
        yield found
        return
    for more in _class(parts[0], inputs[0], found):
        yield from _in_turn(parts[1:], inputs[1:], more)


def _class(pattern: Pattern, name: Node, found: PatternMatch) -> Iterator[PatternMatch]:
    if isinstance(pattern, str):
        more = found.with_node(pattern, name)
        return iter(() if more is None else (more,))
    members = found.egraph.members(name)
    if isinstance(pattern, tuple):
        return chain.from_iterable(_node(pattern, node, found) for node in members)
    return iter((found,) if any(is_number(node, pattern) for node in members) else ())


def holds(egraph: EGraph, name: Node, are_so: Callable[[Node], bool]) -> bool:
    """Whether a class is a constant of numbers that are so: `is_large`, or `is_far`."""
    return any(map(are_so, egraph.members(name)))


def is_number(node: Node, value: float) -> bool:
    """Whether a node is a constant with one value throughout."""
    if node.op == "full":
        return bool(node.attrs["value"] == value)
    return node.op == "constant" and bool((node.attrs["data"].array == value).all())
