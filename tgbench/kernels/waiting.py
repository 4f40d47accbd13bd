"""How the threads of libraries wait for each other: spinning, or asleep where others compute.

Threads of OpenMP meet at a barrier after each call. There GNU's runtime has them spin for some
milliseconds before they sleep. On a quiet machine that is quickest. Where another process has one
of the processors, whoever spins uses up what the scheduler would give to the thread that is waited
for: a run takes ten times as long as by one thread.

    runs ──→ do our threads wait for processors? ── no ──→ threads spin
                   ↑                └── yes ──→ they are kept apart from their caller
                   │                  └── still ──→ both ways, in turns ──→ the quicker one
                   └───────────────────────────────────────────────────────────────┘

That they wait does not say who for. Threads that are woken may be put on the processor that their
caller has, though another one is idle (`kernels.apart`): then they wait for each other, twice as
long as a run takes, for as long as they sleep. So they are kept apart first, and the two ways are
compared by what runs take (`kernels.turns`).

A runtime that has more threads than there are processors lets them spin for a microsecond or so
(see GOMP_SPINCOUNT in its manual), and it looks at that whenever a thread begins to wait. So a
*sitter*, a thread with idle threads of the runtime beside it, is all that it takes; when it ends,
the others spin again. As many threads compute the same parts of everything: no bit depends on it.

Other runtimes than GNU's are left alone.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ctypes import CDLL, c_void_p, cast
from functools import cache

import torch

from tgbench.kernels.apart import apart
from tgbench.kernels.helping import helping
from tgbench.kernels.openmp import runtime
from tgbench.kernels.turns import Alternation, Comparison

LEAST_NS = 25_000_000  # of runs, that are judged together
RARELY = 500  # times what looking takes, which is more with more threads: until the next time
SHARE = 0.25  # of what runs take, that their threads wait for processors: then others compute
QUIET_S = 0.03  # in which threads that spin after a call have gone to sleep
LONGEST_S = 10.0  # that threads sleep without being asked, where no more runs come


def waited_ns() -> int:
    """How long threads of this process waited for a processor that others had, all of them added
    up; 0 where the system does not say.
    """
    found, folder = 0, "/proc/self/task"
    with suppress(OSError):
        for thread in os.listdir(folder):
            with suppress(OSError), open(f"{folder}/{thread}/schedstat", "rb") as told:
                found += int(told.read().split()[1])
    return found


class Contention:
    """Whether threads of this process wait for processors that others have, from `begin` on."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from now."""
        self._began_ns, self._before_ns = time.perf_counter_ns(), waited_ns()

    @property
    def is_there(self) -> bool:
        """Whether they waited for as large a share of the time as tells others from chance."""
        took_ns = time.perf_counter_ns() - self._began_ns
        return waited_ns() - self._before_ns >= SHARE * took_ns


