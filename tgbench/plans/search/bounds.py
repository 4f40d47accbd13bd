"""How good any plan can be: programs solved beside the search, and what they propose.

    cut ─→ relaxed program ─→ bound of the cut ──→ the least of all cuts' ──→ bound of the search
                 └─ hopeful? ─→ integer program ─→ retention ─→ laid out

What they bound is said once every way of cutting has a bound: one that some plan of the search may
be below is none. Until then there is that of a program in which slices take no memory. Where values
survive in bytes that nobody else wants, replays may be faster than any of these; what bounds them
still is the program with all the memory that there could be use for.
"""

from __future__ import annotations

from collections.abc import Iterator

from tgbench.memory.placement import ALIGNMENT
from tgbench.plans.retention.exact import IntegerProgram
from tgbench.plans.search.arms import Arm, Arms
from tgbench.plans.search.incumbent import FINER
from tgbench.plans.search.judge import Judge
from tgbench.plans.search.layouts import Layouts
from tgbench.plans.search.proofs import SHORT, Answer, ProofAllowance, Proofs, Question
from tgbench.plans.search.rounds import throughout
from tgbench.runs.split import WHOLE, Cut

MOST_TRIES = 6  # of one program, each with less memory than the one before
LESS = 8  # the share of its memory that a solution is to do without
MORE = 2.0  # times as long as before: what an integer program is given to be solved again
LONG = 0.5  # of what is left: what one may take that decides turn by turn


