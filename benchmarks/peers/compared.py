"""One model with one number of threads, everybody in turns: what decoding and full runs share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from benchmarks.measure import Samples, middle, ms
from benchmarks.peers.processes import Opened

MINE = "tgbench"
LESS = ("bf16", "int8")  # tgbench with weights in less, by what they are in; fp32 otherwise


@dataclass(frozen=True)
class Compared(ABC):
    """What a comparison is made of.

    Fields:
        labels: of the systems of this process, by name.
        wall, cpu: the same steps by either clock.
        peers: those that were asked for, also those that could not be opened.
    """

    labels: ClassVar[Mapping[str, str]]

    threads: int
    wall: Samples
    cpu: Samples
    peers: Sequence[Opened]
    facts: Mapping[str, Any]

    @property
    @abstractmethod
    def others(self) -> list[str]:
        """The systems that tgbench is compared with."""

    @property
    def samples(self) -> Samples:
        """By the clock that counts."""
        return self.cpu if self.threads == 1 else self.wall

    @property
    def clock(self) -> str:
        """Whose that is."""
        return "processor" if self.samples is self.cpu else "wall"

    @property
    def precisions(self) -> dict[str, str]:
        """Of the weights of every system."""
        known = dict(zip(LESS, LESS, strict=True))
        known |= {one.peer.name: one.peer.precision for one in self.peers}
        return {name: known.get(name, "fp32") for name in self.samples.times}

    def mine(self, name: str) -> str:
        """tgbench at the same precision."""
        precision = self.precisions[name]
        return MINE if precision == "fp32" else precision

    def wins(self, name: str) -> int:
        """Repetitions in which tgbench was faster at the same precision."""
        return sum(ratio > 1 for ratio in self.samples.ratios(name, self.mine(name)))

    def label(self, name: str) -> str:
        """As tables call a system."""
        return self.labels.get(name) or next(
            one.peer.label for one in self.peers if one.peer.name == name
        )

    def times(self, name: str) -> list[str]:
        """A system's name, precision and medians by both clocks, for a table."""
        medians = [ms(samples.median(name)) for samples in (self.wall, self.cpu)]
        return [self.label(name), self.precisions[name], *medians]

    def beside_mine(self, name: str) -> list[str]:
        """A system's time over tgbench's, and how often tgbench was faster, for a table."""
        ratio = middle(self.samples.ratios(name, self.mine(name)))
        count = len(self.samples.times[name])
        return [f"{ratio:.2f}", f"{self.wins(name)} of {count}" if name in self.others else ""]

    @property
    def missing(self) -> list[str]:
        """Who could not be opened, and why."""
        return [f"{one.peer.name}: {one.missing}" for one in self.peers if one.missing]

    def summary(self) -> dict[str, Any]:
        """What a file has of it, besides the samples."""
        s, names = self.samples, list(self.samples.times)
        return {
            "clock": "cpu" if s is self.cpu else "wall",
            "precision": self.precisions,
            "median_ms": {name: self.wall.median(name) / 1e6 for name in names},
            "median_cpu_ms": {name: self.cpu.median(name) / 1e6 for name in names},
            "times_faster": {n: middle(s.ratios(n, self.mine(n))) for n in self.others},
            "repetitions_faster": {n: self.wins(n) for n in self.others},
            "faster_in_every_repetition": {
                n: s.always_faster(self.mine(n), n) for n in self.others
            },
        }

    def to_dict(self) -> dict[str, Any]:
        """What a file has of it."""
        return {
            **self.facts,
            "peers": {one.peer.name: one.to_dict() for one in self.peers},
            "summary": self.summary(),
            "loads": self.wall.loads,
            "samples_ns": self.wall.times,
            "samples_cpu_ns": self.cpu.times,
        }
