"""The choice of a recipe under the user's limits: the fastest that fits, and the original where nothing is faster.

It decides over the last trial of each recipe, which is what every report shows: a choice can be explained from the
table alone. What is approximate beyond what the user accepts never gets here (``faithful.accept`` makes it WRONG).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from togi.core.records import REFERENCES, Choice, MeasuredTrial, Outcome, Recipe, Record, Stage, Trial, measured
from togi.decide.budget import UNLIMITED, Budget, memory_of
from togi.decide.faithful import is_tie
from togi.decide.faster import BETWEEN_PROCESSES, MARGIN, Criterion

ToldApart = Collection[tuple[Recipe, Recipe]]
"""Pairs of a faster and a slower recipe: they took turns with each other, and that is beyond doubt."""


class Chosen(Record):
    """The choice, with the reason in a sentence. ``trial`` is None when nothing meets the limits."""

    trial: Trial | None
    reason: str


def acceptable(trial: MeasuredTrial, budget: Budget = UNLIMITED) -> bool:
    """It ran and was found right (or wrong within what the user accepts), and fits."""
    return trial.eligible and budget.fits(trial)


def latest(trials: Iterable[Trial]) -> list[Trial]:
    """The last trial of each recipe, in the order of the first."""
    return list({trial.recipe: trial for trial in trials}.values())


def front(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Eligible trials that no other beats in one of speed, memory and error without losing in another; fastest first.

    Speed is the paired speed-up, and next to it, where another objective than latency was raced, the time of a call;
    errors of faithful trials count as equal (zero); an unknown footprint is larger than any known one.
    """
    points = [(_point(candidate), candidate.trial) for candidate in measured(latest(trials)) if candidate.eligible]
    undominated = [(p, trial) for p, trial in points if not any(_dominates(other, p) for other, _ in points)]
    return tuple(trial for _, trial in sorted(undominated, key=lambda pair: (pair[0], pair[1].recipe.label)))


def choose(
    trials: Iterable[Trial],
    budget: Budget = UNLIMITED,
    *,
    proven: Collection[Recipe] = (),
    unusable: Collection[Recipe] = (),
    told_apart: ToldApart = (),
    criterion: Criterion = BETWEEN_PROCESSES,
) -> Chosen:
    """The fastest trial that fits, if it is faster than plain eager by ``criterion``; else plain eager.

    If plain eager itself does not fit, the fastest that fits, even if it is slower, or measured on a machine too noisy
    to say how fast. What extends another of them (``extends``) must be faster than that by more than what two processes
    of one recipe may differ by, and the margin; so must what is approximate, than each that is faithful. Among those
    within the margin of the fastest a faithful one is preferred, then the one with fewer choices (less can break), then
    the smaller one.

    Args:
        trials: in the order in which they ended; the last of each recipe counts.
        proven: recipes whose last trial measured what was saved. One of them stays the choice unless another is faster
            by more than what two processes of one recipe may differ by, and the margin.
        unusable: recipes that could not be saved, and so cannot be chosen.
        told_apart: by the race that both were in. The slower one is never chosen, whatever each was next to the
            original, unless its last trial is faster by more than what two processes of one recipe may differ by, and
            the margin.
    """
    every = measured(latest(trials))
    usable = [trial for trial in every if trial.recipe not in unusable]
    too_large = any(t.recipe.is_reference and _ran(t) and not budget.fits(t) for t in every)
    fitting = [t for t in usable if acceptable(t, budget)]
    candidates = [t for t in fitting if t.recipe.choices and not t.recipe.is_reference]
    if too_large:  # the limits decide, so a machine too noisy to say how fast it is excludes nothing that is right
        candidates = candidates or fitting or [t for t in usable if _right(t) and budget.fits(t)]
    else:
        candidates = [t for t in candidates if criterion.faster(t.speedup_x)]
    if candidates:
        best = _best(candidates, proven, criterion, told_apart)
        return Chosen(trial=best.trial, reason=_describe(best) + "; plain eager itself does not fit" * too_large)
    reference = next((t for t in usable if t.recipe.is_reference and _ran(t) and budget.fits(t)), None)
    if reference is not None:
        return Chosen(trial=reference.trial, reason="nothing is faster than plain eager beyond doubt, so it stays")
    return Chosen(trial=None, reason=_nothing(every, budget))


