"""What a run did, and how often things happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tgbench.base.errors import PlanError
from tgbench.base.regions import EMPTY, Region
from tgbench.base.words import counted, format_time
from tgbench.graph.graph import Node
from tgbench.kernels.registry import KERNELS, Site
from tgbench.programs.exact.findings import told
from tgbench.programs.program import Program
from tgbench.runs.buckets import Bucket, BucketClass
from tgbench.runs.propagate import Propagator, Step, changes, joined


@dataclass(frozen=True)
class Spread:
    """Where a change of a part becomes a change of everything.

    Fields:
        node: its name.
        op: what it computes.
        inputs: the changed share of what it reads, by name, where a part of it changed.
    """

    node: str
    op: str
    inputs: Mapping[str, float]

    def __str__(self) -> str:
        parts = ", ".join(f"{share:.1%} of {name}" for name, share in self.inputs.items())
        return f"{self.node} ({self.op}): {parts} changed, and with it all of {self.node}"


@dataclass(frozen=True)
class Report:
    """What one run did; prints as a few lines.

    Fields:
        bucket, kind, origin: its signature.
        served: how far it was rounded to a larger run (see `serving`), and where that lies.
        specialised: the program was made in this run.
        moved: a program made for another origin was re-pointed.
        compute: node name → elements computed, at this origin.
        instructions: calls executed.
        recomputed: computed share of what the same demand takes from nothing, by flops.
        times in nanoseconds: `decide_ns` (compare, look up, specialise), `execute_ns`, `total_ns`.
    """

    bucket: Bucket
    kind: BucketClass
    origin: tuple[int, ...]
    served: str
    at: tuple[int, ...]
    specialised: bool
    moved: bool
    program: Program
    decide_ns: int
    execute_ns: int
    total_ns: int
    propagator: Propagator

    def __reduce_ex__(self, protocol: Any) -> Any:
        """It tells of a session's program, which lies in the session's memory."""
        raise PlanError(
            "a report cannot be copied or pickled, as it shows a program of its session; keep "
            "str(report), or what `session.trace` holds of the run"
        )

    @property
    def instructions(self) -> int:
        return len(self.program.instructions)

    @property
    def calls(self) -> int:
        """In how many calls they were executed."""
        return len(self.program.calls)

    @property
    def rounded(self) -> int:
        """Of these, those whose kernel rounds what it multiplies (`arithmetic`)."""
        return sum(name in _rounding(site.call.op.name) for name, site in self._sites)

    @property
    def _sites(self) -> list[tuple[str, Site]]:
        """Kernels' names, and where they compute."""
        made = self.program.instructions
        return [(one.kernel, one.site) for one in made if one.site is not None]

    @property
    def compute(self) -> dict[str, Region]:
        found: dict[str, Region] = {}
        for step in self.program.steps:
            for node, region in step.compute.items():
                here = region.at(self.at)
                found[node.name] = found.get(node.name, EMPTY).union(here)
        return found

    @property
    def multiply_adds(self) -> int:
        """Of products and convolutions: those that this run executed."""
        return flops(self.program.steps, self.at, products=True) // 2

    @property
    def dirty(self) -> dict[str, Region]:
        """Node name → elements that could differ from the run before; only where there are any."""
        return {node.name: region for node, region in self._dirty.items()}

    @cached_property
    def _dirty(self) -> Mapping[Node, Region]:
        changed = changes(self.propagator.graph, self.kind, self.origin)
        return self.propagator.forward(changed)

    @property
    def spread(self) -> Spread | None:
        """The first node all of which changed although a part of its inputs did; None without one.

        From there on nothing can be saved: every later node depends on something that changed.
        """
        dirty = self._dirty
        for node in self.propagator.schedule:
            if dirty.get(node, EMPTY) != Region.full(node.shape):
                continue
            parts = {n: dirty[n].elements / Region.full(n.shape).elements
                     for n in node.inputs if n in dirty}  # fmt: skip
            if all(share < 1 for share in parts.values()):
                return Spread(node.name, node.op, {n.name: share for n, share in parts.items()})
        return None

    def __str__(self) -> str:
        lines = [
            f"{self.kind}" if self.served == "exactly" else f"{self.kind}, computed {self.served}",
            f"{self.recomputed:.1%} of what a run from nothing computes; "
            f"{counted(self.instructions, 'instruction')} in {counted(self.calls, 'call')}, "
            f"{self.multiply_adds:,} multiply–adds, "
            f"{format_time(self.total_ns)}",
        ]
        if self.rounded:
            lines.append(
                f"{counted(self.rounded, 'instruction')} rounded what they multiply (arithmetic)"
            )
        elif any("arithmetic" in site.call.attrs for _, site in self._sites):
            why = "kernels that do not were quicker" if _can_round() else "no kernel here does that"
            lines.append(f"nothing was rounded (arithmetic): {why}")
        spread = self.spread
        if spread is not None:
            lines.append(f"the change spreads to everything at {spread}")
            lines += [self.tiles[spread.node]] if spread.node in self.tiles else []
        return "\n".join(lines)

    __repr__ = __str__

    @property
    def line(self) -> str:
        """Its class and where, how it came by its program, and its time."""
        how = "made" if self.specialised else "moved" if self.moved else "found"
        at = f" at {', '.join(map(str, self.origin))}" if self.origin else ""
        return f"{self.kind}{at}: program {how}, {format_time(self.total_ns)}"

    @property
    def tiles(self) -> dict[str, str]:
        """Computed node → in what tiles, in words; of bit-exact mode, less single lines."""
        tilings = self.propagator.rules.tilings
        nodes = [node for step in self.program.steps for node in step.compute]
        found = {n.name: told(n.call, tilings[n.call]) for n in nodes if n.call in tilings}
        return {name: words for name, words in found.items() if words}

    @property
    def recomputed(self) -> float:
        graph = self.propagator.graph
        demand = joined((graph.outputs[name], region) for name, region in self.bucket.demand)
        changed = {leaf: Region.full(leaf.shape) for leaf in graph.inputs.values()}
        whole = flops([self.propagator.step({}, changed, demand)], ())
        return flops(self.program.steps, self.at) / whole if whole else 0.0


