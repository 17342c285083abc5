"""The answer of a fleet: the cost of a call on each kind of machine, and cost against latency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, ValidationError

from togi.core.quantities import bounds, milliseconds, significant
from togi.core.records import SCHEMA_VERSION, Interval, Record
from togi.decide.faster import BETWEEN_PROCESSES, change


class KindAnswer(Record):
    """One kind of machine."""

    kind: str
    per_hour: float
    """Price."""
    state: Literal["ok", "nothing chosen", "failed", "lost"]
    """``lost``: no machine of the kind was there, or none stayed. It and ``failed`` are tried anew by the next run."""
    reason: str = ""
    """Why it is not ok."""
    folder: str | None = None
    """With ``model.togi``, ``study.json``, ``journal.sqlite`` and ``messages.txt``; None where there is no study."""
    cpu: str = ""
    gpu: str | None = None
    threads: int = 0
    device: str = "cpu"
    """Where it was measured, ``cpu`` or ``cuda``: a machine may have a GPU that had no part in it."""
    recipe: str = ""
    """The choices of the chosen recipe."""
    latency_ms: Interval | None = None
    """Of one call, one after the other."""
    per_million: Interval | None = None
    """Price of a million calls, one after the other on a machine that does nothing else."""
    on_front: bool = False
    """No other kind is cheaper and as fast, or faster and as cheap."""


class FrontStep(Record):
    """A step along the front: from one kind to the next faster one."""

    cheaper: str
    faster: str
    per_second_saved: Interval | None
    """How much more it costs for each second of latency that is saved, over all calls; None if the figures do not show
    which of the two is cheaper or faster."""


class Fleet(Record):
    """The same study on each kind of machine, in the order of the prices."""

    schema_version: int = SCHEMA_VERSION
    subject: str
    currency: str
    kinds: tuple[KindAnswer, ...]
    steps: tuple[FrontStep, ...] = ()
    """Along the front, from the cheapest kind."""
    cheapest: str | None = None
    """The kind that takes least for a million calls."""
    verdict: str


def per_million(latency_ms: Interval, per_hour: float) -> Interval:
    """Seconds of a million calls, times the price of a second."""
    factor = 1e-3 * 1e6 / 3600 * per_hour
    return Interval(
        median=latency_ms.median * factor,
        low=latency_ms.low * factor,
        high=latency_ms.high * factor if factor else 0.0,  # for nothing, whatever it takes
    )


class _StudyPart(Record):
    """A part of the document that ``togi tune --json`` writes on a node, as far as a fleet reads it."""

    model_config = ConfigDict(extra="ignore")


class _RecipePart(_StudyPart):
    label: str


class _TrialPart(_StudyPart):
    chosen: bool
    latency_ms: Interval | None
    recipe: _RecipePart


class _MachinePart(_StudyPart):
    cpu_model: str
    gpu: str | None
    threads: int


class _FactsPart(_StudyPart):
    device: str = "cpu"


class _StudyDocument(_StudyPart):
    facts: _FactsPart = _FactsPart()
    machine: _MachinePart
    trials: tuple[_TrialPart, ...]
    verdict: str


def read_kind(folder: Path, kind: str, per_hour: float) -> KindAnswer:
    """Read the folder of a finished study. Raises OSError or ValueError if it holds none."""
    try:
        study = _StudyDocument.from_json((folder / "study.json").read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{'.'.join(map(str, first['loc'])) or 'study.json'}: {first['msg']}") from None
    chosen = next((trial for trial in study.trials if trial.chosen and trial.latency_ms is not None), None)
    latency_ms = chosen.latency_ms if chosen is not None else None
    if latency_ms is not None and not 0 < latency_ms.low <= latency_ms.median <= latency_ms.high < math.inf:
        raise ValueError(f"a call cannot take {latency_ms.median} ms ({latency_ms.low} to {latency_ms.high})")
    return KindAnswer(
        kind=kind,
        per_hour=per_hour,
        state="nothing chosen" if chosen is None else "ok",
        reason=study.verdict if chosen is None else "",
        folder=str(folder),
        cpu=study.machine.cpu_model,
        gpu=study.machine.gpu,
        threads=study.machine.threads,
        device=study.facts.device,
        recipe="" if chosen is None else chosen.recipe.label,
        latency_ms=latency_ms,
        per_million=None if latency_ms is None else per_million(latency_ms, per_hour),
    )


def conclude(subject: str, currency: str, kinds: Sequence[KindAnswer]) -> Fleet:
    front = _front(kinds)
    steps = [
        FrontStep(cheaper=a.kind, faster=b.kind, per_second_saved=_per_second_saved(a, b)) for a, b in pairwise(front)
    ]
    return Fleet(
        subject=subject,
        currency=currency,
        kinds=tuple(kind.model_copy(update={"on_front": kind in front}) for kind in kinds),
        steps=tuple(steps),
        cheapest=front[0].kind if front else None,
        verdict=_verdict(front, kinds, currency),
    )


def _front(kinds: Sequence[KindAnswer]) -> list[KindAnswer]:
    """Cheapest first, each of the others faster than those before."""
    front: list[KindAnswer] = []
    for kind in sorted((kind for kind in kinds if kind.state == "ok"), key=_point):
        if not front or _point(kind)[1] < _point(front[-1])[1]:
            front.append(kind)
    return front


def _point(kind: KindAnswer) -> tuple[float, float]:
    cost, latency_ms = _measured(kind)
    return cost.median, latency_ms.median


def _measured(kind: KindAnswer) -> tuple[Interval, Interval]:
    assert kind.per_million is not None
    assert kind.latency_ms is not None
    return kind.per_million, kind.latency_ms


def _per_second_saved(cheaper: KindAnswer, faster: KindAnswer) -> Interval | None:
    (cost_a, latency_a), (cost_b, latency_b) = _measured(cheaper), _measured(faster)
    more = _difference(cost_b, cost_a)
    saved_ms = _difference(latency_a, latency_b)
    if not (_less(cost_a, cost_b) and _less(latency_b, latency_a) and more.low >= 0 and saved_ms.low > 0):
        return None
    per_ms = 1e6 / 1e3  # a millisecond of each of a million calls is so many seconds
    return Interval(
        median=more.median / (saved_ms.median * per_ms),
        low=more.low / (saved_ms.high * per_ms),
        high=more.high / (saved_ms.low * per_ms),
    )


def _less(a: Interval, b: Interval) -> bool:
    """Beyond doubt, by what may be called faster."""
    return b.low > 0 if a.high == 0 else BETWEEN_PROCESSES.faster(change(b, a))


def _difference(a: Interval, b: Interval) -> Interval:
    return Interval(median=a.median - b.median, low=a.low - b.high, high=a.high - b.low)


def _verdict(front: Sequence[KindAnswer], kinds: Sequence[KindAnswer], currency: str) -> str:
    if not front:
        return "no kind of machine has an answer"
    first = front[0]
    cost, latency_ms = _measured(first)
    equal = [
        kind.kind
        for kind in kinds
        if kind.kind != first.kind and kind.per_million is not None and not _less(cost, kind.per_million)
    ]
    doubt = f" in the median, not distinguishable from {', '.join(equal)}" if equal else ""
    verdict = (
        f"{first.kind} costs least{doubt}: {significant(cost.median)} {currency} ({bounds(cost)}) for a million calls "
        f"of {milliseconds(latency_ms.median)} with {first.recipe}"
    )
    without = [kind.kind for kind in kinds if kind.state in ("failed", "lost")]
    return f"{verdict}. There is no answer for {', '.join(without)}" if without else verdict