def nearest_of(trials: Iterable[Trial]) -> MeasuredTrial | None:
    """The fastest that was tried and is right, whether it could be chosen or not. None where there is none but the
    original."""
    tried = [t for t in measured(latest(trials)) if t.eligible and t.recipe.choices and not t.recipe.is_reference]
    return max(tried, key=_speedup, default=None)


def nothing_gained(nearest: MeasuredTrial | None, criterion: Criterion = BETWEEN_PROCESSES) -> str:
    """The verdict where the original stays though others were tried. A nearest one that may be faster says how sure
    that is."""
    unsure = nearest is not None and criterion.points_to_faster(nearest.speedup_x)
    return f"nothing is faster {'beyond doubt' if unsure else 'here'}; keep your model"


def extends(recipe: Recipe, plain: Recipe) -> bool:
    """It makes all choices of the other and more, on the same engine with the same options. ``no_grad`` is not a
    choice: it is what a recipe has that chooses no other mode of autograd."""
    return recipe.at(Stage.ENGINE) == plain.at(Stage.ENGINE) and _choices(recipe) > _choices(plain)


def rank(trials: Iterable[Trial], budget: Budget = UNLIMITED, told_apart: ToldApart = ()) -> tuple[Recipe, ...]:
    """Recipes in the order in which they would be chosen if those before were unusable."""
    every, ranked = list(trials), list[Recipe]()
    while (chosen := choose(every, budget, unusable=ranked, told_apart=told_apart)).trial is not None:
        ranked.append(chosen.trial.recipe)
    return tuple(ranked)


def why_not(
    trial: Trial,
    chosen: Trial | None,
    budget: Budget = UNLIMITED,
    criterion: Criterion = BETWEEN_PROCESSES,
    *,
    trials: Iterable[Trial] = (),
) -> str:
    """Why an eligible trial with a higher speed-up than the chosen one's was not chosen; empty where it has none.

    The chosen trial is the one that measured what was saved. ``trials``: all of the study.
    """
    candidate, best = trial.measured, None if chosen is None else chosen.measured
    if candidate is None or not candidate.eligible or (chosen is not None and trial.recipe == chosen.recipe):
        return ""
    if exceeded := budget.exceeded(candidate):
        return exceeded
    if best is None or not trial.recipe.choices or _speedup(candidate) <= _speedup(best):
        return ""
    if not criterion.faster(candidate.speedup_x):
        return "its speed-up is not beyond doubt"
    band = f"{criterion.band_x - 1:.0%}"
    if _speedup(candidate) <= _speedup(best) * criterion.band_x:
        return (
            f"faster than the chosen one by less than {band}, by which two processes of one recipe may differ or which "
            "does not matter"
        )
    if not set_aside(trial) and (plain := _plainer(candidate, trials, budget, criterion)) is not None:
        if not extends(trial.recipe, plain.recipe):
            return f"it is approximate, and not faster than {plain.recipe.label} by the {band} that must earn"
        return (
            f"it makes the choices of {plain.recipe.label} and more, and is not faster by the {band} that extra "
            "choices must earn"
        )
    return trial.reason


def set_aside(trial: Trial) -> bool:
    """It could not be saved, proven or loaded: what ran and is right has a reason for nothing else. Not known of what
    is approximate, whose reason says how far."""
    error = trial.error
    right = trial.eligible and error is not None and error.shown_right and not is_tie(error)
    return right and bool(trial.reason)


def _plainer(
    trial: MeasuredTrial, trials: Iterable[Trial], budget: Budget, criterion: Criterion
) -> MeasuredTrial | None:
    """What could have been chosen, and is as good as ``trial`` with fewer of its choices."""
    usable = [t for t in measured(latest(trials)) if acceptable(t, budget) and not set_aside(t.trial)]
    optimised = [t for t in usable if t.recipe.choices and not t.recipe.is_reference]
    candidates = [t for t in optimised if criterion.faster(t.speedup_x)]
    earned = _earning_their_place(candidates, criterion)
    return next((plain for plain in earned if _as_good(plain, trial, criterion)), None)


def _best(
    candidates: Sequence[MeasuredTrial], proven: Collection[Recipe], criterion: Criterion, told_apart: ToldApart
) -> MeasuredTrial:
    earned = _earning_their_place(candidates, criterion, told_apart)
    candidates = [t for t in earned if not any(_lost(t, to, criterion, told_apart) for to in earned)]
    candidates = candidates or earned  # each lost to one: races of several processes may go round
    fastest = max(map(_speedup, candidates))
    near = [t for t in candidates if t.recipe in proven and _speedup(t) * criterion.band_x >= fastest]
    candidates = near or candidates
    fastest = max(map(_speedup, candidates))
    return min((t for t in candidates if _speedup(t) >= fastest * (1 - MARGIN)), key=_plainness)


