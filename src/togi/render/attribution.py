"""The effect of each technique on error and speed, from recipes that differ in that technique alone.

Effects are read from the trials of a study; nothing is fitted or assumed to add up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from togi.core.records import STAGES, Recipe, Stage, Trial

GRAD_MODES = frozenset({"no_grad", "inference_mode", "plain_step"})
"""They move no number, so recipes that differ in them are still compared, and they have no effect of their own."""


@dataclass(frozen=True, kw_only=True)
class Effect:
    """One technique: the pair of trials with the fewest other choices that differ in it alone.

    ``without`` is None when no such pair was tried; ``with_`` is then the smallest recipe that holds it.
    """

    technique: str
    stage: Stage
    with_: Trial
    without: Trial | None
    pairs: int

    @property
    def units(self) -> float:
        """Error with the technique, in multiples of eager's own error."""
        return self.with_.error.units if self.with_.error else 0.0

    @property
    def units_before(self) -> float | None:
        return self.without.error.units if self.without and self.without.error else None


def effects(trials: Sequence[Trial]) -> tuple[Effect, ...]:
    """One effect for each technique that ran and was verified, the largest error first."""
    verified = {_without(trial.recipe, GRAD_MODES): trial for trial in trials if trial.error is not None}
    stages = {choice.technique: choice.stage for key in verified for choice in key.listed}
    all_effects = [_effect(technique, stage, verified) for technique, stage in stages.items()]
    return tuple(sorted(all_effects, key=lambda e: (-e.units, STAGES.index(e.stage), e.technique)))


def _effect(technique: str, stage: Stage, verified: dict[Recipe, Trial]) -> Effect:
    pairs = list(_pairs(technique, verified))
    if pairs:
        with_, without = min(pairs, key=lambda pair: (len(pair[0].recipe.listed), pair[0].recipe.label))
        return Effect(technique=technique, stage=stage, with_=with_, without=without, pairs=len(pairs))
    holders = [trial for key, trial in verified.items() if key.find(technique)]
    with_ = min(holders, key=lambda trial: (len(trial.recipe.listed), trial.recipe.label))
    return Effect(technique=technique, stage=stage, with_=with_, without=None, pairs=0)


def _pairs(technique: str, verified: dict[Recipe, Trial]) -> Iterator[tuple[Trial, Trial]]:
    for key, trial in verified.items():
        others = _without(key, {technique})
        if others != key and others in verified:
            yield trial, verified[others]


def _without(recipe: Recipe, techniques: Collection[str]) -> Recipe:
    return Recipe(choices=tuple(choice for choice in recipe.listed if choice.technique not in techniques))
