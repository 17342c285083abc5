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
    """The bytes that can be allocated without swapping, as the kernel estimates, or less where a container's limit
    leaves less; None where the kernel does not say."""
    free_kib = counted(meminfo, "MemAvailable:")
    return None if free_kib is None else min([free_kib * 1024, *_left_by_containers()])


def _left_by_containers() -> Iterator[int]:
    """The bytes that each memory limit of this process leaves. The cache of files does not count as used: the kernel
    drops it first."""
    for controller, limit, usage, prefix in _MEMORY_FILES:
        for folder in _levels(controller):
            most, used = read_text(folder / limit), read_text(folder / usage)
            if most.isdigit() and used.isdigit() and int(most) < _UNLIMITED_BYTES:
                cached = (counted(folder / "memory.stat", f"{prefix}{kind}active_file") or 0 for kind in ("", "in"))
                yield max(0, int(most) - int(used) + sum(cached))


def oom_kills() -> int:
    """The number of processes that the kernel has ended since the machine was started because memory was out, here or
    in any container; 0 where it does not say (proc_vmstat(5))."""
    return counted(VMSTAT, "oom_kill") or 0


def counted(path: Path, name: str) -> int | None:
    """The number behind ``name`` at the beginning of a line of a kernel file; None where there is none."""
    fields = next((fields for line in read_text(path).splitlines() if (fields := line.split())[:1] == [name]), [])
    return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None


def anonymous_bytes(pid: int) -> int:
    """Anonymous resident bytes of a process alone; 0 where /proc does not tell."""
    return 1024 * (counted(Path(f"/proc/{pid}/status"), "RssAnon:") or 0)


def processes_bytes(pid: int) -> int:
    """Anonymous resident bytes of a process and its descendants; 0 where /proc does not tell."""
    return sum(map(anonymous_bytes, [pid, *descendants(pid)]))


ENDED_STATES = frozenset({"Z", "X"})
"""Of a process that nobody has waited for yet, and of one that somebody waits for right now."""


def is_running(pid: int) -> bool:
    """True if a process of this number is there, also one that has ended and that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def stat_fields(pid: int) -> list[str]:
    """What ``/proc/PID/stat`` holds from the state of a process on, field 3 (proc_pid_stat(5)); nothing where there is
    no such process. The command before it may hold spaces and brackets."""
    return read_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()


def descendants(pid: int) -> list[int]:
    """The processes that a process started, and those that these did; none where /proc does not tell."""
    pids, queue = [], [pid]
    while queue:
        current = queue.pop()
        with contextlib.suppress(OSError):
            for listing in Path(f"/proc/{current}/task").glob("*/children"):
                children = [int(child) for child in read_text(listing).split()]
                pids += children
                queue += children
    return pids


ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
VMSTAT = Path("/proc/vmstat")
_UNLIMITED_BYTES = 1 << 60
"""Version 1 writes "no limit" as a number near 2**63."""
_MEMORY_FILES = (
    ("", "memory.max", "memory.current", ""),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""By controller: files with the limit and the usage, and how ``memory.stat`` calls what is of the whole group."""


def cpu_quota() -> float | None:
    """Cores' worth of time per second (1.5 = one core and a half), or None without a limit."""
    quotas = []
    for folder in _levels(""):
        quota, _, period = read_text(folder / "cpu.max").partition(" ")
        quotas.append(_ratio(quota, period))
    for folder in _levels("cpu"):
        quotas.append(_ratio(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")))
    return min((quota for quota in quotas if quota), default=None)


def memory_limit_bytes() -> int | None:
    """The lowest memory limit that holds for this process, or None."""
    texts = [read_text(folder / limit) for controller, limit, *_ in _MEMORY_FILES for folder in _levels(controller)]
    limits = [int(text) for text in texts if text.isdigit()]
    return min((limit for limit in limits if 0 < limit < _UNLIMITED_BYTES), default=None)


def _levels(controller: str) -> Iterator[Path]:
    """Folders from this process's group up to the root; ``""`` is the unified hierarchy of version 2."""
    for line in read_text(MEMBERSHIP).splitlines():
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


def read_text(path: Path) -> str:
    """The text of a file, mostly of the kernel; empty where there is none, or it may not be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
