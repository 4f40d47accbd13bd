"""Weights that follow from others, held in place of these where runs read them alone.

    conv(x, w · s, t − m · s)  ─→  conv(x, w', t')      w', t' computed once; w, s, t, m let go

Scales and shifts go into weights (`recognise.affine`), and no run reads the originals again. With
both in memory a network of convolutions would take its weights twice. So the graph of a session has
what is read as parameters, whichever path computes it; what that takes of a source is computed as
it is read from there, one weight after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch

from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.graph.graph import Graph, Node
from tgbench.graph.holding import settle
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.pool import compute_frozen, read_by_runs
from tgbench.programs.weights import Source
from tgbench.runs.rules import Rules


class Settling:
    """Which weights of a graph are held in place of others, and the graph that reads them.

    Fields:
        scheduled: the graph as it was.
        made: nodes of it, by the name of the parameter that each one becomes.
    """

    def __init__(self, graph: Graph) -> None:
        self.scheduled = ScheduledGraph.of(graph)
        self.made: Mapping[str, Node] = {node.name: node for node in self._chosen()}

    @cached_property
    def graph(self) -> Graph:
        """The one that reads them."""
        return settle(self.scheduled.graph, frozenset(self.made.values()))

    def weights(self, name: str) -> list[str]:
        """The parameters of the graph as it was that one is, or follows from."""
        if name not in self.made:
            return [name]
        return [node.name for node in self.below(self.made[name]) if node.op == "parameter"]

    def below(self, node: Node) -> list[Node]:
        """What a node follows from, in order, and itself."""
        found, stack = {node}, [node]
        while stack:
            fresh = [one for one in stack.pop().inputs if one not in found]
            found.update(fresh)
            stack += fresh
        return [one for one in self.scheduled.graph.nodes if one in found]

    def _chosen(self) -> list[Node]:
        """What runs read that follows from weights, some of which nothing else is computed from."""
        read = read_by_runs(self.scheduled)
        possible = [node for node in self.scheduled.graph.nodes if node in read]
        possible = [node for node in possible if self._may_be_parameter(node)]
        kept = {one for node in read.difference(possible) for one in self.below(node)}
        return [node for node in possible if not self._weights_of(node) <= kept]

    def _weights_of(self, node: Node) -> set[Node]:
        return {one for one in self.below(node) if one.op == "parameter"}

    def _may_be_parameter(self, node: Node) -> bool:
        """Whether nothing is lost: a parameter is on the session's device, and nothing is known of
        its elements.
        """
        if node.is_leaf or node.type.device:
            return False
        readers = self.scheduled.graph.consumers[node]
        return not any(
            reader.call.facts and reader.call.facts[i] is not None
            for reader in readers
            for i, one in enumerate(reader.inputs)
            if one is node
        )


class Settled:
    """Weights of another source, and those that follow from them."""

    def __init__(self, source: Source, settling: Settling, device: str) -> None:
        self.source, self.settling, self.device = source, settling, device
        self.file = source.file
        self._rules = Rules()

    def names(self) -> tuple[str, ...]:
        return (*self.source.names(), *self.settling.made)

    def dtype(self, name: str) -> str:
        made = self.settling.made.get(name)
        return self.source.dtype(name) if made is None else made.dtype

    def rows(self, name: str, node: Node) -> Iterator[torch.Tensor]:
        return self.source.rows(name, node)

    def tensor(self, name: str, node: Node) -> torch.Tensor:
        made = self.settling.made.get(name)
        return self.source.tensor(name, node) if made is None else self._computed(made)

    def is_mapped(self, name: str, node: Node) -> bool:
        return name not in self.settling.made and self.source.is_mapped(name, node)

    def _computed(self, node: Node) -> torch.Tensor:
        scheduled = self.settling.scheduled
        buffers = dict[tuple[Any, str], torch.Tensor]()
        for one in self.settling.below(node):
            if one.op == "parameter":
                buffers[one.name, one.dtype] = self.source.tensor(one.name, one)
            elif one.op == "constant":
                data = torch.tensor(one.attrs["data"].array)
                buffers[one.name, one.dtype] = data.to(self.device, TORCH_DTYPES[one.dtype])
            elif scheduled.base[one] is one:
                compute_frozen(one, scheduled, buffers, self._rules, self.device)
        for name in self.settling.weights(node.name):
            if self.file is not None and name in self.file:  # no run reads it
                self.file.let_go(name)
        return buffers[node.name, node.dtype]
