"""Candidates take turns until it is clear which is fastest, or clear that it does not matter, or time is up.

The parent runs this. It knows nothing of processes: a runner is anything that can take a turn. Decisions rest on ratios
within a round, never on absolute times, because a machine's speed drifts by far more than what candidates differ by.

Sources of the method: paired, randomly ordered blocks (R. A. Fisher, "The Design of Experiments", 1935); elimination
with confidence sequences (E. Even-Dar, S. Mannor, Y. Mansour, "Action elimination and stopping conditions for the
multi-armed bandit", JMLR 7, 2006), here on medians of paired ratios; the intervals are ``interval``'s.
"""

from __future__ import annotations

import math
import random
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from togi.core.quantities import TOO_FEW_ROUNDS, plural
from togi.core.records import Interval
from togi.decide.faster import BETWEEN_PROCESSES, Criterion, Speed, inverse
from togi.measure.interval import times_interval
from togi.measure.noise import noise_of
from togi.measure.race_result import RaceEntry, RaceResult, RaceVerdict, of_each, speed_between
from togi.measure.turn import TURN_MS, Turn, call_ms_of, choose_passes

Seconds = Callable[[], float]
OnRound = Callable[[int, Mapping[str, Interval]], None]
"""Called after each round with its number (from 1) and every racing runner's speed-up over the reference."""

Enough = Callable[[Interval], bool]
"""Whether a speed-up is known as well as somebody needs it."""

_REFERENCE_EVERY = 4
"""A reference that cannot win still runs in every fourth round, so that speed-ups over it keep getting sharper."""


class Runner(Protocol):
    """A candidate, built and warm, ready to run."""

    @property
    def name(self) -> str:
        """Unique in a race; shown to people."""

    def turn(self, passes: int) -> Turn:
        """Run ``passes`` passes and answer. Whatever it raises ends its race, not the others'."""


def race(
    runners: Sequence[Runner],
    reference: Runner,
    *,
    budget_s: float,
    seed: int,
    criterion: Criterion = BETWEEN_PROCESSES,
    rivals: Mapping[str, str] | None = None,
    min_rounds: int = 8,
    enough: Enough | None = None,
    least_rounds: int = 1,
    turn_ms: float = TURN_MS,
    clock: Seconds = time.monotonic,
    on_round: OnRound | None = None,
) -> RaceResult:
    """Race ``runners`` against each other and the ``reference`` in interleaved rounds of random order.

    A runner leaves when its interval against the leader says that it is slower (``criterion``), or when it raises. The
    race ends when all others have left, when all that remain are as fast as the leader, or when the next round would
    not fit into ``budget_s``.

    Args:
        runners: the candidates; the reference may be among them.
        reference: what speed-ups relate to, and what wins where nothing is better beyond doubt.
        budget_s: wall time for everything.
        seed: of the order within the rounds.
        criterion: how large a difference counts. Its confidence is that of all intervals of the race together.
        rivals: by name the group in which a runner has to be fastest: it leaves by its own group's leader, and the race
            ends when that is clear in each. None: all are in one.
        min_rounds: decisions are not made before.
        enough: for who wants the speed-ups, and not only an order. Then nobody leaves for being slower, and the race
            ends when this is true of the speed-up of each over the reference.
        least_rounds: so many are run however long they take.
        turn_ms: what a turn should last; passes per turn are chosen for each runner.
        clock: seconds, monotonic.
        on_round: progress.

    Raises:
        ValueError: two runners with one name.
    """
    field = [reference, *(runner for runner in runners if runner is not reference)]
    names = [runner.name for runner in field]
    if len(set(names)) != len(names):
        raise ValueError(f"runners of a race need names of their own, but got {names}")
    state = _RaceState(field, criterion, rivals or {}, enough)
    began, order, longest = clock(), random.Random(seed), 0.0
    state.choose_passes(turn_ms)
    while state.worth_another(min_rounds) and (state.rounds < least_rounds or clock() - began + longest <= budget_s):
        started = clock()
        state.run_round(order, decide=state.rounds + 1 >= min_rounds)
        longest = max(longest * 0.9, clock() - started)
        if on_round is not None:
            on_round(state.rounds, state.speedups_x())
    verdict, winner, order_found, sentence = state.conclude(min_rounds)
    return RaceResult(
        reference=reference.name,
        winner=winner,
        verdict=verdict,
        order=order_found,
        sentence=sentence,
        entries=tuple(state.entry(runner.name) for runner in field),
        rounds=state.rounds,
        wall_s=clock() - began,
        criterion=criterion,
    )


