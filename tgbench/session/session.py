"""GraphSession: run a graph again and again, recomputing only what changed and is needed.

    s = GraphSession(graph, weights="model.safetensors", memory="256MiB")
    y = s.run({"ids": ids}, want={"logits": np.s_[0, t]})

A run compares the inputs with the last ones, looks up the program for (what is still valid, what
changed and is asked for), and executes its flat list of calls. A pair never seen before is
specialised on the spot, remembered and counted.

Here is what a session does, by its parts: `opening` loads weights, `planning` decides what is kept,
`standing` holds it between runs, `running` runs; `facts` is what it says of itself.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from tgbench.base.collector import collect_dropped, lasting
from tgbench.base.errors import (
    ExactnessError,
    PlanError,
    check_callable,
    check_choice,
    check_flag,
    check_kind,
    check_number,
)
from tgbench.base.files import is_there
from tgbench.base.surroundings import apart, is_plain, plainly, untraced
from tgbench.base.switches import telling
from tgbench.base.words import shorten
from tgbench.costs.nearby import Nearby
from tgbench.graph.graph import Graph
from tgbench.graph.op_table import numpy_dtype
from tgbench.graph.ops.beginnings import first_value, flag_of
from tgbench.kernels.registry import Ranking
from tgbench.memory.arena import Arena
from tgbench.memory.estimate import Sizes, by_device
from tgbench.plans.background.process import BackgroundSearch
from tgbench.plans.decisions import PlanPath
from tgbench.plans.paths.chosen import opened
from tgbench.plans.plan import Plan
from tgbench.plans.search.chain import Submits, check_executor
from tgbench.plans.search.effort import MODES, Effort, Mode
from tgbench.programs.encoding import Codec
from tgbench.programs.program_file import ProgramFile, facts
from tgbench.runs.buckets import BucketSpace
from tgbench.runs.trace import Trace
from tgbench.session.arguments import ArgumentReader
from tgbench.session.chooser import Chooser, Making, Own, made_by
from tgbench.session.choosing import Measured
from tgbench.session.facts import Facts
from tgbench.session.opening import (
    Arithmetic,
    Knowledge,
    LoadedGraph,
    WeightsDtype,
    arena_on,
    check_names,
    check_tolerance,
)
from tgbench.session.planning import Planning, Retain, Search, parsed
from tgbench.session.running import Request, Runner
from tgbench.session.standing import Keeper
from tgbench.sources.torch.imported import Imported

Array = NDArray[Any]


class GraphSession(Facts):
    """Runs one graph under a memory budget; see the module's first lines.

    Args:
        graph: a bound graph (no symbolic dimensions left), or an imported module.
        weights: a safetensors file, a checkpoint directory, or arrays by parameter name, which are
            copied; an imported module brings its own.
        memory: budget of the arena: bytes, "256MiB", None for what is needed; "auto" for what the
            device has left, "auto:4GiB" for at most so much of it. Weights are apart:
            `estimate_memory()` shows both. By device, {"cpu": "1GiB", "cuda:0": "2GiB"}, where the
            graph computes on others (`tg.place`), which give what weights take as well.
        device: "cpu" or "cuda:0", or what PyTorch calls so.
        plan: a plan file. If it exists it is used without planning; `save_plan` writes it.
        trace: a JSON Lines file that every run is appended to.
        buckets: how changed boxes of inputs and states are rounded, {"ids": "exact" | "pow2" |
            "full"}; inputs are exact by default.
        retain: "auto", or "all" to keep every value that another one reads, or a later run again.
        ignore_weights: name patterns, or one, that may be in the file and are not used.
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
        making: when a run gets a program of its own. "measured": when that is expected to pay,
            by what making and running took in this session; else the quickest one that is there
            serves it, of a larger run or of all of it. "always": as soon as it happens. None for
            "measured", or what TGBENCH_MAKING says.
        exact: "bitwise" makes every run's outputs those of a run from nothing, bit for bit (see
            `exactness`); None for errors no larger than what kernels make of other slices.
        weights_dtype: "fp16", "bf16" or "int8" (with one scale a row) rounds the weights of linear
            layers once, when they are loaded: they take a half or a quarter of the memory, and of
            the time of a run that is bound by reading them. "fp16" is eight times closer than
            "bf16", of weights below 65,504. None keeps every value, and half floats as they are
            stored; "fp32" widens those when they are loaded, for runs that compute many rows.
        weights_copy: whether weights of a file are copied. They are the mapped file otherwise, and
            must stay as they are while they are in use: a run raises WeightsError once the file's
            size or time has changed, but one that is cut *during* a run ends the process (SIGBUS).
        arithmetic: "bf16" lets kernels of linear layers and convolutions round both factors of a
            product to bfloat16, and sum in float32, where that was measured to be quicker: twice as
            quick on processors that multiply bfloat16. None never rounds.
        kernels: kernels that were admitted (`tgbench kernel admit`), by `name@hash`: their code is
            loaded, and they are chosen like all others. Not under exact="bitwise".
        path: another way to compute the graph (`session.paths()[3].chosen()`); a plan brings the
            one that it was made for.
        tolerance: the largest relative error that a path may have been allowed; None where none may
            compute in less than the graph's dtypes.

    Raises:
        ExactnessError: for an op none of whose kernels is deterministic, and for less precision
            beside exact="bitwise".
        GraphError, KernelError, WeightsError, PlanError, TraceError: with the mend in the message.
    """

    runs_by: ClassVar[type[Runner]] = Runner  # a checker's runs do more

    explore: ClassVar[Callable[..., Any]]  # these four come from `views.show`
    timeline: ClassVar[Callable[..., Any]]
    optimize_async: ClassVar[Callable[..., Any]]
    paths: ClassVar[Callable[..., Any]]

    @plainly
    def __init__(
        self,
        graph: Graph | Imported,
        weights: Any = None,
        memory: Sizes = None,
        device: str | torch.device = "cpu",
        plan: str | Path | Plan | None = None,
        trace: str | Path | Trace | None = None,
        buckets: Mapping[str, Any] | BucketSpace | None = None,
        retain: Retain = "auto",
        ignore_weights: str | Sequence[str] = (),
        program_bytes: int = 256 << 20,
        progress: Any = None,
        records: Any = None,
        arena: Arena | None = None,
        exact: str | None = None,
        packed_bytes: int | str | None = 256 << 20,
        calibrate: bool = True,
        making: Making | None = None,
        weights_dtype: WeightsDtype | None = None,
        weights_copy: bool = False,
        arithmetic: Arithmetic | None = None,
        kernels: Sequence[str] = (),
        path: PlanPath | None = None,
        tolerance: float | None = None,
    ) -> None:
        if exact not in (None, "bitwise"):
            raise ExactnessError(f"exact={exact!r} is not known; pass 'bitwise', or leave it out")
        check_choice(PlanError, "retain", retain, get_args(Retain))
        check_tolerance(tolerance, exact is not None)
        ignored = check_names(ignore_weights)
        check_number(PlanError, "program_bytes", program_bytes, whole=True, optional=False)
        check_callable(PlanError, "progress", progress, "pass one that is told each step, or None")
        check_flag(PlanError, "calibrate", calibrate)
        check_flag(PlanError, "weights_copy", weights_copy)
        if not isinstance(plan, (Plan, str, Path, NoneType)):
            raise PlanError(f"plan={shorten(plan)} is no plan; pass a Plan or a path")
        check_kind(PlanError, "path", path, PlanPath, "pass what session.paths()[3].chosen() gives")
        device = str(device)
        memory, limits = by_device(
            memory, device
        )  # what is no size is said before weights are read
        collect_dropped()
        self.device = device
        self.arena = arena_on(device, arena)
        self.plan_path = Path(plan) if isinstance(plan, (str, Path)) else None
        if self.plan_path is not None and is_there(self.plan_path):
            plan = Plan.load(self.plan_path)
        found = plan if isinstance(plan, Plan) else None
        self.path = path if path is not None or found is None else found.path
        self.tolerance = tolerance
        with lasting():  # code that is loaded with the first weights as well
            ground = LoadedGraph.of(
                graph, weights, self.arena, ignored, packed_bytes,
                exact=exact is not None, weights_dtype=weights_dtype, arithmetic=arithmetic,
                weights_copy=weights_copy, way=self._along, limits=limits,
            )  # fmt: skip
        budget_bytes = parsed(memory, ground.graph, self.arena, ground.pool)
        self._known = partial(
            Knowledge.of, records=records, progress=progress, exact=exact is not None,
            calibrate=calibrate, kernels=kernels,
        )  # fmt: skip
        self._chooser = Own if made_by(making) == "always" else Measured
        self._progress, self._program_bytes = telling(progress), program_bytes
        self.trace = trace if isinstance(trace, Trace) else Trace(trace)
        self._start(ground, ground.reader(buckets), self._known(ground), retain, budget_bytes)
        if found is not None:
            self._begin_with(found)

    def _begin_with(self, plan: Plan) -> None:
        """Put a plan in force; what is wrong with one of a file says which."""
        try:
            self.adopt(plan)
        except PlanError as error:
            if self.plan_path is None:
                raise
            raise PlanError(f"{self.plan_path}: {error}") from error

    def _along(self, graph: Graph) -> Graph:
        """The graph that is run instead of one, by the path in force."""
        return graph if self.path is None else opened(self.path, graph, self.tolerance)

    def _start(
        self,
        ground: LoadedGraph,
        reader: ArgumentReader,
        known: Knowledge,
        retain: Retain,
        budget_bytes: int | None,
    ) -> None:
        """Nothing is planned yet."""
        self.ground, self.reader = ground, reader
        self.graph, self.pool, self.rounded = ground.graph, ground.pool, ground.rounded
        self.exactness, self.rules, self.costs = known.exactness, known.rules, known.costs
        self.costs.pins = {} if self.path is None else dict(self.path.kernels)
        self.seat = ground.seat()
        self.planning = Planning(
            ground.scheduled, self.pool, self.rules, self.costs, self.exactness, self.seat,
            self._progress, known.calibrator, retain, budget_bytes,
        )  # fmt: skip
        chooser: Chooser = Own()
        ranking: Ranking = self.costs.kernels
        if self._chooser is Measured:
            nearby = Nearby(self.costs)
            chooser, ranking = Measured(nearby.working), nearby.kernels
        self.keeper = Keeper(self.planning, self._program_bytes, chooser, ranking)
        self.states, self.programs = self.keeper.states, self.keeper.programs
        self.runner = self.runs_by(self.planning, self.keeper, self.reader, self.trace)
        self.counters = self.runner.counters

    @plainly
    def take(self, path: PlanPath | None) -> None:
        """Compute by another path from now on; None for the graph as it was given.

        Inputs and states stay as they are. What was planned for is planned for anew, and plans and
        programs of the graph before are gone. `paths` finds paths; `SessionPaths.optimize` takes
        the best one.

        Raises PlanError for a path of another graph, or one that allows larger errors than the
        session does.
        """
        check_kind(PlanError, "path", path, PlanPath, "pass what session.paths()[3].chosen() gives")
        graph = self.ground.held if path is None else opened(path, self.ground.held, self.tolerance)
        with self.arena.lock, self.intact():
            before, standing = self.planning, self.keeper.apart()
            has_run = self.last is not None or bool(self.since)
            ground = self.ground.along(graph)
            known = self._known(ground, times=self.costs.table())
            self.keeper.release()
            self.path = path
            self._start(
                ground, ground.reader(self.buckets), known, before.retain, before.budget_bytes
            )
            self.planning.classes.update(before.classes)
            self.planning.places.update(before.places)
            self.keeper.stand(standing)
            self.since = "another path was taken" if has_run else ""

    @contextmanager
    def intact(self) -> Iterator[None]:
        """Path, tolerance, budget, plan, inputs and states are what they were if what is done here
        fails; no run may come in between.
        """
        with self.arena.lock:
            self.keeper.follow_arena()
            parts, budget_bytes = vars(self).copy(), self.planning.budget_bytes
            stood, apart = self.keeper.standing, self.keeper.apart()
        try:
            yield
        except BaseException:
            with self.arena.lock:
                if self.keeper is not parts["keeper"]:
                    self.keeper.release()
                vars(self).update(parts)
                self.planning.budget_bytes = budget_bytes
                if self.keeper.standing is not stood:
                    self.keeper.stand(apart)
                    if stood.memory is not None:
                        self.keeper.install(stood.memory.decisions)
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A session holds an arena, threads and files: it is neither copied nor sent elsewhere."""
        raise PlanError(
            "a session cannot be copied or pickled; make another one of the same graph and weights "
            "with plan=session.plan (`save_plan`, `save_programs` for another process)"
        )

    # --- planning --------------------------------------------------------------------------------

    def budgeted(self, budget: int | str | None) -> AbstractContextManager[None]:
        """Another budget, where one is given; taken back if what is done under it fails."""
        return self.planning.budgeted(budget)

    @plainly
    def plan_for(self, runs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any] | None]]) -> Plan:
        """Plan for runs that have not happened yet, so that none of them has to plan anew.

        Where they do not fit together with what was planned for before, what they ask for is
        planned for alone, computed of nothing.

        Args:
            runs: (what changes of the inputs, what is wanted) of each, as `run` takes them as
                `changed` and `want`. Where runs differ in the place only, the places where most
                is computed suffice.

        Raises:
            InputError, HintError, DemandError, BudgetError; PlanError for runs that are no pairs.
        """
        try:
            pairs = [(changed, want) for changed, want in runs]
        except (TypeError, ValueError) as error:
            raise PlanError(
                f"runs are no pairs ({error}); pass [(changed, want), …], each as `run` takes it: "
                "[({'x': np.s_[0]}, None)]"
            ) from None
        spots = [self.reader.spot(changed, want) for changed, want in pairs]
        if not spots and not self.planning.classes:
            raise PlanError("there are no runs to plan for; pass some, [({'x': np.s_[0]}, None)]")
        with self.arena.lock:
            self.runner.plan_for(spots)
        return self.plan

    def save_plan(self, path: str | Path | None = None) -> Path:
        """Write the plan as JSON, atomically."""
        check_kind(PlanError, "path", path, (str, os.PathLike), "pass the path of a file")
        target = Path(path) if path is not None else self.plan_path
        if target is None:
            raise PlanError("no path for the plan; pass one, or create the session with plan=path")
        self.plan.save(target)
        return target

    @plainly
    def save_programs(self, path: str | Path | None = None) -> Path:
        """Write the programs that were made, atomically; beside the plan if no path is given.

        Raises PlanError before the first plan.
        """
        with self.arena.lock:
            file = self._program_file(path)
            file.save(self.programs, self.costs.of_steps)
        return file.path

    @plainly
    def load_programs(self, path: str | Path | None = None) -> int:
        """Take over programs that were saved for the plan in force; returns how many.

        They are the user's own: of this machine, and signed with a key in the cache folder.

        Raises ProgramsError, and takes none, where a file is damaged, or was made by others or
        for another graph, plan, machine or release. PlanError before the first plan.
        """
        with self.arena.lock:
            return self.keeper.take(self._program_file(path).load(self.memory.bind))

    def _program_file(self, path: str | Path | None) -> ProgramFile:
        check_kind(PlanError, "path", path, (str, os.PathLike), "pass the path of a file")
        if path is None and self.plan_path is not None:
            path = self.plan_path.with_suffix(".programs")
        if path is None:
            raise PlanError("no path for programs; pass one, or make the session with plan=path")
        self.keeper.check_planned()
        self.keeper.follow_arena()
        right_for = facts(self.graph, self.plan.digest, self.rules, self.device)
        return ProgramFile(
            Path(path), right_for, Codec(self.memory.specialiser.lowerer), self.states
        )

    @plainly
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
            mode: "greedy", "search" (goes on from there, any time), "exact" (integer program).
            seconds: when to stop, timing of kernels included; 30 if neither this nor `steps` is
                given.
            budget: another budget for the arena.
            steps: windows after which to stop; with it alone the same seed gives the same plan.
            executor: runs chains of the search elsewhere: a process pool, a Dask client.
            workers: how many independent chains share what they find.
            stop: asked now and then; True ends the search.

        Raises:
            PlanError, TraceError: for an unknown mode, and a trace that is empty or of another
                graph. BudgetError: if nothing fits.
        """
        check_choice(PlanError, "mode", mode, MODES)
        check_number(PlanError, "seconds", seconds)
        check_number(PlanError, "steps", steps, whole=True)
        check_number(PlanError, "seed", seed, whole=True, optional=False)
        check_number(PlanError, "workers", workers, 1, whole=True)
        check_callable(PlanError, "stop", stop, "pass one that is asked, or None")
        check_executor(executor)
        effort = Effort(30.0 if seconds is None and steps is None else seconds, steps)
        with self.planning.budgeted(budget):
            began_s = time.perf_counter()
            self._learn()
            effort = effort.after(time.perf_counter() - began_s)
            with self.arena.lock:
                if self.retain == "all":
                    self.runner.plan_again()
                else:
                    self.runner.search(Search(mode, effort, seed, executor, workers, stop))
        if self.plan_path is not None:
            self.save_plan()
        return self.plan

    def _learn(self) -> None:
        """Time what counts in what happened, before a plan is weighed by it."""
        planner = self.planning.planner(self.scheduled)
        self.planning.calibrate(planner, self.runner.happened)

    @plainly
    def search(self, mode: Mode = "search", *, seed: int = 0, workers: int = 1) -> BackgroundSearch:
        """The search of `optimize` in a process of its own, not started yet.

        `with session.search() as search: search.start(seconds=60)`; then `poll`, `stop`, `resume`,
        `result`, and `session.adopt(search.result())`.

        Raises PlanError for an unknown mode, TraceError for an empty trace.
        """
        check_choice(PlanError, "mode", mode, MODES)
        check_number(PlanError, "seed", seed, whole=True, optional=False)
        check_number(PlanError, "workers", workers, 1, whole=True)
        start = self.plan if self.is_planned else None
        self._learn()
        return BackgroundSearch(
            self.planning.task(self.runner.happened, start), mode, seed, workers
        )

    @plainly
    def adopt(self, plan: Plan) -> None:
        """Put a plan for this graph in force; raises PlanError for one that does not fit."""
        if not isinstance(plan, Plan):
            raise PlanError(f"{shorten(plan)} is no plan; pass a Plan: `Plan.load` reads a file")
        with self.arena.lock:
            found = self.planning.checked(plan)
            self.planning.take_over(found)
            self.keeper.install(found)

    @plainly
    def prepare(self, seconds: float | None = None) -> int:
        """Make programs ahead of time for the planned classes, largest slices first.

        Each class is followed for a few runs from the present state, at its extreme positions.
        With no plan yet, one is made first: for the runs in the trace, or, without any, for one
        of everything and the smallest changes behind it. Nothing is executed. Stops after
        `seconds`, or at an interrupt; what is made is kept.

        Returns:
            How many programs were made.

        Raises:
            BudgetError, and TraceError for a trace of another graph, where it has to plan.
        """
        check_number(PlanError, "seconds", seconds)
        with self.arena.lock:
            self.keeper.follow_arena()
            return self.runner.prepare(seconds)

    @plainly
    def release(self) -> None:
        """Give the session's bytes back to the arena.

        Weights and classes stay; inputs, states and all that was computed are gone, so that the
        next run plans and computes as a first one does.
        """
        with self.arena.lock:
            self.keeper.release()
            if self.last is not None:
                self.since, self.runner.finished = "memory was given back", None

    # --- states ----------------------------------------------------------------------------------

    @plainly
    def state_value(self, name: str) -> Array:
        """A copy of what a state holds now; before the first run, what it begins with: 0, or the
        first value of an imported module's buffer.

        Raises InputError for an unknown name.
        """
        node, flag = self.reader.state(name), flag_of(self.graph, name)
        with self.arena.lock:
            if flag is not None and not self.keeper.state_value(flag):
                first = first_value(self.graph, name)
                if first is not None:
                    return first.copy()
            return self.keeper.state_value(node)

    @plainly
    def set_state(self, name: str, value: Any) -> None:
        """Let a state hold `value`, of its shape and dtype; the next run sees what changed.

        Raises InputError for an unknown name, and a value that the state cannot take.
        """
        node, flag = self.reader.state(name), flag_of(self.graph, name)
        array = self.reader.checked_state(node, value)
        with self.arena.lock:
            self.keeper.set_state(node, array)
            if flag is not None:
                self.keeper.set_state(flag, np.ones((), bool))

    @plainly
    def reset_states(self) -> None:
        """Let every state hold again what it begins with."""
        with self.arena.lock:
            for node in self.graph.states.values():
                self.keeper.set_state(node, np.zeros(node.shape, numpy_dtype(node.dtype)))

    @plainly
    def forget(self) -> None:
        """Drop everything that is remembered of earlier runs; the next one computes afresh."""
        with self.arena.lock:
            self.keeper.follow_arena()  # what the last run wrote stays
            self.keeper.forget()

    # --- running ---------------------------------------------------------------------------------

    @untraced
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
        asked: list[Request] = []
        try:
            with self.arena.lock:
                if is_plain():
                    return self._run(asked, inputs, want, changed, check, copy, keep)
                return apart(self._run, asked, inputs, want, changed, check, copy, keep)
        except BaseException:  # results that were not handed out came of no run
            with self.arena.lock:
                self.runner.abandon(asked)
            raise

    def _run(
        self,
        asked: list[Request],
        inputs: Any,
        want: Any,
        changed: Any,
        check: bool,
        copy: bool,
        keep: bool,
    ) -> dict[str, Any]:
        """`run`, where its caller has set nothing; what is asked for is added to `asked`."""
        self.keeper.follow_arena()
        began_ns = time.perf_counter_ns()
        self.pool.check_unchanged()
        if self.exactness is not None:
            self.exactness.check_threads()
        request = self.runner.request(inputs, want, changed, check, copy, keep)
        asked.append(request)
        return self.runner.run(request, began_ns)
