"""GraphSession: run a graph again and again, recomputing only what changed and is needed.

    s = GraphSession(graph, weights="model.safetensors", memory="256MiB")
    y = s.run({"ids": ids}, want={"logits": np.s_[0, t]})

A run compares the inputs with the last ones, looks up the program for (what is still valid, what
changed and is asked for), and executes its flat list of calls. A pair never seen before is
specialised on the spot, remembered and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from glob import escape
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.errors import (
    ExactnessError,
    GraphError,
    InputError,
    KernelError,
    PlanError,
    check_choice,
)
from tgbench.base.regions import EMPTY, Region
from tgbench.base.safetensors import TORCH_DTYPES
from tgbench.base.words import counted
from tgbench.costs.model import CostModel
from tgbench.costs.records import Records
from tgbench.costs.signature import streams
from tgbench.graph.graph import Graph, Node, graph_of
from tgbench.graph.op_table import numpy_dtype
from tgbench.graph.simplify import simplify
from tgbench.memory.arena import Arena, check_map
from tgbench.memory.estimate import (
    Budget,
    MemoryEstimate,
    estimate_memory,
)
from tgbench.memory.placement import Placement
from tgbench.memory.storage import Anatomy
from tgbench.plans.decisions import Decisions
from tgbench.plans.plan import Plan
from tgbench.plans.search.chain import Submits
from tgbench.plans.search.optimiser import MODES, Effort, Mode
from tgbench.plans.search.process import BackgroundSearch
from tgbench.programs.calibrate import Calibrator
from tgbench.programs.exact.findings import Exactness, find
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.pool import Pool
from tgbench.programs.program import Program
from tgbench.programs.states import States
from tgbench.runs.buckets import Bucket, BucketClass, BucketSpace
from tgbench.runs.rules import Rules
from tgbench.runs.trace import Call, Trace
from tgbench.session.arguments import Intake
from tgbench.session.memory import Library, Memory
from tgbench.session.planning import Planning, Retain, Runs, Search, parsed
from tgbench.session.report import Counters, Report, taken_bytes
from tgbench.session.results import gather
from tgbench.sources.torch.imported import Imported

Array = NDArray[Any]
MOST_STATES = 10_000  # patterns remembered; past this they and their programs start again
RUNS_AHEAD = 3  # how far `prepare` follows a class: two runs reach its steady state
LONGEST_NAME = 60  # of a session, in messages
MOST_PLANS = 4  # a run that still fits nothing after this many plans is an error of ours


class Keeps(Enum):
    """What of a run lasts."""

    ALL = "inputs, values, and what it writes into states"
    VALUES = "inputs and values; the states do not advance"
    NOTHING = "nothing"


class Decided(NamedTuple):
    """A run that is about to be executed.

    Fields:
        arrays: every input, checked.
        differ: what the arena does not hold yet.
        bucket: the same with what is demanded; `kind` and `origin` are its class and its place.
        program: right for it, made now if `specialised`.
    """

    arrays: dict[str, Array]
    differ: dict[str, Region]
    bucket: Bucket
    kind: BucketClass
    origin: tuple[int, ...]
    program: Program
    specialised: bool


class GraphSession:
    """Runs one graph under a memory budget; see the module's first lines.

    Args:
        graph: a bound graph (no symbolic dimensions left), or an imported module.
        weights: a safetensors file, a checkpoint directory, or arrays by parameter name, which are
            copied; an imported module brings its own.
        memory: budget of the arena: bytes, "256MiB", None for what is needed; "auto" for what the
            device has left, "auto:4GiB" for at most so much of it. Weights are apart:
            `estimate_memory()` shows both.
        device: "cpu" or "cuda:0".
        plan: a plan file. If it exists it is used without planning; `save_plan` writes it.
        trace: a JSON Lines file that every run is appended to.
        buckets: how changed boxes of inputs and states are rounded, {"ids": "exact" | "pow2" |
            "full"}; inputs are exact by default.
        retain: "auto", or "all" to keep every value that another one reads, or a later run again.
        ignore_weights: name patterns that may be in the file and are not used.
        program_bytes: bound on remembered programs; the least used go first.
        records: measured times, a `Records` or its path or URL; None for the user's own, in the
            cache folder. With exact="bitwise" also what was found out about bits, and what is
            found out now.
        arena: bytes to share with other sessions; None for an arena of its own. `memory` then
            bounds what this session takes of it.
        packed_bytes: bound on weights that are kept a second time, in a layout that kernels are
            faster with; small ones go first. 0 keeps none, None has no bound.
        calibrate: time the kernels of the heaviest calls before a plan, where `records` know
            nothing of them: a few seconds once a machine. False chooses by `records` if they are
            given, else by the kernels' own models, which are of another machine.
        exact: "bitwise" makes every run's outputs those of a run from nothing, bit for bit (see
            `exactness`); None for errors no larger than what kernels make of other slices.

    Raises:
        ExactnessError: for an op none of whose kernels is deterministic.
        GraphError, WeightsError, PlanError, TraceError: with the mend in the message.
    """

    def __init__(
        self,
        graph: Graph | Imported,
        weights: Any = None,
        memory: int | str | None = None,
        device: str = "cpu",
        plan: str | Path | Plan | None = None,
        trace: str | Path | Trace | None = None,
        buckets: Mapping[str, Any] | BucketSpace | None = None,
        retain: Retain = "auto",
        ignore_weights: Sequence[str] = (),
        program_bytes: int = 256 << 20,
        progress: Any = None,
        records: Any = None,
        arena: Arena | None = None,
        exact: str | None = None,
        packed_bytes: int | str | None = 256 << 20,
        calibrate: bool = True,
    ) -> None:
        if exact not in (None, "bitwise"):
            raise ExactnessError(f"exact={exact!r} is not known; pass 'bitwise', or leave it out")
        check_choice(PlanError, "retain", retain, get_args(Retain))
        imported = graph if isinstance(graph, Imported) and weights is None else None
        if imported is not None:
            weights = imported.weights
        graph = graph_of(graph)
        _check_bound(graph)
        self.graph = simplify(graph)
        self.device = device
        self.arena = arena if arena is not None else Arena(device)
        if self.arena.device != device:
            raise GraphError(
                f"the arena is on {self.arena.device}, the session on {device}; "
                f"pass device={self.arena.device!r}, or make an arena on {device}"
            )
        Budget.parse(memory)  # a size that is none is said before weights are read
        anatomy = Anatomy.of(self.graph)
        unused = [escape(n) for n in graph.parameters if n not in self.graph.parameters]
        ignored = [*ignore_weights, *unused]
        limit = Budget.parse(packed_bytes).limit_bytes
        self.pool = Pool.load(
            self.graph, anatomy, weights, device, ignored, limit, imported is not None
        )
        if imported is not None and imported.shared:
            self.pool.watch(self.graph.parameters)
        budget_bytes = parsed(memory, self.graph, self.arena, self.pool)
        known = records if isinstance(records, Records) or records is None else Records(records)
        self.exactness: Exactness | None = None
        if exact is not None:
            self.exactness = find(
                anatomy, self.pool.buffers, device, progress, known, self.pool.unpacked
            )
        grains = self.exactness.grains if self.exactness is not None else None
        self.rules = Rules(grains, self.pool.unpacked)
        from_memory = streams(self.pool.parameter_bytes)
        self.costs = CostModel(known, device, streams=from_memory, rules=self.rules)
        self._progress = progress or (lambda message: None)
        calibrator = (
            Calibrator(self.pool, self.costs, known, device, progress)
            if calibrate and self.exactness is None
            else None
        )
        self._seat = self.arena.join(_name_of(self.graph), self.pool.parameter_bytes)
        self.planning = Planning(
            anatomy, self.pool, self.rules, self.costs, self.exactness, self._seat,
            self._progress, calibrator, retain, budget_bytes,
        )  # fmt: skip
        self.trace = trace if isinstance(trace, Trace) else Trace(trace)
        self.counters = Counters()
        self.states = States()
        self._last: tuple[Any, ...] | None = None
        self.programs = Library(program_bytes)
        self._intake = Intake(
            self.graph,
            buckets if isinstance(buckets, BucketSpace) else BucketSpace(buckets or {}),
            {n: node for n, node in graph.inputs.items() if n not in self.graph.inputs},
        )
        self._held: dict[str, Array] = {}  # the last value of every input
        self._state_values: dict[str, torch.Tensor] = {}  # while no plan is in force
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

    def report(self) -> Report:
        """What the last run did, in words when printed; raises PlanError before the first."""
        if self._last is None:
            raise PlanError("nothing has run yet; call `run` first")
        return Report(*self._last)

    @property
    def anatomy(self) -> Anatomy:
        """Who reads whom, and when each value is live, in the order in force."""
        return self.planning.anatomy

    @property
    def retain(self) -> Retain:
        """What is kept between runs; see the class. Another value counts from the next plan on."""
        return self.planning.retain

    @retain.setter
    def retain(self, retain: Retain) -> None:
        self.planning.retain = retain

    @property
    def budget_bytes(self) -> int | None:
        """Budget of the arena; another value counts from the next plan on."""
        return self.planning.budget_bytes

    @budget_bytes.setter
    def budget_bytes(self, budget_bytes: int | None) -> None:
        self.planning.budget_bytes = budget_bytes

    def estimate_memory(self) -> dict[str, MemoryEstimate]:
        """Bytes per device, before anything of the arena is allocated."""
        budget, others = self.planning.limit_bytes, self._seat.others_fixed_bytes
        found = self._memory.decisions.placement if self._memory is not None else None
        arena = found.size_bytes if found is not None else None
        fixed = found.kept_bytes if found is not None else None
        return {
            self.device: estimate_memory(
                self.graph, arena, budget, fixed, others, self.pool.packed_bytes
            )
        }

    @property
    def placement(self) -> Placement:
        """The memory map in force, from 0; raises PlanError before the first run."""
        return self._in_force().decisions.placement

    @property
    def is_planned(self) -> bool:
        """Whether a plan is in force."""
        return self._memory is not None

    @property
    def unused_inputs(self) -> tuple[str, ...]:
        """Inputs that no output depends on; they may be passed to `run`."""
        return tuple(self._intake.unused)

    @property
    def buckets(self) -> BucketSpace:
        """How changed input boxes are rounded."""
        return self._intake.space

    @property
    def plan(self) -> Plan:
        """Everything decided, as a value that `save_plan` writes."""
        decisions = self._in_force().decisions
        return Plan.of(self.graph, decisions, self.device, self.budget_bytes, self.exact)

    @property
    def exact(self) -> str | None:
        """What is promised of bits: "bitwise", or None; see `exactness` for how."""
        return self.planning.exact

    def plan_for(self, runs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> Plan:
        """Plan for runs that have not happened yet, so that none of them has to plan anew.

        Args:
            runs: (what changes of the inputs, what is wanted) of each, as `run` takes them as
                `changed` and `want`. Where runs differ in the place only, the places where most
                is computed suffice.

        Raises:
            InputError, HintError, DemandError, BudgetError.
        """
        known = []
        for changed, want in runs:
            demand = {name: region for name, (region, _) in self._intake.wanted(want).items()}
            bucket = self._intake.rounded(Bucket.of(self._intake.hints(changed) or {}, demand))
            known.append(bucket.classify(self.graph))
        with self.arena.lock:
            self._plan_for(known)
        return self.plan

    def save_plan(self, path: str | Path | None = None) -> Path:
        """Write the plan as JSON, atomically."""
        target = Path(path) if path is not None else self.plan_path
        if target is None:
            raise PlanError("no path for the plan; pass one, or create the session with plan=path")
        self.plan.save(target)
        return target

    def optimize(
        self,
        mode: Mode = "search",
        seconds: float | None = None,
        budget: int | str | None = None,
        *,
        steps: int | None = None,
        seed: int = 0,
        executor: Submits | None = None,
        workers: int = 1,
        stop: Callable[[], bool] | None = None,
    ) -> Plan:
        """Find a better plan for the runs in the trace, and put it in force.

        Nothing is run: times are expected ones (`costs`). Calling it again goes on from the plan
        in force; an interrupt keeps the best one found. If there is a plan file, it is written.

        Args:
            mode: "greedy", "search" (tree search, any time), "exact" (integer program).
            seconds: when to stop; 30 if neither this nor `steps` is given.
            budget: another budget for the arena.
            steps: rollouts after which to stop; with it alone the same seed gives the same plan.
            executor: runs chains of the search elsewhere: a process pool, a Dask client.
            workers: how many independent chains share what they find.
            stop: asked now and then; True ends the search.

        Raises:
            PlanError, TraceError: for an unknown mode, and a trace that is empty or of another
                graph. BudgetError: if nothing fits.
        """
        check_choice(PlanError, "mode", mode, MODES)
        with self.budgeted(budget):
            if self.retain == "all":
                self._plan()
                return self.plan
            effort = Effort(30.0 if seconds is None and steps is None else seconds, steps)
            search = Search(mode, effort, seed, executor, workers, stop)
            start = self._memory.decisions if self._memory is not None else None
            self.planning.calibrate(self.anatomy)
            with self.arena.lock:
                found = self.planning.searched(search, self._happened, start)
                self.planning.classes = dict(found.classes)
                self.counters.planned += 1
                self._install(found)
        if self.plan_path is not None:
            self.save_plan()
        return self.plan

    def budgeted(self, budget: int | str | None) -> AbstractContextManager[None]:
        """Another budget, where one is given; taken back if what is done under it fails."""
        return self.planning.budgeted(budget)

    @property
    def _happened(self) -> list[Bucket]:
        return [call.bucket for call in self.trace]

    def search(self, mode: Mode = "search", *, seed: int = 0, workers: int = 1) -> BackgroundSearch:
        """The search of `optimize` in a process of its own, not started yet.

        `with session.search() as search: search.start(seconds=60)`; then `poll`, `stop`, `resume`,
        `result`, and `session.adopt(search.result())`.

        Raises PlanError for an unknown mode, TraceError for an empty trace.
        """
        check_choice(PlanError, "mode", mode, MODES)
        start = self.plan if self._memory is not None else None
        task = self.planning.task(self._happened, start)
        return BackgroundSearch(task, mode, seed, workers)

    def adopt(self, plan: Plan) -> None:
        """Put a plan for this graph in force; raises PlanError for one that does not fit."""
        with self.arena.lock:
            self._adopt(plan)

    def prepare(self, seconds: float | None = None) -> int:
        """Make programs ahead of time for the planned classes, largest slices first.

        Each class is followed for a few runs from the present state, at its extreme positions.
        Nothing is executed. Stops after `seconds`, or at an interrupt; what is made is kept.

        Returns:
            How many programs were made.
        """
        self._in_force()
        with self.arena.lock:
            return self._prepare(seconds)

    def _prepare(self, seconds: float | None) -> int:
        self._follow_arena()
        made, end = 0, time.monotonic() + (seconds if seconds is not None else 1e9)
        walks = [
            (kind, at)
            for kind, (_, origin) in self.planning.classes.items()
            for at in kind.corners(origin)
        ]
        walks.sort(key=lambda walk: -walk[0].elements)
        try:
            for i, (kind, origin) in enumerate(walks):
                self._progress(f"preparing {i + 1}/{len(walks)} {kind}")
                if time.monotonic() >= end:
                    break
                made += self._walk(kind, origin)
        except KeyboardInterrupt:
            self._progress(f"stopped; {counted(made, 'program')} kept")
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
        with self.arena.lock:
            found = self.planning.checked(plan)
            self.planning.take_over(found)
            self._install(found)

    def _plan(self) -> None:
        """Plan for the classes at hand, and put it in force."""
        self.planning.calibrate(self.anatomy)
        with self.arena.lock:
            made = self.planning.quick()
            self.counters.planned += 1
            self._install(made)

    def _install(self, decisions: Decisions) -> None:
        """Put a plan that fits in force; an interrupt leaves none, and every value as it was."""
        check_map(decisions.placement)
        self._follow_arena()
        self.planning.anatomy = decisions.anatomy
        if self._memory is not None:
            self._held = {name: array.copy() for name, array in self._held.items()}
            self._state_values = self._memory.state_values()
            self._memory = None
        self.forget()
        self.programs.clear()
        self._seat.take(decisions.placement)
        memory = Memory(
            self.anatomy, decisions, self.pool, self.rules, self.states, self._seat,
            self.costs.kernels,
        )  # fmt: skip
        memory.put(self._held, self._state_values)
        self._memory = memory
        self._held = memory.held if self._held else {}

    def _follow_arena(self) -> None:
        """Take account of what happened since this session's last run came to its end.

        Other sessions of the arena ran or moved it; a run of this one was stopped in the middle.
        """
        if self._memory is None:
            return
        self.arena.finish_move()
        if not self._memory.is_in_place:
            self._memory = self._memory.followed()
            self.programs.clear()
            self._held = self._memory.held if self._held else {}
        self._memory.take_back()
        if self.arena.last_ran != self._seat.number:
            self._state = self._memory.outliving(self._state)

    def release(self) -> None:
        """Give the session's bytes back to the arena.

        Weights and classes stay; inputs, states and all that was computed are gone, so that the
        next run plans and computes as a first one does.
        """
        with self.arena.lock:
            self.forget()
            self.programs.clear()
            self._memory, self._last = None, None
            self._held, self._state_values, self._pending = {}, {}, {}
            self._seat.leave()

    def state_value(self, name: str) -> Array:
        """A copy of what a state holds now; 0 everywhere before the first run.

        Raises InputError for an unknown name.
        """
        node = self._state_node(name)
        with self.arena.lock:
            self._follow_arena()
            values = self._state_values if self._memory is None else self._memory.state_values()
        value = values.get(name, torch.zeros(node.shape, dtype=TORCH_DTYPES[node.dtype])).cpu()
        array: Array = (value.float() if node.dtype == "bfloat16" else value).numpy().copy()
        return array

    def set_state(self, name: str, value: Any) -> None:
        """Let a state hold `value`, of its shape and dtype; the next run sees what changed.

        Raises InputError for an unknown name, and a value that the state cannot take.
        """
        array = self._intake.checked_state(self._state_node(name), value)
        with self.arena.lock:
            self._follow_arena()
            if self._memory is None:
                dtype = TORCH_DTYPES[self.graph.states[name].dtype]
                self._state_values[name] = torch.tensor(array).to(self.device, dtype)
                return
            pending = self._pending.get(name, EMPTY)
            self._pending[name] = Region.full(array.shape)  # in case of an interrupt
            self._pending[name] = pending.union(self._memory.put_state(name, array))

    def reset_states(self) -> None:
        """Let every state hold 0 again, as before the first run."""
        for name, node in self.graph.states.items():
            self.set_state(name, np.zeros(node.shape, numpy_dtype(node.dtype)))

    def _state_node(self, name: str) -> Node:
        if name not in self.graph.states:
            known = ", ".join(self.graph.states) or "none"
            raise InputError(f"unknown state {name!r}; this graph has {known}")
        return self.graph.states[name]

    def forget(self) -> None:
        """Drop everything that is remembered of earlier runs; the next one computes afresh."""
        self._state = 0
        self._before = (None, ())
        self._fresh = False

    # --- running ---------------------------------------------------------------------------------

    def run(
        self,
        inputs: Any,
        want: Any = None,
        *,
        changed: Any = None,
        check: bool = False,
        copy: bool = True,
        keep: bool = True,
    ) -> dict[str, Any]:
        """Compute the wanted parts of the outputs for these inputs.

        Args:
            inputs: arrays, tensors or lists by input name; inputs left out keep their last value.
                The input of a graph that has one may come without its name. A value of another
                dtype is converted where the graph's can hold all of that dtype's values.
            want: parts by output name (`np.s_[0, t]`, a list of such, or a Region), or the part
                of a graph's only output; None for every output whole.
            changed: parts that may differ from the last run; skips the comparison.
            check: verify `changed` by comparing all the same.
            copy: False returns read-only views of the arena, right until the next run of any
                session in it. Torch tensors are copies all the same, as none is read-only; so are
                outputs that are states, which this run has advanced.
            keep: False leaves everything as it was before: inputs, states, and values that are
                kept. The next run differs from the run before this one (what-if; see `saved` in
                `memory`). Results are copies.

        Returns:
            Arrays by output name, NumPy or torch as the inputs were; a list of arrays where a
            list of parts was asked for.

        Raises:
            InputError, DemandError, HintError, BudgetError, KernelError; WeightsError for weights
            shared with a module (`from_torch`) that were changed in place. Whatever stops a run, an
            interrupt too, inputs and states are what they were before it.
        """
        with self.arena.lock:
            self._follow_arena()
            return self._run(inputs, want, changed, check, copy or not keep, keep)

    def _run(
        self, inputs: Any, want: Any, changed: Any, check: bool, copy: bool, keep: bool
    ) -> dict[str, Any]:
        began = time.perf_counter_ns()
        self.pool.check_unchanged()
        if self.exactness is not None:
            self.exactness.check_threads()
        named = self._intake.named(inputs)
        wanted, hints = self._intake.wanted(want), self._intake.hints(changed)
        given = self._apart(self._intake.arrays(named))
        as_torch = any(isinstance(value, torch.Tensor) for value in named.values())
        decided = self._decide(given, wanted, hints, check)
        while not keep and self._held and not self._fresh:
            self._start_again(wanted)
            decided = self._decide(given, wanted, hints, check)
        return self._carried_out(
            decided,
            lambda: self._results(decided.program, wanted, copy, as_torch),
            Keeps.ALL if keep else Keeps.NOTHING,
            began,
        )

    def _apart(self, arrays: dict[str, Array]) -> dict[str, Array]:
        """Results that come back as inputs may be views of what a run writes over: copies then."""
        return {
            name: array.copy() if self.arena.shows(array) else array
            for name, array in arrays.items()
        }

    def _start_again(self, wanted: Mapping[str, tuple[Region, Any]]) -> None:
        """Compute what is wanted of the inputs that are held, so that a what-if starts from it.

        After a new plan, an interrupt or `forget` no value is left that it could differ from.
        """
        began = time.perf_counter_ns()
        decided = self._decide({}, wanted, None, False)
        self._carried_out(decided, dict, Keeps.VALUES, began)

    def _decide(
        self,
        given: Mapping[str, Array],
        wanted: Mapping[str, tuple[Region, Any]],
        changed: Mapping[str, Region] | None,
        check: bool,
    ) -> Decided:
        """What of the inputs differs, its bucket, and the program; plans if nothing fits."""
        demand = {name: region for name, (region, _) in wanted.items()}
        if len(self.states) > MOST_STATES:
            self.programs.clear()
            number, self._state = self._state, 0
            self._state = self.states.forget_others(number)
        for _ in range(MOST_PLANS):
            arrays = self._intake.completed(given, self._held)  # a plan moves what is held
            differ = self._differences(arrays, changed, check)
            bucket = Bucket.of(differ, demand)
            kind, origin = bucket.classify(self.graph)
            if self._memory is None:
                self._plan_for(self.planning.first_runs(bucket, kind, origin, self._intake))
            try:
                program, specialised = self._program(kind, origin, self._state, self._before)
            except DoesNotFit as error:
                failure = str(error)  # an error kept in its own frame keeps the session alive
                self.planning.missed.add(kind)
                self._plan_for([(kind, origin)])
                continue
            if self.planning.deserves_a_plan(kind, program):
                self._plan_for([(kind, origin)])
                continue
            return Decided(arrays, differ, bucket, kind, origin, program, specialised)
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

    def _finish(self, run: Decided, moved: bool, began: int, decided: int, done: int) -> None:
        self.counters.runs += 1
        self.counters.evicted = self.programs.evicted
        self.counters.moved += moved
        if run.specialised:
            self.arena.took(taken_bytes(run.program))
        self.trace.append(Call(run.bucket, not run.specialised, done - began, time.time()))
        self._last = (
            run.bucket, run.kind, run.origin, run.specialised, moved, run.program,
            decided - began, done - decided, done - began, self._in_force().propagator,
        )  # fmt: skip

    def _plan_for(self, runs: Runs) -> None:
        """Plan for some more runs; if that fails or is interrupted, all stays as it was."""
        with self.planning.adding(runs):
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
        known = self.programs.find(state, kind, origin)
        if known is not None:
            return known, False
        program = self._in_force().specialise(
            state, kind, origin, or_more=self.planning.takes_more(kind, origin)
        )
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
            parts, node = program.results[name], self.graph.outputs[name]
            owned = copy or as_torch or self._is_state(node)
            results[name] = gather(
                parts, program.origin or (), region, index, node.shape, owned, as_torch
            )
        return results

    def _is_state(self, output: Node) -> bool:
        """Whether an output shows the bytes of a state, which a run writes after handing out."""
        return self.anatomy.base[output].op == "state"

    def _carried_out(
        self, run: Decided, hand_out: Callable[[], dict[str, Any]], keeps: Keeps, began: int
    ) -> dict[str, Any]:
        """Execute a run and remember what it did; what it wrote stays from the last line on."""
        moved = run.program.origin != run.origin
        if moved:
            run.program.move_to(run.origin)
        decided, memory = time.perf_counter_ns(), self._in_force()
        was_fresh, left = self._fresh, self._state
        results, pending = self._execute(run, hand_out, keeps)
        self._finish(run, moved, began, decided, time.perf_counter_ns())
        if keeps is Keeps.NOTHING:
            self._state = memory.surviving(left, run.program)
            self._fresh = was_fresh
            return results
        self._pending, self._before = self._intake.rounded_states(pending), (run.kind, run.origin)
        memory.settle()
        self._state, self._held, self._fresh = run.program.after, memory.held, True
        return results

    def _execute(
        self, run: Decided, hand_out: Callable[[], dict[str, Any]], keeps: Keeps
    ) -> tuple[dict[str, Any], dict[str, Region]]:
        """Write the inputs, run the calls, hand out results, advance the states or undo it all.

        Validity is empty from the first write until the run is over, and what is written over is
        noted (`Memory.take_back`), so that whatever stops a run leaves a session that computes
        everything again from what it held before.

        Returns the results, and what of the states changed.
        """
        memory, program = self._in_force(), run.program
        self._fresh, self._state = False, 0
        self.arena.last_ran = self._seat.number
        try:
            saved = memory.saved(program) if keeps is Keeps.NOTHING else []
            memory.write(run.arrays, run.differ)
            for function, arguments in program.calls:
                function(*arguments)
            results = hand_out()
            if keeps is Keeps.NOTHING:
                memory.put_back(saved)
            return results, memory.update_states(program) if keeps is Keeps.ALL else {}
        except Exception as error:
            raise KernelError(
                f"a kernel failed while running {run.kind}: {error}; the session is usable, "
                "the next run computes everything again"
            ) from error


def _check_bound(graph: Graph) -> None:
    """Raise GraphError for a graph with symbolic dimensions."""
    if graph.symbols:
        sizes = ", ".join(f"{symbol}=…" for symbol in graph.symbols)
        raise GraphError(
            f"dimensions of the graph are symbolic; give them numbers: `graph.bind({sizes})`, or "
            f"`GraphSession(imported.graph.bind({sizes}), imported.weights)`"
        )


def _name_of(graph: Graph) -> str:
    """What a message calls a session by: its inputs and outputs."""
    name = f"{', '.join(graph.inputs)} → {', '.join(graph.outputs)}"
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
