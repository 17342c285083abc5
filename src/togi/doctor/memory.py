"""Memory that this process may use, and shared memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from togi.core.quantities import size
from togi.core.records import Machine
from togi.doctor.check import Check, Level
from togi.machine import cgroup
from togi.machine.memory import available_bytes

LITTLE = 0.15
"""Share of the memory below which a study will probably meet the limit."""
SMALL_SHM_BYTES = 128 * 1024**2


def check(machine: Machine) -> list[Check]:
    return [_available(machine), *_limits(), *_shared()]


def _available(machine: Machine) -> Check:
    free = available_bytes()
    found = f"{size(machine.memory_bytes)} usable" + (f", {size(free)} available now" if free is not None else "")
    if free is not None and machine.memory_bytes and free < LITTLE * machine.memory_bytes:
        why = "little is left: trials may end as out of memory that would fit otherwise"
        return Check(topic="memory", name="memory", level=Level.WARNING, found=found, why=why)
    return Check(topic="memory", name="memory", level=Level.OK, found=found)


def _limits() -> list[Check]:
    memory, cores = cgroup.memory_limit_bytes(), cgroup.cpu_quota()
    parts = [f"memory {size(memory)}"] if memory else []
    parts += [f"{cores:g} of {os.cpu_count()} cores"] if cores else []
    found = ", ".join(parts)
    return [Check(topic="memory", name="container limits", level=Level.OK, found=found)] if parts else []


def _shared() -> list[Check]:
    if not Path("/dev/shm").is_dir():
        return []
    total, _, free = shutil.disk_usage("/dev/shm")
    found = f"{size(total)}, {size(free)} free"
    if total >= SMALL_SHM_BYTES:
        return [Check(topic="memory", name="/dev/shm", level=Level.OK, found=found)]
    why = "data loaders and some engines pass tensors through it and fail where it is small"
    mend = "docker run --shm-size=1g ..."
    return [Check(topic="memory", name="/dev/shm", level=Level.WARNING, found=found, why=why, mend=mend)]
