"""Endings of trials: what happened to a child in place of an answer, as an outcome with its reason. No torch."""

from __future__ import annotations

import signal

from togi.core.quantities import size
from togi.core.records import Ending, Outcome
from togi.worker.channel import Unreadable
from togi.worker.child_process import Died, TooMuchMemory


def timed_out(phase: str, limit_s: float, *, cut_off: bool) -> Ending:
    """``cut_off``: the study's time was over, not its own limit."""
    after = "when the time for it was over" if cut_off else f"after {limit_s:.0f} s"
    return Ending(outcome=Outcome.TIMED_OUT, reason=f"it was still in {phase} {after}", stage=phase)


def died(error: Died, phase: str) -> Ending:
    if error.status < 0:
        how = f"was killed by {_signal_name(-error.status)}"
    else:
        how = f"ended by itself with exit status {error.status}"
    outcome, why = Outcome.CRASHED, ""
    if error.out_of_memory:
        outcome, why = Outcome.OUT_OF_MEMORY, ": the system had run out of memory"
    return Ending(outcome=outcome, reason=f"its process {how} in {phase}{why}", stage=phase)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def unreadable(error: Unreadable, phase: str) -> Ending:
    return Ending(outcome=Outcome.FAILED, reason=f"in {phase} its process sent {error}", stage=phase)


def too_much_memory(error: TooMuchMemory, limit_bytes: int | None, phase: str) -> Ending:
    return Ending(
        outcome=Outcome.OUT_OF_MEMORY,
        reason=f"it held {size(error.bytes)} of memory in {phase}, more than the {size(limit_bytes or 0)} that it may "
        "take here",
        stage=phase,
    )
