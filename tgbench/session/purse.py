"""What may be spent on hopes: no history is dearer than computing everything, but for a share.

Into it goes what runs were quicker than computing everything, and a sixteenth of what that takes;
out of it are paid programs, plans, models, choosing, and what runs take besides their calls that
computing everything does not. The share of the first runs is there at once. Finding out what
changed is done in every run: the share is less by what that takes, but half of it is left. A 64th
comes on top for looking for programs in vain, so that at any time beyond ten runs all together took
at most a tenth more than they would have without any of this.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 1 / 16  # of computing everything, that may be spent on hopes
LEAST_SHARE = SHARE / 2  # of it, where finding changes takes more than the rest
LATELY = 1 / 8  # of what finding changes takes on average, that the last run counts for
ADVANCE = 14  # runs whose share is in the purse from the first one on: less than a tenth of eleven


@dataclass
class Purse:
    """What may be spent so that nothing is ever dearer than computing everything, but for a share.

    Fields:
        left_ns: what is in it; may be owed, where something had to be made.
        lost_ns: what runs took longer because only a program for more than was asked for is there.
            It may be spent on one for no more: as often as it is lost, and not oftener.
        ahead: runs to come whose share may be spent already.
        full_ns: what computing everything takes that is asked for now; 0 before that is known.
        plain_ns: what that takes besides the calls.
        finding_ns: what finding changes takes, on average of late.
        paid_ns: what was paid out of it in the run that goes on.
        share_ns: what a run may add to what computing everything takes, and finding changes does
            not.
    """

    left_ns: float = 0.0
    lost_ns: float = 0.0
    ahead: int = ADVANCE
    full_ns: float = 0.0
    plain_ns: float = 0.0
    finding_ns: float = 0.0
    paid_ns: float = 0.0
    share_ns: float = 0.0

    def found(self, took_ns: float) -> None:
        """How long it took to find what changed."""
        self.finding_ns += (took_ns - self.finding_ns) * LATELY

    def open(self, full_ns: float) -> None:
        """Begin: a first answer had to be made, whatever it took."""
        self.left_ns, self.lost_ns = 0.0, 0.0
        self.takes(full_ns)

    def takes(self, full_ns: float) -> None:
        """Computing everything takes so long from now on."""
        self.full_ns = full_ns
        all_ns = full_ns + self.plain_ns
        share_ns, least_ns = SHARE * all_ns - self.finding_ns, LEAST_SHARE * all_ns
        self.share_ns = share_ns if share_ns > least_ns else least_ns

    def ran(self, full_ns: float, saved_ns: float) -> None:
        """A run is over; what it saved, and a share of what computing everything takes."""
        if self.full_ns:
            if self.ahead:
                self.ahead -= 1
            self.takes(full_ns)
            self.left_ns += saved_ns + self.share_ns

    def pay(self, took_ns: float, is_afresh: bool = False) -> None:
        """Pay for something; for what computes everything, first from what its lack has cost."""
        lost_ns = min(self.lost_ns, took_ns) if is_afresh else 0.0
        self.lost_ns -= lost_ns
        self.paid_ns += took_ns
        self.left_ns -= took_ns - lost_ns

    def holds(self, price_ns: float, is_afresh: bool = False) -> bool:
        return self.room_ns(is_afresh) > price_ns

    def room_ns(self, is_afresh: bool = False) -> float:
        """What may be spent now; on what computes everything, what its lack has cost as well."""
        room_ns = self.left_ns + self.ahead * self.share_ns
        return room_ns + (self.lost_ns if is_afresh else 0.0)
