"""Throughput over batch sizes: what the race of ``bench`` says where its contestants are called in several sizes.

Their turns count samples in place of calls, so that sizes can be compared; the race itself, its intervals and the
criterion are those of any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from togi.core.quantities import bounds, milliseconds, percent, significant, times
from togi.core.records import Interval, Outcome
from togi.decide.faster import BETWEEN_PROCESSES, Speed
from togi.measure import RaceResult, Turn
from togi.study.comparison import BestSize, Comparison, Contestant
from togi.worker.supervise import RunningTrial

ROUNDS = 16
"""At least: a size that leaves the race, or whose group is settled, still needs an interval with ends."""


@final
@dataclass(frozen=True)
class PerSample:
    """A contestant whose turns count per sample; ``samples`` are those of a call."""

    running: RunningTrial
    samples: int

    @property
    def name(self) -> str:
        return self.running.name

    def turn(self, passes: int) -> Turn:
        turn = self.running.turn(passes)
        return turn.model_copy(update={"times_ms": tuple(ms / self.samples for ms in turn.times_ms)})


def by_size(found: Comparison, result: RaceResult) -> Comparison:
    """From times per sample to calls and samples a second, and to the best size of each contestant."""
    first = found.contestants[0].name
    limit_ms = None if found.max_latency_s is None else found.max_latency_s * 1e3
    contestants = tuple(_per_call(each, first, result, limit_ms) for each in found.contestants)
    names = dict.fromkeys(each.name for each in contestants)
    best = tuple(
        _best_size(name, [each for each in contestants if each.name == name], result, limit_ms) for name in names
    )
    sentences = [*(each.verdict for each in best), *_between(best, result)]
    return found.model_copy(update={"contestants": contestants, "best": best, "verdict": " ".join(sentences)})


def _per_call(found: Contestant, first: str, result: RaceResult, limit_ms: float | None) -> Contestant:
    if found.latency_ms is None or found.batch is None:
        return found
    one, size = found.latency_ms, found.batch
    beside = found.model_copy(update={"name": first}).label
    compared = found.name != first and any(entry.name == beside for entry in result.entries)
    called = found.model_copy(
        update={
            "latency_ms": Interval(median=one.median * size, low=one.low * size, high=one.high * size),
            "samples_per_s": Interval(median=1e3 / one.median, low=1e3 / one.high, high=_inverse(one.low)),
            "speedup_x": result.speed_x(found.label, beside) if compared else None,
        }
    )
    if called.outcome is not Outcome.OK:
        return called
    over = "" if _within(called, limit_ms) else f"over the limit of {milliseconds(limit_ms or 0)}"
    return called.model_copy(update={"reason": over})


def _inverse(ms: float) -> float:
    return 1e3 / ms if ms > 0 else math.inf


def _within(found: Contestant, limit_ms: float | None) -> bool:
    return found.waited_ms is not None and (limit_ms is None or found.waited_ms <= limit_ms)


def _best_size(name: str, sizes: Sequence[Contestant], result: RaceResult, limit_ms: float | None) -> BestSize:
    measured = [each for each in sizes if each.outcome is Outcome.OK and each.samples_per_s is not None]
    within = [each for each in measured if _within(each, limit_ms)]
    if not within:
        none = f"{name} could be measured at none of these sizes."
        over = f"{name} answers within {milliseconds(limit_ms or 0)} at none of these sizes."
        return BestSize(name=name, verdict=over if measured else none)
    leader = max(within, key=lambda each: _speedup(each, result))
    best = min((each for each in within if each is leader or _speed(each, leader, result) is Speed.SAME), key=_batch)
    speeds = {_batch(each): _speed(each, best, result) for each in within if each is not best}
    same, unclear = (
        tuple(sorted(size for size, found in speeds.items() if found is speed)) for speed in (Speed.SAME, Speed.UNCLEAR)
    )
    found = BestSize(name=name, batch=best.batch, same=same, unclear=unclear, verdict="")
    return found.model_copy(update={"verdict": " ".join(_told(found, best, limit_ms))})


def _speedup(each: Contestant, result: RaceResult) -> float:
    """Over what all were raced against, in the median."""
    found = result.speed_x(each.label, result.reference)
    return 0.0 if found is None else found.median


def _speed(each: Contestant, other: Contestant, result: RaceResult) -> Speed:
    found = result.speed_x(each.label, other.label)
    return Speed.UNCLEAR if found is None else BETWEEN_PROCESSES.speed(found)


def _batch(found: Contestant) -> int:
    return found.batch or 1


def _told(found: BestSize, best: Contestant, limit_ms: float | None) -> Iterator[str]:
    assert best.samples_per_s is not None
    assert best.waited_ms is not None
    within = "" if limit_ms is None else f"Within {milliseconds(limit_ms)} a call, "
    throughput = f"{significant(best.samples_per_s.median)} a second ({bounds(best.samples_per_s)})"
    wait = f"a call takes {milliseconds(best.waited_ms)}"
    if best.call_ms is not None:
        wait = f"95 of 100 calls take {milliseconds(best.call_ms)} at most"
    yield f"{within}{found.name} answers the most samples at batch {found.batch}: {throughput}, where {wait}."
    if found.same:
        near = percent(BETWEEN_PROCESSES.band_x - 1)
        yield f"Batch {_listed(found.same)} within {near} of that, but a smaller batch is answered sooner."
    if found.unclear:
        yield f"Batch {_listed(found.unclear, 'cannot be', 'cannot be')} distinguished from it on this machine now."


def _listed(sizes: Sequence[int], one: str = "is", several: str = "are") -> str:
    return f"{' and '.join(map(str, sizes))} {one if len(sizes) == 1 else several}"


def _between(best: Sequence[BestSize], result: RaceResult) -> Iterator[str]:
    """How the others, each at its best size, stand to the first at its own."""
    first, *others = best
    for other in others:
        labels = [Contestant(name=each.name, batch=each.batch).label for each in (other, first)]
        found = None if first.batch is None or other.batch is None else result.speed_x(*labels)
        if found is not None:
            yield f"At these sizes {_compared(other.name, first.name, found)}."


def _compared(name: str, first: str, found: Interval) -> str:
    match BETWEEN_PROCESSES.speed(found):
        case Speed.SAME:
            return f"{name} and {first} are within {percent(BETWEEN_PROCESSES.band_x - 1)} of each other"
        case Speed.UNCLEAR:
            return f"{name} and {first} cannot be distinguished on this machine now"
        case Speed.FASTER | Speed.SLOWER:
            return f"{name} answers {times(found.median)} ({bounds(found)}) as many samples a second as {first}"