class Bounds:
    """Those of one search.

    Args:
        least_ns: by budget, what no plan is faster than, however runs are cut; added to. It holds
            for smaller ones too.
        proven_ns: a bound that was found elsewhere.
        is_exact: an optimum is what is looked for, and nothing else.
    """

    def __init__(
        self,
        judge: Judge,
        arms: Arms,
        layouts: Layouts,
        least_ns: dict[int, float],
        proven_ns: float,
        is_exact: bool,
    ) -> None:
        self.judge, self.arms, self.layouts, self.is_exact = judge, arms, layouts, is_exact
        self.spending, self.incumbent = layouts.spending, layouts.incumbent
        self.least_ns, self.bound_ns = least_ns, proven_ns
        self.opened: list[Arm] = []
        self.is_for_bounds = False  # whether what is opened from now on promises nothing better
        self._is_complete = False  # whether all ways of cutting are opened
        self.allowance = ProofAllowance(self.spending)
        self._proofs = Proofs(self.spending.is_timed)

    @property
    def known(self) -> Iterator[float]:
        """What no plan of the model is faster than, by one proof or another."""
        yield self.bound_ns
        for size_bytes, time_ns in self.least_ns.items():
            if size_bytes >= self.arms.budget_bytes:
                yield time_ns

    @property
    def _ample_bytes(self) -> int:
        """So much memory that the model could not use more."""
        tables = self.judge.uncut.tables
        return max(tables.base_bytes + int(tables.kept_bytes.sum()), self.arms.budget_bytes)

    @property
    def are_open(self) -> bool:
        """Whether something is asked and not answered."""
        return self._proofs.open > 0

    def close(self) -> None:
        self._proofs.close()

    def opening(self) -> Iterator[Arm]:
        """The ways of going by all cuts, coarse ones first; each is asked for its bound. Those of
        which replays say that nothing comes of them come last, for the bound alone.
        """
        budget_bytes, best = self.arms.budget_bytes, self.incumbent.best
        for size_bytes in (self._ample_bytes, budget_bytes):
            if size_bytes not in self.least_ns and not self.allowance.is_spent:
                uncut = IntegerProgram(self.judge.uncut, size_bytes, has_slices=False)
                self._proofs.ask(Question(size_bytes, uncut, self.allowance))
        beaten = list[Cut]()
        for cut in self.arms.cuts(best.cut if best is not None else WHOLE):
            if self._is_beaten(cut):
                beaten.append(cut)
            else:
                yield from self._opened_by(cut)
        self.is_for_bounds = True
        for cut in beaten:
            yield from self._opened_by(cut)
        self._is_complete = True

    def _is_beaten(self, cut: Cut) -> bool:
        """Whether the best plan is ahead of all that a cut promises."""
        best = self.incumbent.best
        if best is None or cut in (WHOLE, best.cut):
            return False
        return self.layouts.is_beaten(self.arms.hoped_ns(cut), cut, best)

    def _opened_by(self, cut: Cut) -> Iterator[Arm]:
        for arm in self.arms.of(cut):
            by_turn = arm.freer or arm
            self.opened += [by_turn] if arm is by_turn else [arm, by_turn]
            if by_turn.relaxed is None:
                self._ask(by_turn, integer=False)
            else:
                self._examine_all(by_turn)
            yield by_turn

    def hear(self, seconds: float = 0.0) -> None:
        """Take what was answered: bounds, and what to try; waits so long for the first."""
        for answer in self._proofs.answers(seconds):
            about: Arm | int = answer.question.about
            if isinstance(about, int):
                if answer.found.bound_ns:  # else limits came first: another search may ask again
                    self.least_ns[about] = answer.found.bound_ns
            elif answer.question.integer:
                self._proposed(about, answer)
            elif answer.found.bound_ns:
                about.relaxed = answer.found
                self._examine_all(about)
        known = self._is_complete and all(arm.bound_ns for arm in self.opened)
        over_all = min(arm.bound_ns for arm in self.opened) if known and self.opened else 0.0
        least_ns = self.least_ns.get(self.arms.budget_bytes, 0.0)
        self.bound_ns = max(self.bound_ns, least_ns, over_all)

    def _ask(self, arm: Arm, *, integer: bool, less_bytes: int = 0, attempt: int = 0) -> None:
        if self.allowance.is_spent:
            return
        what = "integer program of" if integer else "bounding"
        self.judge.planner.tell(f"{what} {arm.cut}")
        program = arm.program((arm.room if integer else arm.budget_bytes) - less_bytes)
        share = self._share(arm) if integer else 1.0
        self._proofs.ask(Question(arm, program, self.allowance, integer, attempt, share))

    def _share(self, arm: Arm) -> float:
        """What an integer program may take of what is left; what is exact takes all of it."""
        long = 1.0 if self.is_exact else LONG
        return long if arm.freer is None else SHORT

    def _is_promising(self, arm: Arm) -> bool:
        """A finer cut is looked at while the best plan so far is slower than it promises to be."""
        best, promise_ns = self.incumbent.best, arm.bound_ns / FINER
        if best is not None and promise_ns * best.off_by(arm.cut) > best.time_ns:
            return False
        return all(promise_ns <= other.optimum_ns for other in self.opened)

    def _examine_all(self, by_turn: Arm) -> None:
        """Ask for the model's optimum, unless that was asked before for hardly less long: first of
        what is kept throughout, which is sooner known.
        """
        given_s = self.allowance.seconds
        for arm in self.opened:
            is_meant = by_turn in (arm, arm.freer) and self._is_promising(arm)
            if is_meant and (not arm.examined_s or given_s > MORE * arm.examined_s):
                arm.examined_s = given_s
                self._ask(arm, integer=True)

    def _proposed(self, arm: Arm, answer: Answer) -> None:
        """The model's optimum, laid out; asked for again with less memory while it does not fit.

        The program may take too little memory for what nodes share, never too much: what a
        solution really takes in the model is taken off what the program is given next. So is what
        the fastest kernels lack, where something else than it is kept; and else some of what the
        solution takes: what is kept is computed in as many calls as its changed parts are, which
        the model knows little of, so that keeping less may be faster.
        """
        found, question = answer.found, answer.question
        if found.keep is None or self.spending.is_late():
            return
        takes_bytes = int(arm.model.score(found.keep).size_bytes[0])
        over = takes_bytes - arm.room
        less_bytes = max(arm.room - question.program.budget_bytes, 0)
        if over > 0:
            less_bytes += max(over, ALIGNMENT)
        elif self.layouts.attempt(arm, found.keep[0]):
            if not question.attempt:
                arm.optimum_ns = found.bound_ns
                arm.is_settled = arm.freer is not None and found.is_optimal
            if arm.freer is None:
                self.layouts.attempt(arm, throughout(found.keep[0]))
                return
            lacking = self.layouts.lacking_bytes(arm, found.keep[0])
            if not lacking and (self.is_exact or not found.is_optimal):
                return
            less_bytes = less_bytes + lacking if lacking else takes_bytes // LESS - over
        if question.attempt + 1 < MOST_TRIES and self.incumbent.may_be_behind(arm.bound_ns):
            self._ask(arm, integer=True, less_bytes=less_bytes, attempt=question.attempt + 1)
