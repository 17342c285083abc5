"""What there is; nothing that a device needs may be missing."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.gpu_parts.row import Row, row

from togi.doctor import Level, examine
from togi.machine import nvml
from togi.machine.describe import machine


def name_of(device: str) -> str:
    """What is swept, and by what."""
    here = machine(device)
    name = f"{here.gpu}, driver {here.gpu_driver}" if device == "cuda" else here.cpu_model
    return f"{name}, torch {here.versions.get('torch')}, Python {here.python}"


def rows(device: str) -> Iterator[Row]:
    """What there is; nothing that a device needs may be missing."""
    yield row("device", True, name_of(device))
    began = time.monotonic()
    missing = [
        f"{check.topic} {check.name}: {check.found}" for check in examine(device) if check.level is Level.MISSING
    ]
    yield row("doctor", not missing, "; ".join(missing) or "nothing is missing", "0 missing", time.monotonic() - began)
    if device == "cuda":
        yield row("NVML", None if (why := nvml.why_not()) else True, why or "answers")
