"""Recipes that are slow in company: far slower than all that is known of their choices.

One of the choices is to blame, or two of them together. The regression would share the blame among all: after a first
recipe of four choices at a tenth of the speed it would expect nothing of any of them, and the search would end. So such
a recipe teaches nothing of its choices while other trials, in which they are not slow, leave more than one cause, or
none. Its parts are tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from togi.core.records import MeasuredTrial

if TYPE_CHECKING:
    from togi.search.features import RecipeFeatures
    from togi.search.model import Regression

SURPRISING = 3.0
"""A recipe is a puzzle if it is slower by so many standard deviations than what is expected of it."""

Cause = frozenset[str]
"""Labels of one choice, or of two together."""


def slow_in_company(known: Mapping[RecipeFeatures, MeasuredTrial], latency: Regression) -> list[RecipeFeatures]:
    """Recipes of ``known`` that are slower than the reference, and for no cause that stands alone."""
    slow = [f for f, trial in known.items() if trial.speedup_x.median < 1 and len(_parts(f)) > 1]
    if not slow:
        return []
    rest = [features for features in known if features not in slow]
    mean, deviation = latency.predict(rest, [_log_latency(known[f]) for f in rest], slow)
    cleared = {cause for features in rest for cause in _causes(features)}
    surprising = [
        features
        for features, expected, spread in zip(slow, mean, deviation, strict=True)
        if _log_latency(known[features]) > expected + SURPRISING * spread
    ]
    suspected = {features: {cause for cause in _causes(features) if cause not in cleared} for features in surprising}
    if surprising and len(frozenset.intersection(*map(frozenset, suspected.values()))) == 1:
        return []  # one cause explains them all
    return [features for features, causes in suspected.items() if len(causes) != 1]


def _causes(features: RecipeFeatures) -> list[Cause]:
    parts = _parts(features)
    return [frozenset({part}) for part in parts] + [frozenset(pair) for pair in itertools.combinations(parts, 2)]


def _parts(features: RecipeFeatures) -> list[str]:
    return [choice.label for choice in features.configurations if not choice.is_grad_mode]


def _log_latency(trial: MeasuredTrial) -> float:
    return -math.log(trial.speedup_x.median)
