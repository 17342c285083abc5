"""How long planning may take, and what of it still fits into what is left."""

from __future__ import annotations

import time

from togi.core.errors import FitError
from togi.core.quantities import seconds as told

_USUAL_S = 60.0
_USUAL_RUNS = 40
"""Without a limit, a step that takes long has the time of so many runs."""
_SEARCH_SHARE = 0.25
"""Of the limit, for the first search."""
_LEAST_SEARCH_S = 1.0
_FRONT_SHARE = 0.15
"""For running the plans besides the chosen one."""
_TIMING_SHARE = 0.35
_LEAST_RUNS = 4
"""That a plan needs once the step has run twice: it is watched, a plan is run, and what else a run brings with it."""
_RUNS_AFTER_SEARCH, _RUNS_AFTER_FRONT = 2, 4
"""To prove a plan and confirm it; and to time it."""
_PATIENCE_S, _PATIENCE_RUNS = 300.0, 30
"""After so long without a word, what is being done counts as hanging."""


class NoTimeToPlan(FitError):
    """The time limit is too short for a single plan."""


class TimeLimit:
    """The limit, from the first run of the step on. Nothing is begun that is not expected to end in time."""

    def __init__(self, seconds: float | None = None) -> None:
        """``seconds``: None takes a minute, and longer where a step does."""
        self.given = seconds is not None
        self.seconds = _USUAL_S if seconds is None else seconds
        self.run_s = 0.0
        """A run of the step with its measurement."""
        self._began = time.monotonic()

    def again(self, seconds: float | None) -> TimeLimit:
        """Another limit for the same step, from now on."""
        limit = TimeLimit(seconds)
        limit.note_run(self.run_s)
        return limit

    def note_run(self, seconds: float) -> None:
        """So long a run of the step took."""
        self.run_s = seconds
        if not self.given:
            self.seconds = max(_USUAL_S, _USUAL_RUNS * seconds)

    @property
    def ends(self) -> float:
        """On ``time.monotonic()``."""
        return self._began + self.seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self.ends - time.monotonic())

    def allows(self, runs: float) -> bool:
        """So many more runs of the step are expected to end in time."""
        return self.left_s >= runs * self.run_s

    def check(self) -> None:
        """Raises NoTimeToPlan, as soon as it is known, where not a single plan could be made and proven in time."""
        needed_s = _LEAST_RUNS * self.run_s + _LEAST_SEARCH_S
        if self.left_s < needed_s:
            whole_s = time.monotonic() - self._began + needed_s
            raise NoTimeToPlan(
                f"there is no time for a plan: a run of the step takes {told(self.run_s)} here, so that making and "
                f"proving one takes about {told(whole_s)}, and the limit is {told(self.seconds)}. Give --time-limit "
                f"{2 * whole_s:.0f}s (time_limit_s={2 * whole_s:.0f}), or leave it out"
            )

    def search_until(self, attempt: int) -> float:
        """The deadline of a search, on ``time.monotonic()``. ``attempt``: from 0 on; later ones get less."""
        share_s = max(_LEAST_SEARCH_S, self.seconds * _SEARCH_SHARE / (1 + attempt))
        spare_s = self.left_s - _RUNS_AFTER_SEARCH * self.run_s
        least_s = max(_LEAST_SEARCH_S / 2, self.left_s * _SEARCH_SHARE)
        return time.monotonic() + max(min(share_s, spare_s), least_s)

    def front_until(self) -> float:
        """The deadline for running plans besides the chosen one."""
        ends = self.ends - _RUNS_AFTER_FRONT * self.run_s
        return min(ends, time.monotonic() + _FRONT_SHARE * self.seconds)

    def timing_until(self) -> float:
        return min(self.ends, time.monotonic() + _TIMING_SHARE * self.seconds)

    @property
    def patience_s(self) -> float:
        """For whoever waits: what is done next hangs if it takes longer."""
        return max(_PATIENCE_S, _PATIENCE_RUNS * self.run_s, 2 * self.left_s)
