"""A claim: a piece of advice in one file, with the measurement that supports or refutes it.

``claims/<id with underscores>.py`` holds one class whose docstring is its page, with these headings in this order:
What is claimed, What is measured, What is known, Source.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import ClassVar

from togi.core.backports import StrEnum
from togi.core.plugins import by_id, instances_in
from togi.core.records import SCHEMA_VERSION, Interval, Machine, Record

HEADINGS = ("What is claimed", "What is measured", "What is known", "Source")


class ClaimVerdict(StrEnum):
    """The answer of a measurement to a claim."""

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


class MeasuredClaim(Record):
    """A claim, measured here."""

    claim: str
    """The id of the claim or of the technique."""
    says: str = ""
    """What is claimed, as its page says it."""
    verdict: ClaimVerdict
    sentence: str
    """The verdict with its figures, in a sentence."""
    right: bool | None = None
    """Of a technique: whether what it computes is right, however fast it is; None where it was not verified."""
    setting: str
    """What was measured: sizes and dtypes, the small model, or the user's subject."""
    rows: tuple[Measured, ...] = ()
    fix: str = ""
    """The command that makes it possible to test, where something was missing."""
    traceback: str = ""
    """Of foreign code that failed."""
    took_s: float = 0.0


class Proofs(Record):
    """Proofs that were measured in one go: the page of a machine."""

    schema_version: int = SCHEMA_VERSION
    started: str
    """ISO 8601, UTC."""
    device: str
    machine: Machine
    proofs: tuple[MeasuredClaim, ...]

    @property
    def counts(self) -> dict[ClaimVerdict, int]:
        """Count the proofs that came to each verdict."""
        verdicts = [proof.verdict for proof in self.proofs]
        return {verdict: verdicts.count(verdict) for verdict in ClaimVerdict}


class Claim(abc.ABC):
    """One piece of advice. Stateless."""

    id: ClassVar[str]

    @abc.abstractmethod
    def prove(self) -> MeasuredClaim:
        """Measure it. Runs in a process of its own, which may need gigabytes for some seconds."""


@functools.cache
def all_claims() -> Mapping[str, Claim]:
    """Every claim by id. Imports no torch."""
    return by_id(instances_in("togi.claims", Claim), "claims")  # type: ignore[type-abstract]
