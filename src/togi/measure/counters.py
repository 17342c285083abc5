"""Reads what the kernel counted during a turn: waiting for a core, stolen time, neighbours, throttling.

Runs in the child, without torch. Everything is read from ``/proc`` and ``/sys``; what a system does not offer counts
as 0 or None, and no number is made up for it.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from togi.machine.limits import read_text

PROC = Path("/proc")
SYS = Path("/sys")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_NS = 1e-9


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Totals since boot or since the process began, in seconds."""

    cpu_s: float
    """Processor time of this process."""
    waiting_ns: dict[str, int]
    """Run-queue wait by thread: ready to run, but no core was given to it."""
    busy_s: float
    """Processor time of everybody, over all cores."""
    machine_s: float
    """Time of all cores, idle or not."""
    stolen_s: float
    """Time in which the hypervisor ran somebody else."""
    throttled_s: float
    """Time in which the control group had used up its CPU quota."""

    def waiting_s_since(self, earlier: Counters) -> float:
        """Threads that ended in between are not seen; threads that began count in full."""
        return sum(ns - earlier.waiting_ns.get(tid, 0) for tid, ns in self.waiting_ns.items()) * _NS


def read_counters(proc: Path = PROC, sys: Path = SYS) -> Counters:
    """The counters of this process and this machine, now."""
    user, nice, system, idle, iowait, irq, softirq, stolen = _machine_ticks(proc)
    busy = user + nice + system + irq + softirq
    return Counters(
        cpu_s=time.process_time(),
        waiting_ns=_waiting_ns(proc),
        busy_s=busy / _TICKS_PER_S,
        machine_s=(busy + idle + iowait + stolen) / _TICKS_PER_S,
        stolen_s=stolen / _TICKS_PER_S,
        throttled_s=_throttled_s(proc, sys),
    )


def frequency_mhz(sys: Path = SYS) -> float | None:
    """Mean clock of (at most eight of) the cores we may run on; None where the system does not tell."""
    clocks_mhz = []
    for cpu in sorted(os.sched_getaffinity(0))[:8]:
        text = read_text(sys / f"devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq")
        if text.isdigit():
            clocks_mhz.append(int(text) / 1000)
    return statistics.fmean(clocks_mhz) if clocks_mhz else None


def _machine_ticks(proc: Path) -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of all cores together (proc(5))."""
    first = read_text(proc / "stat").partition("\n")[0].split()[1:9]
    return [int(tick) for tick in first] + [0] * (8 - len(first))


def _waiting_ns(proc: Path) -> dict[str, int]:
    """By thread id: the second field of schedstat (kernel documentation, scheduler/sched-stats)."""
    waiting = {}
    folder = proc / "self" / "task"
    for tid in os.listdir(folder) if folder.is_dir() else ():
        fields = read_text(folder / tid / "schedstat").split()
        if len(fields) >= 2:
            waiting[tid] = int(fields[1])
    return waiting


def _throttled_s(proc: Path, sys: Path) -> float:
    """Of this process's control group, version 2 (``throttled_usec``) or 1 (``throttled_time``, in ns)."""
    for line in read_text(proc / "self" / "cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in (sys / "fs/cgroup" / "cpu", sys / "fs/cgroup"):
            fields = dict(pair.split() for pair in read_text(root / path.strip("/") / "cpu.stat").splitlines())
            if "throttled_usec" in fields:
                return int(fields["throttled_usec"]) * 1e-6
            if "throttled_time" in fields:
                return int(fields["throttled_time"]) * _NS
    return 0.0
