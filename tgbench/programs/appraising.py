"""A run as it would be lowered, for one who only asks what it takes: nothing is bound or placed.

The calls are the same, and so is what fits: which kernels there are for operands that lie so, and
the scratch memory they want, is asked as ever. What is known of that is the same for every map of
a graph, so maps that are looked at one after the other share it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tgbench.graph.graph import Node
from tgbench.kernels.registry import Site
from tgbench.kernels.torch.elementwise import fill_
from tgbench.memory.placement import Placement
from tgbench.memory.storage import ScheduledGraph
from tgbench.programs.lowering import BoundKernel, KnownBindings, Lowerer, Option
from tgbench.programs.program import Instruction
from tgbench.runs.rules import Rules


class Appraiser(Lowerer):
    """Lowers steps over one placement to calls that nobody will make.

    Args:
        known: what other appraisers of the graph found out about kernels, and nobody who binds.
    """

    def __init__(
        self,
        scheduled: ScheduledGraph,
        placement: Placement,
        rules: Rules,
        device: str,
        known: KnownBindings,
    ) -> None:
        super().__init__(scheduled, placement, rules, device, bindings=known)

    def _bound(self, site: Site, key: Hashable, option: Option) -> BoundKernel:
        return BoundKernel(option.kernel.name, fill_, (), option.used_bytes, _nothing)

    def placed(
        self, node: Node, there: Site, bound: BoundKernel, posts: Sequence[Node] = ()
    ) -> Instruction:
        return Instruction(
            node, there.out_box, bound.kernel, bound.function, (), site=there, posts=tuple(posts)
        )


def _nothing(site: Site) -> int:
    return 0
