"""GraphSession: run a graph again and again, recomputing only what changed and is needed.

    s = GraphSession(graph, weights="model.safetensors", memory="256MiB")
    y = s.run({"ids": ids}, want={"logits": np.s_[0, t]})

A run compares the inputs with the last ones, looks up the program for (what is still valid, what
changed and is asked for), and executes its flat list of calls. A pair never seen before is
specialised on the spot, remembered and counted.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.anatomy import Anatomy
from tgbench.buckets import (
    Bucket,
    BucketClass,
    BucketSpace,
    boxes_of,
    difference,
    region_of_index,
)
from tgbench.coords import Guard, record
from tgbench.errors import (
    DemandError,
    HintError,
    InputError,
    KernelError,
    PlanError,
)
from tgbench.estimate import MemoryEstimate, estimate_memory, parse_bytes
from tgbench.graph import Graph, Node
from tgbench.kernels.registry import ARENA
from tgbench.optable import FLOATS, ITEMSIZE, numpy_dtype
from tgbench.placement import Placement
from tgbench.plan import Plan
from tgbench.planner import Planner, unit_change
from tgbench.pool import Pool
from tgbench.program import DoesNotFit, Lowerer, Program, State, Unreadable
from tgbench.propagate import Propagator, Step
from tgbench.regions import EMPTY, Box, Region
from tgbench.rules import Rules
from tgbench.simplify import simplify
from tgbench.split import WHOLE, Cut, cuts, demands
from tgbench.states import States, Pattern
from tgbench.trace import Call, Trace
from tgbench.weights import TORCH_DTYPES

Array = NDArray[Any]
RUNS_AHEAD = 3  # how far `prepare` follows a class: two runs reach its steady state
MOST_PLANS = 4  # a run that still fits nothing after this many plans is an error of ours


@dataclass(frozen=True)
class Report:
    """What one run did.

    Fields:
        bucket, kind, origin: its signature.
        specialised: the program was made in this run.
        moved: a program made for another origin was re-pointed.
        compute: node name → elements computed, at this origin.
        instructions: calls executed.
        recomputed: computed share of what the same demand takes from nothing, by flops.
        times in nanoseconds: `decide_ns` (compare, look up, specialise), `execute_ns`, `total_ns`.
    """

    bucket: Bucket
    kind: BucketClass
    origin: tuple[int, ...]
    specialised: bool
    moved: bool
    program: Program
    decide_ns: int
    execute_ns: int
    total_ns: int
    propagator: Propagator

    @property
    def instructions(self) -> int:
        return len(self.program.instructions)

    @property
    def compute(self) -> dict[str, Region]:
        found: dict[str, Region] = {}
        for step in self.program.steps:
            for node, region in step.compute.items():
                here = region.at(self.origin)
                found[node.name] = found.get(node.name, EMPTY).union(here)
        return found

    @property
    def recomputed(self) -> float:
        graph = self.propagator.graph
        demand = {graph.outputs[name]: region for name, region in self.bucket.demand}
        changed = {leaf: Region.full(leaf.shape) for leaf in graph.inputs.values()}
        whole = _flops([self.propagator.step({}, changed, demand)], ())
        return _flops(self.program.steps, self.origin) / whole if whole else 0.0


def _flops(steps: Sequence[Step], origin: tuple[int, ...]) -> int:
    return sum(
        node.call.op.flops(node.call, box.at(origin))
        for step in steps
        for node, region in step.compute.items()
        for box in region
    )


@dataclass
class Counters:
    """How often things happened in a session."""

    runs: int = 0
    specialised: int = 0
    moved: int = 0
    planned: int = 0
    evicted: int = 0


@dataclass
class _Installed:
    """A plan in force: its map, its memory and what works on them."""

    placement: Placement
    cut: Cut
    retained: tuple[Node, ...]
    dropped: tuple[Node, ...]
    expected_ns: float
    arena: torch.Tensor
    propagator: Propagator
    lowerer: Lowerer
    buffers: dict[tuple[Any, str], torch.Tensor] = field(default_factory=dict)


class GraphSession:
    """Runs one graph under a memory budget; see the module's first lines.

    Args:
        graph: a bound graph (no symbolic dimensions left).
        weights: a safetensors file, a checkpoint directory, or arrays by parameter name.
        memory: budget of the arena: bytes, "256MiB", "auto", or None for what is needed.
            Weights are apart: `estimate_memory()` shows both.
        device: "cpu" or "cuda:0".
        plan: a plan file. If it exists it is used without planning; `save_plan` writes it.
        trace: a JSON Lines file that every run is appended to.
        buckets: how changed input boxes are rounded, {"ids": "exact" | "pow2" | "full"}.
        retain: "auto", or "all" to keep every value whatever it saves.
        ignore_weights: name patterns that may be in the file and are not used.
        program_bytes: bound on remembered programs; the least used go first.

    Raises:
        GraphError, WeightsError, PlanError, TraceError: with the mend in the message.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Any = None,
        memory: int | str | None = None,
        device: str = "cpu",
        plan: str | Path | Plan | None = None,
        trace: str | Path | Trace | None = None,
        buckets: Mapping[str, Any] | BucketSpace | None = None,
        retain: str = "auto",
        ignore_weights: Sequence[str] = (),
        program_bytes: int = 256 << 20,
        progress: Any = None,
    ) -> None:
        self.graph = simplify(graph)
        self.device = device
        self.budget_bytes = parse_bytes(memory, self.graph, device)
        self.rules = Rules()
        self.anatomy = Anatomy.of(self.graph)
        self.pool = Pool.load(self.graph, self.anatomy, weights, device, ignore_weights)
        self.trace = trace if isinstance(trace, Trace) else Trace(trace)
        self.space = buckets if isinstance(buckets, BucketSpace) else BucketSpace(buckets or {})
        self.retain = retain
        self.counters = Counters()
        self.states = States()
        self.last: Report | None = None
        self._progress = progress or (lambda message: None)
        self._classes: dict[BucketClass, tuple[float, tuple[int, ...]]] = {}
        self._programs: OrderedDict[tuple[int, BucketClass], list[Program]] = OrderedDict()
        self._program_bytes, self._program_limit = 0, program_bytes
        self._held: dict[str, Array] = {}  # the inputs of the last run
        self._fresh = False  # whether the arena holds what the last run left
        self._pending: dict[str, Region] = {}  # what the last run changed of the states
        self._state = 0
        self._before: tuple[BucketClass | None, tuple[int, ...]] = (None, ())
        self._installed: _Installed | None = None
        self._limits = _index_limits(self.graph)
        self.plan_path = Path(plan) if isinstance(plan, (str, Path)) else None
        loaded = plan if isinstance(plan, Plan) else self._read_plan()
        if loaded is not None:
            self._adopt(loaded)

    # --- memory and plan -------------------------------------------------------------------------

    def estimate_memory(self) -> dict[str, MemoryEstimate]:
        """Bytes per device, before anything of the arena is allocated."""
        arena = self._installed.placement.size_bytes if self._installed else None
        return {self.device: estimate_memory(self.graph, arena, self.budget_bytes)}

    @property
    def placement(self) -> Placement:
        """The memory map in force; raises PlanError before the first run."""
        return self._in_force().placement

    @property
    def plan(self) -> Plan:
        """Everything decided, as a value that `save_plan` writes."""
        installed = self._in_force()
        return Plan.of(
            self.graph,
            installed.placement,
            installed.retained,
            installed.dropped,
            installed.cut,
            self._classes,
            self.device,
            self.budget_bytes,
            installed.expected_ns,
        )

    def save_plan(self, path: str | Path | None = None) -> Path:
        """Write the plan as JSON, atomically."""
        target = Path(path) if path is not None else self.plan_path
        if target is None:
            raise PlanError("no path for the plan; pass one, or create the session with plan=path")
        self.plan.save(target)
        return target

    def optimize(self, mode: str = "greedy", budget: int | str | None = None) -> Plan:
        """Plan again from the trace: which runs happened, and how often; returns the plan.

        The greedy mode retains by worth per byte. Validity starts afresh.
        """
        if mode != "greedy":
            raise PlanError(f"mode {mode!r} is not known; use 'greedy'")
        if budget is not None:
            self.budget_bytes = parse_bytes(budget, self.graph, self.device)
        counts = self.trace.class_counts(self.graph)
        for kind, count in counts.items():
            origin = self._classes[kind][1] if kind in self._classes else (0,) * len(kind.bounds)
            self._classes[kind] = (float(count), origin)
        if not self._classes:
            raise PlanError("the trace is empty; run something first, or open one with trace=path")
        self._plan()
        return self.plan

    def prepare(self, seconds: float | None = None) -> int:
        """Make programs ahead of time for the planned classes, largest slices first.

        Each class is followed for a few runs from the present state, at its extreme positions.
        Nothing is executed. Stops after `seconds`, or at an interrupt; what is made is kept.

        Returns:
            How many programs were made.
        """
        self._in_force()
        made, end = 0, time.monotonic() + (seconds if seconds is not None else 1e9)
        walks = [
            (kind, at) for kind, (_, origin) in self._classes.items() for at in kind.corners(origin)
        ]
        walks.sort(key=lambda walk: -walk[0].elements)
        try:
            for i, (kind, origin) in enumerate(walks):
                self._progress(f"preparing {i + 1}/{len(walks)} {kind}")
                if time.monotonic() >= end:
                    break
                made += self._walk(kind, origin)
        except KeyboardInterrupt:
            self._progress(f"stopped; {made} programs are kept")
        return made

    def _walk(self, kind: BucketClass, origin: tuple[int, ...]) -> int:
        """Programs for a few runs of one class in a row, one position further each time."""
        made, state, before = 0, self._state, self._before
        for _ in range(RUNS_AHEAD):
            try:
                program, is_new = self._program(kind, origin, state, before)
            except DoesNotFit:
                break
            made += is_new
            state, before = program.after, (kind, origin)
            origin = tuple(at + 1 for at in origin)
            if any(at > bound for at, bound in zip(origin, kind.bounds, strict=True)):
                break
        return made

    def _in_force(self) -> _Installed:
        if self._installed is None:
            raise PlanError("nothing is planned yet; call `run` or `optimize` first")
        return self._installed

    def _read_plan(self) -> Plan | None:
        return Plan.load(self.plan_path) if self.plan_path and self.plan_path.exists() else None

    def _adopt(self, plan: Plan) -> None:
        """Use a plan as it is: no planning happens."""
        found = plan.placement_for(self.graph, self.device)
        if self.budget_bytes is not None and found.placement.size_bytes > self.budget_bytes:
            raise PlanError(
                f"the plan needs {found.placement.size_bytes} bytes, the budget is "
                f"{self.budget_bytes}; raise memory=, or drop plan= to plan for this budget"
            )
        self._classes.update(found.classes)
        self._install(found.placement, found.retained, found.dropped, found.cut, plan.expected_ns)

    def _plan(self) -> None:
        planner = Planner(self.anatomy, self.rules, self.device, self._progress)
        scenarios = planner.scenarios(self._classes)
        made = planner.plan(scenarios, self.budget_bytes, self.retain == "all")
        self.counters.planned += 1
        self._install(made.placement, made.retained, made.dropped, made.cut, made.expected_ns)

    def _install(
        self,
        placement: Placement,
        retained: tuple[Node, ...],
        dropped: tuple[Node, ...],
        cut: Cut,
        expected_ns: float,
    ) -> None:
        self.forget()
        self._programs.clear()
        self._program_bytes = 0
        arena = torch.zeros(max(placement.size_bytes, 64), dtype=torch.uint8, device=self.device)
        storage = placement.storage(self.anatomy)
        self._installed = _Installed(
            placement,
            cut,
            retained,
            dropped,
            expected_ns,
            arena,
            Propagator(self.graph, storage, self.rules, self.anatomy.schedule),
            Lowerer(self.anatomy, placement, self.rules, self.device),
            self.pool.buffers | _typed(arena),
        )

    def forget(self) -> None:
        """Drop everything that is remembered of earlier runs; the next one computes afresh."""
        self._state = 0
        self._before = (None, ())
        self._fresh = False

    # --- running ---------------------------------------------------------------------------------

    def run(
        self,
        inputs: Mapping[str, Any],
        want: Mapping[str, Any] | None = None,
        *,
        changed: Mapping[str, Any] | None = None,
        check: bool = False,
        copy: bool = True,
    ) -> dict[str, Any]:
        """Compute the wanted parts of the outputs for these inputs.

        Args:
            inputs: arrays by input name; inputs left out keep their last value.
            want: parts by output name (`np.s_[0, t]`, a list of such, or a Region); None for
                every output whole.
            changed: parts that may differ from the last run; skips the comparison.
            check: verify `changed` by comparing all the same.
            copy: False returns views of the arena that the next run may overwrite.

        Returns:
            Arrays by output name, NumPy or torch as the inputs were; a list of arrays where a
            list of parts was asked for.

        Raises:
            InputError, DemandError, HintError, BudgetError, KernelError.
        """
        began = time.perf_counter_ns()
        arrays = self._accept(inputs)
        wanted = self._wanted(want)
        differ, bucket, kind, origin, program, specialised = self._decide(
            arrays, wanted, changed, check
        )
        moved = program.origin != origin
        if moved:
            program.move_to(origin)
        decided = time.perf_counter_ns()
        results = self._execute(program, arrays, differ, kind, origin, wanted, copy)
        done = time.perf_counter_ns()
        self._finish(bucket, kind, origin, program, specialised, moved, began, decided, done)
        as_torch = any(isinstance(value, torch.Tensor) for value in inputs.values())
        return results if as_torch else {n: _to_numpy(r) for n, r in results.items()}

    def _decide(
        self,
        arrays: Mapping[str, Array],
        wanted: Mapping[str, tuple[Region, Any]],
        changed: Mapping[str, Any] | None,
        check: bool,
    ) -> tuple[dict[str, Region], Bucket, BucketClass, tuple[int, ...], Program, bool]:
        """What differs, which bucket that is, and the program for it; plans if nothing fits."""
        demand = {name: region for name, (region, _) in wanted.items()}
        for _ in range(MOST_PLANS):
            differ = self._differences(arrays, changed, check)
            bucket = Bucket.of(differ, demand)
            kind, origin = bucket.classify(self.graph)
            if self._installed is None:
                self._first_plan(bucket, kind, origin)
            try:
                program, specialised = self._program(kind, origin, self._state, self._before)
            except DoesNotFit as error:
                failure = error
                self._classes.setdefault(kind, (1.0, origin))
                self._plan()
                continue
            return differ, bucket, kind, origin, program, specialised
        raise KernelError(f"{kind} fits no plan made for it: {failure}")

    def _finish(
        self,
        bucket: Bucket,
        kind: BucketClass,
        origin: tuple[int, ...],
        program: Program,
        specialised: bool,
        moved: bool,
        began: int,
        decided: int,
        done: int,
    ) -> None:
        self.counters.runs += 1
        self.counters.moved += moved
        self.trace.append(Call(bucket, not specialised, done - began, time.time()))
        self.last = Report(
            bucket, kind, origin, specialised, moved, program,
            decided - began, done - decided, done - began, self._in_force().propagator,
        )  # fmt: skip

    def _first_plan(self, bucket: Bucket, kind: BucketClass, origin: tuple[int, ...]) -> None:
        """With no history: this run, and the smallest change that may follow it."""
        self._classes.setdefault(kind, (1.0, origin))
        for name in self.graph.inputs:
            next_one = unit_change(bucket, self.anatomy, name)
            if next_one is not None:
                next_kind, next_origin = next_one.classify(self.graph)
                self._classes.setdefault(next_kind, (1.0, next_origin))
        self._plan()

    def _program(
        self,
        kind: BucketClass,
        origin: tuple[int, ...],
        left: int,
        before: tuple[BucketClass | None, tuple[int, ...]],
    ) -> tuple[Program, bool]:
        """The program for what a run `before` left and this one, and whether it was made now."""
        state = self.states.moved(left, before, (kind, origin))
        known = self._programs.get((state, kind))
        if known is not None:
            for program in known:
                if all(guard.holds(origin) for guard in program.guards):
                    self._programs.move_to_end((state, kind))
                    return program, False
        program = self._specialise(state, kind, origin)
        self._remember((state, kind), program)
        return program, True

    def _remember(self, key: tuple[int, BucketClass], program: Program) -> None:
        self.counters.specialised += 1
        self._programs.setdefault(key, []).insert(0, program)
        self._program_bytes += program.size_bytes
        while self._program_bytes > self._program_limit and len(self._programs) > 1:
            _, dropped = self._programs.popitem(last=False)
            self._program_bytes -= sum(old.size_bytes for old in dropped)
            self.counters.evicted += len(dropped)

    def _specialise(self, state: int, kind: BucketClass, origin: tuple[int, ...]) -> Program:
        """Decide and lower a run, valid at every origin that makes the same decisions."""
        installed = self._in_force()
        tried = [WHOLE, *([installed.cut] if installed.cut != WHOLE else [])]
        useless: set[tuple[str, int]] = set()
        for cut in [*tried, *cuts(installed.propagator)]:
            if (cut.input, cut.axis) in useless:
                continue
            try:
                with record() as guards:
                    made = self._lowered(installed, state, kind, origin, cut)
                return self._bound(installed, made, guards, origin)
            except DoesNotFit as error:
                failure = error
        raise failure

    def _lowered(
        self,
        installed: _Installed,
        state: int,
        kind: BucketClass,
        origin: tuple[int, ...],
        cut: Cut,
    ) -> list[tuple[Step, Any]]:
        symbols = kind.symbols(origin)
        leaves = {node.name: node for node in self.anatomy.kept}
        changed: Mapping[Node, Region] = {
            leaves[name]: region for name, region in kind.regions("changed", symbols).items()
        }
        named = {
            name: (self.graph.outputs[name], region)
            for name, region in kind.regions("demand", symbols).items()
        }
        for name, node in self.graph.updates.items():
            named[_update_key(name)] = (node, Region.full(node.shape))
        demand: dict[Node, Region] = {}
        for node, region in named.values():
            demand[node] = demand.get(node, EMPTY).union(region)
        held: State = self.states.patterns[state].state(origin)
        asked: Sequence[Mapping[Node, Region]] = [demand]
        if cut != WHOLE:
            whole = installed.propagator.step(_valid(held), changed, demand)
            asked = demands(installed.propagator, whole, cut, demand)
        made = []
        for i, part in enumerate(asked):
            names = named if i == len(asked) - 1 else {}
            step, lowering = self._readable(installed, held, changed, part, names)
            made.append((step, lowering))
            held, changed = lowering.after, {}
        return made

    def _readable(
        self,
        installed: _Installed,
        held: State,
        changed: Mapping[Node, Region],
        demand: Mapping[Node, Region],
        named: Mapping[str, tuple[Node, Region]],
    ) -> tuple[Step, Any]:
        """Decide and lower, computing again what a kernel could not read where it lies."""
        avoid: list[Node] = []
        while True:
            step = installed.propagator.step(_valid(held), changed, demand, avoid)
            try:
                return step, installed.lowerer.lower(step, held, named)
            except Unreadable as found:
                avoid.append(found.node)

    def _bound(
        self,
        installed: _Installed,
        made: Sequence[tuple[Step, Any]],
        guards: set[Guard],
        origin: tuple[int, ...],
    ) -> Program:
        program = Program(
            instructions=tuple(i for _, lowering in made for i in lowering.instructions),
            guards=frozenset(guards),
            after=self.states.number(Pattern.of(made[-1][1].after)),
            outputs=made[-1][1].outputs,
            steps=tuple(step for step, _ in made),
        )
        program.bind(installed.buffers, origin)
        return program

    def _execute(
        self,
        program: Program,
        arrays: Mapping[str, Array],
        differ: Mapping[str, Region],
        kind: BucketClass,
        origin: tuple[int, ...],
        wanted: Mapping[str, tuple[Region, Any]],
        copy: bool,
    ) -> dict[str, Any]:
        """Write the inputs, run the calls, hand out the results.

        Validity is empty from the first write to the last, so that whatever stops a run in
        between leaves a session that computes everything again.
        """
        self._fresh, self._state = False, 0
        try:
            self._write(arrays, differ)
            for function, arguments in program.calls:
                function(*arguments)
            results = {
                name: _gather(program.results.get(name, []), region, index, copy)
                for name, (region, index) in wanted.items()
            }
            pending = self._updated(program)
        except (torch.OutOfMemoryError, RuntimeError, ValueError, TypeError) as error:
            raise KernelError(
                f"a kernel failed while running {kind}: {error}; the session is usable, "
                "the next run computes everything again"
            ) from error
        for name, value in arrays.items():
            held = self._held.get(name)
            if held is None:
                self._held[name] = value.copy()
            elif held is not value:
                for box in differ.get(name, EMPTY):
                    held[box.slices()] = value[box.slices()]
        self._fresh, self._pending = True, pending
        self._state, self._before = program.after, (kind, origin)
        return results

    def _updated(self, program: Program) -> dict[str, Region]:
        """Give the states their new values; what of them changed is dirty in the next run."""
        pending: dict[str, Region] = {}
        for name in self.graph.updates:
            _, new = program.results[_update_key(name)][0]
            place = self._place(self.graph.states[name])
            region = boxes_of((place != new).cpu().numpy())
            if region.boxes:
                pending[name] = region
                place.copy_(new)
        return pending

    def _place(self, node: Node) -> torch.Tensor:
        """The whole of an input or a state, where it lies in the arena."""
        installed = self._in_force()
        slot = installed.placement.slots[node]
        first = slot.offset_bytes // node.type.itemsize
        flat = installed.buffers[ARENA, node.dtype]
        return flat[first : first + slot.elements].view(node.shape)

    def _write(self, arrays: Mapping[str, Array], differ: Mapping[str, Region]) -> None:
        for name, region in differ.items():
            if name not in arrays:
                continue  # a state: its bytes are there already
            node = self.graph.inputs[name]
            place = self._place(node)
            for box in region:
                index = box.slices()
                source = torch.from_numpy(np.array(arrays[name][index], order="C"))
                place[index].copy_(source)

    # --- checking what comes in ------------------------------------------------------------------

    def _accept(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        for name in inputs:
            if name not in self.graph.inputs:
                known = ", ".join(self.graph.inputs)
                raise InputError(f"unknown input {name!r}; this graph takes {known}")
        arrays: dict[str, Array] = {}
        for name, node in self.graph.inputs.items():
            if name in inputs:
                arrays[name] = self._checked(name, node, inputs[name])
            elif name in self._held:
                arrays[name] = self._held[name]
            else:
                raise InputError(f"input {name!r} ({node.type}) has no value yet; pass it")
        return arrays

    def _checked(self, name: str, node: Node, value: Any) -> Array:
        if isinstance(value, torch.Tensor):
            if str(value.dtype).removeprefix("torch.") != node.dtype:
                raise InputError(f"{name} is {value.dtype}, the graph takes {node.type}; convert it")
            value = value.detach().cpu()
            value = (value.float() if node.dtype == "bfloat16" else value).numpy()
        array = np.asarray(value)
        if array.dtype != numpy_dtype(node.dtype):
            raise InputError(
                f"{name} is {array.dtype}, the graph takes {node.type}; "
                f"convert it (`{name}.astype('{numpy_dtype(node.dtype)}')`)"
            )
        if array.shape != node.shape:
            raise InputError(f"{name} has shape {list(array.shape)}, the graph takes {node.type}")
        if node.dtype in FLOATS and not np.isfinite(array).all():
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
            raise InputError(f"{name} is {array[where]} at {where}; inputs must be finite")
        limit = self._limits.get(name)
        if limit is not None and array.size and not (0 <= array.min() and array.max() < limit):
            raise InputError(
                f"{name} holds {array.min()}..{array.max()}, but it picks rows of a table with "
                f"{limit}; values must be in 0..{limit - 1}"
            )
        return array

    def _wanted(self, want: Mapping[str, Any] | None) -> dict[str, tuple[Region, Any]]:
        outputs = self.graph.outputs
        if want is None:
            return {name: (Region.full(node.shape), ...) for name, node in outputs.items()}
        result = {}
        for name, index in want.items():
            if name not in outputs:
                raise DemandError(f"unknown output {name!r}; this graph gives {', '.join(outputs)}")
            result[name] = (region_of_index(index, outputs[name].shape, name), index)
        return result

    def _differences(
        self, arrays: Mapping[str, Array], changed: Mapping[str, Any] | None, check: bool
    ) -> dict[str, Region]:
        """The parts of the inputs that differ from the last run."""
        if not self._fresh:
            return {leaf.name: Region.full(leaf.shape) for leaf in self.anatomy.kept}
        found = dict(self._pending)
        for name, array in arrays.items():
            held = self._held[name]
            if array is held:
                continue
            if changed is None:
                region = difference(held, array)
            else:
                region = self._hinted(name, held, array, changed, check)
            if region.boxes:
                found[name] = self.space.round(name, region, array.shape)
        return found

    def _hinted(
        self, name: str, held: Array, array: Array, changed: Mapping[str, Any], check: bool
    ) -> Region:
        region = region_of_index(changed[name], array.shape, name) if name in changed else EMPTY
        if check:
            missed = difference(held, array).subtract(region)
            if missed.boxes:
                raise HintError(f"{name} changed at {missed}, which `changed` leaves out; widen it")
        return region


def _update_key(name: str) -> str:
    return f"update {name}"


def _valid(state: State) -> dict[Node, Region]:
    return {node: held.valid for node, held in state.items()}


def _typed(arena: torch.Tensor) -> dict[tuple[Any, str], torch.Tensor]:
    """The arena as one flat tensor per dtype."""
    flat: dict[tuple[Any, str], torch.Tensor] = {}
    for dtype, itemsize in ITEMSIZE.items():
        whole = arena.numel() // itemsize * itemsize
        flat[ARENA, dtype] = arena[:whole].view(TORCH_DTYPES[dtype])
    return flat


def _gather(
    parts: Sequence[tuple[Any, torch.Tensor]], region: Region, index: Any, copy: bool
) -> Any:
    """The wanted part of an output as the caller indexed it."""
    if isinstance(index, Region):
        return [_piece(parts, box, ..., copy) for box in index]
    if isinstance(index, list):
        shape = tuple(1 << 62 for _ in region.hull())
        return [
            _piece(parts, region_of_index(part, shape, "part").hull(), part, copy)
            for part in index
        ]
    return _piece(parts, region.hull(), index, copy)


def _piece(parts: Sequence[tuple[Any, torch.Tensor]], hull: Box, index: Any, copy: bool) -> Any:
    for box, tensor in parts:
        if box.contains(hull):
            found = tensor[_inside(hull, box)]
            break
    else:
        copy = False
        found = torch.empty([b - a for a, b in hull], dtype=parts[0][1].dtype)  # type: ignore[misc]
        found = found.to(parts[0][1].device)
        for box, tensor in parts:
            shared = box.intersect(hull)
            if shared is not None:
                found[_inside(shared, hull)] = tensor[_inside(shared, box)]
    for axis in reversed(_dropped(index, len(hull))):
        found = found.select(axis, 0)
    return found.clone() if copy else found


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    """A box relative to the start of an outer one."""
    return tuple(
        slice(a - start, b - start)  # type: ignore[misc]
        for (a, b), (start, _) in zip(box, outer, strict=True)
    )


def _dropped(index: Any, rank: int) -> list[int]:
    """Axes that an index takes away: those given as integers."""
    parts = index if isinstance(index, tuple) else (index,)
    if any(part is Ellipsis for part in parts):
        at = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts = (*parts[:at], *[slice(None)] * (rank - len(parts) + 1), *parts[at + 1 :])
    return [axis for axis, part in enumerate(parts) if isinstance(part, (int, np.integer))]


def _to_numpy(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_numpy(part) for part in value]
    tensor = value.cpu()
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _index_limits(graph: Graph) -> dict[str, int]:
    """Inputs that pick rows of a table, with the smallest such table's length."""
    limits: dict[str, int] = {}
    for node in graph.nodes:
        if node.op not in ("gather", "scatter"):
            continue
        index = node.inputs[1]
        while index.op in ("reshape", "permute", "slice", "expand", "cast"):
            index = index.inputs[0]
        if index.op == "input":
            length = int(node.inputs[0].shape[node.attrs["axis"]])
            limits[index.name] = min(limits.get(index.name, length), length)
    return limits

