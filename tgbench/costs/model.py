"""What a call will take: measured, else interpolated from measurements, else modelled.

    measured      this kernel, at this signature, on this machine
    interpolated  this kernel, at work near what was measured: a fitted line, and what its nearest
                  measurements differ from it
    modelled      the kernel's own cost model, scaled by what was measured where that is known

Every estimate says which. Nothing here runs a kernel: planning asks, the profiler measures.
"""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from heapq import nsmallest
from itertools import chain, combinations
from typing import Any, Literal, TypeAlias

import numpy as np

from tgbench.base.coords import Coord, Moving, unguarded, value_of
from tgbench.base.errors import KernelError, UnreadableRecordsError
from tgbench.base.machine import Machine
from tgbench.base.regions import Box, in_order, row_major
from tgbench.base.words import counted, format_share, format_time
from tgbench.costs.records import Record, Records
from tgbench.costs.signature import (
    Signature,
    amounts,
    head,
    head_of,
    numbers,
    source_hash,
    without_layout,
)
from tgbench.graph.graph import Node
from tgbench.graph.op_table import LINE_RANK, Call
from tgbench.kernels.registry import (
    KERNELS,
    OUT,
    TEAM,
    Kernel,
    Site,
    View,
    apart,
    by_team,
    candidates,
    known_as,
    lays_out,
    prepared_inputs,
)
from tgbench.memory.storage import channels_last
from tgbench.runs.propagate import Step, rough_ns
from tgbench.runs.rules import Rules

Source: TypeAlias = Literal["measured", "interpolated", "modelled"]
ORDER: tuple[Source, ...] = ("measured", "interpolated", "modelled")  # less and less sure
NEIGHBOURS = 4  # measurements that correct the fitted line
AROUND = 5  # that say what is modelled is off by
REACH = math.log(2.0)  # how far outside the measured work a line is still called interpolation
ROUNDING = 1e-9  # of a square of a distance
LEAST_POINTS = 3  # the line has three coefficients
OFF = 1 / 3  # of a spread, that a median is off by: nine samples, the root of them
DRIFT = 0.1  # of a time, that a machine is slower at another moment
LEAST_SAMPLES = 3  # fewer say nothing of how far they spread
UNCERTAIN = 0.5  # relative spread where nothing is known of it
SCALED = 0.25  # where one measurement says what a kernel's own model is off by
CODE_NS = 250_000.0  # that a library makes code for a size in, about: 150,000 to 450,000 were timed
SOME = 16  # runs, of which one is of a size that there was none of
ONE_SIZE = 1.1  # times as long as a whole call takes by code for one size: parts take longer by it
SENTINEL_NS = 1e11  # kernels that are only ever a last resort put such a cost into their model


@dataclass(frozen=True, slots=True)
class Estimate:
    """An expected time.

    Fields:
        source: where it comes from; of a sum, its least sure part.
        spread: relative uncertainty: the interquartile range over the median of a measurement,
            what neighbouring measurements disagree by of an interpolation.
        kernel: the kernel that would run; "" where none was looked for.
        by_source: nanoseconds of each source in a sum.
    """

    time_ns: float
    source: Source
    spread: float = 0.0
    kernel: str = ""
    by_source: tuple[tuple[Source, float], ...] = ()

    def share(self, source: Source) -> float:
        """Which part of the time comes from a source."""
        parts = dict(self.by_source) if self.by_source else {self.source: self.time_ns}
        return parts.get(source, 0.0) / self.time_ns if self.time_ns else 0.0

    def __str__(self) -> str:
        parts = [f"{format_share(self.share(s))} {s}" for s in ORDER if self.share(s) > 0]
        told = self.source if len(parts) < 2 else ", ".join(parts)
        return f"{format_time(self.time_ns)} ± {self.spread:.0%} ({told})"


