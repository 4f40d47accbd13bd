"""GraphSession: run a graph again and again, recomputing only what changed and is needed.

    s = GraphSession(graph, weights="model.safetensors", memory="256MiB")
    y = s.run({"ids": ids}, want={"logits": np.s_[0, t]})

A run compares the inputs with the last ones, looks up the program for (what is still valid, what
changed and is asked for), and executes its flat list of calls. A pair never seen before is
specialised on the spot, remembered and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from glob import escape
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from tgbench.anatomy import Anatomy
from tgbench.buckets import Bucket, BucketClass, BucketSpace
from tgbench.errors import BudgetError, KernelError, PlanError
from tgbench.estimate import MemoryEstimate, estimate_memory, parse_bytes, total_bytes
from tgbench.graph import Graph
from tgbench.intake import Intake
from tgbench.lowering import DoesNotFit
from tgbench.memory import Library, Memory
from tgbench.placement import Placement
from tgbench.plan import Decisions, Plan
from tgbench.planner import Planner, unit_change
from tgbench.pool import Pool
from tgbench.program import Program
from tgbench.regions import Region
from tgbench.report import Counters, Report
from tgbench.results import gather
from tgbench.rules import Rules
from tgbench.simplify import simplify
from tgbench.states import States
from tgbench.trace import Call, Trace

Array = NDArray[Any]
MOST_STATES = 10_000  # patterns remembered; past this they and their programs start again
RUNS_AHEAD = 3  # how far `prepare` follows a class: two runs reach its steady state
MOST_PLANS = 4  # a run that still fits nothing after this many plans is an error of ours


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
        retain: "auto", or "all" to keep every value that another one reads.
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
        unused = [escape(n) for n in graph.parameters if n not in self.graph.parameters]
        ignored = [*ignore_weights, *unused]
        self.pool = Pool.load(self.graph, self.anatomy, weights, device, ignored)
        self.trace = trace if isinstance(trace, Trace) else Trace(trace)
        self.retain = retain
        self.counters = Counters()
        self.states = States()
        self._last: tuple[Any, ...] | None = None
        self._progress = progress or (lambda message: None)
        self._classes: dict[BucketClass, tuple[float, tuple[int, ...]]] = {}
        self.programs = Library(program_bytes)
        self._intake = Intake(
            self.graph,
            buckets if isinstance(buckets, BucketSpace) else BucketSpace(buckets or {}),
            {n: node for n, node in graph.inputs.items() if n not in self.graph.inputs},
        )
        self._held: dict[str, Array] = {}  # the last value of every input
        self._fresh = False  # whether the arena holds what the last run left
        self._pending: dict[str, Region] = {}  # what the last run changed of the states
        self._state = 0
        self._before: tuple[BucketClass | None, tuple[int, ...]] = (None, ())
        self._memory: Memory | None = None
        self.plan_path = Path(plan) if isinstance(plan, (str, Path)) else None
        loaded = plan if isinstance(plan, Plan) else self._read_plan()
        if loaded is not None:
            self._adopt(loaded)

    # --- memory and plan -------------------------------------------------------------------------

    @property
    def last(self) -> Report | None:
        """What the last run did; None before the first."""
        return Report(*self._last) if self._last is not None else None

    def estimate_memory(self) -> dict[str, MemoryEstimate]:
        """Bytes per device, before anything of the arena is allocated."""
        arena = self._memory.placement.size_bytes if self._memory is not None else None
        return {self.device: estimate_memory(self.graph, arena, self.budget_bytes)}

    @property
    def placement(self) -> Placement:
        """The memory map in force; raises PlanError before the first run."""
        return self._in_force().placement

    @property
    def plan(self) -> Plan:
        """Everything decided, as a value that `save_plan` writes."""
        decisions = self._in_force().decisions
        return Plan.of(self.graph, decisions, self.device, self.budget_bytes)

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
        if len(self.trace):
            self._classes = {kind: (0.0, origin) for kind, (_, origin) in self._classes.items()}
        for call in self.trace:
            kind, origin = call.bucket.classify(self.graph)
            weight = self._classes.get(kind, (0.0, origin))[0]
            self._classes[kind] = (weight + 1.0, origin)
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

    def _in_force(self) -> Memory:
        if self._memory is None:
            raise PlanError("nothing is planned yet; call `run` or `optimize` first")
        return self._memory

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
        if found.placement.size_bytes > total_bytes(self.device):
            raise PlanError(
                f"size_bytes: {found.placement.size_bytes} is more than {self.device} has; "
                "delete the plan to plan anew"
            )
        self._classes.update(found.classes)
        self._install(found)

    def _plan(self) -> None:
        planner = Planner(self.anatomy, self.rules, self.device, self._progress)
        scenarios = planner.scenarios(self._classes)
        made = planner.plan(scenarios, self.budget_bytes, self.retain == "all")
        self.counters.planned += 1
        self._install(
            Decisions(
                made.placement,
                made.retained,
                made.dropped,
                made.cut,
                dict(self._classes),
                made.expected_ns,
            )
        )

    def _install(self, decisions: Decisions) -> None:
        self.forget()
        self.programs.clear()
        memory = Memory(self.anatomy, decisions, self.pool, self.rules, self.states, self.device)
        if self._memory is not None:
            memory.adopt_states(self._memory)
        self._memory = memory

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
        arrays = self._intake.arrays(inputs, self._held)
        wanted, hints = self._intake.wanted(want), self._intake.hints(changed)
        differ, bucket, kind, origin, program, specialised = self._decide(
            arrays, wanted, hints, check
        )
        moved = program.origin != origin
        if moved:
            program.move_to(origin)
        decided = time.perf_counter_ns()
        as_torch = any(isinstance(value, torch.Tensor) for value in inputs.values())
        results = self._execute(
            program,
            arrays,
            differ,
            kind,
            origin,
            lambda: self._results(program, wanted, copy, as_torch),
        )
        done = time.perf_counter_ns()
        self._finish(bucket, kind, origin, program, specialised, moved, began, decided, done)
        return results

    def _decide(
        self,
        arrays: Mapping[str, Array],
        wanted: Mapping[str, tuple[Region, Any]],
        changed: Mapping[str, Region] | None,
        check: bool,
    ) -> tuple[dict[str, Region], Bucket, BucketClass, tuple[int, ...], Program, bool]:
        """What differs, which bucket that is, and the program for it; plans if nothing fits."""
        demand = {name: region for name, (region, _) in wanted.items()}
        if len(self.states) > MOST_STATES:
            self.programs.clear()
            self._state = self.states.forget_others(self._state)
        for _ in range(MOST_PLANS):
            differ = self._differences(arrays, changed, check)
            bucket = Bucket.of(differ, demand)
            kind, origin = bucket.classify(self.graph)
            if self._memory is None:
                self._first_plan(bucket, kind, origin)
            try:
                program, specialised = self._program(kind, origin, self._state, self._before)
            except DoesNotFit as error:
                failure = error
                self._plan_for([(kind, origin)])
                continue
            return differ, bucket, kind, origin, program, specialised
        raise KernelError(f"{kind} fits no plan made for it: {failure}")

    def _differences(
        self, arrays: Mapping[str, Array], changed: Mapping[str, Region] | None, check: bool
    ) -> dict[str, Region]:
        """What the arena does not hold yet: everything at first, then what changed."""
        if not self._fresh:
            for name, array in arrays.items():
                self._intake.check_values(name, array, Region.full(array.shape))
            return {leaf.name: Region.full(leaf.shape) for leaf in self.anatomy.kept}
        return self._pending | self._intake.differences(arrays, self._held, changed, check)

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
        self.counters.evicted = self.programs.evicted
        self.counters.moved += moved
        self.trace.append(Call(bucket, not specialised, done - began, time.time()))
        self._last = (
            bucket, kind, origin, specialised, moved, program,
            decided - began, done - decided, done - began, self._in_force().propagator,
        )  # fmt: skip

    def _first_plan(self, bucket: Bucket, kind: BucketClass, origin: tuple[int, ...]) -> None:
        """With no history: this run, and the smallest change that may follow it."""
        runs = [(kind, origin)]
        for name in self.graph.inputs:
            next_one = unit_change(bucket, self.anatomy, name)
            if next_one is not None:
                runs.append(self._intake.rounded(next_one).classify(self.graph))
        self._plan_for(runs)

    def _plan_for(self, runs: Sequence[tuple[BucketClass, tuple[int, ...]]]) -> None:
        """Plan for some more runs; where no budget allows that, everything stays as it was."""
        before = dict(self._classes)
        for kind, origin in runs:
            weight = self._classes[kind][0] if kind in self._classes else 1.0
            self._classes[kind] = (weight, origin)
        try:
            self._plan()
        except BudgetError:
            self._classes = before
            raise

    def _program(
        self,
        kind: BucketClass,
        origin: tuple[int, ...],
        left: int,
        before: tuple[BucketClass | None, tuple[int, ...]],
    ) -> tuple[Program, bool]:
        """The program for what a run `before` left and this one, and whether it was made now."""
        state = self.states.moved(left, before, (kind, origin))
        known = self.programs.find(state, kind, origin)
        if known is not None:
            return known, False
        program = self._in_force().specialise(state, kind, origin)
        self.programs.add(state, kind, program)
        self.counters.specialised += 1
        return program, True

    def _results(
        self,
        program: Program,
        wanted: Mapping[str, tuple[Region, Any]],
        copy: bool,
        as_torch: bool,
    ) -> dict[str, Any]:
        results = {}
        for name, (region, index) in wanted.items():
            parts, shape = program.results[name], self.graph.outputs[name].shape
            results[name] = gather(
                parts, program.origin or (), region, index, shape, copy=copy, as_torch=as_torch
            )
        return results

    def _execute(
        self,
        program: Program,
        arrays: Mapping[str, Array],
        differ: Mapping[str, Region],
        kind: BucketClass,
        origin: tuple[int, ...],
        hand_out: Callable[[], dict[str, Any]],
    ) -> dict[str, Any]:
        """Write the inputs, run the calls, hand out the results.

        Validity is empty from the first write to the last, so that whatever stops a run in
        between leaves a session that computes everything again.
        """
        memory = self._in_force()
        self._fresh, self._state = False, 0
        try:
            memory.write(arrays, differ)
            for function, arguments in program.calls:
                function(*arguments)
            results = hand_out()
            pending = memory.update_states(program)
        except BaseException as error:
            memory.take_back()
            if not isinstance(error, Exception):
                raise
            raise KernelError(
                f"a kernel failed while running {kind}: {error}; the session is usable, "
                "the next run computes everything again"
            ) from error
        self._held = memory.held
        self._fresh, self._pending = True, pending
        self._state, self._before = program.after, (kind, origin)
        return results
