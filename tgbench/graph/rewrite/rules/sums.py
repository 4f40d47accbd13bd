"""One form for sums and products, whatever brackets and orders they were written in.

    (a + b) − (c − d)    is the set  {+a, +b, −c, +d}
    (a · b) · a          is the set  {a², b}

Two classes of one set are one class: that is all that commuting and associating can do, without an
e-node for each of the (2n − 3)!! ways to put n things into brackets. One of these ways is added,
the one that computes fewest elements: weights first, then small before large, as Huffman's code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tgbench.graph.graph import Node
from tgbench.graph.op_table import FLOATS
from tgbench.graph.recognise.affine import is_far, is_large
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.pattern import holds
from tgbench.graph.rewrite.rule import AnyRule, Found, SearchRule

MOST_TERMS = 16  # of one sum: longer ones stay in the parts that they were written in
Terms = Counter[Node]  # how often each class is added, or multiplied; negative: taken away


def terms_of(egraph: EGraph, node: Node) -> Terms:
    """What an e-node is the sum or the product of, opened as far as it goes."""
    is_sum = node.op in ("add", "sub", "neg")
    found: Terms = Counter()
    _open(egraph, node, 1, ("add", "sub", "neg") if is_sum else ("mul",), found, ())
    return Counter({name: times for name, times in found.items() if times})


def _open(
    egraph: EGraph,
    node: Node,
    sign: int,
    ops: tuple[str, ...],
    found: Terms,
    above: tuple[Node, ...],
) -> None:
    for place, parent in enumerate(egraph.inputs(node)):
        times = -sign if node.op == "neg" or (node.op == "sub" and place == 1) else sign
        inner = next((one for one in egraph.members(parent) if one.op in ops), None)
        is_opened = inner is not None and parent not in above and len(found) < MOST_TERMS
        if inner is not None and is_opened and inner.dtype == node.dtype:
            _open(egraph, inner, times, ops, found, (*above, parent))
        else:
            found[parent] += times


def _one_form(egraph: EGraph, node: Node) -> Iterator[Found]:
    if node.dtype not in FLOATS:
        return
    terms = terms_of(egraph, node)
    kind = "sum" if node.op != "mul" else "product"
    if len(terms) + max(map(abs, terms.values()), default=0) < 3 or not terms:
        return  # of two there is nothing to bracket
    are_apart = is_far if node.op == "mul" else is_large
    if any(holds(egraph, name, are_apart) for name in terms):
        return
    key = kind, node.type, frozenset(terms.items())
    same = egraph.memo.setdefault(key, node)
    if egraph.find(same) is not egraph.find(node):
        yield node, same
    made = _bracketed(egraph, terms, kind == "sum")
    if made is not None:
        yield node, made


def _bracketed(egraph: EGraph, terms: Mapping[Node, int], is_sum: bool) -> Node | None:
    """The sum or product of all of these, in the order that computes least."""
    if not is_sum and min(terms.values()) < 0:
        return None
    added = [name for name, times in terms.items() for _ in range(max(times, 0))]
    taken = [name for name, times in terms.items() for _ in range(max(-times, 0))]
    if not added or len(added) + len(taken) > MOST_TERMS:
        return None
    first = _huffman(egraph, added, is_sum)
    return first - _huffman(egraph, taken, is_sum) if taken else first


def _huffman(egraph: EGraph, names: list[Node], is_sum: bool) -> Node:
    """Always the two first: what is fixed, then what has fewest elements."""
    fixed = {name for name in names if egraph.is_fixed(name)}

    def rank(node: Node) -> tuple[bool, int, int]:
        return node not in fixed, int(node.type.elements), node.index

    left = sorted(names, key=rank)
    while len(left) > 1:
        a, b, *rest = left
        made = a + b if is_sum else a * b
        if {a, b} <= fixed:
            fixed.add(made)
        left = sorted([made, *rest], key=rank)
    return left[0]


SUMS: tuple[AnyRule, ...] = (
    SearchRule("one form of a sum", "add", _one_form),
    SearchRule("one form of a difference", "sub", _one_form),
    SearchRule("one form of a product", "mul", _one_form),
)
