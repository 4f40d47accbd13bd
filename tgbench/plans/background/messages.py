"""What a search and the process that asked for it say to each other.

    asked: Leg, Halt      told: Told (an event), then Done (a plan) or Failed (an error)

Each names the leg that it is about: what is heard of an earlier one is nobody's business any more.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tgbench.base import errors
from tgbench.base.errors import TgbenchError
from tgbench.plans.search.effort import Effort, Mode
from tgbench.plans.search.plan_search import LaidOut
from tgbench.plans.search.rounds import Neighbourhood


@dataclass(frozen=True)
class Event:
    """Where a search stands.

    Fields:
        step: windows so far, those of the saved plan included.
        best_ns, bound_ns: mean run of the best plan, and what no plan is faster than; 0 as long as
            there is none.
        message: one line.
        plan_json: the best plan so far, where it is a new one.
        tried: plans that were laid out since the last event.
        windows: what was decided anew since then.
    """

    step: int
    best_ns: float
    bound_ns: float
    message: str = ""
    plan_json: str | None = None
    tried: tuple[LaidOut, ...] = ()
    windows: tuple[Neighbourhood, ...] = ()


@dataclass(frozen=True)
class Leg:
    leg: int
    mode: Mode
    effort: Effort
    seed: int
    workers: int
    budget_bytes: int | None
    start_json: str | None
    bound_ns: float


@dataclass(frozen=True)
class Halt:
    leg: int


@dataclass(frozen=True)
class Told:
    leg: int
    event: Event


@dataclass(frozen=True)
class Done:
    leg: int
    best_ns: float
    plan_json: str


@dataclass(frozen=True)
class Failed:
    """An exception by parts, as typed ones do not all survive pickling."""

    leg: int
    kind: str
    message: str
    details: Mapping[str, Any]

    @staticmethod
    def of(leg: int, error: Exception) -> Failed:
        if isinstance(error, TgbenchError):
            return Failed(leg, type(error).__name__, str(error), vars(error))
        told = "".join(traceback.format_exception(error))
        return Failed(
            leg, "SearchError", f"the search failed, which is an error of ours:\n{told}", {}
        )

    def error(self) -> TgbenchError:
        kind = getattr(errors, self.kind)
        made: TgbenchError = kind.__new__(kind, self.message)
        vars(made).update(self.details)
        return made


def begun(target: Callable[..., None], *arguments: Any) -> threading.Thread:
    """A thread that ends with its process."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread
