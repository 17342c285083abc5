"""Candidates take turns until it is clear which is fastest, or clear that it does not matter, or time is up.

The parent runs this. It knows nothing of processes: a runner is anything that can take a turn. Decisions rest on ratios
within a round, never on absolute times, because a machine's speed drifts by far more than what candidates differ by.

Sources of the method: paired, randomly ordered blocks (R. A. Fisher, "The Design of Experiments", 1935); elimination
with confidence sequences (E. Even-Dar, S. Mannor, Y. Mansour, "Action elimination and stopping conditions for the
multi-armed bandit", JMLR 7, 2006), here on medians of paired ratios; the intervals are ``interval``'s.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from togi.core.records import Interval, Record, Timing
from togi.measure.course import Course, Lane, Runner, Verdict
from togi.measure.interval import PLACEMENT
from togi.measure.turn import TURN_MS

Seconds = Callable[[], float]
OnRound = Callable[[int, Mapping[str, Interval]], None]
"""Called after each round with its number (from 1) and every racing runner's speed-up over the reference."""


class RaceResult(Record):
    """All lanes (the reference first) and what follows."""

    reference: str
    winner: str
    """The reference, unless another is faster beyond doubt."""
    verdict: Verdict
    sentence: str
    lanes: tuple[Lane, ...]
    rounds: int
    wall_s: float
    margin: float
    placement: float
    confidence: float

    def lane(self, name: str) -> Lane:
        return next(lane for lane in self.lanes if lane.name == name)

    def timing(self, name: str, *, first_call_ms: float = 0.0, build_s: float = 0.0) -> Timing | None:
        """What the journal keeps of one runner; None when it shared no round with the reference."""
        lane, base = self.lane(name), self.lane(self.reference)
        if lane.latency_ms is None or lane.speedup_x is None:
            return None
        pairs = zip(base.rounds_ms, lane.rounds_ms, strict=True)
        return Timing(
            latency_ms=lane.latency_ms,
            speedup_x=lane.speedup_x,
            rounds_ms=tuple((a, b) for a, b in pairs if a is not None and b is not None),
            first_call_ms=first_call_ms,
            build_s=build_s,
            noise=lane.noise,
        )


def race(
    runners: Sequence[Runner],
    reference: Runner,
    *,
    budget_s: float,
    seed: int,
    margin: float = 0.01,
    placement: float = PLACEMENT,
    confidence: float = 0.95,
    min_rounds: int = 8,
    turn_ms: float = TURN_MS,
    clock: Seconds = time.monotonic,
    on_round: OnRound | None = None,
) -> RaceResult:
    """Race ``runners`` against each other and the ``reference`` in interleaved rounds of random order.

    A runner leaves when its interval against the leader says that it is slower by more than ``margin + placement``, or
    when it raises. The race ends when all others have left, when all that remain are within ``margin + placement`` of
    the leader, or when the next round would not fit into ``budget_s`` (one round is always run).

    Args:
        runners: the candidates; the reference may be among them.
        reference: what speed-ups relate to, and what wins where nothing is better beyond doubt.
        budget_s: wall time for everything.
        seed: of the order within the rounds.
        margin: the relative difference that matters.
        placement: the relative difference that two processes of one recipe may have; see ``interval.PLACEMENT``.
        confidence: that no runner is wrongly found slower than another, over the whole race and all runners.
        min_rounds: decisions are not made before.
        turn_ms: what a turn should last; passes per turn are chosen for each runner.
        clock: seconds, monotonic.
        on_round: progress.

    Raises:
        ValueError: two runners with one name, or settings that make no sense.
    """
    field = [reference, *(runner for runner in runners if runner is not reference)]
    _check(field, margin, placement)
    course = Course(field, confidence, 1.0 + margin + placement)
    began, order, longest = clock(), random.Random(seed), 0.0
    course.choose_passes(turn_ms)
    while course.worth_another(min_rounds) and (course.rounds == 0 or clock() - began + longest <= budget_s):
        started = clock()
        course.run_round(order, decide=course.rounds + 1 >= min_rounds)
        longest = max(longest * 0.9, clock() - started)
        if on_round is not None:
            on_round(course.rounds, course.standing())
    verdict, winner, sentence = course.judge(min_rounds)
    return RaceResult(
        reference=reference.name,
        winner=winner,
        verdict=verdict,
        sentence=sentence,
        lanes=tuple(course.lane(runner.name) for runner in field),
        rounds=course.rounds,
        wall_s=clock() - began,
        margin=margin,
        placement=placement,
        confidence=confidence,
    )


def compare(
    a: Runner,
    b: Runner,
    *,
    budget_s: float,
    seed: int,
    margin: float = 0.01,
    placement: float = PLACEMENT,
    confidence: float = 0.95,
    min_rounds: int = 8,
    clock: Seconds = time.monotonic,
    on_round: OnRound | None = None,
) -> RaceResult:
    """Are they really different? The race of two, ``a`` being the reference; see ``race``.

    ``result.verdict`` answers, ``result.lane(b.name).speedup_x`` says by how much. With a budget of about a second it
    is the quick measurement of a trial against the reference: ``compare(reference, trial, ...).timing(trial.name)``.
    """
    return race(
        [b],
        a,
        budget_s=budget_s,
        seed=seed,
        margin=margin,
        placement=placement,
        confidence=confidence,
        min_rounds=min_rounds,
        clock=clock,
        on_round=on_round,
    )


def _check(field: Sequence[Runner], margin: float, placement: float) -> None:
    names = [runner.name for runner in field]
    if len(set(names)) != len(names):
        raise ValueError(f"runners of a race need names of their own, but got {names}")
    if margin < 0 or placement < 0:
        raise ValueError(f"margin ({margin}) and placement ({placement}) are shares of the time and cannot be negative")
