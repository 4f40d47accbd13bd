"""Monte Carlo tree search over what to retain, on the tabulated model.

    root ── is node a kept? ─┬─ yes ── is node b kept? ─┬─ yes …
                             └─ no                      └─ no

The nodes are asked about in order of how undecided the relaxed program is on them. Below a leaf, a
rollout keeps what the leaf says and fills the memory greedily, by priorities with noise; a whole
population of prefixes is scored at once. Every other rollout starts from the best retention so far
and lets go of a part of it (a large neighbourhood).

Source: Kocsis and Szepesvári, "Bandit based Monte-Carlo planning" (2006), for the choice of a
child; Shaw, "Using constraint programming and local search methods" (1998), for neighbourhoods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from tgbench.plans.search.model import Keep, Model
from tgbench.plans.search.tables import Floats

Answers: TypeAlias = "tuple[tuple[int, bool], ...]"  # from the root: node, and whether it is kept

EXPLORE = 0.5  # weight of the exploration term, for rewards in [0, 1]
NOISES = (0.02, 0.1, 0.3)  # of priorities, which lie in about [0, 1]
FILLS = 12  # prefixes scored at once, per noise
MOST_ASKED = 48  # decisions in the tree; the others are left to the rollouts


@dataclass
class Branch:
    """A node of the tree: how often it was visited, and how well that went."""

    visits: int = 0
    reward: float = 0.0
    children: dict[bool, Branch] = field(default_factory=dict)

    def score(self, parent_visits: int) -> float:
        """The upper confidence bound; a child that was never visited comes first."""
        if not self.visits:
            return math.inf
        explore = EXPLORE * math.sqrt(math.log(parent_visits) / self.visits)
        return self.reward / self.visits + explore


@dataclass(frozen=True)
class ScoredRetention:
    """A retention and what the model says of it."""

    keep: NDArray[np.bool_]  # [turn, node]
    time_ns: float
    size_bytes: int


class TreeSearch:
    """One search over one model and budget; `step` goes on from where it stands.

    Args:
        share: [turn, node] how much is kept in the relaxed program: where to look first.
        starts: retentions [turn, node] to begin with; those that do not fit are not used.
        seed: numbers that decide, with how many steps are taken, everything.
    """

    def __init__(
        self,
        model: Model,
        budget_bytes: int,
        share: Floats,
        starts: Sequence[NDArray[np.bool_]] = (),
        seed: Sequence[int] = (0,),
        bound_ns: float = 0.0,
    ) -> None:
        self.model = model
        self.budget_bytes = budget_bytes
        self.share = share
        self.bound_ns = bound_ns
        self.random = np.random.default_rng(list(seed))
        self.root = Branch()
        self.steps = 0
        self._candidates = np.flatnonzero(model.tables.worthwhile)
        self._slowest = float(model.score(model.none()).time_ns[0])
        self.best: ScoredRetention | None = None
        for start in (np.zeros_like(share, bool), *starts):
            self._take(self._scored(np.asarray(start, bool)[None]))
        self.priority = share + 0.2 * self._worth()
        undecided = np.abs(share.max(axis=0) - 0.5)[self._candidates]
        self.asked = self._candidates[np.argsort(undecided, kind="stable")][:MOST_ASKED]

    def step(self) -> ScoredRetention | None:
        """One rollout, and the best that it came to; None if nothing of it fits."""
        self.steps += 1
        path, fixed = self._descend()
        around = self.best if self.best is not None and self.steps % 2 else None
        found = self._rollout(fixed, around)
        reward = self._reward(found)
        for branch in path:
            branch.visits += 1
            branch.reward += reward
        self._take(found)
        return found

    def offered(self, keep: NDArray[np.bool_] | None) -> ScoredRetention | None:
        """A step that something else took: what it found is where the next rollouts begin."""
        self.steps += 1
        found = None if keep is None else self._scored(keep[None])
        self._take(found)
        return found

    # --- the tree --------------------------------------------------------------------------------

    @property
    def visited(self) -> dict[Answers, tuple[int, float]]:
        """Every branch that was visited: how often, and the sum of its rewards."""
        found: dict[Answers, tuple[int, float]] = {}
        open_branches: list[tuple[Answers, Branch]] = [((), self.root)]
        while open_branches:
            answers, branch = open_branches.pop()
            if branch.visits:
                found[answers] = branch.visits, branch.reward
                asked = int(self.asked[len(answers)]) if branch.children else -1
                open_branches += [
                    ((*answers, (asked, kept)), child) for kept, child in branch.children.items()
                ]
        return found

    def _descend(self) -> tuple[list[Branch], dict[int, bool]]:
        """Down the tree by confidence bounds, to a leaf that is then opened."""
        path, fixed, branch = [self.root], {}, self.root
        for n in self.asked:
            if not branch.children:
                if branch.visits:
                    branch.children = {True: Branch(), False: Branch()}
                else:
                    break
            answer = max(
                branch.children, key=lambda a: (branch.children[a].score(branch.visits), a)
            )
            fixed[int(n)] = answer
            branch = branch.children[answer]
            path.append(branch)
        return path, fixed

    def _reward(self, found: ScoredRetention | None) -> float:
        if found is None or self._slowest <= self.bound_ns:
            return 0.0
        gained = (self._slowest - found.time_ns) / (self._slowest - self.bound_ns)
        return min(max(gained, 0.0), 1.0) ** 4  # the last few percent are what is looked for

    # --- rollouts --------------------------------------------------------------------------------

    def _rollout(
        self, fixed: dict[int, bool], around: ScoredRetention | None
    ) -> ScoredRetention | None:
        orders = [self._noisy(noise, fixed, around) for noise in NOISES]
        return self._fill(orders, fixed)

    def _noisy(
        self, noise: float, fixed: dict[int, bool], around: ScoredRetention | None
    ) -> Floats:
        """Priorities [turn, node] for one greedy filling."""
        shape = self.share.shape
        order = self.priority + noise * self.random.gumbel(size=shape[1])
        order = order + 0.2 * noise * self.random.gumbel(size=shape)
        if around is not None:
            loose = self._neighbourhood()
            order = np.where(loose, order, np.where(around.keep, 10.0, -10.0) + 0.01 * order)
        for n, kept in fixed.items():
            order[:, n] = (20.0 + order[:, n]) if kept else -np.inf
        order[:, ~self.model.tables.worthwhile] = -np.inf
        return order

    def _neighbourhood(self) -> NDArray[np.bool_]:
        """[node] what is decided anew: a stretch of the schedule, or a scattering."""
        nodes = self.model.nodes
        if self.random.random() < 0.5:
            length = int(self.random.integers(1, max(nodes // 3, 1) + 1))
            start = int(self.random.integers(0, max(nodes - length, 0) + 1))
            loose = np.zeros(nodes, bool)
            loose[start : start + length] = True
            return loose
        found: NDArray[np.bool_] = self.random.random(nodes) < self.random.uniform(0.05, 0.5)
        return found

    def _fill(self, orders: Sequence[Floats], fixed: dict[int, bool]) -> ScoredRetention | None:
        """The best prefix of any of the orders; looked for coarsely, then more finely."""
        ranked = [_ranked(order) for order in orders]
        spans = [(0, len(bits)) for bits in ranked]
        best: ScoredRetention | None = None
        for _ in range(2):
            members, marks = [], []
            for which, (bits, (low, high)) in enumerate(zip(ranked, spans, strict=True)):
                for count in sorted(set(np.linspace(low, high, FILLS).astype(int).tolist())):
                    members.append(_prefix(bits, count, self.share.shape))
                    marks.append((which, count))
            scores = self.model.score(np.stack(members))
            at = scores.best(self.budget_bytes)
            if at is not None and (best is None or scores.time_ns[at] < best.time_ns):
                best = ScoredRetention(
                    members[at], float(scores.time_ns[at]), int(scores.size_bytes[at])
                )
            spans = self._narrowed(spans, marks, scores.size_bytes <= self.budget_bytes)
        return best

    @staticmethod
    def _narrowed(
        spans: Sequence[tuple[int, int]],
        marks: Sequence[tuple[int, int]],
        fits: NDArray[np.bool_],
    ) -> list[tuple[int, int]]:
        """Around the longest prefix that fits, of each order."""
        found = []
        for which, (low, high) in enumerate(spans):
            counts = [(count, bool(fit)) for (w, count), fit in zip(marks, fits, strict=True)
                      if w == which]  # fmt: skip
            inside = max((count for count, fit in counts if fit), default=low)
            outside = min((count for count, fit in counts if not fit and count > inside),
                          default=high)  # fmt: skip
            found.append((inside, outside))
        return found

    # --- scoring ---------------------------------------------------------------------------------

    def _scored(self, keep: Keep) -> ScoredRetention | None:
        scores = self.model.score(keep)
        at = scores.best(self.budget_bytes)
        if at is None:
            return None
        return ScoredRetention(keep[at], float(scores.time_ns[at]), int(scores.size_bytes[at]))

    def _take(self, found: ScoredRetention | None) -> bool:
        if found is None:
            return False
        better = self.best is None or (found.time_ns, found.size_bytes) < (
            self.best.time_ns,
            self.best.size_bytes,
        )
        if better:
            self.best = found
        return better

    def _worth(self) -> Floats:
        """[node] rank, in 0 to 1, of the time that a byte of it saves beside the best so far."""
        base = self.best.keep if self.best is not None else np.zeros_like(self.share, bool)
        worth = worth_ns(self.model, base)
        density = worth / np.maximum(self.model.tables.kept_bytes, 1)
        order = np.argsort(np.argsort(density, kind="stable"), kind="stable")
        found: Floats = order / max(len(order) - 1, 1) * (worth > 0)
        return found


def worth_ns(model: Model, keep: NDArray[np.bool_]) -> Floats:
    """[node] what retaining each node through all turns saves a run, the others as they are."""
    found = np.zeros(model.nodes)
    candidates = np.flatnonzero(model.tables.worthwhile)
    for part in np.array_split(candidates, max(len(candidates) // 64, 1)):
        if not len(part):
            continue
        members = np.repeat(keep[None], 2 * len(part), axis=0)
        members[np.arange(len(part)), :, part] = True
        members[len(part) + np.arange(len(part)), :, part] = False
        time = model.score(members).time_ns
        found[part] = time[len(part) :] - time[: len(part)]
    return np.maximum(found, 0.0)


def _ranked(order: Floats) -> NDArray[np.int64]:
    """Positions in a flattened [turn, node], the highest priority first, without those at −∞."""
    flat = order.reshape(-1)
    ranked = np.argsort(-flat, kind="stable")
    found: NDArray[np.int64] = ranked[: int(np.isfinite(flat).sum())]
    return found


def _prefix(ranked: NDArray[np.int64], count: int, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    keep = np.zeros(shape, bool)
    keep.reshape(-1)[ranked[:count]] = True
    return keep
