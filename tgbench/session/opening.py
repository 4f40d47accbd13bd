"""What a session is made of before it plans: graph, weights and arena; what is known of kernels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from typing import Any, Literal, TypeAlias

from tgbench.base.errors import (
    ExactnessError,
    GraphError,
    KernelError,
    PlanError,
    RecordsError,
    WeightsError,
    check_choice,
    check_kind,
    check_number,
)
from tgbench.base.safetensors import device_of
from tgbench.base.switches import telling
from tgbench.base.words import cut, one_or_more, shorten
from tgbench.costs.admission.admit import load
from tgbench.costs.model import CostModel, CostTable
from tgbench.costs.records import Records
from tgbench.costs.signature import streams
from tgbench.graph.graph import Graph, graph_of
from tgbench.graph.holding import HeldGraph, allow_rounding, hold, products_of
from tgbench.graph.op_table import FLOATS
from tgbench.graph.simplify import simplify
from tgbench.kernels import beside
from tgbench.kernels.numba.marking import mark
from tgbench.memory.arena import Arena, Seat
from tgbench.memory.estimate import Budget
from tgbench.memory.placement import MOST_DEVICES, elsewhere_bytes
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.calibrate import Calibrator
from tgbench.programs.exact.findings import Exactness, find
from tgbench.programs.pool import Pool, compare_names
from tgbench.programs.settled import Settled, Settling
from tgbench.programs.weights import Rounded, Source, source_of
from tgbench.runs.buckets import BucketSpace
from tgbench.runs.rules import Rules
from tgbench.session.arguments import ArgumentReader
from tgbench.sources.torch.imported import Imported

WeightsDtype: TypeAlias = Literal["fp32", "fp16", "bf16", "int8"]
WEIGHTS_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "int8": "int8"}
HALVES = ("bfloat16", "float16")
Way: TypeAlias = "Callable[[Graph], Graph] | None"
Arithmetic: TypeAlias = Literal["bf16"]
ARITHMETIC = {"bf16": "bfloat16"}
LONGEST_NAME = 60  # of a session, in messages
MOST_BYTES = 1 << 62  # of all values of a graph: offsets and sizes are integers of 64 bits


@dataclass(frozen=True)
class LoadedGraph:
    """A graph with its weights, and the arena it runs in.

    Fields:
        given: as it came.
        held: simplified, with weights as they are held, those in place of others that they follow
            from included: what paths are of.
        graph: as it runs: that, or another one that computes the same.
        arena: where its values go; its device is the session's.
        rounded: weights that are held in less than they are stored in.
        packed_bytes: what weights in another layout may take; None for any number.
    """

    given: Graph
    held: Graph
    graph: Graph
    arena: Arena
    scheduled: ScheduledGraph
    pool: Pool
    rounded: frozenset[str]
    packed_bytes: int | None

    @staticmethod
    def of(
        graph: Graph | Imported,
        weights: Any,
        arena: Arena,
        ignored: Sequence[str],
        packed_bytes: int | str | None,
        *,
        exact: bool = False,
        weights_dtype: WeightsDtype | None = None,
        weights_copy: bool = False,
        arithmetic: Arithmetic | None = None,
        way: Way = None,
        limits: Mapping[str, int] | None = None,
    ) -> LoadedGraph:
        """Load the weights onto the arena's device; those of an imported module are its own.

        `way` finds the graph that runs instead, of the one that would; `limits` say what other
        devices may give. Raises BudgetError where that is too little for what is computed there.
        """
        _check_dtype(weights_dtype, arena.device, exact)
        _check_arithmetic(arithmetic, arena.device, exact)
        imported = graph if isinstance(graph, Imported) and weights is None else None
        stored = weights if imported is None else imported.weights
        given = graph_of(graph)
        _check_bound(given)
        _check_size(given)
        simple = simplify(given)
        source = source_of(
            stored, arena.device, as_they_lie=imported is not None, copied=weights_copy
        )
        can_widen = arena.device == "cpu" and not exact
        held = held_in(simple, source, weights_dtype) if can_widen else HeldGraph(simple, {})
        own = multiplied_in(held.graph, arithmetic)
        source = Rounded(source, simple.parameters, held.scales) if held.scales else source
        settling = Settling(own)
        settled = settling.graph
        runs = settled if way is None else way(settled)
        scheduled = ScheduledGraph.of(runs)
        read = {**given.parameters, **own.parameters}
        wanted = {weight for name in runs.parameters for weight in settling.weights(name)}
        unused = [escape(name) for name in read if name not in wanted]
        limit = Budget.parse(packed_bytes, "packed_bytes").limit_bytes
        _check_devices(scheduled, arena.device, limits or {})
        compare_names(wanted, set(source.names()), [*ignored, *unused])
        source = Settled(source, settling, arena.device) if settling.made else source
        pool = Pool.load(runs, scheduled, source, arena.device, limit, limits)
        for device, size in elsewhere_bytes(scheduled).items():
            pool.check_room(device, size)
        if imported is not None and imported.shared:
            pool.watch({name: imported.weights[name] for name in simple.parameters})
        rounded = {
            name
            for name, node in runs.parameters.items()
            if name in simple.parameters
            and node.dtype not in (simple.parameters[name].dtype, source.dtype(name))
        }
        return LoadedGraph(given, settled, runs, arena, scheduled, pool, frozenset(rounded), limit)

    def along(self, graph: Graph) -> LoadedGraph:
        """The same weights and arena, for another graph that computes the same."""
        scheduled = ScheduledGraph.of(graph)
        pool = self.pool.over(self.held, scheduled, self.arena.device, self.packed_bytes)
        return replace(self, graph=graph, scheduled=scheduled, pool=pool)

    def reader(self, buckets: Mapping[str, Any] | BucketSpace | None) -> ArgumentReader:
        """Reads arguments of runs; `buckets` says how changes are rounded."""
        mend = "pass a rounding by input: {'ids': 'pow2'}"
        check_kind(GraphError, "buckets", buckets, (Mapping, BucketSpace), mend)
        space = buckets if isinstance(buckets, BucketSpace) else BucketSpace(buckets or {})
        runs = self.graph.inputs
        return ArgumentReader(
            self.graph, space, {n: node for n, node in self.given.inputs.items() if n not in runs}
        )

    def seat(self) -> Seat:
        """A place in the arena, named in messages by inputs and outputs."""
        name = f"{', '.join(self.graph.inputs)} → {', '.join(self.graph.outputs)}"
        return self.arena.join(cut(name, LONGEST_NAME), self.pool.parameter_bytes)


@dataclass(frozen=True)
class Knowledge:
    """What is known of the kernels that a graph may run.

    Fields:
        exactness: which of them make the same bits of every slice; None where that is not asked.
        rules: what a part of a value takes of others, with that.
        costs: how long they take.
        calibrator: times them where nothing is known; None where models do.
    """

    exactness: Exactness | None
    rules: Rules
    costs: CostModel
    calibrator: Calibrator | None

    @staticmethod
    def of(
        ground: LoadedGraph,
        records: Any,
        progress: Any,
        *,
        exact: bool,
        calibrate: bool,
        kernels: Sequence[str] = (),
        times: CostTable | None = None,
    ) -> Knowledge:
        """Find out about bits if that is asked for; times are looked up later, or those given."""
        pool, device = ground.pool, ground.arena.device
        if exact:
            beside.insist()
        elif device == "cpu" and beside.awaits(mark()):
            telling(progress)("kernels are compiled beside, once; until then libraries compute")
        check_kind(
            RecordsError, "records", records, (Records, str, os.PathLike), "pass a path or a URL"
        )
        known = records if isinstance(records, Records) or records is None else Records(records)
        found = None
        if exact:
            found = find(ground.scheduled, pool.buffers, device, progress, known, pool.unpacked)
        rules = Rules(found.tilings if found is not None else None, pool.unpacked)
        costs = CostModel(
            known if times is None else times, device, besides=ground.scheduled.devices,
            streams=streams(pool.parameter_bytes), rules=rules, asked=frozenset(map(load, kernels)),
        )  # fmt: skip
        if not exact:  # tiles have one size
            rules.serves_any_size = costs.serves_any_size
        can_time = calibrate and not exact
        calibrator = Calibrator(pool, costs, known, device, progress) if can_time else None
        return Knowledge(found, rules, costs, calibrator)


def _check_dtype(weights_dtype: str | None, device: str, exact: bool) -> None:
    """Raise unless weights may be rounded so here."""
    if weights_dtype is not None:
        check_choice(WeightsError, "weights_dtype", weights_dtype, WEIGHTS_DTYPES)
    if weights_dtype in (None, "fp32"):
        return
    if exact:
        raise ExactnessError(
            f"weights_dtype={weights_dtype!r} rounds weights, and exact='bitwise' promises the "
            "bits of the weights as they are; leave one of the two out"
        )
    if device != "cpu":
        raise WeightsError(
            f"weights_dtype={weights_dtype!r} needs kernels that only the CPU has; leave it out, "
            f"or pass device='cpu' instead of {device!r}"
        )


def _check_arithmetic(arithmetic: str | None, device: str, exact: bool) -> None:
    """Raise unless products may be of rounded factors here."""
    if arithmetic is None:
        return
    check_choice(KernelError, "arithmetic", arithmetic, ARITHMETIC)
    if exact:
        raise ExactnessError(
            f"arithmetic={arithmetic!r} rounds what is multiplied, and exact='bitwise' promises "
            "the bits of what is not; leave one of the two out"
        )
    if device != "cpu":
        raise KernelError(
            f"arithmetic={arithmetic!r} needs kernels that only the CPU has; leave it out, or pass "
            f"device='cpu' instead of {device!r}"
        )


def check_tolerance(tolerance: Any, exact: bool) -> None:
    """Raise unless paths of a session may be off by so much."""
    check_number(PlanError, "tolerance", tolerance)
    if tolerance is None:
        return
    if not tolerance > 0:
        raise PlanError(f"tolerance={tolerance} allows nothing; pass a number above 0, or None")
    if exact:
        raise ExactnessError(
            f"tolerance={tolerance:g} lets paths compute in less, and exact='bitwise' promises the "
            "bits of what is not; leave one of the two out"
        )


def check_names(names: Any) -> Sequence[str]:
    """Name patterns, of which one may stand by itself; raises WeightsError for what is none."""
    mend = "pass a name pattern or a list of them: ignore_weights=['*.bias']"
    if names is None or not isinstance(names, Iterable):
        raise WeightsError(f"ignore_weights={shorten(names)} names no weights; {mend}")
    found = one_or_more(tuple(names) if not isinstance(names, str) else names)
    for name in found:
        if not isinstance(name, str):
            raise WeightsError(f"ignore_weights holds {shorten(name)}, which is no name; {mend}")
    return found


def multiplied_in(graph: Graph, arithmetic: Arithmetic | None) -> Graph:
    """A graph as a session runs it, whose products may be of factors in less."""
    return graph if arithmetic is None else allow_rounding(graph, ARITHMETIC[arithmetic])


def held_in(graph: Graph, source: Source, weights_dtype: WeightsDtype | None) -> HeldGraph:
    """A graph as a session on the CPU runs it: half floats stay so unless they are to be
    widened, and those of products are rounded where that is allowed.
    """
    if weights_dtype == "fp32":
        return HeldGraph(graph, {})
    stored = {
        name: source.dtype(name) for name in set(graph.parameters).intersection(source.names())
    }
    found = {name: dtype for name, dtype in stored.items() if dtype in HALVES}
    if weights_dtype is None:
        return hold(graph, found)
    floats = {name for name in products_of(graph) if stored.get(name) in FLOATS}
    return hold(graph, found | dict.fromkeys(floats, WEIGHTS_DTYPES[weights_dtype]))


def arena_on(device: str, arena: Arena | None) -> Arena:
    """The arena that is given, or one for this session; raises GraphError for another device's."""
    check_kind(GraphError, "arena", arena, Arena, "pass a tgbench.Arena")
    found = arena if arena is not None else Arena(device)
    if found.device != device:
        raise GraphError(
            f"the arena is on {found.device}, the session on {device}; "
            f"pass device={found.device!r}, or make an arena on {device}"
        )
    return found