class _InRace:
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
    def rounds_ms(self) -> tuple[float | None, ...]:
        return tuple(turn.pass_ms if turn is not None else None for turn in self.turns)

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


class _RaceState:
    """Who is still in a race and how they stand to each other. The first contestant is the reference."""

    def __init__(
        self, field: Sequence[Runner], criterion: Criterion, rivals: Mapping[str, str], enough: Enough | None
    ) -> None:
        self.entries = [_InRace(runner) for runner in field]
        self.reference = self.entries[0]
        self.criterion = criterion
        self.rivals = rivals
        self.enough = enough
        self.rounds = 0
        # All intervals of a race hold together: the fastest is wronged only if it loses against one of the others, and
        # whoever is called faster than the reference is one of them (a union bound).
        self._confidence = of_each(criterion.confidence, len(self.entries))

    @property
    def racing(self) -> list[_InRace]:
        return [entry for entry in self.entries if entry.racing]

    @property
    def groups(self) -> list[list[_InRace]]:
        """Those still racing, by whom they race against."""
        groups: dict[str | None, list[_InRace]] = {}
        for entry in self.racing:
            groups.setdefault(self.rivals.get(entry.name), []).append(entry)
        return list(groups.values())

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
        if self.rounds < min_rounds:
            return True
        if self.enough is not None:
            speedups_x = [self.speed_x(entry, self.reference) for entry in self.racing if entry is not self.reference]
            return not all(speedup_x is not None and self.enough(speedup_x) for speedup_x in speedups_x)
        return not all(map(self._all_equal, self.groups))

    def run_round(self, order: random.Random, decide: bool) -> None:
        self.rounds += 1
        called = [entry for entry in self.entries if entry.racing or self._lingers(entry)]
        order.shuffle(called)
        turns = {entry.name: entry.take(entry.passes, self.rounds) for entry in called}
        for entry in self.entries:
            entry.turns.append(turns.get(entry.name))
        for group in self.groups if decide and self.enough is None else ():
            self._dismiss(group)

    def _lingers(self, entry: _InRace) -> bool:
        return entry is self.reference and not entry.broken and self.rounds % _REFERENCE_EVERY == 0

    def _dismiss(self, group: Sequence[_InRace]) -> None:
        leader = self.leader(group)
        for entry in group:
            if entry is leader:
                continue
            against = self.speed_x(entry, leader)
            if against is not None and self.criterion.slower(against):
                entry.leave(self.rounds, _slower(against, leader))

    def _dismiss_beaten(self) -> None:
        """Whoever is slower than another that is left, so that the sentence never calls one both slower and
        undecided. The slowest go first, and the last one has nobody to lose against."""
        for entry in sorted(self.racing, key=self._median_speedup):
            beaten = ((self.speed_x(entry, other), other) for other in self.racing if other is not entry)
            beaten_by = next(((x, other) for x, other in beaten if x is not None and self.criterion.slower(x)), None)
            if beaten_by is not None:
                entry.leave(self.rounds, _slower(*beaten_by))

    def leader(self, group: Sequence[_InRace]) -> _InRace:
        """That with the best median speed-up; the first where the medians are equal."""
        return max(group, key=self._median_speedup)

    def _median_speedup(self, entry: _InRace) -> float:
        speedup_x = self.speed_x(entry, self.reference)
        return speedup_x.median if speedup_x is not None else 0.0

    def speed_x(self, entry: _InRace, other: _InRace) -> Interval | None:
        """How many times as fast as ``other`` it is, over the rounds that both were in; None: there are none."""
        return speed_between(entry.rounds_ms, other.rounds_ms, self._confidence)

    def _all_equal(self, group: Sequence[_InRace]) -> bool:
        leader = self.leader(group)
        others = [self.speed_x(entry, leader) for entry in group if entry is not leader]
        return all(ratio is not None and self.criterion.speed(ratio) is Speed.SAME for ratio in others)

    def speedups_x(self) -> dict[str, Interval]:
        speedups_x = {entry.name: self.speed_x(entry, self.reference) for entry in self.racing}
        return {name: interval for name, interval in speedups_x.items() if interval is not None}

    def conclude(self, min_rounds: int) -> tuple[RaceVerdict, str, str, str]:
        """The verdict, the winner's name, the order in words, and the whole sentence."""
        if self.reference.broken:
            failed = f"{self.reference.name}, the reference, failed ({self.reference.left_because}): nothing to compare"
            return RaceVerdict.CANNOT_TELL, self.reference.name, failed, failed
        self._dismiss_beaten()
        winner = self._winner()
        if len(self.racing) < 2:
            beaten = [entry for entry in self.entries if not entry.broken and not entry.racing]
            verdict = RaceVerdict.SEPARATED if beaten and self.racing else RaceVerdict.CANNOT_TELL
        else:
            equal = self.rounds >= min_rounds and self._all_equal(self.racing)
            verdict = RaceVerdict.EQUIVALENT if equal else RaceVerdict.CANNOT_TELL
        order = self._order(verdict)
        return verdict, winner.name, order, order + self._against_reference(verdict, winner)

    def _winner(self) -> _InRace:
        """The best of those racing that are faster than the reference beyond doubt, else the reference."""
        sure = [entry for entry in self.racing if self._beats_reference(entry)]
        return max(sure, key=self._median_speedup, default=self.reference)

    def _beats_reference(self, entry: _InRace) -> bool:
        speedup_x = self.speed_x(entry, self.reference)
        return speedup_x is not None and self.criterion.faster(speedup_x)

    def _order(self, verdict: RaceVerdict) -> str:
        racing = [entry.name for entry in self.racing]
        rounds = f"after {plural(self.rounds, 'round')}"
        if verdict is RaceVerdict.EQUIVALENT:
            leader = self.leader(self.racing).name  # the others were compared with it alone
            others = [name for name in racing if name != leader]
            whom = f"{' and '.join(racing)} are" if len(others) == 1 else f"{' and '.join(others)} are each"
            of = "each other" if len(others) == 1 else leader
            return f"{whom} within {self.criterion.band_x - 1:.1%} of {of} {rounds}"
        if verdict is RaceVerdict.SEPARATED:
            return f"{racing[0]} is the fastest beyond doubt {rounds}"
        if len(racing) < 2:
            return f"no runner was left to compare {self.reference.name} with"
        return f"cannot tell {' and '.join(racing)} apart {rounds} on this machine now"

    def _against_reference(self, verdict: RaceVerdict, winner: _InRace) -> str:
        if len(self.racing) < 2 and verdict is RaceVerdict.CANNOT_TELL:
            return ""
        speedup_x = self.speed_x(winner, self.reference)
        if winner is self.reference or speedup_x is None:
            nothing = f"; nothing is faster than {self.reference.name} beyond doubt"
            return nothing if verdict is not RaceVerdict.SEPARATED and self.reference.racing else ""
        return f"; {winner.name} is {_times(speedup_x)} as fast as {self.reference.name}"

    def entry(self, name: str) -> RaceEntry:
        entry = next(entry for entry in self.entries if entry.name == name)
        times = [time_ms for time_ms in entry.rounds_ms if time_ms is not None]
        return RaceEntry(
            name=name,
            rounds_ms=entry.rounds_ms,
            latency_ms=times_interval(times, self._confidence) if times else None,
            speedup_x=self.speed_x(entry, self.reference),
            call_ms=call_ms_of(entry.taken),
            left_at=entry.left_at,
            left_because=entry.left_because,
            traceback=entry.traceback,
            noise=noise_of(entry.taken),
        )


def _slower(against: Interval, other: _InRace) -> str:
    return f"it takes {_times(inverse(against))} the time of {other.name}"


def _times(interval: Interval) -> str:
    ends = f"{interval.low:.2f} to {interval.high:.2f}" if math.isfinite(interval.high) else TOO_FEW_ROUNDS
    return f"{interval.median:.2f} times ({ends})"
