"""What a function that runs in a child tells its caller before it returns (``togi.worker.call``). No torch."""

from __future__ import annotations

from togi.core.records import Record


class Report:
    """Tells nobody: for calls in the caller's own process."""

    def entered(self, phase: str, limit_s: float | None = None) -> None:
        """Another phase begins, in words that complete "it was still in ...".

        ``limit_s``: it may take so long; the limit of the call is no longer in force then.
        """

    def found(self, answer: Record) -> None:
        """What would be returned if nothing better came. The caller is given it if the child does not return."""


class PhasesOnly(Report):
    """Tells another of phases, and keeps for itself what was found."""

    def __init__(self, whole: Report) -> None:
        self._whole = whole

    def entered(self, phase: str, limit_s: float | None = None) -> None:
        self._whole.entered(phase, limit_s)
