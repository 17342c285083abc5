"""Throughput over batch sizes: what the race of ``bench`` says where its contestants are called in several sizes.

Their turns count samples in place of calls, so that sizes can be compared; the race itself, its intervals and the
criterion are those of any other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from togi.core.quantities import bounds, milliseconds, percent, significant, times
from togi.core.records import Interval, Outcome
from togi.decide.faster import BETWEEN_PROCESSES, Speed
from togi.measure import RaceResult, Turn
from togi.study.comparison import Comparison
from togi.study.contestants import BestSize, Contestant
from togi.worker.supervise import RunningTrial

ROUNDS = 16
"""At least: a size that leaves the race, or whose group is settled, still needs an interval with ends."""


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


def by_size(comparison: Comparison, result: RaceResult) -> Comparison:
    """From times per sample to calls and samples a second, and to the best size of each contestant."""
    first = comparison.contestants[0].name
    limit_ms = None if comparison.max_latency_s is None else comparison.max_latency_s * 1e3
    contestants = tuple(_per_call(contestant, first, result, limit_ms) for contestant in comparison.contestants)
    names = dict.fromkeys(contestant.name for contestant in contestants)
    best = tuple(
        _best_size(name, [size for size in contestants if size.name == name], result, limit_ms) for name in names
    )
    sentences = [*(size.verdict for size in best), *_between(best, result)]
    return comparison.model_copy(update={"contestants": contestants, "best": best, "verdict": " ".join(sentences)})


def _per_call(contestant: Contestant, first: str, result: RaceResult, limit_ms: float | None) -> Contestant:
    if contestant.latency_ms is None or contestant.batch is None:
        return contestant
    sample_ms, size = contestant.latency_ms, contestant.batch
    beside = contestant.model_copy(update={"name": first}).label
    compared = contestant.name != first and any(entry.name == beside for entry in result.entries)
    called = contestant.model_copy(
        update={
            "latency_ms": Interval(
                median=sample_ms.median * size, low=sample_ms.low * size, high=sample_ms.high * size
            ),
            "samples_per_s": Interval(
                median=1e3 / sample_ms.median, low=1e3 / sample_ms.high, high=_inverse(sample_ms.low)
            ),
            "speedup_x": result.speed_x(contestant.label, beside) if compared else None,
        }
    )
    if called.outcome is not Outcome.OK:
        return called
    over = "" if _within(called, limit_ms) else f"over the limit of {milliseconds(limit_ms or 0)}"
    return called.model_copy(update={"reason": over})


def _inverse(ms: float) -> float:
    return 1e3 / ms if ms > 0 else math.inf


def _within(contestant: Contestant, limit_ms: float | None) -> bool:
    return contestant.waited_ms is not None and (limit_ms is None or contestant.waited_ms <= limit_ms)


def _best_size(name: str, sizes: Sequence[Contestant], result: RaceResult, limit_ms: float | None) -> BestSize:
    measured = [size for size in sizes if size.outcome is Outcome.OK and size.samples_per_s is not None]
    within = [size for size in measured if _within(size, limit_ms)]
    if not within:
        none = f"{name} could be measured at none of these sizes."
        over = f"{name} answers within {milliseconds(limit_ms or 0)} at none of these sizes."
        return BestSize(name=name, verdict=over if measured else none)
    leader = max(within, key=lambda contestant: _speedup(contestant, result))
    fastest = [size for size in within if size is leader or _speed(size, leader, result) is Speed.SAME]
    best = min(fastest, key=_batch)
    speeds = {_batch(size): _speed(size, best, result) for size in within if size is not best}
    same, unclear = (
        tuple(sorted(batch for batch, speed in speeds.items() if speed is wanted))
        for wanted in (Speed.SAME, Speed.UNCLEAR)
    )
    best_size = BestSize(name=name, batch=best.batch, same=same, unclear=unclear, verdict="")
    return best_size.model_copy(update={"verdict": " ".join(_told(best_size, best, limit_ms))})


def _speedup(contestant: Contestant, result: RaceResult) -> float:
    """Over what all were raced against, in the median."""
    speedup_x = result.speed_x(contestant.label, result.reference)
    return 0.0 if speedup_x is None else speedup_x.median


def _speed(contestant: Contestant, other: Contestant, result: RaceResult) -> Speed:
    speed_x = result.speed_x(contestant.label, other.label)
    return Speed.UNCLEAR if speed_x is None else BETWEEN_PROCESSES.speed(speed_x)


def _batch(contestant: Contestant) -> int:
    return contestant.batch or 1


def _told(size: BestSize, best: Contestant, limit_ms: float | None) -> Iterator[str]:
    assert best.samples_per_s is not None
    assert best.waited_ms is not None
    within = "" if limit_ms is None else f"Within {milliseconds(limit_ms)} a call, "
    throughput = f"{significant(best.samples_per_s.median)} a second ({bounds(best.samples_per_s)})"
    wait = f"a call takes {milliseconds(best.waited_ms)}"
    if best.call_ms is not None:
        wait = f"95 of 100 calls take {milliseconds(best.call_ms)} at most"
    yield f"{within}{size.name} answers the most samples at batch {size.batch}: {throughput}, where {wait}."
    if size.same:
        near = percent(BETWEEN_PROCESSES.band_x - 1)
        yield f"Batch {_listed(size.same)} within {near} of that, but a smaller batch is answered sooner."
    if size.unclear:
        yield f"Batch {_listed(size.unclear, 'cannot be', 'cannot be')} distinguished from it on this machine now."


def _listed(sizes: Sequence[int], singular: str = "is", several: str = "are") -> str:
    return f"{' and '.join(map(str, sizes))} {singular if len(sizes) == 1 else several}"


def _between(best: Sequence[BestSize], result: RaceResult) -> Iterator[str]:
    """How the others, each at its best size, stand to the first at its own."""
    first, *others = best
    for other in others:
        labels = [Contestant(name=size.name, batch=size.batch).label for size in (other, first)]
        speed_x = None if first.batch is None or other.batch is None else result.speed_x(*labels)
        if speed_x is not None:
            yield f"At these sizes {_compared(other.name, first.name, speed_x)}."


def _compared(name: str, first: str, speed_x: Interval) -> str:
    match BETWEEN_PROCESSES.speed(speed_x):
        case Speed.SAME:
            return f"{name} and {first} are within {percent(BETWEEN_PROCESSES.band_x - 1)} of each other"
        case Speed.UNCLEAR:
            return f"{name} and {first} cannot be distinguished on this machine now"
        case Speed.FASTER | Speed.SLOWER:
            return f"{name} answers {times(speed_x.median)} ({bounds(speed_x)}) as many samples a second as {first}"
