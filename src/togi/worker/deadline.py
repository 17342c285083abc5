"""The deadline by which the processes of a study must have answered. No torch.

Every message that the parent waits for is waited for here, so that no request can be without a limit: its own, or the
moment at which the study has to be over, whichever is sooner.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from togi.core.quantities import seconds
from togi.worker.channel import Timeout

M = TypeVar("M")

_TELL_EVERY_S = 30.0
_WHOLE_X, _LEAST_WHOLE_S = 5.0, 120.0
"""Of the time for measuring, what a command may take that also loads, verifies and saves; and at least so long."""


def whole_s(time_limit_s: float) -> float:
    """Seconds until a command ends whose ``--time-limit`` is that of its measuring alone."""
    return max(_LEAST_WHOLE_S, _WHOLE_X * time_limit_s)


class Deadline:
    """One for all processes of a study. ``at``: by ``time.monotonic``; it may be moved."""

    def __init__(self, at: float = math.inf, tell: Callable[[str], None] = lambda _: None) -> None:
        """``tell``: is given a sentence after every 30 s in which nothing has arrived."""
        self.at = at
        self._tell = tell

    @property
    def left_s(self) -> float:
        return max(0.0, self.at - time.monotonic())

    @contextmanager
    def within(self, limit_s: float) -> Iterator[None]:
        """Give all that is asked for inside so long together, and no longer than before."""
        outside = self.at
        self.at = narrowed = min(outside, time.monotonic() + limit_s)
        try:
            yield
        finally:
            if self.at == narrowed:  # else it was moved meanwhile
                self.at = outside

    def receive(self, take: Callable[[float], M], limit_s: float, what: str) -> M:
        """Return what ``take(seconds)`` does, which raises Timeout after so many at most. ``what``: is waited for.

        What has arrived counts, also when the time is over: this process may have been stopped meanwhile.
        """
        began = reported_at = time.monotonic()
        while True:
            until = min(began + limit_s, self.at)
            try:
                return take(min(max(0.0, until - time.monotonic()), _TELL_EVERY_S))
            except Timeout:
                if (now := time.monotonic()) >= until:
                    raise
                if now - reported_at >= _TELL_EVERY_S:
                    reported_at = now
                    self._tell(f"still waiting for {what}, {seconds(now - began)} by now")
