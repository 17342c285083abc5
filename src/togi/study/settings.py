"""What a user may set on a study, checked where it is made."""

from __future__ import annotations

from pydantic import Field, model_validator

from togi.core.errors import TogiError
from togi.search.settings import ALL, Effort, SearchSettings

TIME_LIMITS_S: dict[Effort, float | None] = {Effort.QUICK: 90.0, Effort.NORMAL: 300.0, Effort.THOROUGH: None}
"""How long a study takes where no limit is given. The race of the finalists and the proof are inside it."""


class Settings(SearchSettings):
    """All settings of ``tune``. Times in seconds, memory in bytes.

    Raises TogiError when an approximate technique is allowed without a bound on what it may cost.
    """

    device: str = "cpu"
    trial_timeout_s: float = Field(default=300.0, gt=0)
    """After this long in build, verification and warm-up a trial is ended."""
    trial_memory_bytes: int | None = Field(default=None, gt=0)
    """A trial that holds more is ended; None: 80 % of what the machine has free when the study starts."""
    max_drop: float | None = Field(default=None, ge=0)
    """Largest drop of the subject's metric of an approximate result."""

    @model_validator(mode="after")
    def _bounded(self) -> Settings:
        if self.allow and self.max_error is None and self.max_drop is None:
            raise TogiError(
                f"allowing {self.allow[0]} needs a bound on what it may cost: give --max-error (relative RMS error, "
                "such as 1e-2), or a metric and --max-drop. Without one, nothing says what is too wrong."
            )
        return self

    @property
    def limit_s(self) -> float | None:
        """Of the whole study."""
        return self.time_limit_s if self.time_limit_s is not None else TIME_LIMITS_S[self.effort]

    def for_search(self, time_s: float) -> SearchSettings:
        """What the search needs, with ``time_s`` for its trials. A bound alone allows every approximate technique."""
        bounded = self.max_error is not None or self.max_drop is not None
        allow = self.allow or ((ALL,) if bounded else ())
        fields = {name: getattr(self, name) for name in SearchSettings.model_fields}
        return SearchSettings(**{**fields, "time_limit_s": max(1.0, time_s), "allow": allow})
