"""Memory as the system counts it: what may be used, what is free now, what processes hold."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from togi.machine import cgroup


def usable_bytes() -> int:
    """Memory this process may use: the machine's, cut to the container's limit; 0 where it cannot be read."""
    total = 0
    with contextlib.suppress(ValueError, OSError, AttributeError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total <= 0 and sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            command = ["sysctl", "-n", "hw.memsize"]
            total = int(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)
    limit = cgroup.memory_limit_bytes()
    return min(total, limit) if limit and total else max(total, 0)


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What can be allocated without swapping, as the kernel estimates; None where it does not say.

    Limits of a container are not in it.
    """
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        found = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
        return int(found) * 1024 if found else None
    except (OSError, ValueError, IndexError):
        return None


def processes_bytes(pid: int) -> int:
    """Anonymous resident bytes of a process and its descendants; 0 where /proc does not tell."""
    total, queue = 0, [pid]
    while queue:
        current = queue.pop()
        with contextlib.suppress(OSError, ValueError, StopIteration):
            status = Path(f"/proc/{current}/status").read_text().splitlines()
            total += 1024 * int(next(line for line in status if line.startswith("RssAnon:")).split()[1])
            for listing in Path(f"/proc/{current}/task").glob("*/children"):
                queue += [int(child) for child in listing.read_text().split()]
    return total
