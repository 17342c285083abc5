"""The time of a study: its limit, and what is left of it for trials, the race and the proof. It waits for nothing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from togi.core.quantities import seconds
from togi.core.settings import Settings
from togi.search.strategy import MODEST_SHARE
from togi.study.pace import USUAL, Pace
from togi.worker.supervise import ASKED_S

GRACE_S = 3.0
"""After the study's limit whatever is still asked of a child is ended; closing takes a moment more."""
_LEAST_PASSES = 30
"""Passes of the original in a study that tries nothing: its truth, its trial and its proof."""
_OWN_LIMIT_X = 3.0
"""An effort's own limit is at least so many times as long as truth, reference and its proof should take."""
_OWN_LIMIT_TRIALS = 5.0
"""And at least so many times as long as the reference took: a busy machine still has time for an engine and a proof."""
_RACE_SHARE = 0.15
"""Of the limit, what is reserved for the race."""
_TRIAL_SHARE, _HANGS_X = 0.5, 3.0
"""A trial may take half of what is left, or three times what was expected where that is more."""
_OUTRUN_X = 2.0
"""While an engine is untried that should take much less, a trial gives way to it after this many times what it should
take itself, or after its share of what is left where that is less."""
_LEAST_ASKED_S, _ASKED_X = 2.0, 8.0
"""Values beyond the samples are some fifteen calls of two programs and of the original, a few in float64 too;
verification is about ten."""
_BUILDING = ("start", "build", "verify", "warm")
"""Phases of a trial until it takes turns, but for validation data, of which a proof judges on the other half."""
_ASKED_SHARE = 0.08
"""Of the limit, less what loading took: what asking for them may take from what could be tried."""


