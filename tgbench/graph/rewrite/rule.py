"""A rule: what may be written in another way, and how.

    Rule("factor", ("add", ("mul", "a", "b"), ("mul", "a", "c")), lambda a, b, c: a * (b + c))

The right side is written with the functions that graphs are built with, and is given the holes of
the pattern, and attributes, by name. It answers None where it does not apply. Some rules look at
more than one place, as the products of one input: those are functions of an e-node (`SearchRule`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from tgbench.base.errors import GraphError
from tgbench.graph.graph import Node
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.pattern import Pattern, PatternMatch, matches, op_of

Found: TypeAlias = "tuple[Node, Node]"  # a class, and a node of the same value


def _always(match: PatternMatch) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """One way to write an expression in another way.

    Fields:
        name: as limits, reports and plans say it.
        pattern: what is looked for.
        make: (holes and attributes by name) → a node of the same value, or None.
        rounds: whether the value may differ by rounding; bit for bit the same otherwise.
        when: whether a match is one.
        grows: whether it alone makes more work: it is tried when all others have nothing new.
    """

    name: str
    pattern: Pattern
    make: Callable[..., Node | None]
    rounds: bool = True
    when: Callable[[PatternMatch], bool] = _always
    grows: bool = False

    @property
    def op(self) -> str | None:
        """The op of the e-nodes that it looks at."""
        return op_of(self.pattern)

    def apply(self, egraph: EGraph, node: Node) -> Iterator[Found]:
        """What an e-node is equal to by this rule."""
        for match in matches(egraph, self.pattern, node):
            made = self._made(match) if self.when(match) else None
            fitting = None if made is None else _fitted(made, node)
            if fitting is not None:
                yield node, fitting

    def _made(self, match: PatternMatch) -> Node | None:
        known: dict[str, Any] = {**match.nodes, **match.attrs}
        try:
            return self.make(**{name: known[name] for name in _names(self.make)})
        except (GraphError, IndexError):
            return None  # these shapes cannot be written so


@dataclass(frozen=True)
class SearchRule:
    """A rule that looks at more than one place.

    Fields:
        op: of the e-nodes that it looks at; None for all.
        find: (e-graph, e-node) → classes, each with a node of the same value.
    """

    name: str
    op: str | None
    find: Callable[[EGraph, Node], Iterator[Found]]
    rounds: bool = True
    grows: bool = False

    def apply(self, egraph: EGraph, node: Node) -> Iterator[Found]:
        """What classes around an e-node are equal to by this rule."""
        with suppress(GraphError):  # these shapes cannot be written so
            for name, made in self.find(egraph, node):
                fitting = _fitted(made, name)
                if fitting is not None:
                    yield name, fitting


AnyRule: TypeAlias = "Rule | SearchRule"


@cache
def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _fitted(made: Node, node: Node) -> Node | None:
    """A node of the type that is wanted: what broadcasting would have repeated is."""
    if made.dtype != node.dtype:
        return None
    if made.shape == node.shape:
        return made
    try:
        return made.expand(*node.shape)
    except GraphError:
        return None
