"""What is known of a search by those who asked for it."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace

from tgbench.base.stopping import StopReason
from tgbench.plans.background.messages import Done, Event, Failed, Told

MOST_EVENTS = 10_000  # kept for `poll`; older ones go first


class Inbox:
    """What is known of a search: written by the reader, read by everybody."""

    def __init__(self, plan_json: str | None) -> None:
        self.changed = threading.Condition()
        self.events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self.leg, self.is_running = 0, False
        self.stop: StopReason | None = None  # why the last leg ended, where its plan cannot say so
        self.failure: Failed | None = None
        self.forget(plan_json)

    def forget(self, plan_json: str | None) -> None:
        """Nothing is known but a plan to begin with."""
        self.step, self.bound_ns = 0, 0.0
        self.best_ns, self.plan_json = float("inf"), plan_json

    def begin(self) -> int:
        with self.changed:
            self.leg += 1
            self.is_running, self.stop, self.failure = True, None, None
            return self.leg

    def end(self, stop: StopReason) -> None:
        """The leg is over, whatever its process says later."""
        with self.changed:
            if self.is_running:
                self.is_running, self.stop = False, stop
                self.changed.notify_all()

    def put(self, message: Told | Done | Failed) -> None:
        with self.changed:
            if message.leg == self.leg and self.is_running:
                self._take(message)
                self.changed.notify_all()

    def _take(self, message: Told | Done | Failed) -> None:
        if isinstance(message, Told):
            event = message.event
            self._better(event.best_ns, event.plan_json)
            if event.best_ns:  # a leg begins with the greedy plan, which earlier ones left behind
                event = replace(event, best_ns=min(event.best_ns, self.best_ns))
                self.bound_ns = event.bound_ns
            self.step = event.step
            self.events.append(event)
            return
        self.is_running = False
        if isinstance(message, Done):
            self._better(message.best_ns, message.plan_json)
        else:
            self.failure = message

    def _better(self, best_ns: float, plan_json: str | None) -> None:
        if plan_json is not None and best_ns <= self.best_ns:
            self.best_ns, self.plan_json = best_ns, plan_json

    def taken(self) -> list[Event]:
        with self.changed:
            found = list(self.events)
            self.events.clear()
            return found

    def wait(self, seconds: float | None) -> bool:
        """Whether the leg is over, by then."""
        with self.changed:
            return self.changed.wait_for(lambda: not self.is_running, seconds)
