"""Checks whether trials can run in children here, and names other processes that keep the cores busy."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from togi.core.interpreter import python
from togi.core.records import Machine
from togi.doctor.check import Check, Level

_PROBE = """
import os, signal, time
start = time.perf_counter()
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGKILL)
_, status = os.waitpid(pid, 0)
assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
print(f"{(time.perf_counter() - start) * 1000:.1f}")
"""


def check_children() -> list[Check]:
    try:
        done = subprocess.run(python(_PROBE), capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [_no_children(str(error))]
    if done.returncode != 0:
        return [_no_children(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")]
    found = f"fork, kill and wait work ({done.stdout.strip()} ms)"
    return [Check(topic="trials", name="child processes", level=Level.OK, found=found)]


def _no_children(problem: str) -> Check:
    why = "every trial runs in a forked child of its own, so that a crash cannot take the study with it"
    return Check(topic="trials", name="child processes", level=Level.MISSING, found=problem, why=why)


WATCH_S = 0.5
BUSY_CORES = 0.2
"""A process above this is named."""
SHOWN = 3
_USER_TIME, _SYSTEM_TIME = 11, 12
"""Positions in /proc/PID/stat after the name, see proc_pid_stat(5)."""


def check_neighbours(machine: Machine) -> list[Check]:
    if not Path("/proc/self/stat").exists():
        return []
    busy = busy_processes(WATCH_S)
    total = sum(cores for cores, _ in busy)
    load = f"load {os.getloadavg()[0]:.2f}, others keep {total:.1f} of {machine.cpu_cores} cores busy"
    if not busy:
        return [Check(topic="quiet", name="other processes", level=Level.OK, found=load)]
    names = ", ".join(f"{name} ({cores:.1f} cores)" for cores, name in busy[:SHOWN])
    why = "a busy neighbour can make one process ten times slower: togi will notice, and may not be able to decide"
    return [Check(topic="quiet", name="other processes", level=Level.WARNING, found=f"{load}: {names}", why=why)]


def busy_processes(watch_s: float) -> list[tuple[float, str]]:
    """``(cores used, name and pid)`` of other processes, the busiest first."""
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    before = _processor_times()
    start = time.monotonic()
    time.sleep(watch_s)
    elapsed_s = max(time.monotonic() - start, 1e-6)
    shares = [
        ((ticks - before[pid][0]) / ticks_per_s / elapsed_s, f"{name} pid {pid}")
        for pid, (ticks, name) in _processor_times().items()
        if pid in before
    ]
    return sorted(((cores, name) for cores, name in shares if cores >= BUSY_CORES), reverse=True)


def _processor_times() -> dict[int, tuple[int, str]]:
    """Processor time so far, in ticks, and the name of every process but this one."""
    times = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue  # it ended meanwhile
            name, _, rest = stat.partition("(")[2].rpartition(")")
            fields = rest.split()
            times[int(entry.name)] = (int(fields[_USER_TIME]) + int(fields[_SYSTEM_TIME]), name)
    return times
