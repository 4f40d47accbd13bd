"""A case against a session: every run beside the evaluator; what goes wrong is a `Failure`.

Options of a case, beside those of `GraphSession`
    memory    None, bytes, or of what the first run needs: "exact", "little" more, "ample"
    serve     runs are served by any program that may, picked with this seed
    kernels   calls are given any kernels that take them, picked with this seed
    poison    fill every byte that holds nothing valid with garbage before each run
    torch     inputs are torch tensors

A session is what the documentation says: inputs left out keep their value, runs that are not kept
leave everything as it was, results are the caller's, states go on after each run. What may be
refused: a run that does not fit the budget; then the budget that the error names has to do.
"""

from __future__ import annotations

import tempfile
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from session_cases import PoisonedSession

import tgbench as tg
from fuzz import fills
from fuzz.bounded import FLOATS, INF, TORCH, Bounded, exact
from fuzz.case import (
    Array,
    Json,
    build,
    evaluate,
    first_value,
    fixed_values,
    leaves,
    updated_states,
)
from fuzz.choosing import serve_any
from fuzz.table import basic_index
from fuzz.trying import try_any
from tgbench.base.errors import BudgetError, GraphError, PlanError, TgbenchError
from tgbench.session.session import GraphSession
from tgbench.session.what_if import WhatIf

LITTLE_MORE, MUCH_MORE = 1.15, 4
MOST_REFUSALS = 2  # runs over budget are refused after a long search: a case ends with the next


@dataclass(frozen=True)
class Failure:
    """What went wrong.

    Fields:
        kind: "wrong", "raised" (no error of ours), or "refused" (a typed error out of place).
        what: the place, or the error: failures of one kind and place are taken for one.
        step: the number of the step.
        message: all that is known.
    """

    kind: str
    what: str
    step: int
    message: str

    def is_like(self, other: Failure | None) -> bool:
        return other is not None and (self.kind, self.what) == (other.kind, other.what)


class Failed(Exception):  # noqa: N818
    """Carries a kind and what out of a step."""

    def __init__(self, kind: str, what: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.what = kind, what


class Ended(Exception):  # noqa: N818
    """The case cannot go on: numbers left the range that anything is promised of."""


@dataclass
class Tally:
    """What replays did.

    Fields:
        events: runs, refusals by kind, options and steps, counted.
        ops: runs of graphs that hold an op of the engine's table, counted.
        entries: cases that hold an entry of the fuzzer's table, counted.
        elements: compared: "exact", "bounded", or left out as "unsure".
    """

    events: Counter[str] = field(default_factory=Counter)
    ops: Counter[str] = field(default_factory=Counter)
    entries: Counter[str] = field(default_factory=Counter)
    elements: Counter[str] = field(default_factory=Counter)


def replay(case: Json, tally: Tally | None = None) -> Failure | None:
    """Run a case from its first step to its last; what went wrong, or None."""
    tally = tally if tally is not None else Tally()
    step = -1
    with torch.inference_mode(False), torch.no_grad():
        try:
            found = _Replay(case, tally)
            for do in case["steps"]:
                step += 1
                found.step(do)
        except Ended:
            tally.events["ended early"] += 1
        except Failed as failed:
            return Failure(failed.kind, failed.what, step, str(failed))
        except Exception as error:
            return _unforeseen(error, step)
    return None


def _unforeseen(error: Exception, step: int) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f"{Path(f.filename).name}:{f.name}" for f in frames if "/tgbench/" in f.filename]
    kind = "refused" if isinstance(error, TgbenchError) else "raised"
    place = f"{type(error).__name__} in {ours[-1] if ours else 'the fuzzer'}"
    return Failure(kind, place, step, "".join(traceback.format_exception(error)[-12:]))


