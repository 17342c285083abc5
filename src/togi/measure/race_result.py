"""Results of a race: each runner's rounds, who is ahead of whom, and the timing that the journal keeps of one."""

from __future__ import annotations

import math
from collections.abc import Sequence

from togi.core.backports import StrEnum
from togi.core.records import Interval, Noise, Record, Timing
from togi.decide.faster import Criterion
from togi.measure.interval import ratio_interval, rounds_needed, times_interval

_Rounds = tuple[tuple[float, float], ...]
"""The reference's and another's ms per sample, round by round."""


class RaceVerdict(StrEnum):
    """The end of a race."""

    SEPARATED = "separated"
    """One is faster than every other by more than what could be chance or the bias of a process."""
    EQUIVALENT = "equivalent"
    """The fastest differ by less than what matters."""
    CANNOT_TELL = "cannot_tell"
    """Time was up, or too few runners survived."""


class RaceEntry(Record):
    """One runner's race."""

    name: str
    rounds_ms: tuple[float | None, ...]
    """Raw: ms per sample in each round; None where it did not take part."""
    latency_ms: Interval | None = None
    """None when it finished no round."""
    speedup_x: Interval | None = None
    """Reference time over its time, round by round. None when it shared no round with the reference."""
    call_ms: float | None = None
    """What a call took next to the other callers; None: there was one."""
    left_at: int | None = None
    """The round after which it left the race (0: before the first); None when it stayed to the end."""
    left_because: str = ""
    traceback: str = ""
    noise: Noise


class RaceResult(Record):
    """All entries (the reference first) and what follows."""

    reference: str
    winner: str
    """The reference, unless another is faster beyond doubt."""
    verdict: RaceVerdict
    order: str
    """Who is ahead of whom, or that the figures do not decide."""
    sentence: str
    """The order, and how the winner stands to the reference."""
    entries: tuple[RaceEntry, ...]
    rounds: int
    wall_s: float
    criterion: Criterion

    @property
    def noise(self) -> Noise:
        """Of the runner that was disturbed most."""
        return max((entry.noise for entry in self.entries), key=lambda noise: noise.spread)

    def entry(self, name: str) -> RaceEntry:
        return next(entry for entry in self.entries if entry.name == name)

    def speed_x(self, name: str, over: str) -> Interval | None:
        """How many times as fast as another, over the rounds that both were in; None: there are none."""
        return speed_between(self.entry(name).rounds_ms, self.entry(over).rounds_ms, self._confidence)

    def timing(
        self,
        name: str,
        *,
        first_call_ms: float = 0.0,
        build_s: float = 0.0,
        energy_mj: float | None = None,
        slowest_ms: float = math.inf,
    ) -> Timing | None:
        """What the journal keeps of one runner; None when it shared no round with the reference.

        ``slowest_ms``: rounds in which the reference took longer are left out, if the others give an interval ends.
        """
        entry, base = self.entry(name), self.entry(self.reference)
        if entry.latency_ms is None or entry.speedup_x is None:
            return None
        pairs = zip(base.rounds_ms, entry.rounds_ms, strict=True)
        every = tuple((a, b) for a, b in pairs if a is not None and b is not None)
        shared = self._undisturbed(every, slowest_ms)
        speedup_x = entry.speedup_x
        if len(shared) < len(every):
            references, own = zip(*shared, strict=True)
            speedup_x = ratio_interval(references, own, self._confidence)
        return Timing(
            latency_ms=times_interval([own_ms for _, own_ms in shared], self.criterion.confidence),
            speedup_x=speedup_x,
            confidence=self._confidence,
            rounds_ms=shared,
            call_ms=entry.call_ms,
            first_call_ms=first_call_ms,
            build_s=build_s,
            energy_mj=energy_mj,
            noise=entry.noise,
        )

    @property
    def _confidence(self) -> float:
        return of_each(self.criterion.confidence, len(self.entries))

    def _undisturbed(self, rounds_ms: _Rounds, slowest_ms: float) -> _Rounds:
        """Those in which the reference was not slower; all where these are too few.

        Which rounds count is decided by the reference and a bound that was there before the race, never by the other's
        time. So the ratios that are left are draws of one distribution as before, and the interval holds its median.
        Where the reference's time varies by itself, its slowest rounds are missing: that makes the other look slower
        next to it, never faster. A neighbour that comes slows down both, by factors of their own.
        """
        calm = tuple(pair for pair in rounds_ms if pair[0] <= slowest_ms)
        return calm if len(calm) >= rounds_needed(self._confidence) else rounds_ms


def together(first: Timing, second: Timing) -> Timing:
    """What two processes of one recipe measured next to the same reference, as one measurement. Its intervals hold as
    those of the stricter of the two did: one that was made in a race of several is one of several looks."""
    confidence = max(first.confidence, second.confidence)
    rounds_ms = first.rounds_ms + second.rounds_ms
    references, own = zip(*rounds_ms, strict=True)
    update = {
        "latency_ms": times_interval(own, confidence),
        "speedup_x": ratio_interval(references, own, confidence),
        "rounds_ms": rounds_ms,
        "confidence": confidence,
    }
    return second.model_copy(update=update)


def speed_between(own: Sequence[float | None], others: Sequence[float | None], confidence: float) -> Interval | None:
    """Of the times of two runners, round by round; None: they shared none."""
    pairs = [(other_ms, own_ms) for own_ms, other_ms in zip(own, others, strict=True) if own_ms and other_ms]
    return ratio_interval([a for a, _ in pairs], [b for _, b in pairs], confidence) if pairs else None


def of_each(confidence: float, contestants: int) -> float:
    """Of each interval of a race, so that all of them hold together."""
    return 1.0 - (1.0 - confidence) / max(1, contestants - 1)
