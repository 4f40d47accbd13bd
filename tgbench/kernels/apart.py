"""Threads that compute with a caller are kept off its processor, for as long as a run goes on.

Threads of a library sleep some milliseconds after a call, and so do helpers of a team. Who wakes up
is put on a processor by the system. Linux looks for an idle one, but not where the processors were
in use most of the time lately (`update_idle_cpu_scan` in its kernel/sched/fair.c; two: 60 % of it):
then it is the one where the thread was before, or its waker's. With two processors, and other
programs that compute now and then, that is often the caller's. There they take turns, one of them
waiting for the other, while the other processor is idle: a run takes twice as long, or longer.

    a run begins ──→ its threads may be on any processor but the caller's
    it ends ───────→ on any that they were allowed before

Telling the system takes 10 to 100 µs a run, so it is done for some seconds after threads were found
waiting for processors (`kernels.waiting`). No other thread is told where to be, and between runs
none is. Those that somebody has bound to processors of their own stay there.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from ctypes import PyDLL
from functools import cache
from typing import Protocol

import torch

from tgbench.kernels.openmp import workers

WORTH = 10  # times what telling threads takes: what runs take at least, for which they are told
LASTS_NS = 10_000_000_000  # since somebody waited for processors


Caller = tuple[int, int]  # a process, and a thread of it


class System(Protocol):
    """What the operating system says and does of threads, by its numbers for them."""

    def here(self) -> int:
        """The processor that the calling thread is on."""

    def allowed(self, thread: int) -> frozenset[int]:
        """Processors that a thread may be on; raises OSError if it is gone."""

    def allow(self, thread: int, processors: frozenset[int]) -> None:
        """Let it be on these; raises OSError if it is gone."""


class Linux:
    """That of Linux."""

    def __init__(self) -> None:
        self.here: Callable[[], int] = PyDLL(None).sched_getcpu

    def allowed(self, thread: int) -> frozenset[int]:
        return frozenset(os.sched_getaffinity(thread))

    def allow(self, thread: int, processors: frozenset[int]) -> None:
        os.sched_setaffinity(thread, processors)


_HELPERS: dict[int, list[int]] = {}  # by process: threads do not survive a fork


def helps() -> None:
    """The calling thread is a helper of a team, from now on."""
    _HELPERS.setdefault(os.getpid(), []).append(threading.get_native_id())


def helpers() -> Collection[int]:
    """Those of this process."""
    return _HELPERS.get(os.getpid(), ())


class Apart:
    """Keeps them apart.

    Args:
        system: None where it does not say where threads are.
        workers, helpers: who computes with the calling thread: of a library, and of a team.
        clock: nanoseconds on the wall.

    Fields:
        until_ns: until when runs are asked about, by that clock.
    """

    def __init__(
        self,
        system: System | None,
        workers: Callable[[], Collection[int]] = workers,
        helpers: Callable[[], Collection[int]] = helpers,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._system, self._workers, self._helpers = system, workers, helpers
        self._clock = clock
        self.until_ns = 0
        self._telling_ns = 0  # what that took, the last time
        self._known: dict[Caller, tuple[int, Collection[int]]] = {}  # of so many threads
        self._kept: dict[Caller, dict[int, frozenset[int]]] = {}  # and where they may be else

    def keep(self) -> bool:
        """Threads wait for processors: keep them apart in runs to come. Whether that is new."""
        if self._system is None:
            return False
        now_ns, before_ns = self._clock(), self.until_ns
        self.until_ns = now_ns + LASTS_NS
        return before_ns <= now_ns

    def begins(self, by_team: bool, usual_ns: float = 0) -> bool:
        """A run is about to compute, by a team or by a library, which usually takes so long, or 0
        if nobody knows. Whether somebody is kept off the caller's processor until it `ends`.
        """
        threads, system = torch.get_num_threads(), self._system
        if threads < 2 or system is None:
            return False
        if 0 < usual_ns < WORTH * self._telling_ns:
            return False
        caller = os.getpid(), threading.get_ident()
        if caller in self._kept:
            self.ends()  # that was put off by an interrupt
        others = self._helpers() if by_team else self._workers_of(caller, threads)
        began_ns = self._clock()
        kept = self._kept[caller] = {}
        try:
            here = system.here()
            for one in others:
                free = system.allowed(one)
                if here in free and len(free) > len(others):
                    kept[one] = free
                    system.allow(one, free - {here})
        except OSError:  # some have ended
            self._known.clear()
        self._telling_ns = 2 * (self._clock() - began_ns)
        return True

    @contextmanager
    def during(self, by_team: bool) -> Iterator[None]:
        """Something computes, if threads were found waiting lately."""
        is_apart = self._clock() < self.until_ns and self.begins(by_team)
        try:
            yield
        finally:
            if is_apart:
                self.ends()

    def _workers_of(self, caller: Caller, threads: int) -> Collection[int]:
        of, found = self._known.get(caller, (0, ()))
        if of != threads:
            found = self._workers()
            self._known[caller] = threads, found
        return found

    def ends(self) -> None:
        """It has computed, or was stopped."""
        caller = os.getpid(), threading.get_ident()
        for one, free in self._kept.get(caller, {}).items():
            with suppress(OSError):
                if self._system is not None:
                    self._system.allow(one, free)
        self._kept.pop(caller, None)


@cache
def apart() -> Apart:
    """That of this process."""
    return Apart(Linux() if hasattr(os, "sched_setaffinity") else None)