def _earning_their_place(
    candidates: Sequence[MeasuredTrial], criterion: Criterion, told_apart: ToldApart = ()
) -> list[MeasuredTrial]:
    """Without those that extend another one that is kept, or are approximate where it is faithful, and are not faster
    than it by more than what may be chance: fewer bits may then as well be slower.

    What is approximate comes last, else the plainest first, and each is held against those that are kept alone. So the
    order of the candidates does not matter, and small gains add up: of 2.00, 2.06 and 2.12 x the first and the last are
    kept, since the last, which is near the second, is faster than all that is left.
    """
    earned: list[MeasuredTrial] = []
    for trial in sorted(candidates, key=lambda trial: (_is_approximate(trial), len(_choices(trial.recipe)))):
        if not any(_as_good(plain, trial, criterion, told_apart) for plain in earned):
            earned.append(trial)
    return earned


def _as_good(plain: MeasuredTrial, trial: MeasuredTrial, criterion: Criterion, told_apart: ToldApart = ()) -> bool:
    """With fewer of its choices as right, or faithful where it is not, and as fast as two processes can tell."""
    as_right, finer = _error(plain) == 0 or _error(trial) > 0, _error(plain) == 0 and _is_approximate(trial)
    near = _speedup(plain) * criterion.band_x >= _speedup(trial)
    fast_enough = near and not _lost(plain, trial, criterion, told_apart)
    return fast_enough and as_right and (finer or extends(trial.recipe, plain.recipe))


def _lost(trial: MeasuredTrial, to: MeasuredTrial, criterion: Criterion, told_apart: ToldApart) -> bool:
    """It took turns with the other and was slower beyond doubt, and is not much faster by what both measured last."""
    apart = (to.recipe, trial.recipe) in told_apart
    return apart and _speedup(to) * criterion.band_x >= _speedup(trial)


def _choices(recipe: Recipe) -> frozenset[Choice]:
    return frozenset(choice for choice in recipe.listed if choice.technique not in REFERENCES)


def _ran(trial: MeasuredTrial) -> bool:
    """The reference is right by definition, and a noisy machine does not make it unusable."""
    return trial.outcome in (Outcome.OK, Outcome.UNSTABLE)


def _right(trial: MeasuredTrial) -> bool:
    """It ran and was found right, however well it could be measured."""
    return _ran(trial) and trial.error is not None and trial.error.shown_right


def _speedup(trial: MeasuredTrial) -> float:
    return trial.speedup_x.median


def _error(trial: MeasuredTrial) -> float:
    """Relative root-mean-square error; zero when faithful, infinite when it is not known."""
    error = trial.error
    if error is None:
        return math.inf
    return 0.0 if error.shown_right else error.rmse


def _is_approximate(trial: MeasuredTrial) -> bool:
    """It was accepted within a bound. A tie that fell the other way was not."""
    return trial.error is not None and not trial.error.shown_right and not is_tie(trial.error)


def _point(trial: MeasuredTrial) -> tuple[float, float, float, float]:
    return 1 / _speedup(trial), trial.timing.call_ms or 0.0, memory_of(trial), _error(trial)


def _dominates(point: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return point != other and all(a <= b for a, b in zip(point, other, strict=True))


def _plainness(trial: MeasuredTrial) -> tuple[bool, int, float, float, str]:
    return _error(trial) > 0, len(trial.recipe.listed), memory_of(trial), -_speedup(trial), trial.recipe.label


def _describe(trial: MeasuredTrial) -> str:
    label, speedup, error = trial.recipe.label, trial.speedup_x, trial.error
    how = f"{speedup.median:.2f}x ({speedup.low:.2f} to {speedup.high:.2f}) the speed of plain eager"
    if error is None:
        return f"{label}: {how}"
    right = "faithful" if error.shown_right else f"approximate, relative error {error.rmse:.1e}"
    return f"{label}: {how}, {right}"


def _nothing(trials: Iterable[MeasuredTrial], budget: Budget) -> str:
    complete = [t for t in trials if (t.eligible or _right(t)) and t.footprint is not None]
    if unkept := budget.kept_by_none(complete):
        return f"no recipe that was tried {unkept}"
    if budget.limited and complete:
        return "no recipe that was tried keeps all limits at once"
    return "no recipe ran, was measured and gave the right output"
