"""A machine that nobody has."""

from __future__ import annotations

from typing import Any

from togi.core.records import Machine


def machine(**changes: Any) -> Machine:
    fields: dict[str, Any] = {
        "cpu_model": "Made-up CPU",
        "cpu_flags": ("avx2", "avx512f"),
        "cpu_cores": 2,
        "memory_bytes": 16 * 2**30,
        "threads": 2,
        "os": "Linux",
        "python": "3.11",
    }
    return Machine(**{**fields, **changes})
