"""The processor and the memory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from togi.core.quantities import size
from togi.core.records import Machine
from togi.doctor.check import Check, Level
from togi.machine import limits
from togi.machine.limits import available_bytes
from togi.machine.load import too_many_threads

MATTER = {
    "avx2": "wide float instructions",
    "avx512f": "wider float instructions",
    "avx512_vnni": "int8 at full speed",
    "avx_vnni": "int8 at full speed",
    "avx512_bf16": "bf16 at full speed",
    "amx_bf16": "bf16 matrix tiles",
    "amx_int8": "int8 matrix tiles",
    "asimd": "float instructions",
    "asimddp": "int8 at full speed",
    "bf16": "bf16 at full speed",
    "i8mm": "int8 matrix multiplication",
    "sve": "wide float instructions",
}
"""Name in /proc/cpuinfo -> what it makes fast (x86 first, then Arm)."""

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def check_processor(machine: Machine) -> list[Check]:
    return [_processor(machine), _instructions(machine), *_governor()]


def _processor(machine: Machine) -> Check:
    found = f"{machine.cpu_model}: {machine.cpu_cores} cores usable, torch uses {machine.threads} threads"
    why = too_many_threads(machine)
    if not why:
        return Check(topic="processor", name="model", level=Level.OK, found=found)
    fix = f"unset OMP_NUM_THREADS, or export OMP_NUM_THREADS={machine.cpu_cores}"
    return Check(topic="processor", name="model", level=Level.WARNING, found=found, why=why, fix=fix)


def _instructions(machine: Machine) -> Check:
    present = [flag for flag in MATTER if flag in machine.cpu_flags]
    if not machine.cpu_flags:
        return Check(topic="processor", name="instructions", level=Level.WARNING, found="cannot be read on this system")
    if not {"avx2", "asimd"} & set(present):
        why = "without avx2 (or Arm's asimd) most engines are slow here, and some do not start"
        return Check(topic="processor", name="instructions", level=Level.WARNING, found="none that matter", why=why)
    half = {"avx512_bf16", "amx_bf16", "bf16"} & set(present)
    why = "" if half else "no bf16 instructions: bf16 is emulated here and rarely faster"
    return Check(topic="processor", name="instructions", level=Level.OK, found=", ".join(present), why=why)


def _governor() -> list[Check]:
    try:
        governor = _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return []  # virtual machines and most containers do not show it
    if governor == "performance":
        return [Check(topic="processor", name="governor", level=Level.OK, found=governor)]
    why = "the clock follows the load, so the first rounds of a measurement are slower than the later ones"
    fix = "sudo cpupower frequency-set --governor performance"
    return [Check(topic="processor", name="governor", level=Level.WARNING, found=governor, why=why, fix=fix)]


LITTLE_MEMORY = 0.15
"""Share of the memory below which a study will probably meet the limit."""
SMALL_SHM_BYTES = 128 * 1024**2


def check_memory(machine: Machine) -> list[Check]:
    return [_usable_memory(machine), *_container_limits(), *_shared_memory()]


def _usable_memory(machine: Machine) -> Check:
    free = available_bytes()
    found = f"{size(machine.memory_bytes)} usable" + (f", {size(free)} available now" if free is not None else "")
    if free is not None and machine.memory_bytes and free < LITTLE_MEMORY * machine.memory_bytes:
        why = "little is left: trials may end as out of memory that would fit otherwise"
        return Check(topic="memory", name="memory", level=Level.WARNING, found=found, why=why)
    return Check(topic="memory", name="memory", level=Level.OK, found=found)


def _container_limits() -> list[Check]:
    memory, cores = limits.memory_limit_bytes(), limits.cpu_quota()
    parts = [f"memory {size(memory)}"] if memory else []
    parts += [f"{cores:g} of {os.cpu_count()} cores"] if cores else []
    found = ", ".join(parts)
    return [Check(topic="memory", name="container limits", level=Level.OK, found=found)] if parts else []


def _shared_memory() -> list[Check]:
    if not Path("/dev/shm").is_dir():
        return []
    total, _, free = shutil.disk_usage("/dev/shm")
    found = f"{size(total)}, {size(free)} free"
    if total >= SMALL_SHM_BYTES:
        return [Check(topic="memory", name="/dev/shm", level=Level.OK, found=found)]
    why = "data loaders and some engines pass tensors through it and fail where it is small"
    fix = "docker run --shm-size=1g ..."
    return [Check(topic="memory", name="/dev/shm", level=Level.WARNING, found=found, why=why, fix=fix)]
