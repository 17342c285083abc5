"""Recipes that are slow in company: far slower than all that is known of their choices.

One of the choices is to blame, or two of them together. The regression would share the blame among all: after a first
recipe of four choices at a tenth of the speed it would expect nothing of any of them, and the search would end. So such
a recipe teaches it nothing. What holds all of it is not tried, nor what holds the cause once other trials, which were
not slow, leave one alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from togi.core.records import MeasuredTrial
from togi.search.features import Atoms

if TYPE_CHECKING:
    from togi.search.features import RecipeFeatures
    from togi.search.model import Regression

SURPRISING = 1.5
"""A recipe is a puzzle if it is slower by so many standard deviations than what is expected of it."""

Cause = Atoms
"""Labels of one choice, or of two together."""


def slow_in_company(known: Mapping[RecipeFeatures, MeasuredTrial], latency: Regression) -> dict[RecipeFeatures, Atoms]:
    """Recipes of ``known`` that are slower than the reference and that nothing explains, each with what is to blame:
    its cause, or all of it."""
    slow = [f for f, trial in known.items() if trial.speedup_x.median < 1 and len(_parts(f)) > 1]
    if not slow:
        return {}
    rest = [features for features in known if features not in slow]
    mean, deviation = latency.predict(rest, [_log_latency(known[f]) for f in rest], slow)
    cleared = {cause for features in rest for cause in _causes(features)}
    suspected = {
        features: {cause for cause in _causes(features) if cause not in cleared}
        for features, expected, spread in zip(slow, mean, deviation, strict=True)
        if _log_latency(known[features]) > expected + SURPRISING * spread
    }
    of_all = set.intersection(*suspected.values()) if suspected else set()
    return {
        features: next(iter(causes)) if len(causes := of_all or suspects) == 1 else features.atoms
        for features, suspects in suspected.items()
    }


def _causes(features: RecipeFeatures) -> list[Cause]:
    parts = _parts(features)
    return [frozenset({part}) for part in parts] + [frozenset(pair) for pair in itertools.combinations(parts, 2)]


def _parts(features: RecipeFeatures) -> list[str]:
    return [choice.label for choice in features.configurations if not choice.is_grad_mode]


def _log_latency(trial: MeasuredTrial) -> float:
    return -math.log(trial.speedup_x.median)
