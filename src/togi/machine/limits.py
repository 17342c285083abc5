"""Memory and processors as the system counts them: what may be used, what is free now, what processes hold.

In a Linux container, control groups of version 1 and 2 limit both. A limit may stand at any level between this
process's group and the root, so all levels are read and the lowest counts.
Source: https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1/.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def usable_bytes() -> int:
    """Memory this process may use: the machine's, cut to the container's limit; 0 where it cannot be read."""
    total = 0
    with contextlib.suppress(ValueError, OSError, AttributeError):
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total <= 0 and sys.platform == "darwin":
        with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
            command = ["sysctl", "-n", "hw.memsize"]
            total = int(subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout)
    limit = memory_limit_bytes()
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
            status = Path(f"/proc/{current}/status").read_text(encoding="utf-8", errors="replace").splitlines()
            total += 1024 * int(next(line for line in status if line.startswith("RssAnon:")).split()[1])
            for listing in Path(f"/proc/{current}/task").glob("*/children"):
                queue += [int(child) for child in listing.read_text(encoding="utf-8").split()]
    return total


ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
_UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""


def cpu_quota() -> float | None:
    """Cores' worth of time per second (1.5 = one core and a half), or None without a limit."""
    quotas = []
    for folder in _levels(""):
        quota, _, period = _read(folder / "cpu.max").partition(" ")
        quotas.append(_ratio(quota, period))
    for folder in _levels("cpu"):
        quotas.append(_ratio(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota), default=None)


def memory_limit_bytes() -> int | None:
    """The lowest memory limit that holds for this process, or None."""
    texts = [_read(folder / "memory.max") for folder in _levels("")]
    texts += [_read(folder / "memory.limit_in_bytes") for folder in _levels("memory")]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if 0 < limit < _UNLIMITED_BYTES), default=None)


def _levels(controller: str) -> Iterator[Path]:
    """Folders from this process's group up to the root; ``""`` is the unified hierarchy of version 2."""
    for line in _read(MEMBERSHIP).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller in controllers.split(","):
            root = ROOT / controllers if controller else ROOT
            group = root / path.strip("/")
            # Inside a container the membership is often the host's path while the mount shows only the container's
            # part: levels that do not exist are then skipped, and the mount's root is the container's own group.
            yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)


def _ratio(quota: str, period: str) -> float | None:
    if not quota.isdigit() or not period.isdigit() or int(period) == 0:
        return None
    return int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
