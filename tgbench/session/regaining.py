"""Whether threads gain what programs count on: measured again while runs go on.

Which threads compute a program's products (`programs.teamwork`) stands on what threads gain at
reading weights. That is measured when it is first asked. Where others had the processors just then,
it said that there is nothing to gain, and one thread read all weights for as long as the process
lived: 270M parameters a token in 60 ms, where a team takes 40.

    runs for fifty times what measuring takes ─→ measured ─→ other ─→ calls are exchanged
              ↑                                         │
              └──── four times as long the next time ───┘
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from tgbench.kernels.numba import rows
from tgbench.programs.program import Program
from tgbench.session.memory import Memory

SHARE = 0.02  # of what runs take, that measuring does
FIRST_NS = 150e6  # what it takes, until it was timed
RARER = 4  # times as long until the next time
CLEARLY = 1.2  # times as much, or as little, is another gain


class Regainer:
    """Measures for one session what its programs count on.

    Args:
        measure: what so many threads gain, now.
        clock: nanoseconds.

    Fields:
        changes: how often that was clearly other.
    """

    def __init__(
        self,
        measure: Callable[[int], float] | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._measure, self._clock = measure, clock
        self._ran_ns, self._due_ns = 0.0, FIRST_NS / SHARE
        self.changes = 0

    def is_stale(self, program: Program, memory: Memory) -> bool:
        """A program is about to run: whether its calls were chosen for another gain."""
        self._ran_ns += program.use.time_ns
        if self._ran_ns >= self._due_ns:
            self._look(memory)
        is_stale = program.regained != self.changes
        program.regained = self.changes
        return is_stale

    def _look(self, memory: Memory) -> None:
        """Measure again, if programs count on it."""
        began_ns, before = self._clock(), 0.0
        lowerer, threads = memory.specialiser.lowerer, torch.get_num_threads()
        if lowerer.team is not None and lowerer.team.is_there:
            before = lowerer.team.counted_on
        if before:
            now = (self._measure or rows.measure_gain)(threads)
            if not 1 / CLEARLY <= now / before <= CLEARLY:
                self.changes += 1
                lowerer.choose_anew()
        took_ns = self._clock() - began_ns if before else FIRST_NS
        self._ran_ns, self._due_ns = 0.0, max(RARER * self._due_ns, took_ns / SHARE)
