"""When a study pays for itself: after how many calls of what it chose the time is saved that the study took."""

from __future__ import annotations

import math

from togi.core.records import Record, Study
from togi.decide.choose import latest


class BreakEven(Record):
    """A number of calls that is enough, beyond doubt."""

    calls: int
    study_s: float
    """What the study took."""
    saved_ms: float
    """Least that a call saves."""


def break_even(study: Study) -> BreakEven | None:
    """The low end of the speed-up's interval counts, not its median: the choice rests on that end, so the number of
    calls must not promise more than what was proven. None where no time is saved beyond doubt, or what the study took
    is not known."""
    chosen = None if study.best is None or study.best.is_reference else study.trial(study.best)
    timing, study_s = None if chosen is None else chosen.timing, _seconds(study)
    if timing is None or not timing.speedup_x.has_ends or timing.speedup_x.low <= 1.0 or study_s <= 0:
        return None
    saved_ms = timing.reference_ms * (1.0 - 1.0 / timing.speedup_x.low)
    return BreakEven(calls=math.ceil(study_s * 1e3 / saved_ms), study_s=study_s, saved_ms=saved_ms)


def _seconds(study: Study) -> float:
    """Records of earlier versions have the times of trials alone."""
    return study.took_s if study.took_s is not None else sum(trial.cost_s for trial in latest(study.trials))