class _Replay:
    """One session, and what it should hold."""

    def __init__(self, case: Json, tally: Tally) -> None:
        self.case, self.tally = case, tally
        self.options: Json = dict(case["options"])
        try:
            self.graph = build(case)
        except GraphError as error:
            tally.events[f"refused GraphError {str(error)[:40]}"] += 1
            raise Ended from None
        self.inputs = leaves(case, "input")
        self.states = leaves(case, "state")
        self.weights = {n: first_value(leaf) for n, leaf in leaves(case, "parameter").items()}
        self.fixed = fixed_values(case)
        self.now = {name: first_value(leaf) for name, leaf in self.inputs.items()}
        self.handed: list[tuple[Any, Any]] = []  # results of the run before, and copies of them
        self.refusals = 0
        self.kind = "numpy"  # of the results of the run at hand
        self.budget = self._budget()
        self.session = self._session(self.budget)
        self._forget_values()
        self._count_options()

    # --- sessions --------------------------------------------------------------------------------

    def _session(self, memory: int | None, **others: Any) -> GraphSession:
        options = {
            key: self.options[key]
            for key in ("retain", "buckets", "packed_bytes", "exact", "making")
            if key in self.options
        }
        made = PoisonedSession if self.options.get("poison") else GraphSession
        weights = {n: w for n, w in self.weights.items() if n in self.graph.parameters}
        session = made(self.graph, weights, memory=memory, calibrate=False, **options, **others)
        if self.options.get("serve") is not None:
            serve_any(session, self.options["serve"])
        if self.options.get("kernels") is not None:
            try_any(session, self.options["kernels"])
        return session

    def _budget(self) -> int | None:
        """Bytes: those that the error names when there are none, or more."""
        memory = self.options.get("memory")
        if not isinstance(memory, str):
            return memory
        first = next((step for step in self.case["steps"] if step["do"] == "run"), None)
        if first is None:
            return None
        for edit in first["edits"]:
            self._edited(self.now, self.inputs, edit)
        try:
            self._session(0).run(self._given(self.now), self._want(first))
        except BudgetError as error:
            factor = {"exact": 1, "little": LITTLE_MORE, "ample": MUCH_MORE}[memory]
            return int(error.needed_bytes * factor)
        return 0

    def _forget_values(self) -> None:
        """As a session is at first: no input held, states at 0."""
        self.held: dict[str, Array] = {}
        self.state = {
            name: exact(torch.tensor(first_value(leaf) * 0), leaf["dtype"])
            for name, leaf in self.states.items()
        }

    # --- steps -----------------------------------------------------------------------------------

    def step(self, do: Json) -> None:
        getattr(self, f"_{do['do']}")(do)
        self.tally.events[do["do"]] += 1

    def _forget(self, do: Json) -> None:
        self.session.forget()

    def _release(self, do: Json) -> None:
        self.session.release()
        self._forget_values()

    def _reload(self, do: Json) -> None:
        """Save plan and programs, and go on in a new session that reads them."""
        if not self.session.is_planned:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = self.session.save_plan(Path(folder) / "plan.json")
            programs = self.session.save_programs(Path(folder) / "programs")
            self.session = self._session(self.budget, plan=tg.Plan.load(path))
            self.session.load_programs(programs)
        self._forget_values()

    def _optimize(self, do: Json) -> None:
        self.session.optimize(do["mode"], steps=do["steps"])

    def _prepare(self, do: Json) -> None:
        try:
            self.session.prepare(0.05)
        except BudgetError:
            self._require_budget()

    def _plan_for(self, do: Json) -> None:
        names = [name for name in self.inputs if name in self.graph.inputs][:1]
        try:
            self.session.plan_for([(dict.fromkeys(names, ...), self._want(do))])
        except BudgetError:
            self._require_budget()

    def _divide(self, do: Json) -> None:
        """Keep a view by hand, on bytes of its own, if there is room for it."""
        views = views_of(self.session) if self.session.is_planned else []
        if not views:
            return
        try:
            what = WhatIf.of(self.session).retained(views[int(do["view"] * len(views))])
        except PlanError:  # no planned run looks at it
            return
        verdict = what.verdict()
        if verdict.clashes:
            raise Failed("wrong", "map", str(verdict))
        if verdict.is_valid:
            self.session.adopt(what.plan)
            self.tally.events["divided"] += 1

    def _reset_states(self, do: Json) -> None:
        self.session.reset_states()
        self.state |= {name: self._zeros(name) for name in self.session.graph.states}

    def _zeros(self, name: str) -> Bounded:
        leaf = self.states[name]
        return exact(torch.zeros(leaf["shape"]), leaf["dtype"])

    def _set_state(self, do: Json) -> None:
        name = do["edit"]["name"]
        if name not in self.session.graph.states:
            return
        value = {name: self._read_state(name)}
        self._edited(value, self.states, do["edit"])
        self.session.set_state(name, value[name])
        self.state[name] = exact(torch.tensor(value[name]), self.states[name]["dtype"])

    def _run(self, do: Json) -> None:
        for edit in do["edits"]:
            self._edited(self.now, self.inputs, edit)
        given = self._given(self.now, do)
        expected = self._expected(given)
        want = self._want(do)
        keep, copy = do.get("keep", True), do.get("copy", True)
        hints, before = self._hints(do, given), self._state_values()
        self.kind = "torch" if given and self.options.get("torch") else "numpy"
        try:
            results = self.session.run(
                {name: self._array(name, value) for name, value in given.items()},
                want, changed=hints, check=do.get("check", False), copy=copy, keep=keep,
            )  # fmt: skip
        except BudgetError as error:
            self._require_named_budget(error, want, given, before, expected)
            return
        self._count_run(do)
        self.tally.events["run by a moved program"] += self.session.last.moved
        self._require_place()
        self._require_equal(results, want, expected)
        self._require_untouched()
        if copy or not keep:
            self.handed = [(a, _copied(a)) for a in _arrays(results)]
        if self.options.get("exact") == "bitwise":
            self._require_bits(results, want, given, before)
        if keep:
            self.held |= {name: array.copy() for name, array in given.items()}
            self._advance(expected)

    def _require_place(self) -> None:
        """A program runs where it is right, and nowhere else."""
        program = self.session.last.program
        if not program.domain.holds(program.origin or ()):
            message = f"{self.session.last.kind} at {program.origin}"
            raise Failed("wrong", "a program runs where it is not right", message)

    # --- what goes in ----------------------------------------------------------------------------

    def _edited(self, values: dict[str, Array], kinds: Mapping[str, Json], edit: Json) -> None:
        name = edit["name"]
        leaf = kinds[name]
        place = tuple(slice(a, z) for a, z in edit["box"])
        shape = [z - a for a, z in edit["box"]]
        values[name] = values[name].copy()
        values[name][place] = fills.values(leaf["fill"], shape, leaf["dtype"], edit["seed"])

    def _given(self, values: Mapping[str, Array], do: Json | None = None) -> dict[str, Array]:
        """What is passed: what the graph takes; of what it holds already, what was edited."""
        names = [name for name in values if name in self.graph.inputs]
        if do is not None and do.get("only_edited"):
            edited = {edit["name"] for edit in do["edits"]}
            names = [name for name in names if name in edited or name not in self.held]
        return {name: values[name] for name in names}

    def _array(self, name: str, array: Array) -> Any:
        if not self.options.get("torch"):
            return array
        return torch.from_numpy(array.copy()).to(TORCH[self.inputs[name]["dtype"]])

    def _want(self, do: Json) -> dict[str, Any] | None:
        if do.get("want") is None:
            return None
        return {name: _index(wish) for name, wish in do["want"].items()}

    def _hints(self, do: Json, given: Mapping[str, Array]) -> dict[str, Any] | None:
        if "changed" not in do:
            return None
        hints = {name: _hint(self.held.get(name), a, do["changed"]) for name, a in given.items()}
        return {name: hint for name, hint in hints.items() if hint is not None}

    # --- what comes out --------------------------------------------------------------------------

    def _expected(self, given: Mapping[str, Array]) -> list[Bounded]:
        inputs = {**self.held, **given}
        values = {n: exact(torch.tensor(a), self.inputs[n]["dtype"]) for n, a in inputs.items()}
        for name in self.inputs:
            values.setdefault(name, exact(torch.tensor(self.now[name]), self.inputs[name]["dtype"]))
        return evaluate(self.case, {**self.fixed, **values, **self.state})

    def _require_equal(self, results: Any, want: Any, expected: list[Bounded]) -> None:
        wanted = dict.fromkeys(self.case["outputs"], ...) if want is None else want
        if set(results) != set(wanted):
            raise Failed("wrong", "names", f"asked for {list(wanted)}, got {list(results)}")
        for name, index in wanted.items():
            right = expected[self.case["outputs"][name]]
            parts = index if isinstance(index, list) else [index]
            found = results[name] if isinstance(index, list) else [results[name]]
            for part, array in zip(parts, found, strict=True):
                self._require_close(f"{name}[{part}]", array, right, part)

    def _require_close(self, where: str, array: Any, right: Bounded, part: Any) -> None:
        dtype = str(array.dtype).removeprefix("torch.")
        wanted = right.dtype if self.kind == "torch" else fills.numpy_dtype(right.dtype)
        value, error = right.value[part], right.error[part]
        if dtype != wanted or tuple(array.shape) != tuple(value.shape):
            raise Failed(
                "wrong", f"{self.kind} type", f"{where} is {dtype}{tuple(array.shape)}, "
                f"should be {wanted}{tuple(value.shape)}",
            )  # fmt: skip
        found = torch.as_tensor(_copied(array)).to(value.dtype)
        self._require_within(where, found, value, error)

    def _require_within(self, where: str, found: Any, value: Any, error: Any) -> None:
        off = (found != value) if value.dtype == torch.bool else (found - value).abs() > error
        off = (off | ((found != found) & (value == value))) & (found != value) & (error < INF)
        self.tally.elements["unsure"] += int((error == INF).sum())
        self.tally.elements["exact"] += int((error == 0).sum())
        self.tally.elements["bounded"] += int(((error > 0) & (error < INF)).sum())
        if bool(off.any()):
            raise Failed(
                "wrong", "value", f"{where} is\n{found}\nand should be\n{value}\nwithin\n{error}"
            )

    def _require_untouched(self) -> None:
        """Results of earlier runs are the caller's."""
        for array, copy in self.handed:
            if not _same_bits(array, copy):
                raise Failed("wrong", "handed out", f"a result of an earlier run became\n{array}")
        self.handed = []

    def _require_bits(
        self, results: Any, want: Any, given: Mapping[str, Array], states: Mapping[str, Array]
    ) -> None:
        """Bit for bit what a new session gives that runs everything."""
        full = self._afresh(None, None, given, states)
        for name, index in (
            (name, ...) if want is None else (name, want[name]) for name in results
        ):
            parts = index if isinstance(index, list) else [index]
            found = results[name] if isinstance(index, list) else [results[name]]
            for part, array in zip(parts, found, strict=True):
                if not _same_bits(array, full[name][part]):
                    raise Failed(
                        "wrong", "bits", f"{name}[{part}] is\n{array}\n"
                        f"and from nothing\n{full[name][part]}",
                    )  # fmt: skip

    def _afresh(
        self, memory: int | None, want: Any, given: Mapping[str, Array],
        states: Mapping[str, Array],
    ) -> dict[str, Any]:  # fmt: skip
        """The same run in a new session; it takes no state that overflowed in a run."""
        if not all(np.isfinite(value).all() for value in states.values()):
            raise Ended
        self.kind = "torch" if self.options.get("torch") else "numpy"
        fresh = self._session(memory)
        for name, value in states.items():
            fresh.set_state(name, value)
        inputs = {n: self._array(n, a) for n, a in {**self.held, **given}.items()}
        return fresh.run(inputs, want)

    def _state_values(self) -> dict[str, Array]:
        """What the session's states hold, where somebody will ask."""
        if not self.options.get("exact") and self.budget is None:
            return {}
        return {name: self.session.state_value(name) for name in self.session.graph.states}

    # --- budgets ---------------------------------------------------------------------------------

    def _require_budget(self) -> None:
        if self.budget is None:
            raise Failed("refused", "BudgetError without a budget", traceback.format_exc())
        self.tally.events["refused BudgetError"] += 1

    def _require_named_budget(
        self, error: BudgetError, want: Any, given: Mapping[str, Array],
        states: Mapping[str, Array], expected: list[Bounded],
    ) -> None:  # fmt: skip
        """A run may not fit; from nothing it has to in the bytes that are named for that.

        A run after others may do with less than one from nothing, so the first error may name
        fewer bytes than a new session needs; what that one names has to do.
        """
        self._require_budget()
        self.refusals += 1
        if self.refusals > MOST_REFUSALS:
            raise Ended
        try:
            results = self._afresh(error.needed_bytes, want, given, states)
        except BudgetError as more:
            self.tally.events["named too little for a run from nothing"] += 1
            try:
                results = self._afresh(more.needed_bytes, want, given, states)
            except BudgetError as again:
                what = "BudgetError at the budget it named"
                raise Failed("refused", what, str(again)) from None
        self._require_equal(results, want, expected)

    # --- states ----------------------------------------------------------------------------------

    def _advance(self, expected: list[Bounded]) -> None:
        after = updated_states(self.case, expected)
        for name, value in after.items():
            self.state[name] = value
            if not value.is_exact:
                self._read_state(name)

    def _read_state(self, name: str) -> Array:
        """What a state holds, after a comparison; from here on that is its exact value."""
        array = self.session.state_value(name)
        found, right = torch.tensor(array), self.state[name]
        self._require_within(f"state {name}", found.to(right.value.dtype), right.value, right.error)
        if right.dtype in FLOATS and not bool(found.isfinite().all()):
            raise Ended
        self.state[name] = exact(found, right.dtype)
        return array

    def _count_run(self, do: Json) -> None:
        self.tally.ops.update({node.op for node in self.graph.nodes})
        self.tally.events.update(
            f"run {key}={do[key]}" for key in ("keep", "copy", "changed", "check") if key in do
        )
        self.tally.events["run want"] += bool(do.get("want"))

    def _count_options(self) -> None:
        for key, value in self.options.items():
            if value not in (None, False):
                is_many = isinstance(value, dict) or key in ("serve", "kernels")  # seeds
                shown = key if is_many else f"{key}={value}"
                self.tally.events[f"option {shown}"] += 1
        self.tally.entries.update({node["op"] for node in self.case["nodes"]})


