"""Branches on values, as values: both are computed, and the one that is asked for is taken.

    y = cond(p, f, g, (x,))   ─→   y = where(p, f(x), g(x))

A graph computes the same whatever its inputs hold. A branch writes nothing that is seen elsewhere,
so whether it is computed is seen by nobody, but for what it takes, and for what PyTorch would raise
in it: an index that is out of range only where it is not taken is out of range here as well.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

COND = torch.ops.higher_order.cond
WHERE, RESHAPE = torch.ops.aten.where.self, torch.ops.aten.reshape.default


def write_in_line(module: fx.GraphModule) -> None:
    """Replace `torch.cond` by both of its branches; those of a branch as well."""
    _write_in_line(module.graph, module)


def _write_in_line(graph: fx.Graph, owner: fx.GraphModule) -> None:
    for node in graph.find_nodes(op="call_function", target=COND):
        predicate, *branches, operands = node.args
        with graph.inserting_before(node):
            condition = _condition(graph, predicate)
            either = [_branch(graph, getattr(owner, one.target), operands) for one in branches]
            taken = _taken(graph, node, condition, *either)
        _replace(graph, node, taken)
        for branch in branches:
            if not branch.users:
                graph.erase_node(branch)


def _condition(graph: fx.Graph, predicate: Any) -> Any:
    """Of no dimensions, so that it goes with values of any."""
    if not isinstance(predicate, fx.Node) or not predicate.meta["val"].ndim:
        return predicate
    condition = graph.call_function(RESHAPE, (predicate, []))
    condition.meta = {**predicate.meta, "val": predicate.meta["val"].reshape([])}
    return condition


def _branch(graph: fx.Graph, module: fx.GraphModule, operands: Iterable[Any]) -> list[Any]:
    """What it computes, in line."""
    inner = deepcopy(module.graph)
    _write_in_line(inner, module)
    places = inner.find_nodes(op="placeholder")
    return pytree.tree_leaves(graph.graph_copy(inner, dict(zip(places, operands, strict=True))))


def _taken(
    graph: fx.Graph, node: fx.Node, condition: Any, yes: list[Any], no: list[Any]
) -> list[Any]:
    if not isinstance(condition, fx.Node):
        return yes if condition else no
    found = []
    for one, other, value in zip(yes, no, pytree.tree_leaves(node.meta["val"]), strict=True):
        if isinstance(value, torch.Tensor):
            chosen = graph.call_function(WHERE, (condition, one, other))
            chosen.meta = {**node.meta, "val": value}
            found.append(chosen)
        else:
            found.append(one)
    return found


def _replace(graph: fx.Graph, node: fx.Node, values: list[Any]) -> None:
    """Whoever picks a result of a call takes that one."""
    for user in list(node.users):
        index = user.args[1]
        assert user.target is operator.getitem
        assert isinstance(index, int)
        user.replace_all_uses_with(values[index])
        graph.erase_node(user)
    graph.erase_node(node)
