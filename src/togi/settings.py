"""What a user may set on a study, checked where it is made."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from togi.errors import TogiError, UnknownNameError, nearest
from togi.records import Record

Effort = Literal["quick", "normal", "thorough"]

TIME_LIMITS_S: dict[str, float | None] = {"quick": 90.0, "normal": 300.0, "thorough": None}
"""How long a study takes where no limit is given. The race of the finalists and the proof are inside it."""


class Settings(Record):
    """All settings of ``tune``. Times in seconds, memory in bytes."""

    device: str = "cpu"
    effort: Effort = "normal"
    time_limit_s: float | None = None
    trial_timeout_s: float | None = None
    max_memory_bytes: int | None = None
    """Largest footprint (idle + peak) of the result."""
    max_error: float | None = None
    """Largest RMS error relative to the truth's RMS of an approximate result."""
    max_drop: float | None = None
    """Largest drop of the subject's metric of an approximate result."""
    allow: tuple[str, ...] = ()
    """Approximate techniques that may be tried; empty: all of them, once max_error or max_drop is given."""
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    seed: int = 0

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if self.allow and self.max_error is None and self.max_drop is None:
            raise TogiError(
                f"--allow {self.allow[0]} needs a bound on what it may cost: give --max-error (relative RMS error, e.g. "
                "1e-2), or a metric with the subject and --max-drop. Without one nothing would say when it is too wrong"
            )
        return self

    @property
    def limit_s(self) -> float | None:
        return self.time_limit_s if self.time_limit_s is not None else TIME_LIMITS_S[self.effort]

    @property
    def approximate(self) -> bool:
        """Approximate techniques may be tried at all."""
        return self.max_error is not None or self.max_drop is not None

    def check_names(self, known: dict[str, bool]) -> None:
        """That all named techniques exist (``known``: id -> exact) and that those allowed are approximate ones.

        Raises UnknownNameError with the nearest name.
        """
        for name in (*self.only, *self.without, *self.allow):
            if name not in known:
                raise UnknownNameError(
                    f"there is no technique '{name}'{nearest(name, known)}. 'togi explain' lists them"
                )
