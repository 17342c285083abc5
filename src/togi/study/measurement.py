"""The paired measurement of a warm process next to the reference, and when it says nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from togi.core.choices import Objective
from togi.core.records import Interval, Outcome, Timing
from togi.core.settings import Settings
from togi.decide.faster import BETWEEN_PROCESSES, CONFIDENCE, conclusive
from togi.measure import (
    Runner,
    call_ms_of,
    median_interval,
    noise_of,
    race,
    rounds_needed,
    together,
    undisturbed,
    usable,
)
from togi.study.pace import USUAL, Pace
from togi.study.time_budget import TimeBudget
from togi.worker.supervise import TrialEnded

_LONGER_X = 3.0
"""A recipe that looks faster without clear evidence is measured this many times longer: still less than another trial
takes."""
_REFERENCE_TURNS = 12
"""A slow reference takes no more turns than its latency's interval needs."""
_LONGEST_S, _LONGEST_SHARE = 120.0, 0.25
"""A slow model's rounds take as long as they need, up to this, or up to this share of the time that is left."""
_MORE_ATTEMPTS = 2
_DISTURBED_X = 1.3
_DISTURBED_TODAY_X = 2.0
"""Against an earlier session of the study: the same machine may be somewhat slower for a whole day."""


class WarmProcess(Runner, Protocol):
    """A process that is built, verified and warm (``RunningTrial``)."""

    @property
    def passes(self) -> int: ...
    @property
    def turn_s(self) -> float: ...
    @property
    def build_s(self) -> float: ...
    @property
    def first_call_ms(self) -> float: ...
    @property
    def energy_mj(self) -> float | None: ...
    @property
    def ended(self) -> TrialEnded | None: ...

    def end(self, outcome: Outcome, reason: str, stage: str) -> TrialEnded: ...


