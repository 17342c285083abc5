"""The state of a race: who is still in it, how they stand to each other, what follows from that.

``race`` drives it round by round; the intervals are ``interval``'s.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from togi.core.records import Interval, Noise, Record
from togi.measure.interval import median_interval, ratio_interval, sharp
from togi.measure.noise import judge
from togi.measure.turn import Turn, choose_passes

_REFERENCE_EVERY = 4
"""A reference that cannot win still runs in every fourth round, so that speed-ups over it keep getting sharper."""


class Runner(Protocol):
    """A candidate, built and warm, that can be told to run."""

    @property
    def name(self) -> str:
        """Unique in a race; shown to people."""

    def turn(self, passes: int) -> Turn:
        """Run ``passes`` passes and answer. Whatever it raises ends its race, not the others'."""


class Verdict(StrEnum):
    """How a race ended."""

    SEPARATED = "separated"
    """One is faster than every other by more than what could be chance or placement."""
    EQUIVALENT = "equivalent"
    """The fastest differ by less than what matters."""
    CANNOT_TELL = "cannot_tell"
    """Time was up, or too few runners survived."""


class Lane(Record):
    """One runner's race."""

    name: str
    rounds_ms: tuple[float | None, ...]
    """Raw: ms per sample in each round; None where it did not take part."""
    latency_ms: Interval | None = None
    """None when it finished no round."""
    speedup_x: Interval | None = None
    """Reference time over its time, round by round. None when it shared no round with the reference."""
    left_at: int | None = None
    """The round after which it left the race (0: before the first); None when it stayed to the end."""
    left_because: str = ""
    traceback: str = ""
    noise: Noise


