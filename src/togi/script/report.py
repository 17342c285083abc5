"""What took the time of one run of a script. Plain dataclasses: a short script cannot spare the import of records."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModuleCalls:
    """The calls that a script makes of one module, which no other module makes."""

    module: str
    """Its class."""
    calls: int
    seconds: float
    share: float
    """Of the script's seconds."""
    called_with: str = ""
    """The tensors of its most frequent form of calls."""
    reason: str = ""
    """Why it is not tuned; empty if it can be."""


@dataclass(frozen=True)
class ScriptReport:
    """What took the time of one run."""

    script: str
    seconds: float
    modules: tuple[ModuleCalls, ...] = ()
    """The one that took the longest first."""
    notes: tuple[str, ...] = ()