class Sitter:
    """A thread that has idle threads of the runtime beside it, for a while: so many that all are
    more than the processors. Whoever waits for a thread meanwhile, sleeps.

    Raises RuntimeError if the system gives no thread.
    """

    def __init__(self, library: CDLL, seconds: float) -> None:
        self._library, self._seconds = library, seconds
        self._over, self._sits = threading.Event(), threading.Event()
        self._others = max(2, library.omp_get_num_procs() - torch.get_num_threads() + 2)
        self._thread = threading.Thread(target=self._sit, name="tgbench sitter", daemon=True)
        self._thread.start()
        self._sits.wait()

    def _sit(self) -> None:
        nothing = cast(self._library.omp_get_level, c_void_p)  # each of them asks that, and is idle
        self._library.GOMP_parallel(nothing, None, self._others, 0)
        self._sits.set()
        self._over.wait(self._seconds)

    @property
    def is_there(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> None:
        """Let threads spin again."""
        self._over.set()
        self._thread.join()


class Waiting:
    """How threads wait in this process, by what happens to its runs.

    Args:
        waited: how long threads of the process waited for processors until now.
        sit: has threads sleep for so many seconds; None where the runtime is another one.
        found: told that others compute.
        keep_apart: has threads kept off the processor of who waits for them, for some time; whether
            they were not before.

    Fields:
        turns: spinning, and asleep.
        due_ns: from when on the next run is watched, by the clock that goes on.
        watches: whether what a run takes is to be told.
    """

    def __init__(
        self,
        waited: Callable[[], int] = waited_ns,
        sit: Callable[[float], Sitter | None] | None = None,
        found: Callable[[], None] = lambda: None,
        keep_apart: Callable[[], bool] = lambda: False,
    ) -> None:
        self._waited, self._sit, self._found = waited, sit or _sitting, found
        self._keep_apart = keep_apart
        self._sitter: Sitter | None = None
        self.turns = Alternation()
        self.due_ns, self.watches = 0, False
        self._comparison: Comparison | None = None  # that the run is a part of
        self._since_ns: int | None = None  # when the last one was asked about
        self._changing_ns = 0  # of what it took, how threads wait
        self._before = self._took_ns = self._looking_ns = 0  # they had waited so long; runs took

    @property
    def is_asleep(self) -> bool:
        """Whether who waits for another thread sleeps."""
        return self._sitter is not None and self._sitter.is_there

    def spin(self) -> None:
        """Have threads spin until others are found to compute."""
        self.turns.stands = True
        self._have(True)

    def begins(self, now_ns: int, program: object | None = None) -> None:
        """A run is about to compute; the first that is watched, if they are `due_ns`.

        Args:
            program: what it computes, if its threads meet: of such ones runs are compared.
        """
        if self._comparison is not None:  # an interrupt came between
            self._comparison, self.watches = None, False
        if self.watches or now_ns < self.due_ns:
            return
        if torch.get_num_threads() < 2:
            self.due_ns = now_ns + LEAST_NS  # until it may have more
            return
        self.watches = program is not None and self._is_compared(program, now_ns)
        if self.watches:
            return
        self._have(self.turns.stands)
        if program is not None and self.turns.is_comparing:
            return
        self._took_ns = self._looking_ns = 0
        self._before, self.watches = self._look(), True

    def _is_compared(self, program: object, now_ns: int) -> bool:
        """Whether a run is part of a comparison; its threads wait as is its turn then."""
        self._comparison = found = self.turns.comparison(program)
        if found is None:
            passed_ns = 0 if self._since_ns is None else now_ns - self._since_ns
            self.turns.ran(program, passed_ns)
        else:
            began_ns = time.perf_counter_ns()
            self._have(found.next)
            self._changing_ns = time.perf_counter_ns() - began_ns
        self._since_ns = now_ns
        return found is not None

    def _have(self, spinning: bool) -> None:
        """Have threads spin, or sleep."""
        if spinning and self._sitter is not None:
            self._sitter.end()
            self._sitter = None
        elif not spinning and not self.is_asleep:
            self._sitter = self._sit(LONGEST_S)

    def _look(self) -> int:
        began_ns = time.thread_time_ns()
        found = self._waited()
        self._looking_ns += time.thread_time_ns() - began_ns
        return found

    def ends(self, took_ns: int) -> None:
        """It computed for so long, and was watched. Those that take little are judged together."""
        if not self.watches:
            return
        if self._comparison is not None:
            self._compared(self._comparison, took_ns)
            return
        self._took_ns += took_ns
        if self._took_ns < LEAST_NS:
            return
        waited_ns = self._look() - self._before
        self.watches = False
        self.due_ns = time.perf_counter_ns() + RARELY * self._looking_ns
        self.note(waited_ns >= SHARE * self._took_ns)

    def _compared(self, comparison: Comparison, took_ns: int) -> None:
        """The next run is asked about again, until it is decided."""
        self._comparison, self.watches = None, False
        self.turns.compared(comparison, took_ns - self._changing_ns)
        if not self.turns.is_comparing:
            self._have(self.turns.stands)

    def note(self, is_contended: bool) -> None:
        """Have threads sleep, or spin, as others compute or do not. They may as well wait for each
        other, which tells as much: so they are kept apart first, and the two ways are compared.
        """
        if not is_contended:
            self.spin()
            return
        are_apart = not self._keep_apart()
        if self.turns.stands:
            self._found()
            if are_apart:
                self._have(not self.turns.suppose(stands=False))


def _sitting(seconds: float) -> Sitter | None:
    """None as well where the system gives no thread."""
    library = runtime()
    with suppress(RuntimeError):
        return None if library is None else Sitter(library, seconds)
    return None


@cache
def waiting() -> Waiting:
    """That of this process."""
    return Waiting(found=helping().turns.look_soon, keep_apart=apart().keep)
