"""The settings of a study that a user may choose, checked where they are made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

from pydantic import Field, model_validator

from togi.core.effort import Effort
from togi.core.errors import TogiError, UnknownNameError, nearest
from togi.core.quantities import parse_drop, parse_duration, parse_share, parse_size
from togi.core.records import Record
from togi.techniques.base import Technique

ALL = "approximate"


@final
class Settings(Record):
    """All settings of ``tune``. Times in seconds, memory in bytes.

    Raises TogiError when an approximate technique is allowed without a bound on what it may cost.
    """

    effort: Effort = Effort.NORMAL
    allow: tuple[str, ...] = ()
    """Approximate techniques that may be tried: ids, beginnings of ids up to an underscore (``int8`` allows
    ``int8_openvino``), or ``approximate`` for all. None named, but a bound given: all."""
    only: tuple[str, ...] = ()
    """Where given, no other technique is tried (``no_grad`` always is: it is the reference)."""
    without: tuple[str, ...] = ()
    time_limit_s: float | None = Field(default=None, ge=0)
    """Of the whole study; None takes the effort's own (``limit_s``)."""
    max_memory_bytes: int | None = Field(default=None, ge=0)
    """Recipes whose footprint is larger are tried but never chosen."""
    max_error: float | None = Field(default=None, ge=0)
    """Largest relative root-mean-square error of an approximate recipe."""
    max_drop: float | None = Field(default=None, ge=0)
    """Largest drop of the subject's metric of an approximate recipe."""
    seed: int = 0
    """Breaks ties."""
    device: str = "cpu"
    trial_timeout_s: float = Field(default=300.0, gt=0)
    """After this long in build, verification and warm-up a trial is ended."""
    trial_memory_bytes: int | None = Field(default=None, gt=0)
    """A trial that holds more is ended; None: 80 % of what the machine has free when the study starts."""

    @classmethod
    def of(
        cls,
        *,
        effort: Effort | str = Effort.NORMAL,
        time_limit_s: float | str | None = None,
        trial_timeout_s: float | str = 300.0,
        trial_memory: int | str | None = None,
        max_memory: int | str | None = None,
        max_error: float | str | None = None,
        max_drop: float | str | None = None,
        allow: str | Sequence[str] = (),
        only: str | Sequence[str] = (),
        without: str | Sequence[str] = (),
        seed: int = 0,
        device: str = "cpu",
        techniques: Iterable[str],
    ) -> Settings:
        """From what people give: sizes and durations as numbers or text, names as one text or several.

        Raises:
            TogiError: a value or a name that does not exist, with the nearest; an approximate technique without a
                bound on what it may cost.
        """
        settings = cls(
            effort=Effort.of(effort),
            time_limit_s=None if time_limit_s is None else parse_duration(time_limit_s, "time_limit_s"),
            trial_timeout_s=parse_duration(trial_timeout_s, "trial_timeout_s"),
            trial_memory_bytes=None if trial_memory is None else parse_size(trial_memory, "trial_memory"),
            max_memory_bytes=None if max_memory is None else parse_size(max_memory, "max_memory"),
            max_error=None if max_error is None else parse_share(max_error, "max_error"),
            max_drop=None if max_drop is None else parse_drop(max_drop, "max_drop"),
            allow=names(allow, "allow"),
            only=names(only, "only"),
            without=names(without, "without"),
            seed=seed,
            device=device,
        )
        settings.check(techniques)
        return settings

    @model_validator(mode="after")
    def _bounded(self) -> Settings:
        if self.allow and not self.has_bound:
            raise TogiError(
                f"allowing {self.allow[0]} needs a bound on what it may cost: give --max-error (relative RMS error, "
                "such as 1e-2), or a metric and --max-drop. Without one, nothing says what is too wrong."
            )
        return self

    @property
    def has_bound(self) -> bool:
        """Something says how wrong an approximate result may be."""
        return self.max_error is not None or self.max_drop is not None

    @property
    def limit_s(self) -> float | None:
        """Of the whole study."""
        return self.time_limit_s if self.time_limit_s is not None else self.effort.time_limit_s

    def allows(self, technique: Technique) -> bool:
        """Whether it is exact, or approximate and allowed. A bound alone allows every approximate technique."""
        allowed = self.allow or ((ALL,) if self.has_bound else ())
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
        for name in self.allow:
            if not any(_names(name, id) for id in known):
                raise UnknownNameError(
                    f"allow: there is no technique '{name}'{nearest(name, [*known, ALL]) or '.'} 'togi explain' lists "
                    f"them; {ALL} means all."
                )


def names(given: str | Iterable[str], option: str) -> tuple[str, ...]:
    """``["a", "b,c"]`` or ``"a,b,c"`` as one tuple without repeats. Raises TogiError for what is no text."""
    parts: list[str] = []
    for item in (given,) if isinstance(given, str) else given:
        if not isinstance(item, str):
            raise TogiError(f"{option}={given!r} holds {item!r}, which is no name: give ids of techniques as text")
        parts += [part.strip() for part in item.split(",")]
    return tuple(dict.fromkeys(part for part in parts if part))


def _names(name: str, id: str) -> bool:
    return name in (ALL, id) or id.startswith(f"{name}_")
