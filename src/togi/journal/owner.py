"""Who holds a claim, and whether that process still lives."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

from togi.core.records import Record

LEASE_S = 3600.0
"""How long a claim counts when its process cannot be looked up from here (another host or container)."""


class Owner(Record):
    """One holder of claims. A process id alone is not enough: ids are used again, and each container has its own."""

    pid: int
    started: str
    """Start time of the process in clock ticks since boot, so that a reused id is not taken for the same process."""
    place: str
    """Boot and process namespace: where ``pid`` means anything."""
    token: str
    """Tells apart several holders in one process."""
    since: float
    """Unix time, for the lease."""

    @classmethod
    def here(cls) -> Owner:
        pid = os.getpid()
        return cls(pid=pid, started=_started(pid), place=_place(), token=uuid.uuid4().hex, since=time.time())

    @property
    def alive(self) -> bool:
        if self.place != _place():
            return time.time() - self.since < LEASE_S
        return _exists(self.pid) and _started(self.pid) == self.started


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _started(pid: int) -> str:
    """Field 22 of ``/proc/PID/stat`` (proc_pid_stat(5)); the command before it may hold spaces and brackets.

    Empty for a zombie or where there is no ``/proc``: a process that ended must not count as alive.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename
