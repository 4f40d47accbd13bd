"""A slice of a large op is a small op: slices pushed down to what is sliced, and met by concats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tgbench.graph.graph import Node
from tgbench.graph.ops import concat, linear
from tgbench.graph.rewrite.egraph import EGraph
from tgbench.graph.rewrite.rule import AnyRule, Found, SearchRule
from tgbench.graph.rewrite.rules.motion import is_elementwise, of_rows


@dataclass(frozen=True)
class SliceParts:
    """What a slice takes of each dimension: a Python slice."""

    parts: tuple[slice, ...]

    @staticmethod
    def of(node: Node) -> SliceParts:
        ends = zip(*(node.attrs[name] for name in ("starts", "stops", "steps")), strict=True)
        return SliceParts(tuple(slice(a, b if b >= 0 else None, step) for a, b, step in ends))

    def of_operand(self, operand: Node, shape: Sequence[int]) -> Node:
        """The same of something that is broadcast to what is sliced."""
        lead = len(shape) - operand.rank
        parts = [
            slice(None) if size == 1 and shape[lead + i] != 1 else self.parts[lead + i]
            for i, size in enumerate(operand.shape)
        ]
        return operand[tuple(parts)]

    def is_whole(self, axis: int, size: int) -> bool:
        """Whether nothing of a dimension is left out, and its order stays."""
        return range(size)[self.parts[axis]] == range(size)


def _of_elements(egraph: EGraph, node: Node) -> Iterator[Found]:
    cut = SliceParts.of(node)
    for inner in egraph.members(node.inputs[0]):
        if is_elementwise(inner):
            inputs = [cut.of_operand(parent, inner.shape) for parent in egraph.inputs(inner)]
            yield node, node.builder.apply(inner.op, *inputs, **inner.attrs)


def _of_rows(egraph: EGraph, node: Node) -> Iterator[Found]:
    cut = SliceParts.of(node)
    for inner in egraph.members(node.inputs[0]):
        if not of_rows(inner) or not cut.is_whole(-1, inner.shape[-1]):
            continue
        x, *others = egraph.inputs(inner)
        inputs = [cut.of_operand(x, inner.shape)]
        inputs += [one if one.rank <= 1 else cut.of_operand(one, inner.shape) for one in others]
        yield node, node.builder.apply(inner.op, *inputs, **inner.attrs)


def _of_linear(egraph: EGraph, node: Node) -> Iterator[Found]:
    """Rows are rows of x, columns are rows of the weight."""
    cut = SliceParts.of(node)
    for inner in egraph.members(node.inputs[0]):
        if inner.op != "linear" or inner.attrs:
            continue
        x, weight, *bias = egraph.inputs(inner)
        rows, columns = (*cut.parts[:-1], slice(None)), cut.parts[-1]
        yield node, linear(x[rows], weight[columns], bias[0][columns] if bias else None)


def _of_matmul(egraph: EGraph, node: Node) -> Iterator[Found]:
    cut = SliceParts.of(node)
    for inner in egraph.members(node.inputs[0]):
        if inner.op != "matmul":
            continue
        a, b = egraph.inputs(inner)
        if a.rank != inner.rank or b.rank != inner.rank:
            continue
        left = SliceParts((*cut.parts[:-1], slice(None))).of_operand(a, (*inner.shape[:-1], 0))
        right = SliceParts((*cut.parts[:-2], slice(None), cut.parts[-1]))
        yield node, left @ right.of_operand(b, (*inner.shape[:-2], 0, inner.shape[-1]))


def _of_permute(egraph: EGraph, node: Node) -> Iterator[Found]:
    cut = SliceParts.of(node)
    for inner in egraph.members(node.inputs[0]):
        if inner.op == "permute":
            axes = inner.attrs["axes"]
            parts = tuple(cut.parts[axes.index(axis)] for axis in range(inner.rank))
            yield node, egraph.find(inner.inputs[0])[parts].permute(*axes)


def _of_concat(egraph: EGraph, node: Node) -> Iterator[Found]:
    """A slice that lies in one part of a concat is a slice of that part."""
    cut = SliceParts.of(node)
    for inner in egraph.members(node.inputs[0]):
        if inner.op != "concat":
            continue
        axis = inner.attrs["axis"] % inner.rank
        taken = range(inner.shape[axis])[cut.parts[axis]]
        start = 0
        for part in egraph.inputs(inner):
            stop = start + part.shape[axis]
            if start <= min(taken) and max(taken) < stop and taken.step > 0:
                within = slice(taken.start - start, taken.stop - start, taken.step)
                yield node, part[(*cut.parts[:axis], within, *cut.parts[axis + 1 :])]
            start = stop


def _of_slices(egraph: EGraph, node: Node) -> Iterator[Found]:
    """A concat of slices that lie one behind the other is one slice."""
    axis = node.attrs["axis"] % node.rank
    for first in egraph.members(node.inputs[0]):
        if first.op != "slice":
            continue
        base, start, stop = egraph.find(first.inputs[0]), *_ends(first, axis)
        for part in egraph.inputs(node)[1:]:
            follows = (
                one for one in egraph.members(part) if _continues(egraph, one, first, axis, stop)
            )
            following = next(follows, None)
            if following is None:
                break
            stop = _ends(following, axis)[1]
        else:
            parts = [*SliceParts.of(first).parts]
            parts[axis] = slice(start, stop)
            yield node, base[tuple(parts)]


def _ends(node: Node, axis: int) -> tuple[int, int]:
    return node.attrs["starts"][axis], node.attrs["stops"][axis]


def _continues(egraph: EGraph, one: Node, first: Node, axis: int, stop: int) -> bool:
    """Whether a slice begins where others end, and is as they are in all other dimensions."""
    if one.op != "slice" or egraph.find(one.inputs[0]) is not egraph.find(first.inputs[0]):
        return False
    is_step_one = one.attrs["steps"][axis] == first.attrs["steps"][axis] == 1
    others = [i for i in range(one.rank) if i != axis]
    names = ("starts", "stops", "steps")
    are_alike = all(one.attrs[name][i] == first.attrs[name][i] for name in names for i in others)
    return is_step_one and are_alike and one.attrs["starts"][axis] == stop


def _of_functions(egraph: EGraph, node: Node) -> Iterator[Found]:
    """A concat of one function of several values is the function of their concat."""
    axis = node.attrs["axis"]
    for first in egraph.members(node.inputs[0]):
        if first.is_leaf or len(first.inputs) != 1 or not is_elementwise(first):
            continue
        inner = []
        for part in egraph.inputs(node):
            same = (m for m in egraph.members(part) if m.op == first.op and m.attrs == first.attrs)
            found = next(same, None)
            if found is None:
                break
            inner.append(egraph.find(found.inputs[0]))
        else:
            together = concat(inner, axis)
            yield node, node.builder.apply(first.op, together, **first.attrs)


def _dropped(egraph: EGraph, node: Node) -> Iterator[Found]:
    """A slice of an expand repeats less."""
    cut = SliceParts.of(node)
    for inner in egraph.members(node.inputs[0]):
        if inner.op == "expand":
            base = egraph.find(inner.inputs[0])
            yield node, cut.of_operand(base, inner.shape).expand(*node.shape)


SLICES: tuple[AnyRule, ...] = (
    SearchRule("slice of elements", "slice", _of_elements, rounds=False),
    SearchRule("slice of rows", "slice", _of_rows, rounds=False),
    SearchRule("slice of a linear layer", "slice", _of_linear),
    SearchRule("slice of a product", "slice", _of_matmul),
    SearchRule("slice of a permute", "slice", _of_permute, rounds=False),
    SearchRule("slice of a concat", "slice", _of_concat, rounds=False),
    SearchRule("slice of an expand", "slice", _dropped, rounds=False),
    SearchRule("concat of slices", "concat", _of_slices, rounds=False),
    SearchRule("concat of functions", "concat", _of_functions, rounds=False),
)
