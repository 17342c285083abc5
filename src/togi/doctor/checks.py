"""All checks in the order in which they are shown."""

from __future__ import annotations

from togi.doctor import accelerator, allocators, children, compiler, memory, neighbours, packages, processor
from togi.doctor.check import Check, Level
from togi.machine.describe import machine

__all__ = ["Check", "Level", "examine"]


def examine(device: str = "cpu") -> tuple[Check, ...]:
    """Look at everything; takes about two seconds, most of it compiling and watching the other processes."""
    here = machine(device)
    return (
        *processor.check(here),
        *memory.check(here),
        *packages.check(),
        *compiler.check(),
        *allocators.check(here),
        *accelerator.check(here, device),
        *children.check(),
        *neighbours.check(here),
    )
