"""Streaming a causal network: every block of samples is written behind the last one.

    window   │ s s s s s s s s │ b │ 0 0 0 0 0 0 │     only the columns of block b are computed,
                               t                       in every layer
    full     │ . . . . . │ s s s s s s s │ b │         the last `reach` samples move to the front
             │ s s s s s s s │ 0 0 0 0 0 0 0 │         and the next block is written behind them

A window that shifts would move every value. A position that moves changes nothing that is there:
what follows it is zero and not asked for, so a block costs the same in a window of any length.
When the window is full, one run computes `reach` columns afresh; there is one such run in
`window − reach` samples. Outputs are those of the network over the whole signal: exact, because an
output depends on `reach` samples and no others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from tgbench.base.errors import InputError
from tgbench.base.regions import Box, Region
from tgbench.base.words import Progress, counted, format_time
from tgbench.commands.holding import require_memory
from tgbench.graph.graph import Node
from tgbench.memory.estimate import estimate_memory
from tgbench.runs.propagate import Propagator, Storage
from tgbench.runs.rules import Rules
from tgbench.session.session import GraphSession
from tgbench.sources.torch import from_torch

Floats: TypeAlias = npt.NDArray[np.float32]
WINDOW = 4  # reaches that a window holds where no length is given


@dataclass(frozen=True, slots=True)
class Pushed:
    """One block's run.

    Fields:
        multiply_adds: that it executed.
        time_ns: the whole call.
        refilled: whether the window was full, so that the last `reach` samples were computed anew.
        specialised: whether a program was made.
    """

    multiply_adds: int
    time_ns: int
    refilled: bool
    specialised: bool


@dataclass
class Stream:
    """A causal module over one window; `push` takes block after block.

    Fields:
        reach: samples that an output depends on, itself included.
        at: where the next block goes.
    """

    session: GraphSession
    window: int
    block: int
    reach: int
    at: int = 0
    pushed: list[Pushed] = field(default_factory=list)
    _signal: Floats = field(default_factory=lambda: np.zeros((1, 1, 0), np.float32))

    @staticmethod
    def of(module: nn.Module, channels: int, block: int = 1, window: int | None = None) -> Stream:
        """A stream of a module that takes [1, channels, time] and gives [1, outputs, time].

        `window` is in samples; None for four reaches, rounded up to blocks.

        Raises InputError for sizes that do not fit, and for a module that is not causal.

        >>> Stream.of(torch.nn.Conv1d(1, 1, 1).eval(), 1).reach
        1
        """
        if block < 1 or channels < 1:
            raise InputError(f"block {block}, channels {channels}: give 1 or more")
        reach = reach_of(module, channels)
        length = window if window is not None else WINDOW * reach
        length = -(-max(length, 2 * block) // block) * block
        if length < reach + block:
            raise InputError(
                f"an output depends on {reach} samples; a window of {length} holds no block of "
                f"{block} more; give window={reach + block} or more"
            )
        imported = _imported(module, channels, length)
        require_memory(estimate_memory(imported).total_bytes, "cpu", "give a smaller window")
        session = GraphSession(imported, making="always")
        made = Stream(session, length, block, reach)
        made._signal = np.zeros((1, channels, length), np.float32)
        made._plan()
        return made

    def push(self, samples: npt.ArrayLike) -> Floats:
        """The outputs [outputs, block] for the next samples [channels, block]."""
        new = np.asarray(samples, np.float32)
        if new.shape != (self._signal.shape[1], self.block):
            raise InputError(
                f"a block is [{self._signal.shape[1]}, {self.block}], this is {list(new.shape)}"
            )
        full = self.at + self.block > self.window
        if full:
            self._back_to_front()
        place = np.s_[..., self.at : self.at + self.block]
        self._signal[place] = new
        (name,), (output,) = self.session.graph.inputs, self.session.graph.outputs
        began = time.perf_counter_ns()
        found = self.session.run(
            {name: self._signal.copy()}, {output: place}, changed=None if full else {name: place}
        )
        took = time.perf_counter_ns() - began
        report = self.session.report()
        self.pushed.append(Pushed(report.multiply_adds, took, full, report.specialised))
        self.at += self.block
        part: Floats = found[output][0]
        return part

    def _back_to_front(self) -> None:
        kept = self._kept
        self._signal[..., :kept] = self._signal[..., self.at - kept : self.at].copy()
        self._signal[..., kept:] = 0
        self.at = kept

    @property
    def _kept(self) -> int:
        """Samples that go to the front: what the next output needs, in whole blocks."""
        return -(-(self.reach - 1) // self.block) * self.block

    def _plan(self) -> None:
        (name,), (output,) = self.session.graph.inputs, self.session.graph.outputs

        def at(start: int) -> Any:
            return np.s_[..., start : start + self.block]

        blocks = [({name: at(start)}, {output: at(start)})
                  for start in (0, self._kept, self.window - self.block)]  # fmt: skip
        self.session.plan_for([*blocks, ({name: np.s_[...]}, {output: at(self._kept)})])


@dataclass(frozen=True)
class Streamed:
    """A whole signal, streamed.

    Fields:
        output: [outputs, time].
        pushed: every block's run.
        window, block, reach: in samples.
    """

    output: Floats
    pushed: Sequence[Pushed]
    window: int
    block: int
    reach: int

    @property
    def steady(self) -> list[Pushed]:
        """Blocks behind which a whole reach lies, without those that filled a window anew."""
        return [p for p in self.pushed[-(-self.reach // self.block) :] if not p.refilled]

    def to_dict(self) -> dict[str, Any]:
        steady = self.steady or self.pushed
        return {
            "samples": self.output.shape[1], "window": self.window, "block": self.block,
            "reach": self.reach,
            "multiply_adds_per_block": int(np.median([p.multiply_adds for p in steady])),
            "time_ns_per_block": float(np.median([p.time_ns for p in steady])),
            "refills": sum(p.refilled for p in self.pushed),
            "programs_made": sum(p.specialised for p in self.pushed),
        }  # fmt: skip

    def __str__(self) -> str:
        facts = self.to_dict()
        return (
            f"{facts['samples']} samples in blocks of {self.block}, window {self.window}, an "
            f"output depends on {self.reach}\n"
            f"per block: {facts['multiply_adds_per_block']:,} multiply–adds, "
            f"{format_time(facts['time_ns_per_block'])}; "
            f"{counted(facts['refills'], 'window')} filled anew, "
            f"{counted(facts['programs_made'], 'program')} made"
        )


def stream(
    module: nn.Module,
    samples: npt.ArrayLike,
    *,
    block: int = 1,
    window: int | None = None,
    progress: Progress | None = None,
) -> Streamed:
    """Feed a signal [channels, time] to a causal module, block by block.

    `time` is a multiple of `block`; for `window` and errors see `Stream.of`.

    >>> stream(torch.nn.Conv1d(1, 2, 1).eval(), np.ones((1, 4), np.float32), block=2).output.shape
    (2, 4)
    """
    signal = np.asarray(samples, np.float32)
    if signal.ndim != 2 or signal.shape[1] < block or signal.shape[1] % block:
        raise InputError(
            f"the signal is {list(signal.shape)}; give [channels, time] with time a multiple of "
            f"block={block}"
        )
    made = Stream.of(module, signal.shape[0], block, window)
    starts = range(0, signal.shape[1], block)
    parts = []
    for done, start in enumerate(starts):
        if progress is not None:
            progress(done, len(starts), f"sample {start}")
        parts.append(made.push(signal[:, start : start + block]))
    return Streamed(np.concatenate(parts, axis=1), made.pushed, made.window, block, made.reach)


# --- what an output depends on --------------------------------------------------------------------


def _imported(module: nn.Module, channels: int, length: int) -> Any:
    return from_torch(module, (torch.zeros(1, channels, length),))


def reach_of(module: nn.Module, channels: int) -> int:
    """Samples that an output depends on, found in windows that double until it fits.

    Raises InputError for a module that is not causal or depends on 2²⁰ samples and more.
    """
    length = 16
    while length < 1 << 20:
        reach = _reach(GraphSession(_imported(module, channels, length)))
        if reach < length // 2:
            return reach
        length *= 4
    raise InputError("an output depends on all samples before it; a window cannot hold them")


def _reach(session: GraphSession) -> int:
    """By the region rules: what the last output needs; and that none needs later samples."""
    graph = session.graph
    ((_, node),), ((_, output),) = graph.inputs.items(), graph.outputs.items()
    if node.rank != 3 or output.rank != 3 or node.shape[2] != output.shape[2]:
        raise InputError(f"a stream needs [1, channels, time] in and out; this is {node.type} → "
                         f"{output.type}")  # fmt: skip
    length = int(node.shape[2])
    middle = _needed(session, node, output, length // 2)
    if middle.stop - 1 > length // 2:
        raise InputError(
            f"the module is not causal: output {length // 2} depends on sample {middle.stop - 1}"
        )
    last = _needed(session, node, output, length - 1)
    return length - last.start


def _needed(session: GraphSession, node: Node, output: Node, at: int) -> range:
    """The samples that one output needs."""
    scheduled = session.scheduled.once
    storage = Storage(scheduled.views, scheduled.frozen)
    propagator = Propagator(session.graph, storage, Rules())
    column = Box((*((0, n) for n in output.shape[:2]), (at, at + 1)))
    step = propagator.step({}, {node: Region.full(node.shape)}, {output: Region((column,))})
    hull = step.needed[node].hull()
    return range(int(hull[2][0]), int(hull[2][1]))
