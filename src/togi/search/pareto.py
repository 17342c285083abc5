"""What to choose among finished trials: the Pareto front of latency, memory and error, and the one to hand back."""

from __future__ import annotations

from collections.abc import Iterable

from togi.core.records import Record, Trial

MATTERS = 0.01
"""A difference in time below this share does not matter."""


class Chosen(Record):
    """The choice, with the reason in a sentence. ``trial`` is None when nothing meets the limits."""

    trial: Trial | None
    verdict: str


def acceptable(trial: Trial, max_memory_bytes: int | None = None, max_error: float | None = None) -> bool:
    """It ran, was measured and found right, and is within the limits.

    A footprint that could not be measured does not meet a memory limit. The error limit is on the relative
    root-mean-square error, and a faithful trial meets it always: it is as right as the original.
    """
    if not trial.eligible:
        return False
    if max_memory_bytes is not None and (trial.footprint is None or trial.footprint.total_bytes > max_memory_bytes):
        return False
    return max_error is None or _error(trial) <= max_error


def front(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Eligible trials that no other beats in one of latency, memory and error without losing in another; fastest first.

    The last trial of each recipe counts. Latency is compared as the paired speed-up; errors of faithful trials count
    as equal (zero); an unknown footprint is larger than any known one.
    """
    points = {trial.recipe: _point(trial) for trial in latest(trials) if trial.eligible}
    by_recipe = {trial.recipe: trial for trial in latest(trials)}
    kept = [r for r, p in points.items() if not any(_dominates(other, p) for other in points.values())]
    return tuple(by_recipe[recipe] for recipe in sorted(kept, key=lambda r: points[r]))


def choose(trials: Iterable[Trial], max_memory_bytes: int | None = None, max_error: float | None = None) -> Chosen:
    """The fastest trial within the limits, if it is faster than the original beyond doubt; else the original.

    Among those within 1 % of the fastest, a faithful one is preferred, then the one with fewer choices, then the
    smaller one. The original here is plain eager under ``no_grad``: the trial to which all speed-ups relate.
    """
    every = latest(trials)
    fitting = [trial for trial in every if acceptable(trial, max_memory_bytes, max_error)]
    if not fitting:
        return Chosen(trial=None, verdict=_nothing(every, max_memory_bytes))
    reference = next((trial for trial in fitting if trial.recipe.techniques == {"no_grad"}), None)
    faster = [trial for trial in fitting if _surely_faster(trial)] if reference else fitting
    if not faster:
        nearest = _describe(max(fitting, key=_speedup))
        verdict = f"nothing is faster than the original beyond doubt, so it stays; the fastest: {nearest}"
        return Chosen(trial=reference, verdict=verdict)
    fastest = max(faster, key=_speedup)
    best = min((t for t in faster if _speedup(t) >= _speedup(fastest) * (1 - MATTERS)), key=_plainness)
    beside = "" if reference else "; plain eager itself is not within the limits"
    return Chosen(trial=best, verdict=_describe(best) + beside)


def latest(trials: Iterable[Trial]) -> list[Trial]:
    """The last trial of each recipe, in the order of the first."""
    return list({trial.recipe: trial for trial in trials}.values())


def _surely_faster(trial: Trial) -> bool:
    assert trial.timing is not None
    return trial.timing.speedup_x.low > 1 and trial.timing.speedup_x.median >= 1 + MATTERS


def _speedup(trial: Trial) -> float:
    assert trial.timing is not None
    return trial.timing.speedup_x.median


def _error(trial: Trial) -> float:
    """Relative root-mean-square error; zero when faithful, infinite when it is not known."""
    if trial.error is None:
        return float("inf")
    return 0.0 if trial.error.faithful else trial.error.rmse


def _memory(trial: Trial) -> float:
    return float("inf") if trial.footprint is None else float(trial.footprint.total_bytes)


def _point(trial: Trial) -> tuple[float, float, float]:
    return 1 / _speedup(trial), _memory(trial), _error(trial)


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))


def _plainness(trial: Trial) -> tuple[bool, int, float, float]:
    return _error(trial) > 0, len(trial.recipe.choices), _memory(trial), -_speedup(trial)


def _describe(trial: Trial) -> str:
    assert trial.timing is not None
    speedup = trial.timing.speedup_x
    how = f"{speedup.median:.2f}x ({speedup.low:.2f} to {speedup.high:.2f}) the speed of plain eager"
    if trial.error is None:
        return f"{trial.recipe.label}: {how}"
    right = "faithful" if trial.error.faithful else f"approximate, relative error {trial.error.rmse:.1e}"
    return f"{trial.recipe.label}: {how}, {right}"


def _nothing(trials: Iterable[Trial], max_memory_bytes: int | None) -> str:
    ran = [trial for trial in trials if trial.eligible]
    if not ran:
        return "no recipe ran, was measured and gave the right output"
    smallest = min(ran, key=_memory)
    if max_memory_bytes is None or _memory(smallest) == float("inf"):
        return "no recipe is within the limits"
    return (
        f"no recipe is within the limits; the smallest is {smallest.recipe.label} with "
        f"{int(_memory(smallest)):,} bytes, the limit is {max_memory_bytes:,}"
    )
