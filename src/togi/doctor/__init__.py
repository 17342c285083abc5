"""Examines this machine: what it has, what is missing or outdated, the command that fixes it. No torch is imported."""

from __future__ import annotations

from togi.doctor.check import Check, Level
from togi.doctor.engines import check_engines
from togi.doctor.gpu import check_gpu
from togi.doctor.hardware import check_memory, check_processor
from togi.doctor.processes import check_children, check_neighbours
from togi.doctor.software import check_allocators, check_compiler, check_packages
from togi.machine.describe import machine

__all__ = ["Check", "Level", "check_engines", "examine"]


def examine(device: str = "cpu") -> tuple[Check, ...]:
    """Look at everything; takes about two seconds, most of it compiling and watching the other processes."""
    here = machine(device)
    return (
        *check_processor(here),
        *check_memory(here),
        *check_packages(),
        *check_compiler(),
        *check_allocators(here),
        *check_gpu(here, device),
        *check_children(),
        *check_neighbours(here),
    )
