"""How long a program's runs take, beside what a model says of where they stand.

    took   ╱            measured runs lie on a line over what the model says of their places:
        · ╱ ·           whatever a run computes, it takes something besides (calls, weights that few
       ╱·               rows read as well as many)
      ┊
      └──── modelled

Without it, a quick run at a quick place tells of slow ones everywhere else: a model goes by what is
computed, and where that is little, hardly any of the time does.
"""

from __future__ import annotations

LEAST_RUNS = 3  # before a line is drawn through them
DECAY = 31 / 32  # of what a run counts for, with every one after it
LEAST_SPREAD = 0.05  # of the mean, that the places' work differs by (its standard deviation)
OUTLIER = 2.0  # times what was expected: a run counts for no more


class Pace:
    """A line of measured over modelled time, by least squares; the last runs count most.

    >>> pace = Pace()
    >>> for work in (100.0, 200.0, 400.0, 100.0, 300.0):
    ...     pace.note(work, 500.0 + work)
    >>> round(pace.share(100.0, 400.0), 3)  # 600 beside 900
    0.667
    """

    __slots__ = ("_count", "_runs", "_took", "_work", "_work_took", "_work_work")

    def __init__(self) -> None:
        self._runs = 0
        self._count = self._work = self._took = self._work_work = self._work_took = 0.0

    def note(self, work: float, took_ns: float) -> None:
        """A run took so long at a place of which a model says this."""
        start, slope = self._line()
        expected = start + slope * work
        if self._runs >= LEAST_RUNS and expected > 0.0:
            took_ns = min(took_ns, OUTLIER * expected)
        self._runs += 1
        self._count = self._count * DECAY + 1.0
        self._work = self._work * DECAY + work
        self._took = self._took * DECAY + took_ns
        self._work_work = self._work_work * DECAY + work * work
        self._work_took = self._work_took * DECAY + work * took_ns

    def share(self, here: float, made: float) -> float:
        """How many times as long a run takes where a model says the one, as where the other."""
        start, slope = self._line()
        there = start + slope * made
        return (start + slope * here) / there if there > 0.0 else 1.0

    def _line(self) -> tuple[float, float]:
        """What a run takes where nothing is to be done, and for each nanosecond of the model; in
        proportion, until runs at several places say more.
        """
        if self._runs < LEAST_RUNS:
            return 0.0, 1.0
        work, took = self._work / self._count, self._took / self._count
        spread = self._work_work / self._count - work * work
        if spread <= (LEAST_SPREAD * work) ** 2:
            return 0.0, 1.0
        slope = (self._work_took / self._count - work * took) / spread
        slope = min(max(slope, 0.0), took / work)
        return took - slope * work, slope
