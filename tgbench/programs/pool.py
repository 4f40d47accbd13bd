"""The pool: parameters, constants and what follows from them alone. Bound once, never moved.

Parameters in the file's own dtype are the mapped file itself; tied ones are one tensor (`weights`).
All that is made of them (frozen nodes, layouts of kernels, values kept between runs) is made of the
same weights for good. A frozen node (`weight + 1`) is computed once, here, by the same kernels that
run everything else.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tgbench.base.collector import freed, give_back_with
from tgbench.base.errors import BudgetError, WeightsError
from tgbench.base.regions import Box
from tgbench.base.safetensors import TORCH_DTYPES, Weights
from tgbench.base.words import counted, format_bytes
from tgbench.graph.graph import Graph, Node
from tgbench.graph.op_table import Call
from tgbench.kernels.binding import bound, made_of
from tgbench.kernels.registry import (
    Prepared,
    candidates,
    prepared_bytes,
    prepared_inputs,
)
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.sites import Addresser, layout, site_of
from tgbench.programs.weights import Source
from tgbench.runs.rules import Rules


@dataclass
class Pool:
    """Tensors that never change, by (name, dtype).

    Fields:
        parameter_bytes: as stored in the graph's dtypes, tied ones once.
        owned_bytes: what had to be copied or computed (constants, frozen nodes, conversions).
        packed_bytes: at most what kernels that keep weights in another layout take for that.
        unpacked: calls whose weights are read as they lie, as they would take more than allowed.
        elsewhere_bytes: weights and constants on other devices, by device.
        limits: what other devices may give for these and for values, by device.
    """

    buffers: dict[tuple[Any, str], torch.Tensor] = field(default_factory=dict)
    parameter_bytes: int = 0
    owned_bytes: int = 0
    packed_bytes: int = 0
    unpacked: frozenset[Call] = frozenset()
    elsewhere_bytes: dict[str, int] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    _file: Weights | None = None
    _prepared: dict[Prepared, Any] = field(default_factory=dict)
    _watched: dict[str, torch.Tensor] = field(default_factory=dict)
    _versions: list[int] = field(default_factory=list)
    _read_bytes: int = 0  # of parameters that had to be copied or converted

    @staticmethod
    def load(
        graph: Graph,
        scheduled: ScheduledGraph,
        source: Source,
        device: str,
        packed_bytes: int | None = 0,
        limits: Mapping[str, int] | None = None,
    ) -> Pool:
        """Read what the graph needs; raises WeightsError for wrong tensors.

        Args:
            packed_bytes: what weights in another layout may take; None for any number.
            limits: what other devices may give, by device; those that are not there give all.
        """
        pool = Pool(_file=source.file, limits=limits or {})
        pool._parameters(graph, source)
        pool._prepare(scheduled, device, packed_bytes)
        return pool

    def over(
        self, held: Graph, scheduled: ScheduledGraph, device: str, packed_bytes: int | None
    ) -> Pool:
        """The same parameters, for another graph of those that one holds.

        Raises WeightsError for one that was never read: no graph so far had asked for it.
        """
        pool = Pool(
            parameter_bytes=self.parameter_bytes, _file=self._file, _watched=self._watched,
            limits=self.limits,
            _versions=self._versions, _read_bytes=self._read_bytes, owned_bytes=self._read_bytes,
        )  # fmt: skip
        names = {(name, node.dtype) for name, node in held.parameters.items()}
        pool.buffers |= {key: self.buffers[key] for key in names if key in self.buffers}
        missing = scheduled.graph.parameters.keys() - {name for name, _ in pool.buffers}
        if missing:
            raise WeightsError(
                f"{counted(len(missing), 'weight')} never read, {_first(sorted(missing))}; make a "
                "session without the plan that does without them"
            )
        pool._prepare(scheduled, device, packed_bytes)
        return pool

    def _prepare(self, scheduled: ScheduledGraph, device: str, packed_bytes: int | None) -> None:
        """Constants, and what follows from weights alone."""
        for node in scheduled.folded.nodes:
            if node.op == "constant":
                self._own(node.name, torch.tensor(node.attrs["data"].array), node.dtype, device)
        self._freeze(scheduled, device)
        self._allow(_packable(scheduled, device), packed_bytes)
        give_back_with(self, self.owned_bytes + self.packed_bytes)

    def _allow(self, packable: Mapping[Call, Mapping[Node, int]], limit: int | None) -> None:
        """Which calls may keep their weights in another layout: many small ones before large ones.

        Equal layers all may, or none: a run chooses one kernel for them all.
        """
        unpacked = set()
        for call, weights in sorted(packable.items(), key=lambda one: max(one[1].values())):
            size = sum(weights.values())
            if limit is not None and self.packed_bytes + size > limit:
                unpacked.add(call)
            else:
                self.packed_bytes += size
        self.unpacked = frozenset(unpacked)

    def prepared(self, wanted: Prepared) -> Any:
        """An argument that is made once of something in the pool, and kept as long as that.

        What it is made of leaves memory, where a file holds it: runs read what was made instead.
        """
        found = self._prepared.get(wanted)
        if found is None:
            found = made_of(wanted, self.buffers)
            self.keep({wanted: found})
            freed(wanted.view.size_bytes)  # laying weights out takes copies of them, and more
        return found

    def keep(self, prepared: Mapping[Prepared, Any]) -> None:
        """Take over what was made elsewhere, so that `prepared` need not make it again."""
        self._prepared.update(prepared)
        for name in {str(wanted.view.buffer) for wanted in prepared}:
            if self._file is not None and name in self._file:  # which may be closed
                self._file.let_go(name)

    def forget_prepared(self) -> None:
        """Other kernels may be chosen from now on, that want weights in another layout: one is
        enough. Programs that are there have theirs as long as they are.
        """
        self._prepared.clear()

    def watch(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """From now on `check_unchanged` tells whether these, by name, were written into: what
        parameters are, or were made of.

        PyTorch counts what it writes into a tensor, through whatever view. It does not count what
        goes through `.data` or NumPy, and nothing at all of tensors made in inference mode.
        """
        self._watched = {n: tensor for n, tensor in tensors.items() if not tensor.is_inference()}
        self._versions = [tensor._version for tensor in self._watched.values()]

    def check_unchanged(self) -> None:
        """Raise WeightsError if a watched parameter, or the mapped file, was written into."""
        if self._file is not None and self.owned_bytes < self.parameter_bytes:
            self._file.check_unchanged()
        if not self._watched:
            return
        now = [tensor._version for tensor in self._watched.values()]
        if now != self._versions:
            changed = zip(self._watched, now, self._versions, strict=True)
            names = [name for name, after, before in changed if after != before]
            raise WeightsError(
                f"{counted(len(names), 'weight')} changed in place since the session read them, "
                f"{_first(names)}; import the module again, or without share=True, which lets a "
                "session keep the weights that it was made with"
            )

    def _parameters(self, graph: Graph, source: Source) -> None:
        for name, node in graph.parameters.items():
            tensor = source.tensor(name, node)
            self.buffers[name, node.dtype] = tensor
            size = tensor.numel() * tensor.element_size()
            self.parameter_bytes += size
            self._read_bytes += 0 if source.is_mapped(name, node) else size
        self.owned_bytes = self._read_bytes

    def _own(self, name: str, tensor: torch.Tensor, dtype: str, device: str) -> None:
        owned = tensor.to(device=device, dtype=TORCH_DTYPES[dtype]).contiguous()
        self.buffers[name, dtype] = owned
        self.owned_bytes += owned.numel() * owned.element_size()

    def check_room(self, device: str, values_bytes: int) -> None:
        """Raise BudgetError where another device may not give as much as values take there, beside
        what is in the pool.
        """
        limit = self.limits.get(device)
        needed = values_bytes + self.elsewhere_bytes.get(device, 0)
        if limit is not None and needed > limit:
            raise BudgetError(
                f"{format_bytes(needed)} are computed and kept on {device}, which may give "
                f"{format_bytes(limit)}; raise memory={{{device!r}: …}}, or compute less there "
                "(`tg.place`)",
                budget_bytes=limit, needed_bytes=needed, lower_bound_bytes=needed, step=0, nodes=(),
            )  # fmt: skip

    def _freeze(self, scheduled: ScheduledGraph, device: str) -> None:
        """Compute the frozen nodes, and keep those that runs read."""
        rules = Rules()
        wanted = read_by_runs(scheduled)
        made = [n for n in scheduled.graph.nodes if n in scheduled.frozen and not n.is_leaf]
        for node in made:
            if scheduled.base[node] is node:
                compute_frozen(node, scheduled, self.buffers, rules, node.type.device or device)
        for node in made:
            if scheduled.base[node] is node and node not in wanted:
                del self.buffers[node.name, node.dtype]
            elif scheduled.base[node] is node and node.type.device:
                held_bytes = self.elsewhere_bytes.get(node.type.device, 0)
                self.elsewhere_bytes[node.type.device] = held_bytes + node.type.size_bytes
            elif scheduled.base[node] is node:
                self.owned_bytes += node.type.size_bytes


def _packable(scheduled: ScheduledGraph, device: str) -> dict[Call, dict[Node, int]]:
    """The weights of calls that some kernel wants in another layout, and what these take."""
    found: dict[Call, dict[Node, int]] = {}
    for node in scheduled.schedule:
        for i in prepared_inputs(node.call, device):
            weight = scheduled.base[node.inputs[i]]
            if weight in scheduled.frozen:
                size = prepared_bytes(node.call, i, device)
                found.setdefault(node.call, {})[weight] = size
    return found


def read_by_runs(scheduled: ScheduledGraph) -> set[Node]:
    """What runs read that is in the pool: weights, constants, and what follows from them."""
    read = {scheduled.base[parent] for node in scheduled.schedule for parent in node.inputs} | {
        scheduled.base[node] for node in scheduled.graph.ends
    }
    return {node for node in read if node in scheduled.frozen}


def compute_frozen(
    node: Node,
    scheduled: ScheduledGraph,
    buffers: dict[tuple[Any, str], torch.Tensor],
    rules: Rules,
    device: str,
) -> None:
    """Run one node whole, outside any program, into a buffer of its own beside its operands'."""
    zeros = torch.zeros(node.shape, dtype=TORCH_DTYPES[node.dtype], device=device)
    buffers[node.name, node.dtype] = zeros
    whole = Box.full(node.shape)
    addresser = Addresser(lambda frozen: layout(frozen, scheduled, {}), {})
    site = site_of(node, whole, addresser, rules, device)
    function, arguments = bound(candidates(site)[0], site, buffers, device)
    function(*arguments)


def compare_names(wanted: set[str], given: set[str], ignore: Sequence[str]) -> None:
    """Raise WeightsError for weights that are missing, and for some that nobody asks for."""
    missing = sorted(wanted - given)
    if missing:
        there = f"there are {_first(sorted(given))}: " if given else ""
        raise WeightsError(
            f"{counted(len(missing), 'weight')} missing, {_first(missing)}; {there}pass "
            "`weights=`, a checkpoint or a dict with the names of the graph's parameters"
        )
    extra = sorted(
        name for name in given - wanted if not any(fnmatch.fnmatch(name, p) for p in ignore)
    )
    if extra:
        raise WeightsError(
            f"{counted(len(extra), 'weight')} not used by the graph, {_first(extra)}; if that is "
            f"meant, pass ignore_weights={[_pattern(extra)]!r}"
        )


def _first(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (" …" if len(names) > 3 else "")


def _pattern(names: Sequence[str]) -> str:
    """A pattern that covers these names: what they have in common in front."""
    first, last = min(names), max(names)
    length = next(
        (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first)
    )
    return first if first == last else f"{first[:length]}*"
