"""Which nodes to retain, and where to cut, under a budget.

The candidates are the nodes whose earlier values some planned run reads: its *frontier*. For a
decoder that appends tokens these come out as K and V, because nothing else of an earlier row is
read again; no rule says so. Each candidate's worth is what the planned runs would take longer
without it; by worth per byte they are retained while the rest still packs. What does not fit
shares bytes and is computed again when it is needed. Where that leaves out some, or cuts runs, and
of some candidates only parts are read again, these are also tried by themselves (`parts`). Where a
run does not fit all the same, some of its nodes are computed more than once in it (`again`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

from tgbench.base.errors import BudgetError
from tgbench.base.memo import Latest, Memo
from tgbench.base.regions import Box
from tgbench.base.switches import checks
from tgbench.base.words import counted, format_bytes
from tgbench.graph.graph import Node
from tgbench.graph.op_table import Call
from tgbench.kernels.registry import Site
from tgbench.memory.draft import Draft, slide
from tgbench.memory.placement import Footprint, Placement, Retention, aligned
from tgbench.memory.storage import ScheduledGraph
from tgbench.plans.again import Values
from tgbench.plans.attempts import Attempt, Attempts
from tgbench.plans.checks import check_placement
from tgbench.plans.decisions import Decisions, Instead
from tgbench.plans.least import Least, least
from tgbench.plans.parts import parts_read_again
from tgbench.plans.scenarios import Runs, Scenario
from tgbench.programs.choices import Choices
from tgbench.programs.held import Held
from tgbench.programs.lowering import Surveyor
from tgbench.programs.sizing import Sizer
from tgbench.runs.buckets import BucketClass
from tgbench.runs.propagate import BYTES_PER_NS, Propagator, Step, rough_ns
from tgbench.runs.rules import Rules
from tgbench.runs.split import WHOLE, Cut, contains, cuts, supersets

Progress = Callable[[str], None]
Cost = Callable[[Call, Box], float]  # expected nanoseconds of one box of one call
DEAR = 1.25  # times what runs take whole, or by another plan: so much keeping everything may take
FEW = 4  # pieces of a run, where more of them take much longer
IN_PIECES = 1.2  # times what is expected: what passes between pieces is not modelled (note 0045)
IN_MANY = 1.5  # the same of many: their programs serve few places, and take as long to make
AT_HAND = 16  # answers of each kind that a planner has at hand
MOST_REFUSED = 512  # retained nodes and scenarios for which a budget was too small
MOST_STEPS = 12  # budgets that are tried to name the least that works to who asks for too little
NEAR = 64  # behind these it is named to a part in so many
LOWER = 8  # where a budget does not work, one that is lower by this part of it is the next
LEAST_GAIN = 0.01  # a finer cut that saves less than this share of the arena is the last one tried


@dataclass(frozen=True, eq=False)
class Tried:
    """What did not fit: nodes that were retained to hold some scenarios, and who planned it."""

    planner: Planner
    retained: Sequence[Node]
    scenarios: Sequence[Scenario]

    @cached_property
    def placement(self) -> Placement:
        """The smallest map there was."""
        return self.planner._try_cuts(self.retained, self.scenarios, 0)[1]


class Goal(NamedTuple):
    """What a plan is for.

    Fields:
        weighed: runs that should be quick, those with a weight.
        held: what a map has to hold to serve them (`Planner._enough`).
        budget_bytes: of a map; None: whatever it takes.
        keep_all: all that any node reads is worth keeping.
        likely: runs that may come as well; where plans compete, each weighs as much as one run.
    """

    weighed: Sequence[Scenario]
    held: Sequence[Scenario]
    budget_bytes: int | None
    keep_all: bool = False
    likely: Sequence[Scenario] = ()


@dataclass(frozen=True, eq=False)
class Made:
    """A plan beside others that compete with it."""

    planner: Planner
    goal: Goal
    decisions: Decisions
    others: tuple[Made, ...] = ()  # that it was found better than

    @property
    def chosen(self) -> Decisions:
        """The plan; with the one that is to be taken instead, if other runs come than expected."""
        if self.in_pieces:
            uncut = [one for one in self.others if not one.in_pieces]
            other = min(uncut, key=lambda one: one.afresh_ns, default=None)
        else:
            cut = [one for one in self.others if one.in_pieces and one.keeps_all]
            other = min(cut, key=lambda one: one.time_ns, default=None)
        if other is None:
            return self.decisions
        pieces, whole = (self, other) if self.in_pieces else (other, self)
        if not pieces.afresh_ns:
            return self.decisions
        share = whole.afresh_ns / pieces.afresh_ns
        return replace(self.decisions, instead=Instead(other.decisions, share, pieces.hopes))

    @property
    def in_pieces(self) -> bool:
        """Whether large runs are."""
        return self.decisions.cut != WHOLE

    @cached_property
    def afresh_ns(self) -> float:
        """The expected mean time of the runs that begin with nothing."""
        return self._expected_ns(one for one in self.goal.weighed if one.cold)

    @property
    def hopes(self) -> dict[BucketClass, float]:
        """What runs of a class are expected to take that begin with what is kept, at most."""
        found: dict[BucketClass, float] = {}
        for one in self.goal.weighed:
            if not one.cold:
                found[one.kind] = max(found.get(one.kind, 0.0), self._expected_ns([one]))
        return found

    def _expected_ns(self, runs: Iterable[Scenario]) -> float:
        """The expected mean time of some runs, each as much as the others."""
        made, alike = self.decisions, [replace(one, weight=1.0) for one in runs]
        return self.planner.expected_ns(self._propagator, alike, made.cut, made.placement)

    @property
    def keeps_all(self) -> bool:
        """Whether no candidate is left out."""
        return not self.decisions.dropped

    @cached_property
    def _propagator(self) -> Propagator:
        return self.planner.runs.propagator(self.decisions.retained)

    @cached_property
    def _runs(self) -> list[Scenario]:
        return [*self.goal.weighed, *(replace(one, weight=1.0) for one in self.goal.likely)]

    @cached_property
    def time_ns(self) -> float:
        """The expected mean time of the runs it is for, and of those that may come."""
        made = self.decisions
        return self.planner.expected_ns(self._propagator, self._runs, made.cut, made.placement)

    @property
    def feared_ns(self) -> float:
        """The same; more where runs are in pieces."""
        if not self.in_pieces:
            return self.time_ns
        return self.time_ns * (IN_PIECES if self.decisions.cut.parts <= FEW else IN_MANY)

    @property
    def is_cheap(self) -> bool:
        """Whether that is little more than if there were room for all of each run."""
        return self.time_ns <= DEAR * self.planner.expected_ns(self._propagator, self._runs)


def _better(made: Iterable[Made | None]) -> Made | None:
    """The quickest; of those that keep all candidates, where that costs little and runs are in few
    pieces: what is planned for are few runs of many to come, and most of those change little.
    Making programs of many pieces takes as long as they do.
    """
    there = [one for one in made if one is not None]
    if len(there) < 2:
        return there[0] if there else None
    most_ns = DEAR * min(one.time_ns for one in there)
    keep = [
        one
        for one in there
        if one.keeps_all and one.decisions.cut.parts <= FEW and one.time_ns <= most_ns
    ]
    best = min(keep or there, key=lambda one: one.feared_ns)
    others = [other for one in there for other in (one, *one.others) if other is not best]
    return replace(best, others=tuple(others))


class Planner:
    """Decides one plan for one graph; holds what is reused between attempts."""

    def __init__(
        self,
        scheduled: ScheduledGraph,
        rules: Rules,
        device: str,
        cost: Cost = rough_ns,
        progress: Progress | None = None,
        choices: Choices | None = None,
    ) -> None:
        self.scheduled = scheduled
        self.cost = cost
        self.rules = rules
        self.device = device
        self.choices = choices or Choices(rules)
        self.tell = progress or (lambda message: None)
        self.runs = Runs(scheduled, rules)
        self.attempts = Attempts(self.runs, Sizer(scheduled, rules, device, self.choices))
        self._in_parts: dict[frozenset[Node], Planner] = {}
        at_hand = lru_cache(AT_HAND)
        self._worth, self._afresh = at_hand(self._new_worth), at_hand(self._from_nothing)
        self._values, self._orders = at_hand(self._new_values), Memo(AT_HAND)
        self._too_small: Latest[Hashable, int] = Latest(MOST_REFUSED)

    def over(self, scheduled: ScheduledGraph) -> Planner:
        """The same for another order of the graph's nodes, or with other views copied."""
        return Planner(scheduled, self.rules, self.device, self.cost, self.tell, self.choices)

    @cached_property
    def in_windows(self) -> Planner | None:
        """The same where windows of what is retained move along, if that takes less memory.

        None on devices that have no call which moves them.
        """
        if self.device != "cpu":
            return None
        other = self.over(self.scheduled)
        other.runs = self.runs  # what they compute is the same
        other.attempts = Attempts(self.runs, self.attempts.sizer, may_slide=True)
        return other

    def in_parts(self, scenarios: Sequence[Scenario]) -> Planner | None:
        """The same where views have bytes that show all that is read again of some nodes.

        None where no parts of nodes are read again, or hardly less than all of them; and where a
        plan divided nodes already, or computes some more than once.
        """
        if self.scheduled.copied or self.scheduled.repeats:
            return None
        views = parts_read_again(self.runs, scenarios)
        if views and views not in self._in_parts:
            self._in_parts[views] = self.over(self.scheduled.copying(views))
        return self._in_parts.get(views)

    def scenarios(
        self, weights: Mapping[BucketClass, tuple[float, tuple[int, ...]]]
    ) -> list[Scenario]:
        """Every class at its seen and extreme origins, warm; and each once from nothing."""
        found: list[Scenario] = []
        for kind, (weight, origin) in weights.items():
            corners = kind.corners(origin)
            found += [Scenario(kind, at, weight if at == origin else 0.0) for at in corners]
            found += [Scenario(kind, at, 0.0, cold=True) for at in corners]
        return found

    def survey(self, scenarios: Sequence[Scenario]) -> list[list[Site]]:
        """The sites of each run that counts, where everything worth keeping is retained.

        They lie as a plan with memory to spare would lay them.
        """
        counted = self.runs.distinct([one for one in scenarios if one.weight])
        retention = Retention.always(self.frontier(counted))
        runs = [steps for _, steps in self.runs.under(retention, counted, WHOLE)]
        uses = self.runs.footprint(step for steps in runs for step in steps)
        roomy = Draft.of(self.scheduled, retention, uses).packed({})
        found = []
        for steps in runs:
            surveyor = Surveyor(self.scheduled, roomy, self.rules, self.device)
            for step in steps:
                surveyor.lower(step, _reused(step, roomy))
            found.append(surveyor.sites)
        return found

    def frontier(self, scenarios: Sequence[Scenario]) -> list[Node]:
        """Nodes whose earlier values are read again when everything is retained."""
        everything = self.runs.propagator(self.scheduled.stored)
        found: dict[Node, None] = {}
        for scenario in scenarios:
            if not scenario.cold and scenario.of is None:
                for step in self.runs.steps(everything, scenario, WHOLE):
                    found.update(dict.fromkeys(step.reused))
        return [node for node in self.scheduled.stored if node in found]

    def everything(self, scenarios: Sequence[Scenario]) -> list[Node]:
        """Every stored node that another one reads, and the frontier.

        What is left is handed out, and not looked at again.
        """
        read = {self.scheduled.base[p] for node in self.scheduled.schedule for p in node.inputs}
        read.update(self.frontier(scenarios))
        return [node for node in self.scheduled.stored if node in read]

    def expected_ns(
        self,
        propagator: Propagator,
        scenarios: Sequence[Scenario],
        cut: Cut = WHOLE,
        placement: Placement | None = None,
    ) -> float:
        """The modelled mean time of the weighted scenarios: whole, or over a map and its cut."""
        total = weight = 0.0
        for scenario in scenarios:
            if scenario.weight:
                steps = (
                    self.runs.steps(propagator, scenario, cut)
                    if placement is None
                    else self.runs.over(placement, propagator, scenario, cut)
                )
                weight += scenario.weight
                total += scenario.weight * sum(map(self.step_ns, steps))
                if placement is not None and placement.sliding:
                    total += scenario.weight * sum(_sliding_ns(placement, step) for step in steps)
        return total / weight if weight else 0.0

    def step_ns(self, step: Step) -> float:
        """The expected time of a step."""
        views = self.scheduled.views
        return sum(
            self.cost(node.call, box)
            for node, region in step.compute.items()
            if node not in views
            for box in region
        )

    def worth(self, nodes: Sequence[Node], scenarios: Sequence[Scenario]) -> dict[Node, float]:
        """Modelled nanoseconds a run saves by retaining each node, the others retained too;
        remembered.
        """
        return self._worth(tuple(nodes), tuple(scenarios))

    def _new_worth(
        self, nodes: tuple[Node, ...], scenarios: tuple[Scenario, ...]
    ) -> dict[Node, float]:
        weighted = [scenario for scenario in scenarios if scenario.weight]
        base = self.expected_ns(self.runs.propagator(nodes), weighted)
        result = {}
        for i, node in enumerate(nodes):
            self.tell(f"weighing {i + 1}/{len(nodes)} {node.name}")
            without = [other for other in nodes if other is not node]
            result[node] = self.expected_ns(self.runs.propagator(without), weighted) - base
        return result

    def lay_out(
        self,
        retention: Retention,
        scenarios: Sequence[Scenario],
        cut: Cut,
        whole: bool = False,
        budget_bytes: int | None = None,
    ) -> Placement:
        """The placement that holds every scenario with this retention.

        Args:
            whole: cut what only has to fit, and hold weighed transitions uncut.
            budget_bytes: where the fastest kernels' scratch memory is too much for it, others are
                taken that want less.

        Raises PlanError for a map in which live values overlap, if `TGBENCH_CHECK` is set.
        """
        return self._checked(
            self.attempts.of(retention, scenarios, cut, whole).within(budget_bytes)
        )

    def _checked(self, placement: Placement) -> Placement:
        if checks():
            check_placement(placement, self.scheduled)
        return placement

    def _within(self, attempt: Attempt, budget_bytes: int | None) -> Placement:
        """The map that fits a budget; without one there is room for more than is planned for."""
        return self._checked(
            attempt.roomy() if budget_bytes is None else attempt.within(budget_bytes)
        )

    def _always(
        self,
        retained: Iterable[Node],
        scenarios: Sequence[Scenario],
        budget_bytes: int | None,
        cut: Cut = WHOLE,
    ) -> Placement:
        """The placement with these nodes retained through everything."""
        return self._within(self.attempts.always(retained, scenarios, cut), budget_bytes)

    def plan(
        self,
        scenarios: Sequence[Scenario],
        budget_bytes: int | None,
        keep_all: bool = False,
        likely: Sequence[Scenario] = (),
    ) -> Decisions:
        """The best plan found for a budget (None: whatever it takes), its classes left open.

        Where not all that is read again can be kept through whole runs, parts of nodes are tried
        as well; where nothing fits otherwise, some nodes are computed more than once in a run.
        Where nothing fits, budgets from the smallest map down to the bound are tried, as for each
        of them other nodes are retained and runs are cut elsewhere: one may fit after all. Raises
        BudgetError naming the least that worked; where a budget is below the bound, so that nothing
        fits, and that takes more than `MOST_STEPS` plans, about the least.

        Args:
            likely: runs that may come: where plans compete, they count as well. They are held if
                that takes no more than the budget; else without the first of them.
        """
        tried: list[Tried] = []
        goal = Goal(scenarios, scenarios, budget_bytes, keep_all, likely)
        found = self._found(goal, tried)
        if found is not None:
            return self._roomier(found, scenarios, likely, budget_bytes)
        assert budget_bytes is not None  # without a budget everything fits
        needed_bytes = min(one.placement.size_bytes for one in tried)
        bound_bytes, next_bytes = least(self.runs, scenarios).size_bytes, needed_bytes - 1
        steps = MOST_STEPS if budget_bytes < bound_bytes else math.inf
        while next_bytes >= bound_bytes:
            if steps <= 0:
                needed_bytes = self._about_least(goal, bound_bytes, needed_bytes)
                break
            steps -= 1
            found = self._found(goal._replace(budget_bytes=next_bytes), [])
            if found is None:
                next_bytes -= next_bytes // LOWER + 1
            elif (needed_bytes := found.placement.size_bytes) <= budget_bytes:
                return self._roomier(found, scenarios, likely, budget_bytes)
            else:
                next_bytes = needed_bytes - 1
        raise self.too_small(budget_bytes, needed_bytes, scenarios)

    def _about_least(self, goal: Goal, bound_bytes: int, works_bytes: int) -> int:
        """About the least that works, between a bound and what does."""
        while works_bytes - bound_bytes > works_bytes // NEAR:
            middle = (bound_bytes + works_bytes) // 2
            found = self._found(goal._replace(budget_bytes=middle), [])
            if found is None:
                bound_bytes = middle + 1
            else:
                works_bytes = found.placement.size_bytes
        return works_bytes

    def _roomier(
        self,
        made: Decisions,
        scenarios: Sequence[Scenario],
        likely: Sequence[Scenario],
        budget_bytes: int | None,
    ) -> Decisions:
        """The same over a map with room for what may come and for other parts of what is computed,
        as far as the budget goes: runs that nobody planned for want some, too. So is what competed.
        """
        if (instead := made.instead) is not None:
            other = self._roomier(instead.decisions, scenarios, likely, budget_bytes)
            made = replace(made, instead=replace(instead, decisions=other))
        if budget_bytes is None and not likely:
            return made  # whose map has room for parts already
        planner = self._over(made.scheduled)
        held = planner.runs.distinct(scenarios)
        for besides in (likely[i:] for i in range(len(likely) + 1)):
            attempt = planner.attempts.of(made.retention, held, made.cut, besides=besides)
            if budget_bytes is not None and budget_bytes < attempt.bound_bytes:
                continue
            roomy = attempt.roomy(budget_bytes)
            fits = budget_bytes is None or roomy.size_bytes <= budget_bytes
            if fits and made.placement.size_bytes <= roomy.size_bytes:
                return replace(made, placement=planner._checked(roomy))
        return made

    def _over(self, scheduled: ScheduledGraph) -> Planner:
        """Who plans for an order that was found here."""
        known = (one for one in (self, *self._in_parts.values()) if one.scheduled is scheduled)
        return next(known, None) or self.over(scheduled)

    def _found(self, goal: Goal, tried: list[Tried]) -> Decisions | None:
        """The best plan of any order; None, and what was tried, if nothing fits."""
        found = self._once(goal, tried, divides=True)
        if found is None and goal.budget_bytes is not None:
            tried.append(self.again(goal.weighed, goal.budget_bytes))
            if tried[-1].placement.size_bytes <= goal.budget_bytes:
                found = tried[-1].planner._once(goal, [])
        return found

    def plan_once(self, scenarios: Sequence[Scenario], budget_bytes: int | None) -> Decisions:
        """The best plan found as nodes are scheduled here. Raises BudgetError if nothing fits."""
        tried: list[Tried] = []
        found = self._once(Goal(scenarios, scenarios, budget_bytes), tried)
        if found is None:
            least_bytes = min(one.placement.size_bytes for one in tried)
            raise self.too_small(budget_bytes or 0, least_bytes, scenarios)
        return found

    def _once(self, goal: Goal, tried: list[Tried], divides: bool = False) -> Decisions | None:
        """The best plan in this order; None, and what was tried, if nothing fits.

        Args:
            divides: look for windows and for parts of nodes to keep as well.
        """
        scenarios = goal.weighed
        for weighed, held in self._enough(self.runs.distinct(scenarios)):
            found = self._best(goal._replace(weighed=weighed, held=held), tried, divides)
            if found is not None:
                return found.chosen
        return None

    def _best(self, goal: Goal, tried: list[Tried], divides: bool) -> Made | None:
        slid = None
        if divides and self._is_too_much(goal):
            slid = self._slid(goal)
            if slid is not None and slid.keeps_all and slid.is_cheap:
                return slid
        found = self._planned(goal, tried)
        if not divides or (found is not None and found.keeps_all and found.decisions.cut == WHOLE):
            return found
        made = [found, slid or self._slid(goal)]
        other = self.in_parts(goal.weighed)
        if other is not None:
            made += [other._planned(goal, tried), other._slid(goal)]
        return _better(made)

    def _is_too_much(self, goal: Goal) -> bool:
        """Whether all that is worth keeping cannot be kept whole, however runs are cut."""
        if goal.budget_bytes is None:
            return False
        floor_bytes = self.attempts.floor_bytes(self._wanted(goal), goal.held)
        return floor_bytes > goal.budget_bytes

    def _wanted(self, goal: Goal) -> list[Node]:
        """Nodes that are worth keeping."""
        weighed = goal.weighed
        return self.everything(weighed) if goal.keep_all else self.frontier(weighed)

    def _slid(self, goal: Goal) -> Made | None:
        """The best plan where windows move along; None if there is none, or no run that follows
        others would move any.
        """
        other, runs = self.in_windows, self.runs
        if other is None:
            return None
        everything = runs.propagator(self.scheduled.stored)
        warm = [runs.steps(everything, one, WHOLE) for one in goal.weighed if not one.cold]
        uses = Footprint.joined(runs.going_on(step) for steps in warm for step in steps)
        if not any(slide(uses.hulls, uses)):
            return None
        return other._planned(goal, [])

    def again(self, scenarios: Sequence[Scenario], budget_bytes: int) -> Tried:
        """An order that computes some nodes more than once in a run, and the least map for it.

        It begins with whole nodes or with parts, whichever takes less. If no order was found that
        fits, it is the one that takes least, the same for every budget.
        """
        begun = [self._smallest(scenarios)]
        divided = self.in_parts(scenarios)
        if divided is not None:
            begun.append(divided._smallest(scenarios))
        smallest = min(begun, key=lambda one: one.placement.size_bytes)
        return smallest.planner._again(tuple(scenarios), budget_bytes)

    def _again(self, scenarios: tuple[Scenario, ...], budget_bytes: int) -> Tried:
        smallest = self._smallest(scenarios)
        for scheduled in self._values(scenarios).scheduled_graphs(budget_bytes):
            smallest = self._over_least(scheduled, scenarios)
            if smallest.placement.size_bytes <= budget_bytes:
                break
        return smallest

    def _new_values(self, scenarios: tuple[Scenario, ...]) -> Values:
        return Values.of(self.scheduled, self._smallest(scenarios).placement, self.cost)

    def _smallest(self, scenarios: Sequence[Scenario]) -> Tried:
        """The least that serves all scenarios, with nothing retained."""
        return self._over_least(self.scheduled, tuple(scenarios))

    def _over_least(self, scheduled: ScheduledGraph, scenarios: tuple[Scenario, ...]) -> Tried:
        """The same in some order; remembered."""
        key = scheduled.schedule, scenarios
        found: Tried = self._orders.get(key, self._new_least, scheduled, scenarios)
        return found

    def _new_least(self, scheduled: ScheduledGraph, scenarios: tuple[Scenario, ...]) -> Tried:
        planner = self
        if scheduled is not self.scheduled:
            self.tell(f"{len(scheduled.schedule)} steps instead of {len(self.scheduled.schedule)}")
            planner = self.over(scheduled)
        *_, (_, held) = planner._enough(planner.runs.distinct(scenarios))
        return Tried(planner, (), held)

    def _enough(
        self, scenarios: Sequence[Scenario]
    ) -> Iterator[tuple[Sequence[Scenario], Sequence[Scenario]]]:
        """What a map has to hold to serve all scenarios, ever less; with what to weigh for it.

        All of them; those that ask for no part of what another one does; of these, some superset,
        from nothing. The last two need not serve well, but they serve (`Specialiser`).
        """
        yield scenarios, scenarios
        outer = self._outer(scenarios)
        if len(outer) < len(scenarios):
            yield outer, outer
        yield outer, self._afresh(tuple(outer))

    def _from_nothing(self, scenarios: tuple[Scenario, ...]) -> list[Scenario]:
        """Each of them from nothing, computing what takes least."""
        afresh = self.runs.distinct(
            [replace(one, weight=0.0, cold=True, of=None, before=None) for one in scenarios]
        )
        return [self._least(one, afresh) for one in afresh]

    def _outer(self, scenarios: Sequence[Scenario]) -> list[Scenario]:
        """Scenarios whose demand is no part of a larger one's that runs from nothing."""
        asked = [self.runs.demand(one) for one in scenarios if one.cold]
        return [
            one
            for one in scenarios
            if not any(
                contains(other, mine) and not contains(mine, other)
                for mine in [self.runs.demand(one)]
                for other in asked
            )
        ]

    def _least(self, scenario: Scenario, among: Sequence[Scenario]) -> Scenario:
        """The same, computing the superset of its demand that takes the least memory."""
        planned = [self.runs.demand(other) for other in among]
        larger = supersets(self.runs.demand(scenario), planned)
        ways = [scenario, *(replace(scenario, demand=demand) for demand in larger)]
        return min(ways, key=lambda one: self._always((), [one], 0).size_bytes)

    def _planned(self, goal: Goal, tried: list[Tried]) -> Made | None:
        """The best retention for some scenarios; None, and what was tried, if nothing fits."""
        weighed, held, budget_bytes = goal.weighed, goal.held, goal.budget_bytes
        wanted = self._wanted(goal)
        first = self._always(wanted, held, budget_bytes)
        frontier = [node for node in wanted if node in first.slots]  # not what no run touches
        self.tell(f"{counted(len(frontier), 'candidate')} to retain")
        if budget_bytes is None or first.size_bytes <= budget_bytes:
            return self._made(goal, frontier, frontier, WHOLE, first)
        worth = self.worth(frontier, weighed)
        ranked = sorted(
            frontier, key=lambda n: (-worth[n] / first.size_of(n), self.scheduled.position[n])
        )
        found = self._fitting(ranked, held, budget_bytes)
        if found is None:
            is_whole = not self.attempts.may_slide
            longest = _room_for(ranked, first, budget_bytes) if is_whole else len(ranked)
            found = self._most_that_fit(ranked, longest, held, budget_bytes)
        if found is None:
            tried += [Tried(self, frontier, held), Tried(self, (), held)]
            return None
        made = self._made(goal, frontier, *found)
        if made.is_cheap and made.decisions.cut.parts <= FEW:
            return made
        coarser = (
            self._most_that_fit(ranked, len(found[0]), held, budget_bytes, most_parts)
            for most_parts in (1, FEW)
            if most_parts < found[1].parts
        )
        return _better([made, *(self._made(goal, frontier, *one) for one in coarser if one)])

    def _made(
        self,
        goal: Goal,
        frontier: Sequence[Node],
        retained: Sequence[Node],
        cut: Cut,
        placement: Placement,
    ) -> Made:
        return Made(self, goal, self._decided(frontier, retained, cut, placement, goal.weighed))

    def _most_that_fit(
        self,
        ranked: Sequence[Node],
        longest: int,
        scenarios: Sequence[Scenario],
        budget_bytes: int,
        most_parts: int | None = None,
    ) -> tuple[Sequence[Node], Cut, Placement] | None:
        """The longest prefix of a ranking that was found to fit when retained; cut, if that helps.

        Longer ones may fit where shorter ones do not: runs are cut at what is retained. So prefixes
        are tried from the longest whose bytes are there, in strides that double; then in between.
        """
        tried, stride = longest, 1
        too_long = longest + 1
        found = None
        while tried >= 0:
            found = self._fitting(ranked[:tried], scenarios, budget_bytes, most_parts)
            if found is not None or not tried:
                break
            too_long, tried, stride = tried, max(tried - stride, 0), stride * 2
        while found is not None and too_long - len(found[0]) > 1:
            middle = (len(found[0]) + too_long) // 2
            better = self._fitting(ranked[:middle], scenarios, budget_bytes, most_parts)
            if better is None:
                too_long = middle
            else:
                found = better
        return found

    def _fitting(
        self,
        retained: Sequence[Node],
        scenarios: Sequence[Scenario],
        budget_bytes: int,
        most_parts: int | None = None,
    ) -> tuple[Sequence[Node], Cut, Placement] | None:
        """What fits with these nodes retained; where nothing does, nothing less does later."""
        key = frozenset(retained), tuple(scenarios), most_parts
        floor_bytes = self.attempts.floor_bytes(retained, scenarios)
        if budget_bytes <= max(floor_bytes - 1, self._too_small.get(key, 0)):
            return None
        cut, placed = self._try_cuts(retained, scenarios, budget_bytes, most_parts)
        self.tell(f"{len(retained)} retained: {format_bytes(placed.size_bytes)}")
        if placed.size_bytes <= budget_bytes:
            return retained, cut, placed
        self._too_small[key] = budget_bytes
        return None

    def _try_cuts(
        self,
        retained: Sequence[Node],
        scenarios: Sequence[Scenario],
        budget_bytes: int,
        most_parts: int | None = None,
    ) -> tuple[Cut, Placement]:
        """The coarsest cut that fits; if none does, none, or with no budget the smallest map's."""
        best = (WHOLE, self._always(retained, scenarios, budget_bytes))
        bound_bytes = self.attempts.always(retained, scenarios, WHOLE).bound_bytes
        useless: set[tuple[str, int]] = set()
        bounds: dict[tuple[str, int], int] = {}  # by dimension, of the cut before
        for cut in self._cuts(retained, scenarios, budget_bytes or best[1].size_bytes - 1):
            is_too_fine = most_parts is not None and cut.parts > most_parts
            if best[1].size_bytes <= budget_bytes or is_too_fine:
                break
            is_too_much = 0 < budget_bytes < best[1].kept_bytes and not self.attempts.may_slide
            along = cut.input, cut.axis
            if along in useless or is_too_much:
                continue
            attempt = self.attempts.always(retained, scenarios, cut)
            if attempt.bound_bytes >= best[1].size_bytes:
                useless.add(along)
                continue
            before_bytes, bounds[along] = bounds.get(along, bound_bytes), attempt.bound_bytes
            gains = before_bytes - attempt.bound_bytes >= LEAST_GAIN * before_bytes
            if gains and 0 < budget_bytes < attempt.bound_bytes:
                continue  # no map of it fits; one of a finer cut may
            placed = self._within(attempt, budget_bytes)
            gained = best[1].size_bytes - placed.size_bytes
            if gained < LEAST_GAIN * best[1].size_bytes:
                useless.add(along)
            if gained > 0:
                best = (cut, placed)
        return best

    def _cuts(
        self, retained: Sequence[Node], scenarios: Sequence[Scenario], budget_bytes: int
    ) -> Iterator[Cut]:
        """The cuts that may bring a map below a budget."""
        if retained and self.attempts.floor_bytes(retained, scenarios) <= budget_bytes:
            yield from cuts(self.runs.propagator(retained))

    def _decided(
        self,
        frontier: Sequence[Node],
        retained: Sequence[Node],
        cut: Cut,
        placement: Placement,
        scenarios: Sequence[Scenario],
    ) -> Decisions:
        expected = self.expected_ns(self.runs.propagator(retained), scenarios, cut, placement)
        dropped = tuple(node for node in frontier if node not in set(retained))
        retention = Retention.always(retained, may_slide=frozenset(placement.sliding))
        return Decisions(self.scheduled, placement, retention, dropped, cut, {}, expected)

    def too_small(
        self, budget_bytes: int, needed_bytes: int, scenarios: Sequence[Scenario]
    ) -> BudgetError:
        """What is needed is the least known to work; the bound holds for all maps there are."""
        need = least(self.runs, scenarios)
        names = ", ".join(f"{name} {format_bytes(size)}" for name, size in need.parts[:4])
        or_less = self._or_for_less(need)
        return BudgetError(
            f"budget {format_bytes(budget_bytes)} is too small: the lower bound is "
            f"{format_bytes(need.size_bytes)} at step {need.step} ({names}); "
            f"the smallest budget found to work is {format_bytes(needed_bytes)}: "
            f"pass memory={needed_bytes} or more{or_less}",
            budget_bytes=budget_bytes,
            needed_bytes=needed_bytes,
            lower_bound_bytes=need.size_bytes,
            step=need.step,
            nodes=need.parts,
        )

    def _or_for_less(self, need: Least) -> str:
        """The other way out, where most of what is needed is one of the results, at the end."""
        scheduled, (largest, size) = self.scheduled, need.parts[0]
        outputs = scheduled.graph.outputs.items()
        named = [name for name, node in outputs if scheduled.base[node].name == largest]
        if need.step < len(scheduled.schedule) or not named or 2 * size <= need.size_bytes:
            return ""
        return f", or ask for a part of '{named[0]}' (want=)"


def moving_ns(size_bytes: int) -> float:
    """The modelled time of moving so much of a window: it is read and written."""
    return 2 * size_bytes / BYTES_PER_NS


def _sliding_ns(placement: Placement, step: Step) -> float:
    """The same of all windows that a step writes on."""
    return sum(
        moving_ns(step.reused[node].elements * node.type.itemsize)
        for node in placement.sliding
        if node in step.compute and node in step.reused
    )


def _reused(step: Step, roomy: Placement) -> dict[Node, Held]:
    """A state that holds all that a step reads of earlier runs."""
    return {
        node: Held(region, roomy.slots[node].start)
        for node, region in step.reused.items()
        if node in roomy.slots
    }


def _room_for(ranked: Sequence[Node], placed: Placement, budget_bytes: int) -> int:
    """How many of a ranking fit beside the inputs, all else being nothing.

    `placed` is a map in which all of them are retained.
    """
    sizes = [aligned(placed.size_of(node)) for node in ranked]
    free = budget_bytes - (placed.kept_bytes - sum(sizes))
    return sum(taken <= free for taken in accumulate(sizes))
