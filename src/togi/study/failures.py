"""Errors of a study that has nothing to tune: its subject, or the reference, cannot be run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from togi.core.errors import SubjectError
from togi.core.quantities import seconds
from togi.core.records import Outcome
from togi.worker.supervise import TrialEnded


class OutOfTime(SubjectError):
    """The study's time was over before the original had been run and proven."""


def out_of_time(subject: str, ended: TrialEnded) -> OutOfTime:
    took_s = sum(ended.trial.phases_s.values())
    return OutOfTime(
        f"the time limit was over while {subject} was still in {ended.ending.stage}, after {seconds(took_s)} there. "
        "Give a longer --time-limit, or find out why it takes so long"
    )


def reference_failed(subject: str, why: object) -> SubjectError:
    """Everything else ends in a record."""
    return SubjectError(
        f"{subject} ran once, but its reference (the original as it is) did not: {why}. Finished trials are kept"
    )


@contextmanager
def explained(subject: str) -> Iterator[None]:
    """A subject that cannot be run is not a trial that failed: there is nothing to tune."""
    try:
        yield
    except TrialEnded as ended:
        if ended.cut_off:
            raise out_of_time(subject, ended) from None
        detail = f"\n{ended.ending.traceback}" if ended.ending.outcome is Outcome.CRASHED else ""
        raise SubjectError(
            f"{subject} cannot be tuned as it was given: {ended.ending.reason.rstrip('.')}.{detail}"
        ) from None
