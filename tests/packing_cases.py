"""Problems for the packers: random ones, cut rectangles, and their optimum by exhaustion."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations

from hypothesis import strategies as st

from benchmarks.packing import Box, cut, halves
from tgbench.memory.packing import PACKERS, Buffer, Problem, Solution, aligned_size


@st.composite
def problems(draw: st.DrawFn, most: int = 14, sizes: int = 300) -> Problem:
    """Random buffers, among them empty ones, ones that are never live, and ones with gaps."""
    alignment = draw(st.sampled_from([1, 8, 64]))
    shapes = st.tuples(st.integers(0, sizes), st.integers(0, 12), st.integers(0, 6))
    buffers = tuple(
        Buffer(f"b{index}", size, start, start + steps, _gaps(draw, start, start + steps))
        for index, (size, start, steps) in enumerate(draw(st.lists(shapes, max_size=most)))
    )
    return Problem(buffers, alignment=alignment)


def _gaps(draw: st.DrawFn, start: int, stop: int) -> tuple[tuple[int, int], ...]:
    edges = sorted(draw(st.sets(st.integers(start, stop), max_size=4)))
    return tuple(zip(edges[::2], edges[1::2], strict=False))


@st.composite
def pinned_problems(draw: st.DrawFn, most: int = 14, sizes: int = 300) -> Problem:
    """Pins that do not clash: some offsets of a valid solution, lifted apart by gaps."""
    problem = draw(problems(most, sizes))
    names = [buffer.name for buffer in problem.buffers]
    chosen = draw(st.sets(st.sampled_from(names))) if names else set()
    sources = [*PACKERS.values(), _stacked]
    offsets = draw(st.sampled_from(sources))(problem).offsets
    lift = problem.alignment * draw(st.integers(0, 3))
    return replace(problem, pinned={name: offsets[name] + lift for name in sorted(chosen)})


def _stacked(problem: Problem) -> Solution:
    """No byte used twice, and a gap of one unit above each buffer."""
    offsets, top = {}, 0
    for buffer in problem.buffers:
        offsets[buffer.name] = top
        top += aligned_size(buffer.size_bytes, problem.alignment) + problem.alignment
    return Solution.of(problem, offsets, "stacked")


def optimum(problem: Problem) -> int:
    """The least height, by every order of lowest fits: one of them is an optimum pushed down."""
    free = [buffer for buffer in problem.buffers if buffer.name not in problem.pinned]
    heights = [_lowest_fit(problem, order) for order in permutations(free)]
    return min(heights)


def _lowest_fit(problem: Problem, order: Sequence[Buffer]) -> int:
    taken: dict[str, tuple[Buffer, int, int]] = {}
    for buffer in (b for b in problem.buffers if b.name in problem.pinned):
        size = aligned_size(buffer.size_bytes, problem.alignment)
        low = problem.pinned[buffer.name]
        taken[buffer.name] = (buffer, low, low + size)
    for buffer in order:
        size = aligned_size(buffer.size_bytes, problem.alignment)
        low = 0
        while any(
            share_a_step(buffer, other) and max(low, start) < min(low + size, stop)
            for other, start, stop in taken.values()
        ):
            low += problem.alignment
        taken[buffer.name] = (buffer, low, low + size)
    return max((stop for b, _, stop in taken.values() if b.size_bytes), default=0)


def share_a_step(one: Buffer, other: Buffer) -> bool:
    return bool(live_steps(one) & live_steps(other))


def live_steps(buffer: Buffer) -> set[int]:
    idle = {step for start, stop in buffer.gaps for step in range(start, stop)}
    return set(range(buffer.start, buffer.stop)) - idle


def cut_rectangle(
    capacity: int, steps: int, pieces: int, seed: int, left_out: float = 0.0
) -> Problem:
    """A full rectangle cut into buffers, of which some are left out: it fits into the capacity.

    With nothing left out, the optimum is the capacity, as is the bound. A third of the cuts are
    pinwheels of five pieces, which no sequence of straight cuts makes.
    """
    return cut(steps, pieces, left_out, seed, capacity, _pieces)


def _pieces(box: Box, chance: random.Random) -> list[Box]:
    start, stop, low, high = box
    if stop - start > 2 and high - low > 2 and chance.random() < 1 / 3:
        a, b = sorted(chance.sample(range(start + 1, stop), 2))
        c, d = sorted(chance.sample(range(low + 1, high), 2))
        ring = [(start, b, low, c), (b, stop, low, d), (a, stop, d, high), (start, a, c, high)]
        return [*ring, (a, b, c, d)]
    return halves(box, chance)
