"""What a run did, and how often things happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tgbench.buckets import Bucket, BucketClass
from tgbench.program import Program
from tgbench.propagate import Propagator, Step, joined
from tgbench.regions import EMPTY, Region


@dataclass(frozen=True)
class Report:
    """What one run did.

    Fields:
        bucket, kind, origin: its signature.
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
    specialised: bool
    moved: bool
    program: Program
    decide_ns: int
    execute_ns: int
    total_ns: int
    propagator: Propagator

    @property
    def instructions(self) -> int:
        return len(self.program.instructions)

    @property
    def compute(self) -> dict[str, Region]:
        found: dict[str, Region] = {}
        for step in self.program.steps:
            for node, region in step.compute.items():
                here = region.at(self.origin)
                found[node.name] = found.get(node.name, EMPTY).union(here)
        return found

    @property
    def recomputed(self) -> float:
        graph = self.propagator.graph
        demand = joined((graph.outputs[name], region) for name, region in self.bucket.demand)
        changed = {leaf: Region.full(leaf.shape) for leaf in graph.inputs.values()}
        whole = _flops([self.propagator.step({}, changed, demand)], ())
        return _flops(self.program.steps, self.origin) / whole if whole else 0.0


def _flops(steps: Sequence[Step], origin: tuple[int, ...]) -> int:
    return sum(
        node.call.op.flops(node.call, box.at(origin))
        for step in steps
        for node, region in step.compute.items()
        for box in region
    )


def taken_bytes(program: Program) -> int:
    """What a run takes beside the arena: what a library allocates in a call, and the results."""
    in_calls = max((made.allocates for made in program.instructions), default=0)
    handed = [tensor for parts in program.results.values() for _, tensor in parts]
    return in_calls + sum(tensor.numel() * tensor.element_size() for tensor in handed)


@dataclass
class Counters:
    """How often things happened in a session."""

    runs: int = 0
    specialised: int = 0
    moved: int = 0
    planned: int = 0
    evicted: int = 0
