"""The public methods of sessions in any order, stopped and damaged now and then.

After each step a session's next run gives what PyTorch's eager mode, or the references, give of the
same inputs and states; its map lies within its budget; what it says of itself can be printed; and
nothing but typed errors comes of what is wrong.
"""

from __future__ import annotations

import copy
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from order_cases import TOLD, Array, Told, of_random
from strategies import graphs

import tgbench as tg
from tgbench.base.errors import BudgetError, PlanError, TgbenchError, WeightsError
from tgbench.base.regions import Region
from tgbench.session.session import GraphSession

PACKAGE = os.path.dirname(tg.__file__) + os.sep
SEEDS = st.integers(0, 40)
SHARES = st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0, 1.1, 1.5, 3.0])


class Refused(Exception):  # noqa: N818
    """Raised by a kernel."""


# --- stopping -------------------------------------------------------------------------------------


class Stop:
    """Raises in the package, at a line of the n-th function that is called."""

    def __init__(self, calls: int, lines: int, error: type[BaseException]) -> None:
        self.calls, self.lines, self.error, self.has_raised = calls, lines, error, False
        self.where = ""

    def _line(self, frame: FrameType, kind: str, argument: Any) -> Any:
        if self.has_raised:
            return None
        self.lines -= kind == "line"
        if self.lines < 0 or (kind == "return" and self.lines < 2):
            self.has_raised = True
            self.where = f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno}"
            raise self.error("injected")
        return self._line

    def _call(self, frame: FrameType, kind: str, argument: Any) -> Any:
        code = frame.f_code  # what is raised in a hash, C code drops or takes for a missing key
        if (
            self.has_raised
            or code.co_name == "__hash__"
            or not code.co_filename.startswith(PACKAGE)
        ):
            return None
        self.calls -= 1
        return self._line if self.calls < 0 else None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        hook, before = sys.unraisablehook, sys.gettrace()
        sys.unraisablehook = lambda unraisable: None
        sys.settrace(self._call)
        try:
            yield
        finally:
            sys.settrace(before)
            sys.unraisablehook = hook


STOPS = st.one_of(
    st.none(), st.none(),
    st.builds(
        Stop,
        st.one_of(st.integers(0, 200), st.integers(0, 2000), st.integers(0, 20_000)),
        st.integers(0, 6),
        st.sampled_from([KeyboardInterrupt, MemoryError]),
    ),
)  # fmt: skip


def array_of(value: Any) -> Array:
    """A copy in the byte order of this machine."""
    array = value.numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return array.astype(array.dtype.newbyteorder("="))


# --- a session and what it should hold ------------------------------------------------------------


class Beside:
    """A session, its inputs and states as they should be, and what stands around it."""

    def __init__(self, told: Told, session: GraphSession) -> None:
        self.told, self.session = told, session
        self.begin()

    def begin(self) -> None:
        """As a session is at first."""
        graph = self.told.graph
        self.held: dict[str, Array] = {}
        self.states = {n: np.zeros(s.shape, s.dtype) for n, s in graph.states.items()}
        self.placement: Any = None
        self.handed: list[tuple[Any, Array]] = []

    def compare(self, found: Mapping[str, Any], right: Mapping[str, Array], want: Any) -> None:
        wanted = dict.fromkeys(self.told.graph.outputs, ...) if want is None else want
        assert set(found) == set(wanted)
        for name, index in wanted.items():
            parts = index if isinstance(index, list) else [index]
            got = found[name] if isinstance(index, (list, Region)) else [found[name]]
            if isinstance(index, Region):
                parts = [box.slices() for box in index]
            for part, array in zip(parts, got, strict=True):
                assert np.array_equal(np.asarray(array), right[name][part]), (name, part)

    def run(self, inputs: Mapping[str, Any], want: Any = None, **options: Any) -> Any:
        """One that is compared; inputs as the session takes them."""
        found = self.session.run(inputs, want, **options)
        for array, copied in self.handed:
            assert np.array_equal(array, copied), "what was handed out has changed"
        self.handed = []
        now = {**self.held, **{n: self._array(n, value) for n, value in inputs.items()}}
        right = self.told.computed(now, self.states)
        if options.get("keep", True):
            self.held = now
            self.states = {n: right.get("=" + n, s) for n, s in self.states.items()}
        self.compare(found, right, want)
        if options.get("copy", True) or not options.get("keep", True):
            arrays = [
                a for part in found.values() for a in (part if isinstance(part, list) else [part])
            ]
            self.handed = [(array, array_of(array)) for array in arrays]
        return found

    def _array(self, name: str, value: Any) -> Array:
        return array_of(value).astype(self.told.graph.inputs[name].dtype)

    def assert_states(self) -> None:
        for name, value in self.states.items():
            assert np.array_equal(self.session.state_value(name), value), name


