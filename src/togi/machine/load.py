"""How busy other processes keep the cores: said before anything is measured, and by ``togi doctor``."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from togi.core.records import Machine
from togi.machine.limits import read_text

PROC = Path("/proc")
WATCH_S = 0.5
SHORT_WATCH_S = 0.3
CROWDED_SHARE = 0.5
"""From this share of the cores on that others keep busy, little can be proven."""
NAMED_CORES = 0.2
"""A process above this is named."""
_USER_TIME, _SYSTEM_TIME = 11, 12
"""Positions in /proc/PID/stat after the name, see proc_pid_stat(5)."""


@dataclass(frozen=True)
class Neighbours:
    """Other processes, while they were watched."""

    cores: float
    """Kept busy by all of them, on average."""
    busiest: tuple[tuple[float, str], ...]
    """``(cores, name and pid)`` of those that can be named, the busiest first."""
    load: float
    """Of the last minute, as the system counts it, this process included."""

    def __str__(self) -> str:
        """``others keep 1.9 cores busy, load 8.40: python pid 12 (0.9 cores)``"""
        names = ", ".join(f"{name} ({cores:.1f} cores)" for cores, name in self.busiest[:3])
        return f"others keep {self.cores:.1f} cores busy, load {self.load:.2f}" + (f": {names}" if names else "")


def watch_neighbours(watch_s: float = WATCH_S) -> Neighbours:
    """Look at the processor times of all other processes twice. Many small ones count together."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    before, start = _processor_times(), time.monotonic()
    time.sleep(watch_s)
    elapsed_s = max(time.monotonic() - start, 1e-6)
    used = [
        ((ticks - before[pid][0]) / ticks_per_s / elapsed_s, f"{name} pid {pid}")
        for pid, (ticks, name) in _processor_times().items()
        if pid in before
    ]
    named = sorted(((cores, name) for cores, name in used if cores >= NAMED_CORES), reverse=True)
    return Neighbours(max(0.0, sum(cores for cores, _ in used)), tuple(named), os.getloadavg()[0])


def crowded(machine: Machine) -> str:
    """A sentence if others keep so many of the cores busy that little can be proven; else nothing.

    It takes a moment only where something is ready to run besides this process: a quiet machine is not watched.
    """
    if not (PROC / "self" / "stat").exists() or not _others_run(machine.cpu_cores):
        return ""
    neighbours = watch_neighbours(SHORT_WATCH_S)
    if neighbours.cores < CROWDED_SHARE * machine.cpu_cores:
        return ""
    helps = ", or set OMP_NUM_THREADS=1, so that threads wait less for each other" if machine.threads > 1 else ""
    return (
        f"little can be proven now, and all takes longer: of {machine.cpu_cores} cores {neighbours}. Run it again when "
        f"it is quiet{helps}"
    )


def too_many_threads(machine: Machine) -> str:
    """A sentence if torch starts more threads here than the process may keep busy; else nothing. Torch itself starts no
    more than its set of cores allows, so somebody asked for them."""
    if machine.threads <= machine.cpu_cores:
        return ""
    return (
        f"OMP_NUM_THREADS={machine.threads} is more than the {machine.cpu_cores} cores that this process may use (its "
        "quota and its set of cores): threads wait for each other in every operation"
    )


def _others_run(cores: int) -> bool:
    """Whether enough threads besides this one are ready to run, or nobody says (proc_loadavg(5))."""
    running, _, all_threads = (read_text(PROC / "loadavg").split() + [""] * 4)[3].partition("/")
    if not running.isdigit() or not all_threads.isdigit() or int(all_threads) == 0:
        return True
    return int(running) - 1 >= CROWDED_SHARE * cores


def _processor_times() -> dict[int, tuple[int, str]]:
    """Processor time so far, in ticks, and the name of every process but this one."""
    times = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            name, _, rest = read_text(entry / "stat").partition("(")[2].rpartition(")")
            if fields := rest.split():  # else it ended meanwhile
                times[int(entry.name)] = (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]), name)
    return times