def total(estimates: Iterable[Estimate]) -> Estimate:
    """The sum of estimates; spreads are taken to be independent.

    >>> total([Estimate(300.0, "measured"), Estimate(100.0, "modelled")]).source
    'modelled'
    """
    parts = dict.fromkeys(ORDER, 0.0)
    variance = 0.0
    for one in estimates:
        for source, time_ns in one.by_source or ((one.source, one.time_ns),):
            parts[source] += time_ns
        variance += (one.spread * one.time_ns) ** 2
    time_ns = sum(parts.values())
    found = tuple((source, part) for source, part in parts.items() if part)
    worst = found[-1][0] if found else "measured"
    return Estimate(time_ns, worst, math.sqrt(variance) / time_ns if time_ns else 0.0, "", found)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measurement, as far as costs need it."""

    kernel: str
    source_hash: str
    signature: str
    time_ns: float
    spread: float
    flops: float
    size_bytes: int
    modelled_ns: float


Failure: TypeAlias = "tuple[str, str, str]"


@dataclass(frozen=True)
class CostTable:
    """Everything a cost model knows: plain numbers and text, for another process or a file.

    Fields:
        streams: weights are read from memory in every run (see `signature.streams`).
        points: the measurements of one machine, by kernel and signature.
        failures: (kernel, source hash, signature) of what raised when it was measured.
        pins: (signature without layouts, kernel) of what comes first there.
    """

    device: str
    streams: bool
    fingerprint: str
    points: tuple[Measurement, ...]
    failures: tuple[Failure, ...] = ()
    pins: tuple[tuple[str, str], ...] = ()

    @property
    def basis(self) -> str:
        """How many measurements, and their digest; "" for none."""
        if not self.points:
            return ""
        digest = hashlib.sha256(repr(self.points).encode()).hexdigest()[:12]
        return f"{counted(len(self.points), 'measurement')} {digest}"


class CostModel:
    """Expected times of calls on this machine.

    Args:
        records: measurements; None for modelled costs alone. A `CostTable` stands for the model
            that it came from and gives the same numbers.
        device: "cpu" or "cuda:0".
        besides: other devices that calls of a graph are computed on.
        streams: the graph's weights do not fit the last cache.
        rules: to share remembered answers with a planner.
        asked: kernels by name that are not everybody's (`Kernel.is_asked`).

    Fields:
        pins: kernels that come first where they take a site, by signature without layouts.
        version: how often it learned something.

    Raises RecordsError for a database that is damaged.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.input("x", (4, 8)) + 1.0
    >>> CostModel().estimate(y.call, Box.full((4, 8))).source
    'modelled'
    """

    def __init__(
        self,
        records: Records | CostTable | None = None,
        device: str = "cpu",
        *,
        besides: Iterable[str] = (),
        streams: bool = True,
        rules: Rules | None = None,
        asked: frozenset[str] = frozenset(),
    ) -> None:
        self.asked = asked
        known = (
            records
            if isinstance(records, CostTable)
            else _table(records, (device, *besides), streams)
        )
        self.device, self.streams = known.device, known.streams
        self.rules = rules if rules is not None else Rules()
        self._signatures, self.version = self.rules.allowance.memo(), 0
        self.pins: Mapping[str, str] = dict(known.pins)
        self._know(known)

    def _know(self, known: CostTable) -> None:
        """Start from what a table knows; nothing that was estimated before is remembered."""
        self._table = known
        self._curves = _curves(known)
        self._scales = Scales(known.points)
        self._failures = frozenset(known.failures)
        self._failing = frozenset(name for name, *_ in known.failures)
        teams = {one.name for one in chain.from_iterable(KERNELS.values()) if one.threads == TEAM}
        self._has_teams = any(name in teams for name, _ in self._curves)
        texts = chain((p.signature for p in known.points), (text for *_, text in known.failures))
        self._met = frozenset(map(without_layout, texts))
        self._heads = frozenset(map(head, self._met))
        self.version += 1
        memo = self.rules.allowance.memo
        self._asked, self._plain, self._sites, self._best = memo(), memo(), memo(), memo()
        self._orders, self._layouts = memo(), memo()

    @property
    def basis(self) -> str:
        """What its times stand on, as plans name it."""
        return self._table.basis

    def table(self) -> CostTable:
        """What it knows; `CostModel(model.table())` gives the same numbers in any process."""
        return replace(self._table, pins=tuple(sorted(self.pins.items())))

    def adopt(self, known: CostTable) -> None:
        """Know what another model of this machine knows, and nothing else."""
        self.pins = dict(known.pins)
        self._know(known)

    def estimate(self, call: Call, box: Box) -> Estimate:
        """What computing a box of a call takes, by the kernel that would be chosen; at sizes that
        nobody measured, by the one that is chosen at the half-octave above.

        Operands are taken to lie as in `site`. A call that no kernel takes so is modelled roughly.
        """
        box = numbers(box)
        return self._asked.get((call, box), self._estimate, call, box)

    def time_ns(self, call: Call, box: Box) -> float:
        """The expected nanoseconds of `estimate`."""
        return self.estimate(call, box).time_ns

    def is_timed_here(self, site: Site) -> bool:
        """Whether the clock of the session's device tells what a call takes: on one of another kind
        it goes on while the call's thread does.
        """
        return site.device.split(":")[0] == self.device.split(":")[0]

    def of_steps(self, steps: Iterable[Step], origin: Sequence[int]) -> float:
        """The expected nanoseconds of all that some steps compute at an origin."""
        return sum(self.time_ns(node.call, box.at(origin)) for node, box in boxes_of(steps))

    def of_site(self, site: Site, kernel: Kernel) -> Estimate:
        """What one kernel takes at a site."""
        return self._told(site, kernel, _alike(site))

    def takes_ns(self, site: Site, kernel: str) -> float:
        """What the kernel of a name takes at a site, where that is longer than the call does by
        `estimate`: it is another one than there, or was timed with operands lying so, and differs
        by more than two moments do. Else 0, as that says it all.
        """
        if (one := known_as(site.call.op.name, kernel)) is None:
            return 0.0
        plain = [self.estimate(each.call, each.out_box) for each in apart(site)]
        is_other = not site.posts and kernel != plain[0].kernel
        if not is_other and not self.has_timed(self.signature(site).text, one):
            return 0.0
        found = self._or_by_team(site, one, self.of_site)
        return found.time_ns if _is_slower(found, plain) else 0.0

    def _told(self, site: Site, kernel: Kernel, alike: Hashable) -> Estimate:
        return self._sites.get((kernel.name, alike), self._of_site, site, kernel, alike)

    def has_timed(self, text: str, kernel: Kernel) -> bool:
        """Whether a kernel was measured at a signature, operands lying as they do there."""
        curve = self._curves.get((kernel.name, source_hash(kernel)))
        return curve is not None and curve.has(text)

    def has_met(self, signature: Signature) -> bool:
        """Whether something was measured at such sizes, has failed there, or is pinned."""
        text = without_layout(signature.text)
        return text in self._met or text in self.pins

    def _is_new(self, site: Site) -> bool:
        """Not `has_met`; what is computed tells most of them apart."""
        is_like_none = not self.pins and head_of(site) not in self._heads
        return is_like_none or not self.has_met(self.signature(site))

    def are_timed(self, site: Site, kernels: Iterable[Kernel]) -> bool:
        """Whether of all these it was measured what they take at a site."""
        return all(self.of_site(site, kernel).source == "measured" for kernel in kernels)

    def signature(self, site: Site) -> Signature:
        """The signature of a site, remembered: every kernel that takes it is asked about it."""
        return self._signatures.get(_alike(site), self._signature, site)

    def _signature(self, site: Site) -> Signature:
        with unguarded():
            return Signature.of(site, streams=self.streams)

    def has_failed(self, site: Site, kernel: Kernel) -> bool:
        """Whether a kernel raised when it was measured at such a site."""
        if kernel.name not in self._failing:
            return False
        return (kernel.name, source_hash(kernel), self.signature(site).text) in self._failures

    def suiting(self, site: Site) -> list[Kernel]:
        """Who takes a site, the modelled fastest first, but for those that lay the call's weights
        out in another way than it has them in: one that all its programs read is enough.
        """
        layout = self._layouts.get(site.call, self._layout, site.call)
        return candidates(site, self.asked, layout)

    def serves_any_size(self, call: Call) -> bool:
        """Whether a call's weights are laid out for kernels without code of each size."""
        layout = self._layouts.get(call, self._layout, call)
        known = KERNELS.get(call.op.name, ())
        return bool(layout) and not any(k.by_size for k in known if k.layout == layout)

    def competing(self, site: Site) -> list[Kernel]:
        """The same, and at a whole call all who might lay its weights out: that decides it."""
        if site.posts or site.out_box != Box.full(site.call.out.shape):
            return self.suiting(site)
        return candidates(site, self.asked)

    def _layout(self, call: Call) -> str:
        """The one by which the whole call is expected to take least. Code for one size has to be
        ahead by a tenth, as one run of some needs code for another: parts of 1 × 1 and 3 × 3
        convolutions take up to twice as long by it where whole ones are level, and a program for
        any place of an image computes as much at each place as at the worst one.
        """
        if not lays_out(call, self.device):
            return ""
        with unguarded():
            site = self.site(call, Box.full(call.out.shape))
            known = [k for k in candidates(site, self.asked) if k.layout]
            found = [(k, self.of_site(site, k)) for k in known if not self.has_failed(site, k)]
        takes_ns = [(_cautious_ns(one), k) for k, one in found]
        charged = [
            (ONE_SIZE * ns + CODE_NS / SOME if k.by_size else ns, k.layout) for ns, k in takes_ns
        ]
        return min(charged, default=(0.0, ""))[1]

    def ranked(self, site: Site) -> list[tuple[Kernel, Estimate]]:
        """Every kernel that takes a site, the expected fastest first.

        Where nothing was measured of any of them at about this size, their own models rank them:
        what large calls take over their models says nothing of small ones. Of those that were
        measured as fast as the fastest, less what noise may make of it, the models rank as well.
        What nobody timed has to be ahead by as much as models are off by: runs try it, where it may
        pay, and know then. Last resorts stay last, unless they were measured: their models say
        nothing else. Only those come after them that raised when they were measured.
        """
        alike = _alike(site)
        found = [(k, self._told(site, k, alike)) for k in self.suiting(site)]
        failed = {kernel.name for kernel, _ in found if self.has_failed(site, kernel)}
        modelled = sorted(found, key=lambda pair: pair[0].name in failed)
        if all(one.source == "modelled" for _, one in found) and not self._knows_near(site, found):
            return modelled
        timed = sorted(
            found, key=lambda p: (p[0].name in failed, _is_last(site, *p), _cautious_ns(p[1]))
        )
        level = [pair for pair in modelled if _is_level(pair[1], timed[0][1])]
        return level + [pair for pair in timed if pair not in level]

    def _knows_near(self, site: Site, found: Iterable[tuple[Kernel, Estimate]]) -> bool:
        """Whether one of these was measured at about this size, where few measurements of each tell
        no line: what one takes at twice the size says more than what all are modelled to.
        """
        curves = [curve for kernel, _ in found if (curve := self._curve(kernel)) is not None]
        if not curves:
            return False
        with unguarded():
            work = amounts(site)
        return any(curve.is_near(*work) for curve in curves)

    def kernels(self, site: Site) -> Sequence[Kernel]:
        """What runs are lowered by: `by_time`, what is pinned at such a site first."""
        return self._pinned(site, self.by_time(site)) if self.pins else self.by_time(site)

    def _pinned(self, site: Site, found: Sequence[Kernel]) -> Sequence[Kernel]:
        name = self.pins.get(without_layout(self.signature(site).text))
        return sorted(found, key=lambda kernel: kernel.name != name)

    def by_time(self, site: Site) -> Sequence[Kernel]:
        """`ranked` without the times. Raises KernelError for none.

        Where something is done to each number of a result, only kernels that are not known to take
        longer than the calls would one by one.
        """
        if site.posts:
            ranked = self.ranked(site)
            single = [self._at_best(one) for one in apart(site)] if ranked else []
            return [k for k, estimate in ranked if not _is_slower(estimate, single)]
        if not self._curves and not self._failures:  # the kernels' own models rank them
            return self.suiting(site)
        return [kernel for kernel, _ in self.ranked(site)]

    def _at_best(self, site: Site) -> Estimate:
        """What the fastest kernel takes at a site."""
        return self._best.get(_alike(site), self._of_best, site)

    def _of_best(self, site: Site) -> Estimate:
        with unguarded():
            return self._or_by_team(site, self.kernels(site)[0], self.of_site)

    def _or_by_team(
        self, site: Site, kernel: Kernel, taking: Callable[[Site, Kernel], Estimate]
    ) -> Estimate:
        """What a kernel takes, or a team in its place, where one was timed and takes less: programs
        have it then (`programs.teamwork`). Not where bits must agree, as nobody has a team there.
        """
        alone = taking(site, kernel)
        team = by_team(site) if self._has_teams and not self.rules.tilings else None
        if team is None or self._curve(team) is None:
            return alone
        shared = taking(site, team)
        return replace(shared, kernel=kernel.name) if shared.time_ns < alone.time_ns else alone

    def learn(self, records: Iterable[Record]) -> None:
        """Take more measurements of this machine into account, from now on."""
        points, failures = _split(records)
        measured = {(point.kernel, point.source_hash, point.signature) for point in points}
        failures = tuple(sorted({*self._table.failures, *failures} - measured))
        points = _merged(self._table.points, points)
        self._know(replace(self._table, points=points, failures=failures))

    def _estimate(self, call: Call, box: Box) -> Estimate:
        reads = self.rules.reads(call, box)
        extents = tuple(None if read is None else read.extents for read in reads)
        key = (call, box.extents, extents, _open_masks(call, reads))
        return self._plain.get(key, self._of_plain, call, box)

    def site(self, call: Call, box: Box) -> Site:
        """Where a box of a call is computed: operands row-major, images of ops on them with their
        channels side by side, weights at rest.
        """
        site = lying_site(call, box, self.rules, self.device)
        return site if call not in self.rules.unpacked else replace(site, frozen=frozenset())

    def _of_plain(self, call: Call, box: Box) -> Estimate:
        site = self.site(call, box)
        try:
            if self._is_new(site):
                around = half_octave_box(call, box)
                order = self._orders.get((call, around), self._order_of, call, around)
                if (kernel := next((k for k in order if k.takes(site)), None)) is not None:
                    return self._or_by_team(site, kernel, self._of_new)
            return self._at_best(site)
        except KernelError:
            return Estimate(rough_ns(call, box), "modelled", UNCERTAIN)

    def _order_of(self, call: Call, box: Box) -> Sequence[Kernel]:
        try:
            return tuple(self.kernels(self.site(call, box)))
        except KernelError:
            return ()

    def _of_site(self, site: Site, kernel: Kernel, alike: Hashable) -> Estimate:
        curve = self._curve(kernel)
        if curve is None:
            return self._modelled(site, kernel)
        signature = self._signatures.get(alike, self._signature, site)
        return curve.at(signature, partial(_modelled_ns, site, kernel), kernel.name)

    def _of_new(self, site: Site, kernel: Kernel) -> Estimate:
        """The same where nothing of such sizes was measured: no text is looked for."""
        curve = self._curve(kernel)
        if curve is None:
            return self._modelled(site, kernel)
        with unguarded():
            return curve.around(*amounts(site), partial(modelled_ns, site, kernel), kernel.name)

    def _curve(self, kernel: Kernel) -> Fit | None:
        return self._curves.get((kernel.name, source_hash(kernel)))

    def _modelled(self, site: Site, kernel: Kernel) -> Estimate:
        time_ns = _modelled_ns(site, kernel)
        scale = self._scales.at(site.call.op.name, time_ns)
        return Estimate(time_ns * scale, "modelled", UNCERTAIN, kernel.name)