@st.composite
def indices(draw: Any, shape: tuple[int, ...]) -> Any:
    """A part of an array."""
    parts: list[Any] = []
    for size in shape:
        start = draw(st.integers(0, size - 1))
        stop = draw(st.integers(start + 1, size))
        parts.append(draw(st.sampled_from([slice(start, stop), start, slice(None), start - size])))
    return tuple(parts[: draw(st.integers(0, len(parts)))]) or ...


@st.composite
def wants(draw: Any, graph: tg.Graph) -> Any:
    names = list(graph.outputs)
    if draw(st.booleans()):
        return None
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    found = {}
    for name in chosen:
        part = indices(graph.outputs[name].shape)
        found[name] = draw(st.one_of(part, st.lists(part, min_size=1, max_size=2)))
    return found


FORMS = st.sampled_from(["array", "torch", "strided", "readonly", "list", "swapped"])


def as_given(array: Array, form: str) -> Any:
    """The same numbers as somebody may pass them."""
    if form == "torch":
        return torch.from_numpy(array.copy())
    if form == "strided" and array.ndim:
        return np.repeat(array, 2, axis=array.ndim - 1)[..., ::2]
    if form == "list":
        return array.tolist()
    if form == "swapped":
        return array.astype(array.dtype.newbyteorder())
    array = array.copy()
    array.setflags(write=form != "readonly")
    return array


