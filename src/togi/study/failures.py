"""Errors of a study that has nothing to tune: its subject, or the reference, cannot be run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from togi.core.errors import SubjectError
from togi.core.quantities import seconds
from togi.core.records import Outcome
from togi.worker.supervise import TrialEnded

_PASSING = frozenset({Outcome.CRASHED, Outcome.OUT_OF_MEMORY, Outcome.TIMED_OUT, Outcome.UNSTABLE})


class SubjectNotRun(SubjectError):
    """It was not run to its end, for a reason that need not be its own and may be gone the next time: no time, no
    memory, a process that somebody ended."""


class OutOfTime(SubjectNotRun):
    """The study's time was over before the original had been run and proven."""


def out_of_time(subject: str, ended: TrialEnded) -> OutOfTime:
    took_s = sum(ended.trial.phases_s.values())
    return OutOfTime(
        f"the time limit was over while {subject} was still in {ended.ending.stage}, after {seconds(took_s)} there. "
        "Give a longer --time-limit, or find out why it takes so long"
    )


def reference_failed(subject: str, why: object, outcome: Outcome) -> SubjectError:
    """Everything else ends in a record."""
    return _kind(outcome)(
        f"{subject} ran once, but its reference (the original as it is) did not: {why}. Finished trials are kept"
    )


def _kind(outcome: Outcome) -> type[SubjectError]:
    return SubjectNotRun if outcome in _PASSING else SubjectError


@contextmanager
def explained(subject: str) -> Iterator[None]:
    """A subject that cannot be run is not a trial that failed: there is nothing to tune."""
    try:
        yield
    except TrialEnded as ended:
        if ended.cut_off:
            raise out_of_time(subject, ended) from None
        detail = f"\n{ended.ending.traceback}" if ended.ending.outcome is Outcome.CRASHED else ""
        raise _kind(ended.ending.outcome)(
            f"{subject} cannot be tuned as it was given: {ended.ending.reason.rstrip('.')}.{detail}"
        ) from None
