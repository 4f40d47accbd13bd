"""A second thread that helps with long loops, if it gets a core.

A loop is cut into chunks, and both threads take the next one from a counter. The caller begins at
once and never waits for the other thread to start: while another process keeps the second core
busy, the caller simply does all chunks. It only ever waits for a chunk that the other thread is in
the middle of, and that chunk may have been preempted: on a busy machine with two cores, loops of
1 to 3 ms took 1.1 to 1.2 times as long as on one thread (median; one mean was 2.0), loops of 40 ms
0.8 to 1.05 times. So only loops of 10 ms and more come here. A numba OpenMP team, which meets at a
barrier, took 10 to 40 times as long for 3 to 10 MB of weights with one core busy.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Turns = Callable[..., int]  # (counter, *arguments) → how many chunks there are


class Helper:
    """The thread and the counter: chunks taken, chunks done."""

    def __init__(self) -> None:
        self.turn: NDArray[np.int64] = np.zeros(2, np.int64)
        self._free, self._start = threading.Lock(), threading.Lock()
        self._start.acquire()
        self._job: tuple[Turns, tuple[Any, ...]] | None = None
        threading.Thread(target=self._serve, name="tgbench helper", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._start.acquire()
            assert self._job is not None
            turns, arguments = self._job
            try:
                turns(self.turn, *arguments)
            finally:
                self._job = None
                self._free.release()

    def run(self, turns: Turns, *arguments: Any) -> bool:
        """Do all chunks, with or without help; False if the thread is busy with another loop.

        After an exception or an interrupt, too, it returns only when no chunk is under way.
        """
        if not self._free.acquire(blocking=False):
            return False
        self.turn[:] = 0
        self._job = turns, arguments
        self._start.release()
        chunks, caught = None, None
        while chunks is None or self.turn[1] < chunks:
            try:
                if chunks is None:
                    chunks = turns(self.turn, *arguments)
                else:
                    time.sleep(20e-6)
            except KeyboardInterrupt as interrupt:
                caught = interrupt
        if caught is not None:
            raise caught
        return True


@cache
def _helper(process: int) -> Helper:
    return Helper()


def shared(turns: Turns, *arguments: Any) -> None:
    """`turns(counter, *arguments)` on two threads, or on one where torch is held to one."""
    if torch.get_num_threads() > 1 and _helper(os.getpid()).run(turns, *arguments):
        return
    turns(np.zeros(2, np.int64), *arguments)
