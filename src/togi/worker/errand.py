"""Something other than a trial that needs the subject in a process of its own: look at it, run it, watch it.

The subject's code may hang, crash or need too much memory: the caller gets an explanation, and nothing is orphaned.
"""

from __future__ import annotations

import re

from togi.core.errors import SubjectError
from togi.machine.describe import machine
from togi.worker.protocol import Message, SubjectRef
from togi.worker.stable import Stable
from togi.worker.supervise import Limits, OnPhase, TrialEnded


def run_errand(
    subject: SubjectRef,
    function: str,
    payload: Message,
    *,
    purpose: str,
    device: str = "cpu",
    seed: int = 0,
    limits: Limits | None = None,
    on_phase: OnPhase = lambda _: None,
) -> Message:
    """``function(subject, payload)`` in a child that is gone afterwards; the dict that it returned.

    Args:
        function: ``"togi.some.module:name"``. It gets the ``togi.Subject`` and ``payload`` and returns what JSON holds.
        purpose: completes "the subject could not be ...": ``"watched"``, ``"examined"``.

    Raises:
        SubjectError: the subject cannot be loaded, or its process failed, crashed, hung or took too much memory.
    """
    try:
        with Stable(subject, machine(device), device=device, seed=seed) as stable:
            return stable.errand(function, payload, limits or Limits(), on_phase)
    except TrialEnded as ended:
        if said := _said_by_togi(ended.ending.traceback):
            raise SubjectError(said) from None
        printed = ended.ending.traceback or ended.trial.child.log_tail(1000)
        raise SubjectError(
            f"the subject could not be {purpose}: {ended.ending.outcome}, {ended}."
            + (f" It ended with:\n{printed.strip()}" if printed.strip() else "")
        ) from None


def _said_by_togi(traceback: str) -> str:
    """The message of an error that the errand raised on purpose: it tells all, and its place in togi nothing."""
    found = re.search(r"^togi\.(?:\w+\.)*errors\.\w+: (.*)\Z", traceback, re.MULTILINE | re.DOTALL)
    return found.group(1).strip() if found else ""
