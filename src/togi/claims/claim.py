"""A claim: a piece of advice in one file, with the measurement that supports or refutes it.

``claims/<id with underscores>.py`` holds one class whose docstring is its page, with these headings in this order:
What is claimed, What is measured, What is known, Source.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from togi.core.plugins import by_id, instances_in
from togi.core.records import Interval, Record

HEADINGS = ("What is claimed", "What is measured", "What is known", "Source")


class Verdict(StrEnum):
    """What a measurement says of a claim."""

    HOLDS = "holds"
    HOLDS_IN_PART = "holds in part"
    REFUTED = "does not hold"
    UNTESTED = "cannot be tested here"


class Measured(Record):
    """One way of doing it. None where it could not be measured; ``note`` says why."""

    name: str
    peak_bytes: int | None = None
    """How far the process grew while it ran, result included."""
    median_ms: float | None = None
    speedup_x: Interval | None = None
    """Over what it is compared with, round by round; None where only medians were taken."""
    note: str = ""


class Proof(Record):
    """A claim, measured here."""

    claim: str
    verdict: Verdict
    sentence: str
    """The verdict with its figures, in a sentence."""
    setting: str
    """Sizes and dtypes that were measured."""
    rows: tuple[Measured, ...] = ()
    fix: str = ""
    """The command that makes it possible to test, where something was missing."""


class Claim(abc.ABC):
    """One piece of advice. Stateless."""

    id: ClassVar[str]

    @abc.abstractmethod
    def prove(self) -> Proof:
        """Measure it. Runs in a process of its own, which may need gigabytes for some seconds."""


@functools.cache
def all_claims() -> Mapping[str, Claim]:
    """Every claim by id. Imports no torch."""
    return by_id(instances_in("togi.claims", Claim), "claims")  # type: ignore[type-abstract]
