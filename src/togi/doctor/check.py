"""Checks of a machine: the record of one thing that was looked at."""

from __future__ import annotations

from togi.core.backports import StrEnum
from togi.core.records import Record


class Level(StrEnum):
    """``missing`` is needed and makes the examination fail; ``optional`` would make more techniques possible."""

    OK = "ok"
    OPTIONAL = "optional"
    WARNING = "warning"
    MISSING = "missing"


class Check(Record):
    topic: str
    name: str
    level: Level
    found: str
    """What is there, with values."""
    why: str = ""
    """Why it matters; empty where all is well."""
    fix: str = ""
    """The command that fixes it."""
