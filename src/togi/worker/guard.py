"""A small process next to each trial server, which ends the server when the parent is gone. No torch.

A server that loads a subject or is stuck in it cannot notice that its parent was killed, and would live on for ever.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from togi.machine.limits import ENDED_STATES, descendants, is_running, stat_fields

_BY_ITSELF_S = 1.0
"""A server that is not stuck has ended its children and itself by then."""
_POLL_S = 0.5
_MOST_DESCRIPTORS = 1 << 16
"""Where a process cannot list those that it has. Its limit may be a thousand million, or none: closing so many one by
one takes minutes."""


def start_guard(parent: int, folders: Sequence[Path]) -> int:
    """Fork it, from the server; returns its process id. ``folders``: what the parent can no longer remove."""
    server = os.getpid()
    if (pid := os.fork()) != 0:
        return pid
    try:
        os.setpgid(0, 0)  # what is sent to the server's group is not meant for it
        close_inherited()  # the server's end must close its channel
        _wait(parent, server)
        if not _runs(parent):
            _wait(server, until=time.monotonic() + _BY_ITSELF_S)
            if os.getppid() == server:  # else it has ended by itself, and its number may be another process's by now
                _end(server)
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def close_inherited() -> None:
    """Close all that was open in the process that this one was forked from, but its standard streams."""
    try:
        inherited = sorted(map(int, os.listdir("/proc/self/fd")))
    except OSError:  # another system
        inherited = list(range(_MOST_DESCRIPTORS))
    for descriptor in inherited:
        if descriptor > 2:
            with contextlib.suppress(OSError):  # the listing's own is closed by now
                os.close(descriptor)


def _wait(*pids: int, until: float | None = None) -> None:
    """Until one of these processes is gone."""
    handles: list[int] = []
    try:
        handles += [os.pidfd_open(pid) for pid in pids]
        select.select(handles, [], [], None if until is None else max(0.0, until - time.monotonic()))
    except ProcessLookupError:
        return
    except (AttributeError, OSError):  # an older kernel, or another system
        while all(map(_runs, pids)) and (until is None or time.monotonic() < until):
            time.sleep(_POLL_S)
    finally:
        for handle in handles:
            os.close(handle)


def _runs(pid: int) -> bool:
    """Ask first whether it has ended: one that is reaped between the two questions is gone by the second."""
    return ENDED_STATES.isdisjoint(stat_fields(pid)[:1]) and is_running(pid)


def _end(server: int) -> None:
    """Kill it with all that it started."""
    descendants_left = [pid for pid in descendants(server) if pid != os.getpid()]
    for pid in (server, *descendants_left):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
