"""Examines this machine: what it has, what is missing or outdated, the command that fixes it. No torch is imported."""

from __future__ import annotations

from togi.doctor.check import Check, Level
from togi.doctor.engines import check_engines
from togi.doctor.gpu import check_gpu
from togi.doctor.hardware import check_memory, check_processor
from togi.doctor.packages import Packages
from togi.doctor.processes import check_children, check_neighbours
from togi.doctor.software import TORCH, check_allocators, check_compiler, check_packages
from togi.machine.describe import machine

__all__ = ["Check", "Level", "check_engines", "examine"]


def examine(device: str = "cpu") -> tuple[Check, ...]:
    """Look at everything; takes about two seconds, most of it compiling and watching the other processes."""
    here, packages = machine(device), Packages()
    checks = (
        *check_processor(here),
        *check_memory(here),
        *check_packages(packages),
        *check_compiler(),
        *check_allocators(here),
        *check_gpu(here, device, packages),
        *check_children(),
        *check_neighbours(here),
    )
    return checks if packages.version(TORCH) else tuple(map(_without_torch, checks))


def _without_torch(check: Check) -> Check:
    """No model is run here, so what only that needs is not missing."""
    if check.level is Level.MISSING and check.topic in ("compiler", "trials"):
        return check.model_copy(update={"level": Level.OPTIONAL})
    return check