def boxes_of(steps: Iterable[Step]) -> Iterator[tuple[Node, Box]]:
    """Every box that is computed."""
    return (
        (node, box) for step in steps for node, region in step.compute.items() for box in region
    )


def _is_last(site: Site, kernel: Kernel, found: Estimate) -> bool:
    """Whether a kernel is a last resort that nothing is known of."""
    with unguarded():
        return found.source != "measured" and kernel.cost_ns(site) >= SENTINEL_NS


def _cautious_ns(found: Estimate) -> float:
    """A time to rank by beside others that were measured."""
    return found.time_ns * (1 + found.spread if found.source == "modelled" else 1.0)


def _is_level(one: Estimate, best: Estimate) -> bool:
    """Whether a time differs from the best by no more than their medians may be off by."""
    if not one.source == best.source == "measured":
        return False
    off_ns = OFF * (one.spread * one.time_ns + best.spread * best.time_ns)
    return one.time_ns - best.time_ns <= off_ns


def _is_slower(one: Estimate, others: Sequence[Estimate]) -> bool:
    """Whether a time is longer than others together, by more than they may be off by.

    They were not measured in turns: what else the machine did may have been another.
    """
    off_ns = OFF * sum(found.spread * found.time_ns for found in (one, *others))
    return one.time_ns - sum(found.time_ns for found in others) > max(off_ns, DRIFT * one.time_ns)


