"""The objective of a study: ``--objective``. A file of its own, as that of the effort."""

from __future__ import annotations

from enum import StrEnum
from typing import final

from togi.core.errors import UnknownNameError, nearest


@final
class Objective(StrEnum):
    """What is raced, and so chosen by. The other measures can be limited."""

    LATENCY = "latency"
    """The time of a call, one after the other."""
    THROUGHPUT = "throughput"
    """Requests per second of several callers at once, in threads of one process."""
    FIRST_CALL = "first-call"
    """The time from loading the files until the first answer, in a fresh process."""

    @classmethod
    def of(cls, name: object) -> Objective:
        """By name. Raises UnknownNameError with the nearest name."""
        if name in list(cls):
            return cls(str(name))
        raise UnknownNameError(
            f"there is no objective {name!r}{nearest(str(name), cls) or '.'} It is {', '.join(cls)}."
        )
