"""Any kernel that takes a call, whatever it costs: programs stay right when calls have others."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tgbench.base.coords import standing
from tgbench.base.errors import KernelError
from tgbench.kernels.registry import KERNELS, is_by_team
from tgbench.programs.lowering import DoesNotFit
from tgbench.programs.program import Instruction, Program, site_at
from tgbench.session.memory import Memory
from tgbench.session.session import GraphSession
from tgbench.session.trying import TriedCall, Tryer


class AnyKernel(Tryer):
    """Gives calls other kernels before runs, at random."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.exchanged = 0

    def __str__(self) -> str:
        return f"{self.exchanged} exchanged"

    def before(self, program: Program, memory: Memory, most: Sequence[int]) -> None:
        if program.origin is None:
            return
        lowerer = memory.specialiser.lowerer
        calls = [i for i, made in enumerate(program.instructions) if self._may(made)]

        def again(made: Instruction) -> Instruction:
            assert made.site is not None
            with standing(program.origin or ()):
                site = site_at(made.site, program.origin or ())
                names = [one.name for one in KERNELS[made.node.op] if one.takes(site)]
            try:
                return lowerer.by(made, self.random.choice(names or [made.kernel]))
            except (DoesNotFit, KernelError):
                return made

        lowerer.again = again  # type: ignore[method-assign]
        try:
            self._exchange(program, calls, memory, most)
        finally:
            del lowerer.again

    def _may(self, made: Instruction) -> bool:
        is_alone = made.site is not None and not is_by_team(made.site, made.kernel)
        return is_alone and self.random.random() < 0.5

    def turn(self, program: Program, memory: Memory) -> TriedCall | None:
        return None


def try_any(session: GraphSession, seed: int) -> AnyKernel:
    """Let a session's calls have any kernels."""
    tryer = session.runner.tryer = AnyKernel(seed)
    return tryer