def half_octave_box(call: Call, box: Box) -> Box:
    """A box in the middle of the result, each side as long as the half-octave above, or as all.

    >>> from tgbench.graph.graph import GraphBuilder
    >>> y = GraphBuilder().input("x", (100, 8)) + 1.0
    >>> half_octave_box(y.call, Box(((90, 99), (0, 7))))
    [44:56, 0:8]
    """
    sides = []
    for size, (start, stop) in zip(call.out.shape, box, strict=True):
        extent = value_of(stop) - value_of(start)
        octave = 1 << (extent - 1).bit_length()
        most = min(octave if extent > octave * 3 // 4 else octave * 3 // 4, size)
        first = (size - most) // 2
        sides.append((first, first + most))
    return Box(sides)


def _open_masks(call: Call, reads: Sequence[Box | None]) -> tuple[bool, ...]:
    """Which inputs are masks that are open all over: kernels may leave those out."""
    if not any(fact is not None and fact.constant is not None for fact in call.facts):
        return ()
    empty = View("", "bool", (), (), 0)
    boxes = tuple(box and numbers(box) for box in reads)
    site = Site(call, Box(()), boxes, empty, (), "")
    return tuple(site.is_all_open(i) for i in range(len(call.facts)))


def plain_site(call: Call, box: Box, reads: Sequence[Box | None], device: str) -> Site:
    """A site whose operands lie row-major, each in a buffer of its own; weights never change."""
    return _laid(call, box, reads, device, frozenset())


def lying_site(call: Call, box: Box, rules: Rules, device: str) -> Site:
    """The same, but that images lie as `memory.storage` has them: kernels for others are others."""
    rank, images = len(box), frozenset[Any]()
    if call.op.on_images and rank >= LINE_RANK:
        weights = call.op.streams(call)
        images = frozenset(
            i for i, t in enumerate(call.inputs) if t.rank == rank and i not in weights
        ) | {OUT}
    return _laid(call, box, rules.reads(call, box), device, images)


def _laid(
    call: Call, box: Box, reads: Sequence[Box | None], device: str, images: Collection[Any]
) -> Site:
    """A site of operands that lie without gaps, some of them as images do."""

    def laid(buffer: Any, extents: tuple[Coord, ...], dtype: str) -> View:
        is_image = buffer in images
        strides = in_order(extents, channels_last(len(extents))) if is_image else row_major(extents)
        return View(buffer, dtype, extents, strides, 0)

    ins = tuple(
        None if read is None else laid(i, read.extents, call.inputs[i].dtype)
        for i, read in enumerate(reads)
    )
    out, frozen = laid(OUT, box.extents, call.out.dtype), prepared_inputs(call, device)
    return Site(call, box, tuple(reads), out, ins, device, frozen)


def modelled_ns(site: Site, kernel: Kernel) -> float:
    """The kernel's own cost model, or the rough one where it only ranks."""
    cost = kernel.cost_ns(site)
    return cost if 0 < cost < SENTINEL_NS else rough_ns(site.call, site.out_box)


def _modelled_ns(site: Site, kernel: Kernel) -> float:
    """The same, whose guards are nobody's."""
    with unguarded():
        return modelled_ns(site, kernel)


def _alike(site: Site) -> Hashable:
    """Equal for sites at which a kernel takes as long."""
    return site.call, position_free(site)


def position_free(site: Site) -> tuple[Any, ...]:
    """What of a site its estimate depends on, besides the call: numbers."""
    views = (site.out, *site.ins, *(view for post in site.posts for view in post.ins))
    sides = tuple(
        None if view is None else (_numbers(view.shape), _numbers(view.strides)) for view in views
    )
    posts = tuple(post.call for post in site.posts)
    return (*sides, *posts, *_open_masks(site.call, site.in_boxes))


def _numbers(coords: tuple[Coord, ...]) -> tuple[Coord, ...]:
    """What coordinates are where one stands."""
    return tuple(map(value_of, coords)) if Moving in map(type, coords) else coords


# --- curves ---------------------------------------------------------------------------------------


class Scales:
    """How much longer calls take than their kernels' own models say, where a kernel was not timed.

    Others of the same op were, or of other ops, at about these sizes: where a few rows fit a cache,
    or a call is mostly its dispatch, models are off by other factors than of large calls. So a
    kernel that nobody timed is compared with those that were as their models compare.
    """

    def __init__(self, points: Sequence[Measurement]) -> None:
        self._of: dict[str, list[tuple[float, float]]] = {}
        for point in points:
            told = math.log(point.modelled_ns), point.time_ns / point.modelled_ns
            for op in ("", point.signature.partition("(")[0]):
                self._of.setdefault(op, []).append(told)

    def at(self, op: str, modelled_ns: float) -> float:
        """The median of the nearest ones, by what is modelled; 1 where nothing was measured."""
        known = self._of.get(op) or self._of.get("")
        if known is None:
            return 1.0
        about = math.log(max(modelled_ns, 1.0))
        near = nsmallest(AROUND, known, key=lambda one: abs(one[0] - about))
        return statistics.median(ratio for _, ratio in near)


@dataclass(frozen=True)
class Fit:
    """The measurements of one kernel, and what lies between them.

    The line `launch + flops · a + bytes · b`, no coefficient negative, is the one with the least
    relative squared error; the nearest measurements say how far off it is around there. With fewer
    than three measurements the kernel's own model is scaled instead, as the nearest say.
    """

    points: tuple[Measurement, ...]

    def at(
        self, signature: Signature, modelled_ns: Callable[[], float], kernel: str = ""
    ) -> Estimate:
        """The estimate at a signature; the kernel's own model is asked where nothing else tells."""
        point = self._exact.get(signature.text)
        point = point or self._alike.get(without_layout(signature.text))
        if point is not None:
            return Estimate(point.time_ns, "measured", point.spread, kernel)
        return self.around(signature.flops, signature.size_bytes, modelled_ns, kernel)

    def around(
        self,
        flops: float,
        size_bytes: float,
        modelled_ns: Callable[[], float],
        kernel: str,
    ) -> Estimate:
        """The same for so much work that was not measured."""
        if not self._reaches(flops, size_bytes):
            time_ns = modelled_ns()
            scale = self._scale_at(time_ns)
            return Estimate(time_ns * scale, "modelled", self._disagreement, kernel)
        return self._between(flops, size_bytes, kernel)

    def has(self, text: str) -> bool:
        """Whether there is a measurement of a signature."""
        return text in self._exact

    @cached_property
    def _exact(self) -> dict[str, Measurement]:
        return {point.signature: point for point in self.points}

    @cached_property
    def _alike(self) -> dict[str, Measurement]:
        """By signature less layouts: of several, the one with the median time."""
        found: dict[str, list[Measurement]] = {}
        for point in self.points:
            found.setdefault(without_layout(point.signature), []).append(point)
        return {text: _middle(points) for text, points in found.items()}

    @cached_property
    def _work(self) -> list[tuple[float, float]]:
        """For each measurement, the logarithms of its flops and bytes."""
        return [work_of(p.flops, p.size_bytes) for p in self.points]

    @cached_property
    def _reach(self) -> list[tuple[float, float]]:
        """Between what those may be for the line to say something."""
        return [(min(logs) - REACH, max(logs) + REACH) for logs in zip(*self._work, strict=True)]

    @cached_property
    def _line(self) -> tuple[float, float, float]:
        """Launch in ns, ns per flop, ns per byte."""
        times = np.array([point.time_ns for point in self.points])
        rows = np.array([(1.0, p.flops, p.size_bytes) for p in self.points]) / times[:, None]
        sizes = np.maximum(rows.max(axis=0), 1e-300)
        launch, per_flop, per_byte = nonnegative(rows / sizes, np.ones(len(rows))) / sizes
        return float(launch), float(per_flop), float(per_byte)

    @cached_property
    def _residuals(self) -> list[float]:
        """For each measurement, the logarithm of its time over the line's."""
        return [math.log(p.time_ns / self._on_line(p.flops, p.size_bytes)) for p in self.points]

    def _scale_at(self, modelled_ns: float) -> float:
        """What measurements took over the model, the more the nearer they are by what is modelled:
        a model may be right of one row and off by three of a hundred.
        """
        about, total, whole = math.log(modelled_ns), 0.0, 0.0
        for told, ratio in self._off:
            weight = _weight((told - about) ** 2)
            total += weight * ratio
            whole += weight
        return math.exp(total / whole)

    @cached_property
    def _off(self) -> list[tuple[float, float]]:
        """For each measurement, the logarithms of what is modelled, and of its time over that."""
        return [(math.log(p.modelled_ns), math.log(p.time_ns / p.modelled_ns)) for p in self.points]

    @cached_property
    def _logs(self) -> Any:
        """The same, [which, measurement]."""
        return np.array(self._work).T.copy()

    @cached_property
    def _disagreement(self) -> float:
        """Relative spread of measured over modelled times."""
        ratios = [ratio for _, ratio in self._off]
        return statistics.pstdev(ratios) if len(ratios) > 1 else SCALED

    def _on_line(self, flops: float, size_bytes: float) -> float:
        launch, per_flop, per_byte = self._line
        return max(launch + per_flop * flops + per_byte * size_bytes, 1.0)

    def _reaches(self, flops: float, size_bytes: float) -> bool:
        if len(self.points) < LEAST_POINTS:
            return False
        work = work_of(flops, size_bytes)
        return all(low <= one <= high for one, (low, high) in zip(work, self._reach, strict=True))

    def is_near(self, flops: float, size_bytes: float) -> bool:
        """Whether something was measured at about this size."""
        work = work_of(flops, size_bytes)
        return any(
            all(abs(one - other) <= REACH for one, other in zip(work, point, strict=True))
            for point in self._work
        )

    def _nearest(self, flops: float, size: float) -> list[tuple[float, int]]:
        """(square of the distance, which one) of the measurements around there, the nearest first;
        arrays find about which ones these are.
        """
        logs, work = self._logs, self._work
        near: Iterable[int] = range(len(work))
        if len(work) > NEIGHBOURS:
            about = (logs[0] - flops) ** 2 + (logs[1] - size) ** 2
            far = np.partition(about, NEIGHBOURS - 1)[NEIGHBOURS - 1]
            near = np.flatnonzero(about <= far * (1 + ROUNDING)).tolist()
        squares = [((flops - work[i][0]) ** 2 + (size - work[i][1]) ** 2, i) for i in near]
        return sorted(squares)[:NEIGHBOURS]

    def _between(self, flops: float, size_bytes: float, kernel: str) -> Estimate:
        """Weights go by distance."""
        squares, near = zip(*self._nearest(*work_of(flops, size_bytes)), strict=True)
        weights = [_weight(square) for square in squares]
        whole = sum(weights)
        offset = sum(w * self._residuals[i] for w, i in zip(weights, near, strict=True)) / whole
        spread = sum(
            w * (self._residuals[i] - offset) ** 2 for w, i in zip(weights, near, strict=True)
        )
        own = sum(w * self.points[i].spread for w, i in zip(weights, near, strict=True)) / whole
        time_ns = self._on_line(flops, size_bytes) * math.exp(offset)
        spread = math.hypot(math.sqrt(spread / whole), own)
        return Estimate(time_ns, "interpolated", spread, kernel)


def _weight(square: float) -> float:
    """Of a measurement, by the square of how far off it is."""
    return 1.0 / (square + 1e-4)


def nonnegative(rows: Any, right: Any) -> Any:
    """Least squares without negative coefficients, for few unknowns.

    At the best point the coefficients that are not 0 solve the problem of their columns alone; so
    of all sets of columns whose solution has none below 0, it is the one that fits best.
    """
    count = rows.shape[1]
    best, least = np.zeros(count), float(right @ right)
    for columns in (list(c) for n in range(count) for c in combinations(range(count), n + 1)):
        found = np.linalg.lstsq(rows[:, columns], right, rcond=None)[0]
        off = rows[:, columns] @ found - right
        if (found >= 0).all() and float(off @ off) < least:
            best, least = np.zeros(count), float(off @ off)
            best[columns] = found
    return best


def work_of(flops: float, size_bytes: float) -> tuple[float, float]:
    """Logarithms of what is computed and moved: how far apart sizes are."""
    return math.log(flops + 1.0), math.log(size_bytes + 1.0)


def _middle(points: Sequence[Measurement]) -> Measurement:
    ordered = sorted(points, key=lambda point: (point.time_ns, point.signature))
    return ordered[len(ordered) // 2]


def _curves(table: CostTable) -> dict[tuple[str, str], Fit]:
    """One curve a kernel, of what was measured with weights where this graph has them.

    A kernel that was only measured with weights elsewhere keeps those: better than none.
    """
    here = f"; {'streamed' if table.streams else 'cached'} "
    found: dict[tuple[str, str], list[Measurement]] = {}
    for point in table.points:
        found.setdefault((point.kernel, point.source_hash), []).append(point)
    return {
        key: Fit(tuple([p for p in points if here in p.signature] or points))
        for key, points in found.items()
    }


def _merged(old: Iterable[Measurement], new: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """One point a kernel and signature, the new one where there are two."""
    found = {(p.kernel, p.source_hash, p.signature): p for p in (*old, *new)}
    return tuple(found[key] for key in sorted(found))


def _table(records: Records | None, devices: Sequence[str], streams: bool) -> CostTable:
    """What is known of the first of some devices, and of the others: signatures name their kind."""
    own, *others = dict.fromkeys(Machine.here(device).fingerprint for device in devices)
    found = [r for one in (own, *others) for r in records.all(one)] if records is not None else []
    return CostTable(devices[0], streams, own, *_split(found))


def _split(records: Iterable[Record]) -> tuple[tuple[Measurement, ...], tuple[Failure, ...]]:
    """What was measured, and what failed."""
    found = list(records)
    failed = {(r.kernel, r.source_hash, r.signature) for r in found if r.failure is not None}
    return tuple(_point(r) for r in found if r.failure is None), tuple(sorted(failed))


def _point(record: Record) -> Measurement:
    if record.modelled_ns <= 0:
        raise UnreadableRecordsError(
            f"the record of {record.kernel} at {record.signature} has no modelled time; "
            "delete it and profile again"
        )
    is_known = len(record.samples_ns) >= LEAST_SAMPLES
    return Measurement(
        record.kernel,
        record.source_hash,
        record.signature,
        record.median_ns,
        record.spread_ns / record.median_ns if is_known else UNCERTAIN,
        record.flops,
        record.size_bytes,
        record.modelled_ns,
    )
