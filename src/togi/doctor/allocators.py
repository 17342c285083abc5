"""Faster memory allocators that trials can preload."""

from __future__ import annotations

from togi.core.records import Machine
from togi.doctor.check import Check, Level

PACKAGES = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2", "mimalloc": "libmimalloc2.0"}
"""Debian's packages."""


def check(machine: Machine) -> list[Check]:
    return [_check(name, machine.allocators.get(name)) for name in PACKAGES]


def _check(name: str, path: str | None) -> Check:
    if path is not None:
        return Check(topic="allocators", name=name, level=Level.OK, found=path)
    mend = f"sudo apt-get install {PACKAGES[name]}"
    return Check(
        topic="allocators", name=name, level=Level.OPTIONAL, found="not installed", why="one more to try", mend=mend
    )
