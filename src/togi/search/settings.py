"""The settings of a study that a user may choose, checked where they are made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from pydantic import AliasChoices, Field, ValidationInfo, field_validator, model_validator

from togi.core.choices import Effort, Objective
from togi.core.device import parse_device
from togi.core.errors import TogiError, UnknownNameError, nearest
from togi.core.quantities import parse_drop, parse_duration, parse_share, parse_size
from togi.core.records import Request
from togi.decide.choose import Budget
from togi.techniques.base import Technique

ALL = "approximate"
NAN_DIFFERENCES = "nan-differences"
"""Of ``allow``: what the original shows as NaN may be a number."""


@final
class Settings(Request):
    """All settings of ``tune`` as people give them: sizes and durations as numbers or text, names as one text or more.

    ``togi.tune`` and ``togi tune`` have an option for each field, without its unit; defaults and checks stand here.

    Raises:
        TogiError: a value that is none, with the nearest name; an approximate technique that is allowed without a bound
            on what it may cost.
    """

    objective: Objective = Objective.LATENCY
    callers: int | None = Field(default=None, ge=2)
    """Of ``throughput``: how many call at once; None: one for each core, at least two."""
    effort: Effort = Effort.NORMAL
    allow: tuple[str, ...] = ()
    """Approximate techniques that may be tried: ids, beginnings of ids up to an underscore (``int8`` allows
    ``int8_openvino``), or ``approximate`` for all. None named, but a bound given: all. ``nan-differences``: what the
    original shows as NaN may be a number."""
    only: tuple[str, ...] = ()
    """Where given, no other technique is tried (``no_grad`` always is: it is the reference)."""
    without: tuple[str, ...] = ()
    time_limit_s: float | None = None
    """Of the whole study; None takes the effort's own (``limit_s``)."""
    max_memory_bytes: int | None = Field(default=None, validation_alias=AliasChoices("max_memory_bytes", "max_memory"))
    """Recipes whose footprint is larger are tried but never chosen."""
    max_latency_s: float | None = Field(default=None, validation_alias=AliasChoices("max_latency_s", "max_latency"))
    """The same of those whose calls take longer: of ``throughput`` 5 of 100, next to the other callers."""
    max_first_call_s: float | None = Field(
        default=None, validation_alias=AliasChoices("max_first_call_s", "max_first_call")
    )
    """The same of those that take longer from loading their files to the first answer."""
    max_error: float | None = None
    """Largest relative root-mean-square error of an approximate recipe."""
    max_drop: float | None = None
    """Largest drop of the subject's metric of an approximate recipe."""
    seed: int = 0
    """Breaks ties."""
    device: str = "cpu"
    trial_timeout_s: float = 300.0
    """After this long in build, verification and warm-up a trial is ended."""
    trial_memory_bytes: int | None = Field(
        default=None, validation_alias=AliasChoices("trial_memory_bytes", "trial_memory")
    )
    """A trial that holds more is ended; None: 80 % of what the machine has free when it starts."""

    @classmethod
    def of(cls, *, techniques: Iterable[str], **given: Any) -> Settings:
        """Settings whose names of techniques are among ``techniques``. Raises TogiError as the class does."""
        settings = cls(**given)
        settings.check(techniques)
        return settings

    @field_validator("effort", mode="before")
    @classmethod
    def _effort(cls, given: Any) -> Effort:
        return Effort.of(given)

    @field_validator("objective", mode="before")
    @classmethod
    def _objective(cls, given: Any) -> Objective:
        return Objective.of(given)

    @field_validator("time_limit_s", "trial_timeout_s", mode="before")
    @classmethod
    def _duration(cls, given: Any, field: ValidationInfo) -> float | None:
        return None if given is None else parse_duration(given, field.field_name or "")

    @field_validator("max_latency_s", "max_first_call_s", mode="before")
    @classmethod
    def _longest(cls, given: Any, field: ValidationInfo) -> float | None:
        return None if given is None else parse_duration(given, (field.field_name or "").removesuffix("_s"))

    @field_validator("max_memory_bytes", "trial_memory_bytes", mode="before")
    @classmethod
    def _size(cls, given: Any, field: ValidationInfo) -> int | None:
        return None if given is None else parse_size(given, (field.field_name or "").removesuffix("_bytes"))

    @field_validator("max_error", mode="before")
    @classmethod
    def _share(cls, given: Any) -> float | None:
        return None if given is None else parse_share(given, "max_error")

    @field_validator("max_drop", mode="before")
    @classmethod
    def _drop(cls, given: Any) -> float | None:
        return None if given is None else parse_drop(given, "max_drop")

    @field_validator("allow", "only", "without", mode="before")
    @classmethod
    def _ids(cls, given: Any, field: ValidationInfo) -> tuple[str, ...]:
        return names(given, field.field_name or "")

    @field_validator("device", mode="before")
    @classmethod
    def _device(cls, given: Any) -> str:
        return parse_device(given)

    @model_validator(mode="after")
    def _bounded(self) -> Settings:
        if self.approximate and not self.has_bound:
            raise TogiError(
                f"allowing {self.approximate[0]} needs a bound on what it may cost: give --max-error (relative RMS "
                "error, such as 1e-2), or a metric and --max-drop. Without one, nothing says what is too wrong."
            )
        return self

    @model_validator(mode="after")
    def _called(self) -> Settings:
        if self.callers is not None and self.objective is not Objective.THROUGHPUT:
            raise TogiError(
                f"callers={self.callers} are those of the objective throughput, and this is {self.objective}: give "
                "--objective throughput, or leave them out"
            )
        return self

    @property
    def budget(self) -> Budget:
        """What the chosen recipe may take."""
        return Budget.of(self.model_dump())

    def callers_on(self, cores: int) -> int:
        """How many call at once, on a machine of so many cores."""
        if self.objective is not Objective.THROUGHPUT:
            return 1
        return self.callers if self.callers is not None else max(2, cores)

    @property
    def has_bound(self) -> bool:
        """Something says how wrong an approximate result may be."""
        return self.max_error is not None or self.max_drop is not None

    @property
    def limit_s(self) -> float | None:
        """What was given, of the whole study; else the effort's own, which begins when the subject is loaded."""
        return self.time_limit_s if self.time_limit_s is not None else self.effort.time_limit_s

    @property
    def approximate(self) -> tuple[str, ...]:
        """Of ``allow`` the techniques."""
        return tuple(name for name in self.allow if name != NAN_DIFFERENCES)

    @property
    def nan_differences(self) -> bool:
        return NAN_DIFFERENCES in self.allow

    def allows(self, technique: Technique) -> bool:
        """Whether it is exact, or approximate and allowed. A bound alone allows every approximate technique."""
        allowed = self.approximate or ((ALL,) if self.has_bound else ())
        return technique.exact or any(_names(name, technique.id) for name in allowed)

    def check(self, techniques: Iterable[str]) -> None:
        """Raises UnknownNameError for a name that no technique has."""
        known = list(techniques)
        for option, given in (("only", self.only), ("without", self.without)):
            for name in given:
                if name not in known:
                    raise UnknownNameError(
                        f"{option}: there is no technique '{name}'{nearest(name, known) or '.'} 'togi explain' lists "
                        "them."
                    )
        for name in self.approximate:
            if not any(_names(name, id) for id in known):
                raise UnknownNameError(
                    f"allow: there is no technique '{name}'{nearest(name, [*known, ALL, NAN_DIFFERENCES]) or '.'} "
                    f"'togi explain' lists them; {ALL} means all."
                )


def names(given: str | Iterable[str], option: str) -> tuple[str, ...]:
    """``["a", "b,c"]`` or ``"a,b,c"`` as one tuple without repeats. Raises TogiError for what is not text."""
    if not isinstance(given, Iterable):
        raise TogiError(f"{option}={given!r} is not a name: give ids of techniques as text")
    parts: list[str] = []
    for item in (given,) if isinstance(given, str) else given:
        if not isinstance(item, str):
            raise TogiError(f"{option}={given!r} holds {item!r}, which is not a name: give ids of techniques as text")
        parts += [part.strip() for part in item.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def _names(name: str, id: str) -> bool:
    return name in (ALL, id) or id.startswith(f"{name}_")
