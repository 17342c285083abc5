"""What a process that was forked from the test's own finds."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
_LONGEST_S = 60


def in_a_fork(holds: Callable[[], bool]) -> bool:
    """Whether ``holds`` says so there, before long."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(_LONGEST_S)
            os._exit(0 if holds() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