def _rounding(op: str) -> set[str]:
    """The kernels of an op that round what they multiply."""
    return {kernel.name for kernel in KERNELS.get(op, ()) if kernel.rounds}


def _can_round() -> bool:
    """Whether this machine has kernels that round, which its processor decides."""
    return any(kernel.rounds for kernels in KERNELS.values() for kernel in kernels)


def flops(steps: Sequence[Step], origin: tuple[int, ...], *, products: bool = False) -> int:
    """Of all ops, or of products and convolutions alone."""
    return sum(
        node.call.op.flops(node.call, box.at(origin))
        for step in steps
        for node, region in step.compute.items()
        if node.call.op.multiplies or not products
        for box in region
    )


def taken_bytes(program: Program) -> int:
    """What a run takes beside the arena: what a library allocates in a call, and the results."""
    in_calls = max((made.allocates for made in program.instructions), default=0)
    handed = [tensor for parts in program.results.values() for _, tensor in parts]
    return in_calls + sum(tensor.numel() * tensor.element_size() for tensor in handed)


@dataclass
class Counters:
    """How often things happened in a session, and how long they took.

    Fields:
        runs: of them, `larger` were served by a program of a larger run.
        specialised, evicted: programs made; programs that made room for others.
        moved: runs whose program was pointed to another place.
        planned: plans made.
        deciding_ns, computing_ns: of all runs; deciding includes `making_ns`.
        working_ns: of computing, what the thread worked, and did not wait for others.
    """

    runs: int = 0
    larger: int = 0
    specialised: int = 0
    moved: int = 0
    planned: int = 0
    evicted: int = 0
    deciding_ns: int = 0
    making_ns: int = 0
    computing_ns: int = 0
    working_ns: int = 0