class Entry:
    """One runner's state."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.name = runner.name
        self.passes = 1
        self.turns: list[Turn | None] = []
        self.left_at: int | None = None
        self.left_because = ""
        self.traceback = ""
        self.broken = False

    @property
    def racing(self) -> bool:
        return self.left_at is None

    @property
    def taken(self) -> list[Turn]:
        return [turn for turn in self.turns if turn is not None]

    def take(self, passes: int, round_number: int) -> Turn | None:
        try:
            return self.runner.turn(passes)
        except Exception as error:  # foreign code: a model, a backend, a dying child
            self.leave(round_number, f"{type(error).__name__}: {error}")
            self.traceback, self.broken = traceback.format_exc(), True
            return None

    def leave(self, round_number: int, because: str) -> None:
        self.left_at, self.left_because = round_number, because


class Course:
    """The state of a race. The first entry is the reference."""

    def __init__(self, field: Sequence[Runner], confidence: float, band_x: float) -> None:
        self.entries = [Entry(runner) for runner in field]
        self.reference = self.entries[0]
        self.confidence = confidence
        self.band_x = band_x
        self.rounds = 0
        # The fastest leaves wrongly only if it loses against one of the others: a union bound over those.
        self._decisive = 1.0 - (1.0 - confidence) / max(1, len(self.entries) - 1)

    @property
    def racing(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.racing]

    def choose_passes(self, turn_ms: float) -> None:
        """From one pass, and where that was short (and so, cold) from a whole turn."""
        for entry in self.entries:
            first = entry.take(1, 0)
            if first is None or first.wall_s * 1e3 >= turn_ms:
                continue
            trial = entry.take(choose_passes(first.wall_s * 1e3, turn_ms), 0)
            if trial is not None:
                entry.passes = choose_passes(trial.wall_s * 1e3 / trial.passes, turn_ms)

    def worth_another(self, min_rounds: int) -> bool:
        if self.reference.broken or len(self.racing) < 2:
            return False
        return self.rounds < min_rounds or not self._all_equal()

    def run_round(self, order: random.Random, decide: bool) -> None:
        self.rounds += 1
        called = [entry for entry in self.entries if entry.racing or self._lingers(entry)]
        order.shuffle(called)
        turns = {entry.name: entry.take(entry.passes, self.rounds) for entry in called}
        for entry in self.entries:
            entry.turns.append(turns.get(entry.name))
        if decide:
            self._dismiss()

    def _lingers(self, entry: Entry) -> bool:
        return entry is self.reference and not entry.broken and self.rounds % _REFERENCE_EVERY == 0

    def _dismiss(self) -> None:
        leader = self.leader()
        for entry in self.racing:
            if entry is leader:
                continue
            against = self.speed_x(entry, leader, self._decisive)
            if against is not None and sharp(against) and against.high < 1.0 / self.band_x:
                entry.leave(self.rounds, f"it takes {_times(_inverse(against))} the time of {leader.name}")

    def leader(self) -> Entry:
        """The racing runner with the best median speed-up; the reference where the medians are equal."""
        return max(self.racing, key=self._median_speedup)

    def _median_speedup(self, entry: Entry) -> float:
        found = self.speed_x(entry, self.reference, self.confidence)
        return found.median if found is not None else 0.0

    def speed_x(self, entry: Entry, other: Entry, confidence: float) -> Interval | None:
        """How many times as fast as ``other`` it is, over the rounds that both were in; None: there are none."""
        pairs = [
            (theirs.pass_ms, own.pass_ms)
            for own, theirs in zip(entry.turns, other.turns, strict=True)
            if own is not None and theirs is not None and own.pass_ms > 0 and theirs.pass_ms > 0
        ]
        return ratio_interval([a for a, _ in pairs], [b for _, b in pairs], confidence) if pairs else None

    def _all_equal(self) -> bool:
        leader = self.leader()
        others = [self.speed_x(entry, leader, self._decisive) for entry in self.racing if entry is not leader]
        return all(
            found is not None and found.low >= 1.0 / self.band_x and found.high <= self.band_x for found in others
        )

    def standing(self) -> dict[str, Interval]:
        found = {entry.name: self.speed_x(entry, self.reference, self.confidence) for entry in self.racing}
        return {name: interval for name, interval in found.items() if interval is not None}

    def judge(self, min_rounds: int) -> tuple[Verdict, str, str]:
        """The verdict, the winner's name, and a sentence for people."""
        if self.reference.broken:
            said = f"{self.reference.name}, the reference, failed ({self.reference.left_because}): nothing to compare"
            return Verdict.CANNOT_TELL, self.reference.name, said
        winner = self._winner()
        if len(self.racing) < 2:
            beaten = [entry for entry in self.entries if not entry.broken and not entry.racing]
            verdict = Verdict.SEPARATED if beaten else Verdict.CANNOT_TELL
        else:
            equal = self.rounds >= min_rounds and self._all_equal()
            verdict = Verdict.EQUIVALENT if equal else Verdict.CANNOT_TELL
        return verdict, winner.name, self._sentence(verdict, winner)

    def _winner(self) -> Entry:
        """The best of those racing that are faster than the reference beyond doubt, else the reference."""
        sure = [entry for entry in self.racing if self._beats_reference(entry)]
        return max(sure, key=self._median_speedup, default=self.reference)

    def _beats_reference(self, entry: Entry) -> bool:
        found = self.speed_x(entry, self.reference, self._decisive)
        return found is not None and sharp(found) and found.low > self.band_x

    def _sentence(self, verdict: Verdict, winner: Entry) -> str:
        racing = [entry.name for entry in self.racing]
        rounds = f"after {self.rounds} round{'s' * (self.rounds != 1)}"
        if verdict is Verdict.EQUIVALENT:
            said = f"{' and '.join(racing)} are within {self.band_x - 1:.1%} of each other {rounds}"
        elif verdict is Verdict.SEPARATED:
            said = f"{self.racing[0].name} is the fastest beyond doubt {rounds}"
        elif len(racing) < 2:
            return f"no runner was left to compare {self.reference.name} with"
        else:
            said = f"cannot tell {' and '.join(racing)} apart {rounds} on this machine now"
        found = self.speed_x(winner, self.reference, self.confidence)
        if verdict is Verdict.SEPARATED and winner is self.reference:
            return said
        if winner is self.reference or found is None:
            return f"{said}; nothing is faster than {self.reference.name} beyond doubt"
        return f"{said}; {winner.name} is {_times(found)} as fast as {self.reference.name}"

    def lane(self, name: str) -> Lane:
        entry = next(entry for entry in self.entries if entry.name == name)
        rounds = tuple(turn.pass_ms if turn is not None else None for turn in entry.turns)
        times = [time_ms for time_ms in rounds if time_ms is not None]
        found = median_interval(times, self.confidence) if times else None
        return Lane(
            name=name,
            rounds_ms=rounds,
            latency_ms=found and Interval(median=found.median, low=max(0.0, found.low), high=found.high),
            speedup_x=self.speed_x(entry, self.reference, self.confidence),
            left_at=entry.left_at,
            left_because=entry.left_because,
            traceback=entry.traceback,
            noise=judge(entry.taken),
        )


def _inverse(interval: Interval) -> Interval:
    return Interval(
        median=1.0 / interval.median,
        low=1.0 / interval.high,
        high=1.0 / interval.low if interval.low > 0 else float("inf"),
    )


def _times(interval: Interval) -> str:
    return f"{interval.median:.2f} times ({interval.low:.2f} to {interval.high:.2f})"
