"""Einstein sums, lowered to sums, permutes, reshapes and one matmul per pair of operands."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tgbench.base.errors import GraphError
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Dim
from tgbench.graph.ops.reduce import sum_


def _parsed(equation: str, nodes: Sequence[Node]) -> tuple[list[str], str]:
    """The labels of every operand and of the result; an ellipsis becomes digits."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(nodes) or (right and not arrow):
        raise GraphError(f"einsum {equation!r} has {len(terms)} terms for {len(nodes)} operands")
    extra = [
        node.rank - len(term.replace("...", "")) for term, node in zip(terms, nodes, strict=True)
    ]
    most = max([n for n, term in zip(extra, terms, strict=True) if "..." in term], default=0)
    spread = "0123456789"[:most]
    terms = [term.replace("...", spread[most - n :]) for term, n in zip(terms, extra, strict=True)]
    if not arrow:
        letters = sorted({c for term in terms for c in term if c not in spread})
        right = "..." + "".join(c for c in letters if sum(t.count(c) for t in terms) == 1)
    return terms, right.replace("...", spread)


def _check(equation: str, terms: Sequence[str], out: str, nodes: Sequence[Node]) -> None:
    sizes: dict[str, Dim] = {}
    for term, node in zip(terms, nodes, strict=True):
        if len(term) != node.rank or len(set(term)) < len(term):
            raise GraphError(
                f"einsum {equation!r}: {term!r} does not name the dimensions of {node.type} once "
                "each; take diagonals with `gather` first"
            )
        for label, size in zip(term, node.shape, strict=True):
            if sizes.setdefault(label, size) != size:
                raise GraphError(f"einsum {equation!r}: {label!r} is {sizes[label]} and {size}")
    if len(set(out)) < len(out) or not set(out) <= set(sizes):
        raise GraphError(f"einsum {equation!r}: the result {out!r} names unknown dimensions")


def _summed(x: Node, term: str, keep: str) -> tuple[Node, str]:
    """The node less the dimensions that nobody names again."""
    gone = [axis for axis, label in enumerate(term) if label not in keep]
    kept = "".join(label for label in term if label in keep)
    return (sum_(x, gone), kept) if gone else (x, kept)


def _ordered(x: Node, term: str, order: str) -> Node:
    axes = [term.index(label) for label in order]
    return x if axes == list(range(len(axes))) else x.permute(*axes)


def _sizes(x: Node, term: str, labels: str) -> list[Dim]:
    return [x.shape[term.index(label)] for label in labels]


def _product(a: Node, left: str, b: Node, right: str, keep: str) -> tuple[Node, str]:
    """One matmul: shared dimensions that stay are its batch, the others are summed over."""
    batch = "".join(c for c in left if c in right and c in keep)
    inner = "".join(c for c in left if c in right and c not in keep)
    rows = "".join(c for c in left if c not in right)
    columns = "".join(c for c in right if c not in left)
    front, depth = _sizes(a, left, batch), _sizes(a, left, inner)
    over, across = _sizes(a, left, rows), _sizes(b, right, columns)
    first = _ordered(a, left, batch + rows + inner).reshape(*front, prod(over), prod(depth))
    second = _ordered(b, right, batch + inner + columns).reshape(*front, prod(depth), prod(across))
    return (first @ second).reshape(*front, *over, *across), batch + rows + columns


def einsum(equation: str, *nodes: Node) -> Node:
    """The sum that an equation such as "bij,bjk->bik" says; "..." stands for leading dimensions.

    Raises GraphError for sizes that differ, and for a label twice in one term.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> einsum("bhtd,bhsd->bhts", g.input("q", (1, 2, 3, 4)), g.input("k", (1, 2, 5, 4))).shape
    (1, 2, 3, 5)
    """
    terms, out = _parsed(equation, nodes)
    _check(equation, terms, out, nodes)
    result, term = _summed(nodes[0], terms[0], out + "".join(terms[1:]))
    for i, (node, labels) in enumerate(zip(nodes[1:], terms[1:], strict=True), start=1):
        later = out + "".join(terms[i + 1 :])
        other, named = _summed(node, labels, later + term)
        result, term = _summed(result, term, later + named)
        result, term = _product(result, term, other, named, later)
    return _ordered(result, term, out)
