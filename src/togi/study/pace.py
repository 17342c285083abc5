"""The pace of a study: how long it measures, and how many recipes it keeps for the end."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The times of a study in seconds. Each is a budget: rounds that an interval needs are run however little it is."""

    trial_s: float = 3.0
    """For the turns of a trial next to the reference."""
    race_s: float = 45.0
    """For the race of the finalists, at most."""
    least_race_s: float = 4.0
    """What is reserved for the race, at least."""
    proof_s: float = 5.0
    """For timing what was saved."""
    quiet_s: float = 2.0
    """How long a busy machine is waited for before it is measured again."""
    finalists: int = 4
    """So many of the fastest are kept warm, and race."""
    least_limit_s: float = 10.0
    """A shorter time limit still leaves so long for loading the subject."""
    max_trials: int | None = None
    """How many recipes are tried at most. None: as many as the effort allows."""


USUAL = Pace()
