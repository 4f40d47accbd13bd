"""Whether a program's products are computed by a team, whose threads never meet.

Threads of a library (OpenMP) meet at a barrier after each call, and spin there for a while before
they sleep; helpers of a team look for work as they do. Where a processor is wanted by both, each
is put aside for milliseconds while the other spins: one small `mm` between two products of a team
took ten times as long as alone. So a program has the one or the other, never both: for each call
there is the fastest kernel of all, and the fastest of those whose threads do not meet; whichever
take less in all, compute the program.

What threads gain is measured, and little where others use the processors just then: it is measured
again while runs go on (`session.regaining`).

Threads that meet are worth a sixteenth of the program at least: with two other processes at work on
two cores, 18 small attentions on two threads among 310 calls on one, expected to save a two
hundredth, took the time of ten such programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import torch

from tgbench.base.coords import here
from tgbench.costs.model import CostModel
from tgbench.kernels.numba import rows
from tgbench.kernels.registry import KERNELS, TEAM, Kernel, Site, by_team, kernel_named
from tgbench.programs.program import site_at

MOST = 4096  # calls that are remembered
LONG_NS = 50_000  # many times what sharing a product takes besides
MEETING = 1 / 16  # of what a program takes: what it may take longer if no threads meet


class _Choice(NamedTuple):
    """A call: what it takes, whether its threads meet, and the kernel whose threads do not, with
    what that would.
    """

    own_ns: float
    meets: bool
    kernel: Kernel | None
    quiet_ns: float


class Teamwork:
    """Which kernels compute the calls of a program if no threads may meet.

    Args:
        costs: what kernels take; of a team's, where none like them was measured, what one thread
            takes, less what so many threads gain.
        gain: of so many threads over one; measured if left out.

    Fields:
        counted_on: what threads were taken to gain when programs were made; 0 for none that asked.
    """

    def __init__(self, costs: CostModel, gain: Callable[[int], float] | None = None) -> None:
        self.costs, self._gain = costs, gain
        self.counted_on = 0.0
        self._choices: dict[tuple[str, str, int], _Choice] = {}

    @property
    def is_there(self) -> bool:
        """Whether there are threads, and kernels for a team."""
        return (
            self.costs.device == "cpu"
            and torch.get_num_threads() > 1
            and any(kernel.threads == TEAM for kernels in KERNELS.values() for kernel in kernels)
        )

    def forget(self) -> None:
        """More is known of what kernels take."""
        self._choices.clear()

    def instead(self, calls: Iterable[tuple[Site, str]]) -> list[str] | None:
        """For calls and the kernels that they have: the names of others, none of whose threads
        meet; None where they would take clearly longer, or where nothing would be other.
        """
        found = [self._choice(site, name) for site, name in calls]
        kernels = [choice.kernel for choice in found if choice.kernel is not None]
        if len(kernels) < len(found):
            return None
        meets = any(choice.meets for choice in found)
        if not meets and all(kernel.threads != TEAM for kernel in kernels):
            return None
        most_ns = sum(choice.own_ns for choice in found) * (1 + MEETING if meets else 1)
        if sum(choice.quiet_ns for choice in found) > most_ns:
            return None
        return [kernel.name for kernel in kernels]

    def _choice(self, site: Site, name: str) -> _Choice:
        key = self.costs.signature(site).text, name, torch.get_num_threads()
        found = self._choices.get(key)
        if found is None:
            if len(self._choices) >= MOST:
                self._choices.clear()
            found = self._choices[key] = self._chosen(site_at(site, here()), name)
        return found

    def _chosen(self, site: Site, name: str) -> _Choice:
        own = kernel_named(site.call.op.name, name)
        own_ns = self.costs.of_site(site, own).time_ns
        others = [kernel for kernel in self.costs.suiting(site) if not kernel.meets(site)]
        quiet = {kernel: self.costs.of_site(site, kernel).time_ns for kernel in others}
        shared = by_team(site)
        if shared is not None:
            quiet = {shared: self._shared_ns(site, shared, quiet), **quiet}
        best = min(quiet, key=lambda kernel: quiet[kernel], default=None)
        quiet_ns = quiet[best] if best is not None else math.inf
        return _Choice(own_ns, own.meets(site), best, quiet_ns)

    def _shared_ns(self, site: Site, shared: Kernel, quiet: Mapping[Kernel, float]) -> float:
        """What a team takes: for long no more than who computes the same alone, as helpers rest
        where that is quicker (`kernels.helping`). When it was timed, others may have computed.
        """
        known = self.costs.of_site(site, shared)
        if known.source != "modelled":
            alone = (ns for one, ns in quiet.items() if one.name == shared.alone)
            alone_ns = next(alone, math.inf)
            return min(known.time_ns, alone_ns) if alone_ns >= LONG_NS else known.time_ns
        self.counted_on = gain = (self._gain or rows.gain)(torch.get_num_threads())
        return min(quiet.values(), default=math.inf) / gain if gain > 1.0 else math.inf