def _check_devices(scheduled: ScheduledGraph, home: str, limits: Iterable[str]) -> None:
    """Raise GraphError for copies to a device that is not there, or is the session's own, and to
    more of them than offsets tell apart; for memory of one where nothing is computed.
    """
    for device in limits:
        if device not in scheduled.devices:
            there = ", ".join([home, *scheduled.devices])
            raise GraphError(
                f"memory names {device!r}, where the graph computes nothing: it is on {there}; "
                "`tg.place` puts ops on other devices"
            )
    if len(scheduled.devices) > MOST_DEVICES:
        raise GraphError(
            f"the graph is on {len(scheduled.devices)} devices beside the session's; use "
            f"{MOST_DEVICES} at most"
        )
    for device in scheduled.devices:
        device_of(device, GraphError)
        if device == home:
            raise GraphError(
                f"the graph copies to {device}, which is the session's own device; write "
                "`ops.copy_to(x)` to come back to it"
            )


def _check_size(graph: Graph) -> None:
    """Raise GraphError for values of more bytes than 64 bits count."""
    largest = max(graph.nodes, key=lambda node: node.type.size_bytes)
    if sum(node.type.size_bytes for node in graph.nodes) > MOST_BYTES:
        raise GraphError(
            f"{shorten(largest.name)} is {largest.type}; no machine addresses the bytes of all "
            "values: give smaller dimensions"
        )


def _check_bound(graph: Graph) -> None:
    """Raise GraphError for a graph with symbolic dimensions."""
    if graph.symbols:
        sizes = ", ".join(f"{symbol}=…" for symbol in graph.symbols)
        raise GraphError(
            f"dimensions of the graph are symbolic; give them numbers: `graph.bind({sizes})`, or "
            f"`GraphSession(imported.graph.bind({sizes}), imported.weights)`"
        )