class AnyOrder(RuleBasedStateMachine):
    """One session, sometimes two in one arena."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.path = Path(self.folder.name)
        self.one: Beside | None = None
        self.other: Beside | None = None
        self.options: dict[str, Any] = {}
        self.plans: list[tg.Plan] = []

    @initialize(data=st.data())
    def begin(self, data: Any) -> None:
        draw = data.draw
        name = draw(st.sampled_from([*TOLD, "random"]), label="graph")
        told = of_random(*draw(graphs(most_ops=6))) if name == "random" else TOLD[name]()
        event(f"graph {name}")
        self.least = self._least(told)
        options: dict[str, Any] = {"making": draw(st.sampled_from(["always", "measured"]))}
        if draw(st.integers(0, 3)) == 0:
            options["exact"] = "bitwise"
        if draw(st.integers(0, 4)) == 0:
            options["retain"] = "all"
        if draw(st.integers(0, 4)) == 0:
            options["program_bytes"] = 3000
        if draw(st.integers(0, 2)) == 0:
            options["plan"] = self.path / "own.json"
        if draw(st.integers(0, 3)) == 0:
            options["trace"] = self.path / "trace.jsonl"
        if draw(st.integers(0, 3)) == 0 and told.graph.inputs:
            options["buckets"] = dict.fromkeys(
                told.graph.inputs, draw(st.sampled_from(["pow2", "full"]))
            )
        if draw(st.integers(0, 4)) == 0 and "exact" not in options:
            options["weights_dtype"] = draw(st.sampled_from(["bf16", "fp16", "fp32"]))
        if draw(st.integers(0, 4)) == 0:
            options["packed_bytes"] = 0
        share = draw(st.sampled_from([None, None, 1.0, 1.0, 1.2, 2.0]), label="memory")
        memory = None if share is None else int(self.least * share)
        self.options = {"calibrate": False, **options}
        self.arena = None
        if draw(st.integers(0, 2)) == 0:
            limit = None if memory is None else memory * 3 + 4096
            self.arena = tg.Arena("cpu", limit)
            self.other = Beside(
                (second := TOLD[draw(st.sampled_from(list(TOLD)))]()),
                GraphSession(second.model, second.weights, arena=self.arena, calibrate=False),
            )
        note(f"{name} {self.options} memory={memory} arena={self.arena is not None}")
        self.one = Beside(told, self._session(told, memory))
        if draw(st.integers(0, 2)):
            self._run(data, self.one, None)

    def _least(self, told: Told) -> int:
        try:
            session = GraphSession(told.model, told.weights, memory=0, calibrate=False)
            session.run({name: told.numbers(name, 0) for name in told.graph.inputs})
        except BudgetError as error:
            return error.needed_bytes
        return 64

    def _session(self, told: Told, memory: int | None, **more: Any) -> GraphSession:
        options = {**self.options, **more}
        return GraphSession(told.model, told.weights, memory=memory, arena=self.arena, **options)

    # --- doing things -----------------------------------------------------------------------------

    def act(
        self,
        do: Callable[[], Any],
        stop: Stop | None,
        allowed: tuple[type[BaseException], ...] = (),
    ) -> tuple[bool, Any]:
        """Whether something came to its end, and what it gave; some errors may end it."""
        try:
            if stop is None:
                return True, do()
            with stop():
                found = do()
        except allowed as error:
            note(f"  {type(error).__name__}: {str(error)[:200]}")
            event(f"refused {type(error).__name__}")
            return False, error
        except (KeyboardInterrupt, MemoryError) as error:
            if stop is None or not stop.has_raised:
                raise
            note(f"  stopped at {stop.where}: {type(error).__name__}")
            return False, error
        except TgbenchError as error:
            if stop is None or not stop.has_raised or stop.error is KeyboardInterrupt:
                raise
            note(f"  stopped at {stop.where}: {type(error).__name__} {error}")
            return False, error
        if stop is not None and stop.has_raised:
            note(f"  survived at {stop.where}")
        return True, found

    def _edited(self, data: Any, one: Beside) -> dict[str, Array]:
        """Inputs of the next run: all of them where some are not held.

        What is drawn does not hang on what happened: when something is stopped is not always known.
        """
        draw, graph, told = data.draw, one.told.graph, one.told
        found = {}
        for name, node in graph.inputs.items():
            how = draw(
                st.sampled_from(["out", "same", "part", "part", "insert", "all"]), label=name
            )
            fresh, place = told.numbers(name, draw(SEEDS)), draw(indices(node.shape))
            at = draw(st.integers(0, max(node.shape[:1], default=1) - 1))
            if how == "all" or name not in one.held:
                found[name] = fresh
                continue
            if how == "out":
                continue
            value = found[name] = one.held[name].copy()
            if how == "part":
                value[place] = fresh[place]
            elif how == "insert" and value.ndim:
                found[name] = np.insert(value, at, fresh[at], 0)[: value.shape[0]]
        return found

    def _hints(self, data: Any, one: Beside, inputs: Mapping[str, Array]) -> Any:
        """True ones."""
        if not data.draw(st.booleans(), label="hinted"):
            return None
        found = {}
        for name, value in inputs.items():
            if name not in one.held:
                found[name] = ...
                continue
            places = np.argwhere(one.held[name] != value)
            if len(places):
                low, high = places.min(0), places.max(0) + 1
                found[name] = tuple(slice(int(a), int(z)) for a, z in zip(low, high, strict=True))
        return found

    def _run(self, data: Any, one: Beside, stop: Stop | None, keep: bool = True) -> None:
        draw = data.draw
        inputs = self._edited(data, one)
        hints = self._hints(data, one, inputs)
        want = draw(wants(one.told.graph), label="want")
        check, is_copy = draw(st.booleans(), label="check"), draw(st.booleans(), label="copy")
        forms = {name: draw(FORMS, label="as") for name in one.told.graph.inputs}
        given = {name: as_given(value, forms[name]) for name, value in inputs.items()}
        before = one.states
        done, found = self.act(
            lambda: one.run(given, want, changed=hints, check=check, copy=is_copy, keep=keep),
            stop, (BudgetError,),
        )  # fmt: skip
        if not done:
            one.states = before
            if isinstance(found, BudgetError) and (stop is None or not stop.has_raised):
                self._named_budget(one, found, given, want)
            one.assert_states()

    def _named_budget(self, one: Beside, error: BudgetError, given: Any, want: Any) -> None:
        """The budget that is named does."""
        session = one.session
        assert error.lower_bound_bytes <= error.needed_bytes
        if self.arena is not None and self.arena.limit_bytes is not None:
            session.release()
            one.begin()
            return
        assert session.budget_bytes is not None
        assert error.needed_bytes > session.budget_bytes
        session.budget_bytes = error.needed_bytes
        one.run(given, want)

    # --- rules ------------------------------------------------------------------------------------

    @rule(data=st.data(), stop=STOPS)
    def run(self, data: Any, stop: Stop | None) -> None:
        self._run(data, self.one, stop)

    @rule(data=st.data())
    def run_on(self, data: Any) -> None:
        self._run(data, self.one, None)

    @rule()
    def run_again(self) -> None:
        if len(self.one.held) == len(self.one.told.graph.inputs):
            self.act(lambda: self.one.run({}), None, (BudgetError,))

    @rule(data=st.data(), stop=STOPS)
    def what_if(self, data: Any, stop: Stop | None) -> None:
        self._run(data, self.one, stop, keep=False)

    @precondition(lambda self: self.other is not None)
    @rule(data=st.data(), stop=STOPS)
    def run_the_other(self, data: Any, stop: Stop | None) -> None:
        self._run(data, self.other, stop, keep=data.draw(st.booleans()))

    @precondition(lambda self: self.other is not None)
    @rule(stop=STOPS)
    def release_the_other(self, stop: Stop | None) -> None:
        done, _ = self.act(self.other.session.release, stop)
        if done or not self.other.session.standing.held:
            self.other.begin()

    @rule(data=st.data(), error=st.sampled_from([Refused, KeyboardInterrupt, MemoryError]))
    def a_call_fails(self, data: Any, error: type[BaseException]) -> None:
        one, session = self.one, self.one.session
        runner, raised = session.runner, []
        execute = runner.execute
        number, keep = data.draw(st.integers(0, 12)), data.draw(st.booleans())

        def fail() -> None:
            raised.append(error)
            raise error

        def executed(run: Any, turn: Any = None) -> Any:
            program = run.served.program
            kept, program.calls = program.calls, list(program.each)
            if program.calls:
                program.calls[number % len(program.calls)] = fail, ()
            try:
                return execute(run)
            finally:
                program.calls = kept

        inputs = self._edited(data, one)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "execute", executed)
            try:
                one.run(inputs, keep=keep)
            except (tg.KernelError, KeyboardInterrupt, MemoryError):
                assert raised
            except BudgetError:
                assert not raised or error is MemoryError
        one.assert_states()

    @rule(data=st.data())
    def a_kernel_fails(self, data: Any) -> None:
        one, session = self.one, self.one.session
        put_in = data.draw(st.sampled_from(["write", "update_states"]))
        error = data.draw(st.sampled_from([Refused, KeyboardInterrupt]))
        inputs = self._edited(data, one)
        if not session.is_planned or len(one.held) < len(one.told.graph.inputs):
            return
        memory = session.memory

        def fails(*arguments: Any) -> Any:
            getattr(type(memory), put_in)(memory, *arguments)
            raise error("refused")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, put_in, fails)
            try:
                session.run(inputs)
            except (tg.KernelError, KeyboardInterrupt, BudgetError):
                one.assert_states()
                return
        one.held.update(inputs)
        assert session.memory is not memory  # another plan came in between
        one.states = {n: session.state_value(n) for n in one.states}

    @rule(stop=STOPS)
    def forget(self, stop: Stop | None) -> None:
        self.act(self.one.session.forget, stop)

    @rule(stop=STOPS)
    def release(self, stop: Stop | None) -> None:
        done, _ = self.act(self.one.session.release, stop)
        if done or not self.one.session.standing.held:
            self.one.begin()

    @rule(
        mode=st.sampled_from(["greedy", "search", "search", "exact"]), share=st.none() | SHARES,
        steps=st.integers(0, 4), seed=st.integers(0, 3), stop=STOPS,
    )  # fmt: skip
    def optimize(
        self, mode: Any, share: float | None, steps: int, seed: int, stop: Stop | None
    ) -> None:
        session = self.one.session
        budget = None if share is None else int(share * self.least)
        before = session.budget_bytes
        allowed: tuple[type[BaseException], ...] = (BudgetError,)
        if not len(session.trace):
            allowed = (BudgetError, tg.TraceError)
        done, _ = self.act(
            lambda: session.optimize(mode, budget=budget, steps=steps, seed=seed), stop, allowed
        )
        if not done:
            assert session.budget_bytes == before or stop is not None
        self.one.assert_states()

    @rule(seconds=st.sampled_from([0.0, 0.001]), stop=STOPS)
    def optimize_for_a_while(self, seconds: float, stop: Stop | None) -> None:
        self.act(
            lambda: self.one.session.optimize(seconds=seconds), stop, (BudgetError, tg.TraceError)
        )

    @rule(share=st.none() | SHARES)
    def change_memory(self, share: float | None) -> None:
        self.one.session.budget_bytes = None if share is None else int(share * self.least)

    @rule(workers=st.integers(1, 2), stops=st.booleans())
    def optimize_by_workers(self, workers: int, stops: bool) -> None:
        session = self.one.session
        with ThreadPoolExecutor(2) as executor:
            self.act(
                lambda: session.optimize(
                    steps=2, workers=workers, executor=executor,
                    stop=(lambda: True) if stops else None,
                ),
                None, (BudgetError, tg.TraceError) if not len(session.trace) else (BudgetError,),
            )  # fmt: skip

    @rule()
    def explore(self) -> None:
        session = self.one.session
        if session.is_planned:
            self.act(session.explore, None, (PlanError, tg.TraceError))
            self.act(session.timeline, None)

    @rule(retain=st.sampled_from(["auto", "all"]))
    def change_retain(self, retain: Any) -> None:
        self.one.session.retain = retain

    @rule(seconds=st.sampled_from([None, 0.0, 0.01]), stop=STOPS)
    def prepare(self, seconds: float | None, stop: Stop | None) -> None:
        done, made = self.act(lambda: self.one.session.prepare(seconds), stop, (BudgetError,))
        assert not done or made >= 0

    @rule(data=st.data(), stop=STOPS)
    def plan_for(self, data: Any, stop: Stop | None) -> None:
        graph = self.one.told.graph
        runs = []
        for _ in range(data.draw(st.integers(0, 3))):
            names = (
                data.draw(st.lists(st.sampled_from(sorted(graph.inputs)), unique=True, max_size=2))
                if graph.inputs
                else []
            )
            changed = {name: data.draw(indices(graph.inputs[name].shape)) for name in names}
            runs.append((changed, data.draw(wants(graph))))
        note(f"  {runs}")
        self.act(
            lambda: self.one.session.plan_for(runs),
            stop,
            (BudgetError, PlanError) if not runs else (BudgetError,),
        )

    @rule(stop=STOPS, programs=st.booleans(), damage=st.none() | st.integers(0, 10**6))
    def reopen(self, stop: Stop | None, programs: bool, damage: int | None) -> None:
        """Another session by a saved plan; a damaged one is refused, or right."""
        one = self.one
        if not one.session.is_planned:
            return
        plan_path, program_path = self.path / "plan.json", self.path / "saved.programs"
        plan_path.unlink(missing_ok=True)
        done, _ = self.act(lambda: one.session.save_plan(plan_path), stop)
        if not done and not plan_path.exists():
            return
        if not done:
            tg.Plan.load(plan_path)
            return
        if programs:
            done, _ = self.act(lambda: one.session.save_programs(program_path), stop)
            if not done:
                return
        if damage is not None:
            damaged = program_path if programs and damage % 2 else plan_path
            text = bytearray(damaged.read_bytes())
            text[damage % len(text)] ^= 1 << damage % 7
            damaged.write_bytes(text if damage % 3 else text[: damage % len(text)])
        if self.arena is not None:
            one.session.release()
        memory = one.session.budget_bytes
        try:
            session = self._session(one.told, memory, plan=plan_path)
        except TgbenchError as error:
            note(f"  {type(error).__name__}: {error}")
            size = one.session.placement.size_bytes if one.session.is_planned else 0
            assert damage is not None or self.arena is not None or (memory or 0) < size
            session = self._session(one.told, memory)
        if programs and session.is_planned:
            try:
                session.load_programs(program_path)
            except TgbenchError:
                assert damage is not None
        one.session = session
        one.begin()

    @rule()
    def keep_plan(self) -> None:
        if self.one.session.is_planned:
            self.plans.append(self.one.session.plan)

    @rule(number=st.integers(0, 5), stop=STOPS)
    def adopt(self, number: int, stop: Stop | None) -> None:
        if self.plans:
            plan = self.plans[number % len(self.plans)]
            self.act(lambda: self.one.session.adopt(plan), stop, (PlanError,))

    @rule(
        kind=st.sampled_from(["retained", "dropped", "moved"]), number=st.integers(0, 30),
        offset=st.integers(0, 9), stop=STOPS,
    )  # fmt: skip
    def change_plan_by_hand(self, kind: str, number: int, offset: int, stop: Stop | None) -> None:
        session = self.one.session
        if not session.is_planned or not len(session.trace):
            return
        name = session.graph.nodes[number % len(session.graph.nodes)].name
        arguments = (name, 64 * offset) if kind == "moved" else (name,)

        def change() -> None:
            changed = getattr(tg.WhatIf.of(session), kind)(*arguments)
            assert str(changed.verdict())
            session.adopt(changed.plan)

        self.act(change, stop, (PlanError,))

    # --- states -----------------------------------------------------------------------------------

    @rule(data=st.data(), stop=STOPS)
    def set_state(self, data: Any, stop: Stop | None) -> None:
        one = self.one
        if not one.states:
            return
        name = data.draw(st.sampled_from(sorted(one.states)))
        value = one.told.numbers(name, data.draw(SEEDS))
        if name not in one.session.graph.states:
            return
        done, _ = self.act(lambda: one.session.set_state(name, value), stop)
        self._settled(one, done, {name: value})

    @rule(stop=STOPS)
    def reset_states(self, stop: Stop | None) -> None:
        one = self.one
        done, _ = self.act(one.session.reset_states, stop)
        self._settled(one, done, {n: np.zeros_like(v) for n, v in one.states.items()})

    def _settled(self, one: Beside, done: bool, later: Mapping[str, Array]) -> None:
        """Each is what it was, or what it was set to; that, if it came to an end."""
        for name, value in later.items():
            found = one.session.state_value(name)
            if done or not np.array_equal(found, one.states[name]):
                assert np.array_equal(found, value), name
                one.states[name] = value

    # --- paths ------------------------------------------------------------------------------------

    @rule(number=st.integers(0, 4), stop=STOPS)
    def take(self, number: int, stop: Stop | None) -> None:
        session = self.one.session

        def taken() -> None:
            path = session.paths()[number]
            if self.options.get("exact") is None:
                assert str(path)
            session.take(path.chosen())

        self.act(taken, stop, (PlanError, BudgetError))
        self.one.assert_states()

    @rule(stop=STOPS)
    def take_the_given(self, stop: Stop | None) -> None:
        self.act(lambda: self.one.session.take(None), stop)

    @rule(rounds=st.integers(0, 1), share=st.none() | SHARES, stop=STOPS)
    def optimize_paths(self, rounds: int, share: float | None, stop: Stop | None) -> None:
        session = self.one.session
        budget = None if share is None else int(share * self.least)
        allowed = (BudgetError, tg.TraceError) if not len(session.trace) else (BudgetError,)
        done, found = self.act(
            lambda: session.paths().optimize(
                "greedy", 0.3, budget, steps=1, rounds=rounds, count=2
            ),
            stop, allowed,
        )  # fmt: skip
        assert not done or str(found)
        self.one.assert_states()

    @rule(stop=STOPS)
    def look_at_paths(self, stop: Stop | None) -> None:
        session = self.one.session

        def look() -> None:
            paths = session.paths()
            assert str(paths)
            first, given = paths[0], paths.given
            assert paths.fastest().time_ns <= given.time_ns * 1.01
            assert len(paths.race([first, given], 1)) == 2
            opened = paths.open(first)
            inputs = {n: self.one.told.numbers(n, 3) for n in self.one.told.graph.inputs}
            Beside(self.one.told, opened).run(inputs)
            records = tg.Records(self.path / "records.db")
            assert str(paths.sweep(records, 1, 0.02))
            assert str(tg.profile(session, records, 0.02)) if session.is_planned else True
            paths.to_frame(3)
            paths.frontier(2)

        self.act(look, stop, (BudgetError,))
        self.one.assert_states()

    # --- weights ----------------------------------------------------------------------------------

    @precondition(lambda self: self.one is not None and self.one.told.module is not None)
    @rule(seed=SEEDS)
    def write_into_weights(self, seed: int) -> None:
        """A session of shared weights refuses to go on; another import knows the new ones."""
        one = self.one
        weight = next(iter(one.told.module.parameters()))
        with torch.no_grad():
            weight.copy_(torch.from_numpy(np.roll(weight.detach().numpy(), 1)))
        with pytest.raises(WeightsError):
            one.session.run({n: one.told.numbers(n, seed) for n in one.told.graph.inputs})
        memory = one.session.budget_bytes
        assert str(one.session.plan) if one.session.is_planned else True
        one.session.release()
        module = one.told.module
        imported = tg.from_torch(module, (torch.zeros(4, 5),), share=True)
        told = Told(imported, None, one.told.right, module=module)
        self.options.pop("plan", None)
        self.one = Beside(told, self._session(told, memory))

    # --- what is wrong ----------------------------------------------------------------------------

    @rule(number=st.integers(0, 200))
    def wrong(self, number: int) -> None:
        one, session = self.one, self.one.session
        budget, calls = session.budget_bytes, list(wrong_calls(one).items())
        what, do = calls[number % len(calls)]
        note(f"  {what}")
        with pytest.raises(TgbenchError) as caught:
            do()
        assert str(caught.value)
        one.assert_states()
        assert session.budget_bytes == budget

    @rule()
    def a_failure_within_a_budget(self) -> None:
        session = self.one.session
        before = session.budget_bytes
        with pytest.raises(Refused), session.intact(), session.budgeted(self.least):
            raise Refused
        assert session.budget_bytes == before

    # --- after every step -------------------------------------------------------------------------

    @invariant()
    def within_memory(self) -> None:
        for one in (self.one, self.other):
            if one is None or not one.session.is_planned:
                continue
            session = one.session
            if one.placement is not session.placement:
                one.placement = session.placement
                limit = session.budget_bytes
                size = session.placement.size_bytes
                assert limit is None or size <= limit, (size, limit)
        if self.arena is not None and self.arena.limit_bytes is not None:
            assert self.arena.used_bytes <= self.arena.limit_bytes

    @invariant()
    def can_be_printed(self) -> None:
        if self.one is None:
            return
        session = self.one.session
        assert repr(session)
        assert session.estimate_memory()
        assert all(size >= 0 for size in session.remembered.values())
        assert str(session.trace)
        if session.last is not None:
            assert str(session.last)
            assert str(session.report())
            assert isinstance(str(session.last.program), str)
            assert session.last.compute is not None
        assert session._repr_mimebundle_()["text/html"]
        if session.trying is not None:
            assert str(session.trying)
        if session.is_planned:
            plan = session.plan
            assert str(plan)
            assert str(session.placement)
            assert tg.Plan.from_json(plan.to_json()) == plan
            assert str(plan.explain(session.graph.nodes[-1].name, graph=session.graph))
            for other in self.plans[-1:]:
                assert str(plan.diff(other))
        if self.arena is not None:
            assert str(self.arena)

    def teardown(self) -> None:
        """A run of each at the end."""
        try:
            for one in (self.one, self.other):
                if one is not None:
                    one.session.budget_bytes = None
                    inputs = {n: one.told.numbers(n, 41) for n in one.told.graph.inputs}
                    self.act(lambda: one.run(inputs), None, (BudgetError,) if self.arena else ())  # noqa: B023
                    one.assert_states()
            if "trace" in self.options and self.one is not None:
                self.one.session.trace.close()
                assert len(tg.Trace.load(self.options["trace"])) >= 0
        finally:
            self.folder.cleanup()


def wrong_calls(one: Beside) -> dict[str, Callable[[], Any]]:
    """Calls that are refused, by what is wrong with them."""
    session, graph = one.session, one.told.graph
    output = next(iter(graph.outputs))
    most = graph.outputs[output].shape[0] + 3 if graph.outputs[output].shape else 3
    given = {name: one.told.numbers(name, 1) for name in graph.inputs}
    found: dict[str, Callable[[], Any]] = {
        "an unknown input": lambda: session.run({**given, "nothing": 1.0}),
        "an unknown output": lambda: session.run(given, {"nothing": ...}),
        "outside": lambda: session.run(given, {output: np.s_[most]}),
        "a hint of nothing": lambda: session.run(given, changed={"nothing": ...}),
        "want of no kind": lambda: session.run(given, 3.5 if len(graph.outputs) > 1 else "y"),
        "a mode": lambda: session.optimize("best"),
        "seconds": lambda: session.optimize(seconds=-1),
        "nan": lambda: session.optimize(seconds=float("nan")),
        "steps": lambda: session.optimize(steps=1.5),
        "a budget": lambda: session.optimize(budget="much"),
        "a negative budget": lambda: session.optimize(budget=-5),
        "seed": lambda: session.optimize(seed="a"),
        "workers": lambda: session.optimize(workers=0),
        "stop": lambda: session.optimize(stop=3),
        "search": lambda: session.search("best"),
        "plan": lambda: session.adopt("plan"),
        "runs": lambda: session.plan_for([1, 2]),
        "no runs": lambda: session.plan_for(3),
        "runs of nothing": lambda: session.plan_for([({"nothing": ...}, None)]),
        "prepare": lambda: session.prepare(-1),
        "take": lambda: session.take("path"),
        "paths tolerance": lambda: session.paths(tolerance=-1),
        "paths within": lambda: session.paths(within=0),
        "paths samples": lambda: session.paths(samples=[{"nothing": 1}]),
        "path number": lambda: session.paths()[-1],
        "path far": lambda: session.paths()[10**6],
        "path take": lambda: session.paths().take("path"),
        "race": lambda: session.paths().race("path"),
        "rounds": lambda: session.paths().race([], rounds=0),
        "sweep": lambda: session.paths().sweep("records"),
        "state": lambda: session.state_value("nothing"),
        "set state": lambda: session.set_state("nothing", 0),
        "save plan": lambda: session.save_plan(3),
        "save programs": lambda: session.save_programs(3),
        "save plan nowhere": lambda: session.save_plan("/proc/nowhere/plan.json"),
        "load programs": lambda: session.load_programs("/nowhere/at.programs"),
        "copy": lambda: copy.copy(session),
        "deepcopy": lambda: copy.deepcopy(session),
        "a what-if": lambda: tg.WhatIf.of(session).dropped("nothing"),
        "budgeted": lambda: session.budgeted("much").__enter__(),
        "check": lambda: tg.check(session, [("a", "b")]),
        "no session": lambda: GraphSession("graph"),
    }
    for name, value in given.items():
        found |= {
            f"shape of {name}": lambda n=name, v=value: session.run({**given, n: v[None]}),
            f"text as {name}": lambda n=name: session.run({**given, n: "text"}),
            f"None as {name}": lambda n=name: session.run({**given, n: None}),
            f"hint of {name}": lambda n=name: session.run(given, changed={n: np.s_[99]}),
        }
        if name not in session.graph.inputs:
            continue
        if value.dtype == "float32":
            found[f"nan in {name}"] = lambda n=name, v=value: session.run({**given, n: v * np.nan})
        else:
            found[f"range of {name}"] = lambda n=name, v=value: session.run({**given, n: v + 99})
    for name, value in one.states.items():
        found[f"shape of {name}"] = lambda n=name, v=value: session.set_state(n, v[None])
    return found


AnyOrder.TestCase.settings = settings(
    max_examples=max(settings().max_examples, 1),
    stateful_step_count=12,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)
TestAnyOrder = AnyOrder.TestCase
