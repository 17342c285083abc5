"""The results of ``togi bench A B ...`` (contestants that took turns on the same inputs), of ``togi.compare`` and of
``togi verify``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from togi.core.errors import SubjectError, TogiError
from togi.core.quantities import first_line, parse_share
from togi.core.records import (
    PHASES,
    SCHEMA_VERSION,
    ErrorReport,
    Interval,
    LeafError,
    Machine,
    Noise,
    Outcome,
    Record,
)
from togi.decide.gate import Answer, Case
from togi.measure import usable, why_unusable
from togi.study.assertions import check, faster, not_slower
from togi.study.contestants import BestSize, Contestant


class Comparison(Record):
    """All contestants, the first being the one that the others are compared with."""

    schema_version: int = SCHEMA_VERSION
    contestants: tuple[Contestant, ...]
    verdict: str = ""
    """One sentence: which is faster, by how much, or that the figures do not decide on this machine now."""
    machine: Machine
    noise: Noise = Noise()
    rounds: int = 0
    train: bool = False
    """Training steps were compared, not calls."""
    device: str | None = None
    """Where they ran, ``cpu`` or ``cuda``. None: an earlier version wrote it, which did not say."""
    callers: int = 1
    """How many called at once."""
    batch_sizes: tuple[int, ...] = ()
    """Where throughput over batch sizes was asked for: each contestant is there once for each of them."""
    max_latency_s: float | None = None
    """What a call of the best size may take."""
    best: tuple[BestSize, ...] = ()
    """Of each contestant, where there are batch sizes."""
    notes: tuple[str, ...] = ()

    @property
    def phases(self) -> tuple[str, ...]:
        """Those of training steps that were measured of any contestant, in the order of a step."""
        seen = {phase for contestant in self.contestants for phase in contestant.phases_ms}
        return tuple(phase for phase in PHASES if phase in seen)

    def speed_x(self, other: str | None = None) -> Interval | None:
        """How many times as fast as ``other`` (by name; None: the second) the first contestant is. None: not measured.

        Raises TogiError where nothing of that name was compared with it.
        """
        others = {contestant.label: contestant for contestant in self.contestants[1:]}
        found = next(iter(others.values()), None) if other is None else others.get(other)
        if found is None:
            compared = ", ".join(others) or "nothing"
            raise TogiError(f"{other or 'a second one'} was not compared with the first, but {compared}")
        return found.firsts_speed_x

    def assert_not_slower(self, share: float | str) -> None:
        """That the first contestant does not take longer than any of the others by more than ``share`` (``"3%"``).

        Raises AssertionError where it does beyond doubt, or where one was not measured; UndecidedError, which is an
        AssertionError, where the figures do not decide. Both say the speed, its interval, the noise and what to do.
        """
        __tracebackhide__ = True
        check(not_slower(self.contestants, parse_share(share, "share"), self.noise, self.verdict), self.noise)

    def assert_faster(self, share: float | str) -> None:
        """That the first contestant has more than ``1 + share`` times the speed of each other (``"10%"``: 1.10x).

        Raises as ``assert_not_slower`` does.
        """
        __tracebackhide__ = True
        check(faster(self.contestants, parse_share(share, "share"), self.noise, self.verdict), self.noise)


class Agreement(Record):
    """What ``togi.compare`` found. It is true only where both compute the same."""

    equal: bool
    verdict: str
    """That in a sentence, with the worst output; ``str()`` gives it."""
    units: float
    """Error of the worst output, in multiples of the original's own error (which has a floor of a few roundings)."""
    limit_units: float
    """How many of them are rounding."""
    worst: LeafError | None = None
    """The output with the largest error; None where no numbers could be compared."""
    error: ErrorReport
    """Each output, and what is wrong beyond numbers."""
    precision: str
    """What decides: ``float64``, the original computed in it; or ``eager``, the original as it is (``fallback``)."""
    fallback: str = ""
    """Why there is no float64."""
    samples: int
    derived: int
    """How many inputs were made from the samples, and compared as well."""
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.equal

    def __repr__(self) -> str:
        """What pytest shows of an assertion that failed."""
        return f"<{self.verdict}>"

    def assert_equal(self) -> None:
        """Raises AssertionError, with the verdict, where they are not the same."""
        __tracebackhide__ = True
        if not self.equal:
            raise AssertionError(self.verdict)


class Verification(Record):
    """What a proof came to."""

    schema_version: int = SCHEMA_VERSION
    artifact: str
    subject: str
    """The locator of the original that it was verified and measured against."""
    answer: Answer
    """Passed where it is right, and as fast as it must be (``verdict`` says which of them it is not)."""
    outcome: Outcome
    """``ok`` where it is right, else how it failed."""
    verdict: str
    proven_speedup_x: Interval | None = None
    """What it was when the artifact was made."""
    takes: tuple[str, ...] = ()
    """The conditions on sizes and values for which it was proven, in words; calls beyond them it refuses."""
    comparison: Comparison
    """The original under ``no_grad``, then the artifact."""

    @property
    def proven(self) -> bool:
        return self.answer is Answer.PASSED

    @property
    def case(self) -> Case:
        return Case(name=self.artifact, said=self.verdict, answer=self.answer)


def with_doubt(found: Comparison) -> Comparison:
    """Its verdict says where the machine was mostly not theirs: no gate and no assertion decides by such figures."""
    if usable(found.noise):
        return found
    doubt = f"The machine was too disturbed to trust that ({why_unusable(found.noise)})."
    return found.model_copy(update={"verdict": f"{found.verdict} {doubt}"})


def read_comparison(path: Path) -> Comparison:
    """What ``togi bench --json`` wrote. Raises SubjectError where the file holds something else."""
    try:
        document = json.loads(path.read_bytes())
        kind = document.get("kind") if isinstance(document, dict) else None
        if kind != "comparison":
            raise SubjectError(f"{path} holds no comparison: write one with 'togi bench A B --json > {path}'")
        document["contestants"] = [_fields(Contestant, contestant) for contestant in document["contestants"]]
        return Comparison.model_validate_json(json.dumps(_fields(Comparison, document)))
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # a ValidationError is a ValueError
        raise SubjectError(
            f"{path} cannot be read as a comparison ({first_line(error)}): write it again with "
            f"'togi bench A B --json > {path}'"
        ) from None


def _fields(record: type[Record], document: dict[str, Any]) -> dict[str, Any]:
    """Those of the record; the JSON document has more, which are computed from them."""
    return {name: value for name, value in document.items() if name in record.model_fields}