class TimeBudget:
    """Divides the time of one study. It learns from the reference's trial how long a proof takes."""

    def __init__(
        self,
        settings: Settings,
        *,
        pass_ms: float | None = None,
        export_s: float = 0.0,
        in_parts: bool = False,
        started: float,
        loaded: float | None = None,
        pace: Pace = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            settings: of which a given limit, or the effort's own, is taken.
            pass_ms: a rough time of one pass of the original over all samples.
            export_s: what a process that saves a recipe takes to capture the subject, if it has to.
            in_parts: what is saved are parts of it. Each was asked for values beyond its samples when it was saved, and
                the original serves where it does not.
            started: when the study began, by ``clock``.
            loaded: when its subject was: an effort's own limit begins then. None: with the study.
            clock: seconds, monotonic.
        """
        self.started = started
        self.loaded = loaded
        self.pace = pace
        self._given_s = settings.time_limit_s
        self._effort_s = settings.effort.time_limit_s
        self._pass_s = (pass_ms or 0.0) * 1e-3
        self._export_s, self._in_parts = export_s, in_parts
        self._clock = clock
        self._reference_s = 0.0
        self._reference_phases_s: Mapping[str, float] = {}
        self._validation_s = 0.0
        self._race_s = math.inf
        self.compiling_s = 0.0
        """What loading the best recipe so far takes besides what loading any does, since it is compiled anew."""
        self.rebuilding_s = 0.0
        """What building the best recipe so far once more takes, where no process of it is left to be saved."""

    def know_best(self, phases_s: Mapping[str, float], rebuilding_s: float = 0.0) -> None:
        """How long each phase took of the trial whose recipe would be saved now, if its engine compiles when it is
        loaded; else none. ``rebuilding_s``: until it can be saved."""
        self.compiling_s = max(0.0, building_s(phases_s) - building_s(self._reference_phases_s))
        self.rebuilding_s = rebuilding_s

    @property
    def for_best_s(self) -> float:
        """What the best recipe so far takes from trials, besides what the proof of any does."""
        return self.compiling_s + self.rebuilding_s

    def know_validation(self, phases_s: Mapping[str, float]) -> None:
        """How long a trial was on one half of the validation data, if it was judged: the proof is on the other. Those
        that were stopped early were shorter."""
        self._validation_s = max(self._validation_s, phases_s.get("validate", 0.0))

    def know_race(self, seconds: float) -> None:
        """How long a race takes of programs of parts that says anything: there are few, and their trials were long."""
        self._race_s = seconds

    def know_reference(self, phases_s: Mapping[str, float]) -> None:
        """How long each phase of the reference's trial took, in this session or an earlier one."""
        self._reference_phases_s = phases_s

    def lengthen(self, reference_s: float) -> str:
        """Make an effort's own limit long enough for a reference that took so long. Returns a sentence where that made
        it longer than before, else nothing."""
        before_s, self._reference_s = self.limit_s, reference_s
        if self.limit_s is None or before_s is None or self.limit_s <= before_s:
            return ""
        return (
            f"trying the original took {seconds(reference_s)}, so the study may take {seconds(self.limit_s)} in place "
            f"of {seconds(before_s)}; --time-limit sets another limit"
        )

    @property
    def limit_s(self) -> float | None:
        """The limit of the study, from its start: the one that was given; else the effort's own from when the subject
        was loaded, which a slow subject or machine makes longer."""
        if self._given_s is not None or self._effort_s is None:
            return self._given_s
        least_s = max(_OWN_LIMIT_X * self.least_s, _OWN_LIMIT_TRIALS * self._reference_s)
        return self._loading_s + max(self._effort_s, least_s)

    @property
    def ends_at(self) -> float:
        """When nothing is waited for any more: the limit, and a moment in which a proof may end."""
        return math.inf if self.limit_s is None else self.started + self.limit_s + GRACE_S

    @property
    def elapsed_s(self) -> float:
        """Since the study began."""
        return self._clock() - self.started

    @property
    def left_s(self) -> float:
        """What is left of the limit; negative once it is over."""
        return math.inf if self.limit_s is None else self.started + self.limit_s - self._clock()

    @property
    def least_s(self) -> float:
        """About how long truth, reference and its proof take: no study is shorter, whatever it tries."""
        return _LEAST_PASSES * self._pass_s

    @property
    def proof_s(self) -> float:
        """About how long it takes to prove what was saved, with values beyond the samples."""
        return self._proof_without_asking_s + self._wanted_ask_s

    @property
    def ask_s(self) -> float:
        """How long what is saved is asked for values beyond the samples: no longer than the rest of its proof leaves,
        since narrow bounds are better than no artifact."""
        return min(self._wanted_ask_s, max(_LEAST_ASKED_S, self.left_s - self._proof_without_asking_s))

    def explore_s(self, *, race: bool = True) -> float:
        """What is left for trials: the limit less what the race, and building and proving the best, will take."""
        if self.limit_s is None:
            return math.inf
        # in a short study values beyond the samples are asked at the cost of the race, not of trials
        race_s = min(self.pace.race_s, self.limit_s * _RACE_SHARE, self._race_s) - self._wanted_ask_s
        reserved_s = max(self.pace.least_race_s, race_s) if race else 0.0
        return self.left_s - reserved_s - self.rebuilding_s - self.proof_s

    @property
    def _proof_without_asking_s(self) -> float:
        """To export what is saved and what it falls back on if it does, to start and verify both as the reference was,
        and to judge and time it."""
        verify_s = self._reference_phases_s.get("verify", 0.0)
        times = 1 if self._in_parts else 2
        all_s = times * (self._export_s + building_s(self._reference_phases_s))
        return self.pace.proof_s + all_s + self.compiling_s + verify_s + self._validation_s

    def least_proof_s(self, phases_s: Mapping[str, float]) -> float:
        """How long it takes at the least until a recipe is saved and right, loaded from its files; its trial then tells
        how fast it is. ``phases_s``: as for ``know_best``."""
        loading_s = max(building_s(phases_s), building_s(self._reference_phases_s))
        return self._export_s + _LEAST_ASKED_S + loading_s

    @property
    def _wanted_ask_s(self) -> float:
        """By what verifying the original took, and by what loading leaves of the limit."""
        if self._in_parts:
            return 0.0
        verify_s = self._reference_phases_s.get("verify", 0.0)
        most_s = ASKED_S if self.limit_s is None else min(ASKED_S, _ASKED_SHARE * (self.limit_s - self._loading_s))
        return max(_LEAST_ASKED_S, min(most_s, _ASKED_X * verify_s))

    @property
    def _loading_s(self) -> float:
        return 0.0 if self.loaded is None else self.loaded - self.started


def building_s(phases_s: Mapping[str, float]) -> float:
    """What a trial took until it was verified on the samples and warm."""
    return sum(phases_s.get(phase, 0.0) for phase in _BUILDING)


def share_of_trial_s(left_s: float, expected_s: float, *, modest: bool = False) -> float:
    """How much of the seconds that are left one trial may take that should take so long. One that hangs leaves
    something to the others. ``modest``: an engine that should take much less is untried."""
    if not math.isfinite(left_s):
        return left_s
    if modest:
        return min(left_s * MODEST_SHARE, _OUTRUN_X * expected_s)
    return min(left_s, max(left_s * _TRIAL_SHARE, _HANGS_X * expected_s))