def views_of(session: GraphSession) -> list[str]:
    """Views that runs look through, in schedule order."""
    scheduled = session.scheduled
    return [node.name for node in scheduled.schedule if node in scheduled.views]


def _index(wish: Any) -> Any:
    if isinstance(wish, dict):
        return [basic_index(part) for part in wish["list"]]
    return basic_index(wish)


def _hint(held: Array | None, array: Array, kind: str) -> Any:
    """Where an input may have changed; None where it did not."""
    if held is None or kind == "all":
        return ...
    bits = (a.reshape(-1).view(np.uint8).reshape(*a.shape, a.itemsize) for a in (held, array))
    places = np.argwhere(np.not_equal(*bits).any(-1))
    if not len(places):
        return None
    if kind == "exact" and len(places) <= 4:
        return [tuple(map(int, place)) for place in places]
    return tuple(
        slice(int(a), int(z) + 1) for a, z in zip(places.min(0), places.max(0), strict=True)
    )


def _arrays(results: Mapping[str, Any]) -> list[Any]:
    return [
        a for found in results.values() for a in (found if isinstance(found, list) else [found])
    ]


def _copied(array: Any) -> Any:
    return array.clone() if isinstance(array, torch.Tensor) else array.copy()


def _same_bits(a: Any, b: Any) -> bool:
    return _bytes(a) == _bytes(b)


def _bytes(array: Any) -> bytes:
    """The bits as NumPy holds them: what one run gives as an array, another gives as a tensor."""
    if isinstance(array, torch.Tensor):
        array = array.float() if array.dtype == torch.bfloat16 else array
        flat = torch.empty(array.numel(), dtype=array.dtype).copy_(array.reshape(-1))
        array = flat.view(torch.uint8).numpy()
    return bytes(array.tobytes())
