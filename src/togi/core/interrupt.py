"""Ending what foreign code does in this process, as far as that can be."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 1.0
"""Code that catches the exception and goes on gets it once more."""


@contextmanager
def interrupted_after(limit_s: float) -> Iterator[None]:
    """Raise TimeoutError inside of the block once it has taken so long.

    By a signal, so in the main thread alone, and once its code returns to the interpreter: what computes in C for ever
    is not interrupted. Elsewhere nothing is done.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    over = False

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if not over:
            raise TimeoutError(f"it was not done in {limit_s:.0f} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, limit_s, _AGAIN_S)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, before)
