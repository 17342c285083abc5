"""Finds the cheapest plan under a byte budget: knapsack plans by bisection, then what they overpay is given back.

Every plan is judged by a simulated step, because peaks are not sums: what one region needs while it is repeated comes
on top of what all others keep.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from togi.budget.fit.knapsack import Draft, curve, drafts
from togi.budget.fit.plan import Treatment
from togi.budget.fit.regions import Region

PeakOf = Callable[[Sequence[Treatment]], int]


@dataclass
class Search:
    """``peak_bytes`` is asked for each plan once, however often it comes up."""

    peak_bytes: PeakOf
    partitions: Sequence[tuple[Region, ...]]
    deadline: float
    """On ``time.monotonic()``; what was found by then is the answer."""
    cast_ms_per_byte: float | None = None
    peaks: dict[Draft, int] = field(default_factory=dict)

    def cheapest(self, budget_bytes: int) -> Draft | None:
        """The plan with the least repeated work whose peak is within the budget; None where none was found."""
        for partition in self._middle_first():
            self._bisect(drafts(partition, self.cast_ms_per_byte), budget_bytes)
        best = self._best(budget_bytes)
        return self._relax(best, budget_bytes) if best is not None else None

    @property
    def least(self) -> Draft:
        """The lowest peak seen; of equal ones the one with the least work."""
        return min(self.peaks, key=lambda draft: (self.peaks[draft], draft.ms))

    @property
    def front(self) -> list[tuple[int, Draft]]:
        """Plans seen of which none is both lower and cheaper, by rising peak."""
        found: list[tuple[int, Draft]] = []
        for draft, peak in sorted(self.peaks.items(), key=lambda item: (item[1], item[0].ms)):
            if not found or draft.ms < found[-1][1].ms:
                found.append((peak, draft))
        return found

    def peak(self, draft: Draft) -> int:
        if draft not in self.peaks:
            self.peaks[draft] = self.peak_bytes(draft.treatments)
        return self.peaks[draft]

    def _best(self, budget_bytes: int) -> Draft | None:
        fitting = [draft for draft, peak in self.peaks.items() if peak <= budget_bytes]
        return min(fitting, key=lambda draft: draft.ms, default=None)

    def _bisect(self, plans: Sequence[Draft], budget_bytes: int) -> None:
        """Only plans that are cheaper than the best so far are looked at."""
        best = self._best(budget_bytes)
        high = len(plans) - 1 if best is None else sum(plan.ms < best.ms for plan in plans) - 1
        low = -1
        if high < 0:
            return
        if self.peak(plans[high]) > budget_bytes:
            # a plan that repeats less may still be lower: what is repeated at once is what counts
            for share in (0.5, 0.75, 0.9) if best is None and time.monotonic() < self.deadline else ():
                self.peak(plans[int(share * high)])
            return
        while high - low > 1 and time.monotonic() < self.deadline:
            middle = (low + high) // 2
            if self.peak(plans[middle]) <= budget_bytes:
                high = middle
            else:
                low = middle

    def _relax(self, draft: Draft, budget_bytes: int) -> Draft:
        """Gives back work that the peak does not ask for, the dearest first: often the last regions of the forward
        pass, whose repetition begins while everything else is still kept."""
        for at in sorted(range(len(draft.choices)), key=lambda n: -draft.choices[n].ms):
            for choice in curve(draft.regions[at], self.cast_ms_per_byte):
                if choice.ms >= draft.choices[at].ms or time.monotonic() > self.deadline:
                    break
                changed = draft.with_choice(at, choice)
                if self.peak(changed) <= budget_bytes:
                    draft = changed
                    break
        return draft

    def _middle_first(self) -> list[tuple[Region, ...]]:
        middle = (len(self.partitions) - 1) / 2
        order = sorted(range(len(self.partitions)), key=lambda n: abs(n - middle))
        return [self.partitions[n] for n in order]
