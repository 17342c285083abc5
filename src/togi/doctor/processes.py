"""Checks whether trials can run in children here, and names other processes that keep the cores busy."""

from __future__ import annotations

import subprocess
from pathlib import Path

from togi.core.interpreter import python
from togi.core.records import Machine
from togi.doctor.check import Check, Level
from togi.machine.load import CROWDED_SHARE, watch_neighbours

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


def check_neighbours(machine: Machine) -> list[Check]:
    if not Path("/proc/self/stat").exists():
        return []
    neighbours = watch_neighbours()
    found = f"of {machine.cpu_cores} cores {neighbours}"
    if not neighbours.busiest and neighbours.cores < CROWDED_SHARE:
        return [Check(topic="quiet", name="other processes", level=Level.OK, found=found)]
    why = "a busy neighbour can make one process ten times slower: togi will notice, and may not be able to decide"
    return [Check(topic="quiet", name="other processes", level=Level.WARNING, found=found, why=why)]