class Stopwatch:
    """Times warm processes next to the reference, and knows how quick that is when the machine is quiet."""

    def __init__(
        self,
        settings: Settings,
        budget: TimeBudget,
        *,
        pace: Pace = USUAL,
        earlier_ms: Iterable[float] = (),
        deadline_s: Callable[[], float] = lambda: math.inf,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            settings: of which seed and objective count.
            budget: whose time allows measuring longer, or again.
            earlier_ms: what the reference took in earlier sessions of the study.
            deadline_s: seconds until what is timed is cut off.
            clock: seconds, monotonic.
        """
        self._settings = settings
        self._budget = budget
        self._pace = pace
        self._deadline_s, self._clock, self._sleep = deadline_s, clock, sleep
        self._rounds = rounds_needed(1.0 - (1.0 - CONFIDENCE) / pace.finalists) + 2
        """What gives an interval ends, and a few more: some may be slower than thought."""
        self._calm_ms = math.inf
        """The reference's latency, taking turns, when the machine was at its quietest in this session."""
        self._earlier_ms = min(earlier_ms, default=math.inf)

    @property
    def slowest_ms(self) -> float:
        """Where the reference takes longer, something else is measured with it."""
        return min(_DISTURBED_X * self._calm_ms, _DISTURBED_TODAY_X * self._earlier_ms)

    def doubt(self, timing: Timing, *, again: bool = False) -> str:
        """Why nothing should be concluded from it, or nothing. ``again``: it was doubted before. A processor that is
        slower for good, and shared with nobody, is so for both that take turns.

        Pairing does not help when a neighbour comes: one engine's threads wait for each other and lose a factor of ten,
        another's do not. The reference has run before, and tells.
        """
        if not usable(timing.noise) and not conclusive(timing.speedup_x):
            return f"too noisy to judge: {'; '.join(timing.noise.warnings)}"
        in_session_x, since_x = timing.reference_ms / self._calm_ms, timing.reference_ms / self._earlier_ms
        if again and undisturbed(timing.noise):
            return ""
        if in_session_x > _DISTURBED_X or since_x > _DISTURBED_TODAY_X:
            slower_x = max(in_session_x, since_x)
            return f"disturbed: the reference took {slower_x:.1f} times as long as at its best in this study"
        return ""

    def enough_s(self, budget_s: float, runners: Sequence[WarmProcess]) -> float:
        """The budget, or what enough rounds for an interval take, if that is more: a slow model needs its time."""
        longest_s = max(_LONGEST_S, _LONGEST_SHARE * self._budget.left_s)
        return max(budget_s, min(longest_s, self._rounds * sum(runner.turn_s for runner in runners)))

    def pause(self) -> None:
        """Wait until it may be quieter."""
        self._sleep(self._pace.quiet_s)

    def time(
        self,
        running: WarmProcess,
        reference: WarmProcess,
        budget_s: float,
        *,
        again: bool = False,
        before: Timing | None = None,
    ) -> Timing:
        """Time a warm candidate: again in a quieter moment where the machine was busy, and longer where it seems faster
        without clear evidence. The reference next to itself has a speed-up of exactly 1. ``again``: it was measured
        before, and is measured once. ``before``: what that says, where it was not doubted: both count together, unless
        this is sure alone.

        Raises TrialEnded when either of the two ends; where the time is over then, an interval that was measured before
        counts.
        """
        if running is not reference:
            budget_s = self.enough_s(budget_s, [running, reference])
        timing = self._once(running, reference, budget_s)
        cut_off = next((ended for one in (reference, running) if (ended := one.ended) and ended.cut_off), None)
        if cut_off is not None and not timing.speedup_x.has_ends:
            raise cut_off
        for _ in range(0 if again else _MORE_ATTEMPTS):
            if not self.doubt(timing) or self._left_s < budget_s + self._pace.quiet_s:
                break
            self.pause()
            timing = self._more(running, reference, budget_s) or timing
        unsure = not timing.speedup_x.has_ends or BETWEEN_PROCESSES.points_to_faster(timing.speedup_x)
        if before is not None and unsure and not self.doubt(timing, again=again):
            timing = together(before, timing)
        more_s = budget_s * (_LONGER_X - 1)
        if BETWEEN_PROCESSES.points_to_faster(timing.speedup_x) and self._left_s > more_s:
            more = self._more(running, reference, more_s)
            timing = timing if more is None or self.doubt(more, again=again) else together(timing, more)
        if self._settings.objective is Objective.FIRST_CALL:
            timing = timing.model_copy(update={"start_ms": timing.latency_ms.median})
        if running is not reference:  # alone, without turns in between, it is faster than it can be in any comparison
            self._calm_ms = min(self._calm_ms, timing.reference_ms)
        slower_today = timing.reference_ms > _DISTURBED_TODAY_X * self._earlier_ms
        as_this_session = timing.reference_ms <= _DISTURBED_X * self._calm_ms
        if again and slower_today and as_this_session and not self.doubt(timing, again=True):
            self._earlier_ms = math.inf  # measured twice, and shared with nobody: it is slower for good
        return timing

    def glance(self, running: WarmProcess, reference: WarmProcess) -> Timing:
        """One round, for what a candidate teaches that cannot be chosen. Raises TrialEnded as ``time`` does."""
        return self._once(running, reference, 0.0)

    @property
    def _left_s(self) -> float:
        return min(self._budget.left_s, self._deadline_s())

    def _more(self, running: WarmProcess, reference: WarmProcess, budget_s: float) -> Timing | None:
        """None where the time was over before there was a round."""
        try:
            return self._once(running, reference, budget_s)
        except TrialEnded as ended:
            if not ended.cut_off:
                raise
            return None

    def _once(self, running: WarmProcess, reference: WarmProcess, budget_s: float) -> Timing:
        """Its last round ends before the deadline: who is asked then is ended."""
        budget_s = min(budget_s, self._deadline_s())
        if running is reference:
            return self._reference_alone(reference, budget_s)
        result = race([running], reference, budget_s=budget_s, seed=self._settings.seed, clock=self._clock)
        timing = result.timing(
            running.name,
            first_call_ms=running.first_call_ms,
            build_s=running.build_s,
            energy_mj=running.energy_mj,
            slowest_ms=self.slowest_ms,
        )
        if timing is None:
            ended = reference.ended or running.ended
            raise ended or running.end(Outcome.UNSTABLE, result.sentence, "measure")
        return timing

    def _reference_alone(self, reference: WarmProcess, budget_s: float) -> Timing:
        turns, until = [reference.turn(reference.passes)], self._clock() + budget_s
        while len(turns) < rounds_needed() or (len(turns) < _REFERENCE_TURNS and self._clock() < until):
            turns.append(reference.turn(reference.passes))
        times = [turn.pass_ms for turn in turns]
        return Timing(
            latency_ms=median_interval(times),
            speedup_x=Interval(median=1.0, low=1.0, high=1.0),
            rounds_ms=tuple((time_ms, time_ms) for time_ms in times),
            call_ms=call_ms_of(turns),
            first_call_ms=reference.first_call_ms,
            build_s=reference.build_s,
            energy_mj=reference.energy_mj,
            noise=noise_of(turns),
        )
