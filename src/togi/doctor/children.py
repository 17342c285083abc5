"""Whether trials can run in children: a process that forks, and whose child's death is seen."""

from __future__ import annotations

import subprocess
import sys

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


def check() -> list[Check]:
    try:
        done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [_broken(str(error))]
    if done.returncode != 0:
        return [_broken(done.stderr.strip().rpartition("\n")[2] or f"exit code {done.returncode}")]
    found = f"fork, kill and wait work ({done.stdout.strip()} ms)"
    return [Check(topic="trials", name="child processes", level=Level.OK, found=found)]


def _broken(problem: str) -> Check:
    why = "every trial runs in a forked child of its own, so that a crash cannot take the study with it"
    return Check(topic="trials", name="child processes", level=Level.MISSING, found=problem, why=why)
