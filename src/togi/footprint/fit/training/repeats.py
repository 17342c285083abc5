"""The calls of a forward pass that a plan repeats, learned from passes in which every call was recorded.

They decide what recording costs, and nothing else: a value whose maker was not recorded is kept instead of being
recomputed. So a pass that goes another way than those before is recorded from there on, and the next one as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from togi.footprint.fit.training.recompute import StoredValue

_AFTER_NEWS = 2
_MOST_WAYS = 100_000
"""Places of passes that are remembered; a module that goes another way each time learns anew."""


class Repeats:
    """What was learned. A copy begins anew."""

    def __init__(self) -> None:
        self.calls: set[tuple[str, int]] = set()
        """Operator and number of its call in a pass."""
        self.ways: set[int] = set()
        """For each place in a pass that was recorded, the operators up to there."""
        self.whole_passes = 1
        """So many of the next are recorded as a whole."""

    def new_pass(self) -> RepeatsOfPass:
        """Once for each forward pass."""
        if len(self.ways) > _MOST_WAYS:
            self.ways.clear()
            self.whole_passes = 1
        return RepeatsOfPass(self)

    def __reduce__(self) -> Any:
        return Repeats, ()


class RepeatsOfPass:
    """What one forward pass learns, and asks."""

    def __init__(self, repeats: Repeats) -> None:
        self._repeats = repeats
        self._is_first, self._is_whole = not repeats.ways, repeats.whole_passes > 0
        self._records = self._is_whole
        self._brought_news = False
        self._way = 0
        self._followed: set[int] = set()
        """Numbers of operations."""

    def is_repeated(self, operator: str, number: int) -> bool:
        """Asked for each call in turn: whether it has to be recorded."""
        self._way = way = hash((self._way, operator))
        if way not in self._repeats.ways:
            self._repeats.ways.add(way)
            self._records = self._brought_news = True
        return self._records or (operator, number) in self._repeats.calls

    def add(self, value: StoredValue) -> None:
        """The call that makes it has to be recorded."""
        operator, _, number = value.key.rpartition("#")
        self._repeats.calls.add((operator, int(number.partition(".")[0])))

    def follow(self, value: StoredValue) -> None:
        """It will be recomputed: by its maker, and by what made the values that this reads and nobody holds."""
        waiting = [value]
        while waiting:
            value = waiting.pop()
            if (maker := value.maker) is not None and maker.number not in self._followed:
                self._followed.add(maker.number)
                self.add(value)
                waiting.extend(slot.value for slot in maker.slots)

    def end(self) -> None:
        """Where a pass goes another way than the first, two more are recorded as a whole: the ways may take turns."""
        if self._brought_news and not self._is_first:
            self._repeats.whole_passes = _AFTER_NEWS
        elif self._is_whole:
            self._repeats.whole_passes -= 1
