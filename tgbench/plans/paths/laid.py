"""How the elements of values lie where there is memory for everything, and which of them are known.

    stored   all of it, row-major; images with their channels side by side
    view     strides of what it shows: a slice of a joint product, a transpose
    copied   a view that memory order does not allow is stored
    known    elements that follow from constants, as the graph that computes it so says

So a value lies as it is computed: q as a product of its own is row-major, as a slice of qkv its
rows are as far apart as those of all three. And m·(a + b) is known to be 0 where a mask m is; of
m·a + m·b nothing is known, and more of it is computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tgbench.base.known import Fact
from tgbench.base.regions import in_order, row_major
from tgbench.graph.graph import Node, fact_of
from tgbench.graph.op_table import LINE_RANK, OPS, Call, ViewMap
from tgbench.graph.rewrite.choices import Alternatives, Options
from tgbench.memory.storage import ScheduledGraph, compose, identity_map, is_look

MOST = 64  # ways in which the operands of one e-node lie, that are looked at


@dataclass(frozen=True, slots=True)
class Laid:
    """How the elements of a value lie.

    Fields:
        base: the shape of what has bytes.
        dims: for each dimension, that of the base it runs along and how many of it per step.
        order: dimensions of the base from the outermost to the innermost; () for row-major.
        known: what constants say of its elements.
    """

    base: tuple[int, ...]
    dims: tuple[tuple[int, int] | None, ...]
    order: tuple[int, ...] = ()
    known: Fact | None = None

    @staticmethod
    def stored(shape: Sequence[int], order: tuple[int, ...] = ()) -> Laid:
        """All of a value, in bytes of its own.

        >>> Laid.stored((2, 3)).strides
        (3, 1)
        """
        return Laid(tuple(shape), identity_map(len(shape)).dims, order)

    @property
    def strides(self) -> tuple[int, ...]:
        """Elements of the base per step along each dimension."""
        steps = in_order(self.base, self.order) if self.order else row_major(self.base)
        return tuple(0 if to is None else int(steps[to[0]]) * to[1] for to in self.dims)

    def shown(self, view: ViewMap, shape: Sequence[int]) -> Laid | None:
        """A view of it, which has this shape; None where memory order does not allow that.

        >>> Laid.stored((2, 6)).shown(ViewMap(((1, 1), (0, 1)), (0, 0)), (2, 6)).strides
        (1, 6)
        """
        own = ViewMap(self.dims, (0,) * len(self.base))
        found = compose(view, own, shape, self.base)
        return None if found is None else Laid(self.base, found.dims, self.order)

    @property
    def is_image(self) -> bool:
        """Whether it is all of an image whose channels lie side by side."""
        return bool(self.order) and self.dims == identity_map(len(self.base)).dims


class Lying:
    """How the classes of an e-graph lie, by what computes them.

    Args:
        found: what can be computed from what.
        given: the e-graph's graph as it is scheduled; what of it lies row-major does in every way.
    """

    def __init__(self, found: Alternatives, given: ScheduledGraph) -> None:
        self.egraph, self.fixed = found.egraph, found.fixed
        self._plain = {
            self.egraph.find(self.egraph.of[node])
            for node in given.stored
            if node.rank >= LINE_RANK and node not in given.channels_last
        }
        self._resting: dict[Node, Laid] = {}

    def among(self, options: Options) -> dict[Node, tuple[Laid, ...]]:
        """Every way in which each class may lie, each after what it may read.

        Args:
            options: of each class, before those of what it may read.
        """
        found: dict[Node, tuple[Laid, ...]] = {}
        for name in reversed(tuple(options)):
            lie = (laid for node in options[name] for laid in self._only(name, node, found))
            found[name] = tuple(dict.fromkeys(lie))
        return found

    def steadied(self, found: Alternatives) -> Alternatives:
        """The same, but what equal calls read lies as in the given graph, whatever computes it.

        Otherwise all of them, layers that read one mask say, would have to be chosen together.
        """
        readers: dict[Node, list[Call]] = {}
        own: dict[Node, list[Node]] = {}
        for node in dict.fromkeys(self.egraph.of.values()):
            own.setdefault(self.egraph.find(node), []).append(node)
            for parent in self.egraph.inputs(node):
                readers.setdefault(parent, []).append(node.call)
        options, lies = dict(found.options), dict[Node, tuple[Laid, ...]]()
        for name in reversed(found.order):
            by = {node: self._only(name, node, lies) for node in options[name]}
            calls = readers.get(name, ())
            if len(set(calls)) < len(calls):
                given = {by[node] for node in own.get(name, ()) if node in by} or {*by.values()}
                by = {node: laid for node, laid in by.items() if laid in given}
            options[name] = tuple(by)
            lies[name] = tuple(dict.fromkeys(laid for one in by.values() for laid in one))
        return replace(found, options=options)

    def _only(
        self, name: Node, node: Node, found: Mapping[Node, tuple[Laid, ...]]
    ) -> tuple[Laid, ...]:
        """Every way in which a class may lie if this e-node computes it."""
        ins = combinations([self._known(n, found) for n in self.egraph.inputs(node)])
        return tuple(dict.fromkeys(self.of(name, node, one) for one in ins))

    def _known(self, name: Node, found: Mapping[Node, tuple[Laid, ...]]) -> tuple[Laid, ...]:
        return (self.resting(name),) if name in self.fixed else found[name]

    def resting(self, name: Node) -> Laid:
        """How something lies that follows from weights alone."""
        if name not in self._resting:
            node = self.fixed[name]
            ins = tuple(map(self.resting, self.egraph.inputs(node)))
            laid = as_view(node, ins) or Laid.stored(node.shape)
            known = fact_of(node) if node.is_leaf else self.call(node, ins).fact
            self._resting[name] = replace(laid, known=known)
        return self._resting[name]

    def of(self, name: Node, node: Node, ins: Sequence[Laid]) -> Laid:
        """How a class lies if this e-node computes it, from operands that lie so."""
        found = as_view(node, ins)
        if found is None:
            found = Laid.stored(node.shape, self._order(name, node, ins))
        known = fact_of(node) if node.is_leaf else self.call(node, ins).fact
        return found if known == found.known else replace(found, known=known)

    def call(self, node: Node, ins: Sequence[Laid]) -> Call:
        """What an e-node computes from operands of which so much is known."""
        return node.builder.call_with(node, tuple(laid.known for laid in ins))

    def _order(self, name: Node, node: Node, ins: Sequence[Laid]) -> tuple[int, ...]:
        if node.is_leaf or node.rank < LINE_RANK or name in self._plain:
            return ()
        op = OPS[node.op]
        is_like_one = any(
            laid.is_image and (op.keeps_axes or laid.base == node.shape) for laid in op.alike(ins)
        )
        if op.on_images or is_like_one:
            return (0, *range(2, node.rank), 1)
        return ()


def combinations(choices: Sequence[tuple[Laid, ...]]) -> list[tuple[Laid, ...]]:
    """One of each; the first of them where there are very many."""
    found = []
    for one in product(*choices):
        found.append(one)
        if len(found) == MOST:
            break
    return found


def as_view(node: Node, ins: Sequence[Laid]) -> Laid | None:
    """How an e-node lies that shows what it reads; None where it has bytes of its own."""
    if not is_look(node):
        return None
    view = OPS[node.op].view
    own = view(node.call) if view is not None else None
    return None if own is None else ins[0].shown(own, node.inputs[0].shape)
