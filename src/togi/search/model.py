"""Predicts a number per recipe (log latency, log cost) from few trials: Bayesian linear regression on what recipes share.

Two recipes resemble each other as far as they share choices: the same engine, the same engine options, the same
technique, the same technique on the same engine, the same pair of techniques. Each shared thing (a feature) has an
effect that is unknown, with zero mean and a spread that says how much such things usually matter; the techniques' own
promises are the mean. The posterior is exact (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006,
section 2.1, in its kernel form), and costs n^3 for n trials: milliseconds for hundreds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, final

from togi.records import Stage
from togi.search.offers import Offer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

EAGER = "eager"

STAGE_SPREAD = {Stage.REWRITE: 0.12, Stage.LAYOUT: 0.25, Stage.PRECISION: 0.35, Stage.ENGINE: 0.6, Stage.RUNTIME: 0.15}
"""Standard deviation of the log of a choice's effect, by its stage: a guess at first, soon outweighed by trials."""

ENGINES_DO_IT = 0.4
"""How much of a rewrite's or layout's promised log speed-up is left under an engine that compiles: most do the same on
their own."""

NOISE = 0.02
"""Standard deviation of what recipes do not share, and of the measurement, in log latency."""

Feature = tuple[str, ...]


def engine_of(offers: Iterable[Offer]) -> Offer | None:
    return next((offer for offer in offers if offer.is_engine), None)


def promised_log_latency(offers: Sequence[Offer]) -> float:
    """Log latency relative to the reference that the techniques' own promises amount to."""
    compiled = engine_of(offers) is not None
    total = 0.0
    for offer in offers:
        redundant = compiled and offer.technique.stage in (Stage.REWRITE, Stage.LAYOUT)
        total -= math.log(offer.promise) * (ENGINES_DO_IT if redundant else 1.0)
    return total


def features(offers: Sequence[Offer]) -> dict[Feature, float]:
    """What the recipe may share with others, with the standard deviation of its effect."""
    engine = engine_of(offers)
    family, engine_label = (engine.technique.id, engine.label) if engine else (EAGER, EAGER)
    found: dict[Feature, float] = {}
    if engine:
        found[("engine", family)] = STAGE_SPREAD[Stage.ENGINE]
        if engine.choice.options:
            found[("engine", engine_label)] = 0.2
        for key, value in engine.choice.options.items():
            found[("engine", family, key, str(value))] = 0.2
    others = [offer for offer in offers if not offer.is_engine]
    for offer in others:
        spread = 0.04 if offer.is_grad_mode else STAGE_SPREAD[offer.technique.stage]
        found[("technique", offer.technique.id)] = spread
        found[("technique", offer.technique.id, "on", family)] = spread * 0.8
        found[("technique", offer.technique.id, "on", engine_label, "")] = spread * 0.3
        if offer.choice.options:
            found[("choice", offer.label)] = spread * 0.6
            found[("choice", offer.label, "on", family)] = spread * 0.5
    for one, other in itertools.combinations([o for o in others if not o.is_grad_mode], 2):
        found[("pair", one.technique.id, other.technique.id)] = 0.05
    return found


@final
class Regression:
    """Posterior mean and standard deviation of one number per recipe."""

    def __init__(self, mean: Callable[[Sequence[Offer]], float], scale: float = 1.0, noise: float = NOISE) -> None:
        """``mean``: what is expected of a recipe before any trial. ``scale``: multiplies all spreads."""
        self._mean = mean
        self._scale = scale
        self._noise = noise

    def predict(
        self, tried: Sequence[Sequence[Offer]], observed: Sequence[float], asked: Sequence[Sequence[Offer]]
    ) -> tuple[Array, Array]:
        """``(mean, standard deviation)``, each float64 of shape (len(asked),)."""
        import numpy as np

        known, wanted = [features(r) for r in tried], [features(r) for r in asked]
        index: dict[Feature, int] = {}
        for feature in itertools.chain.from_iterable(known):
            index.setdefault(feature, len(index))
        prior = np.array([self._mean(r) for r in asked])
        variance = self._scale**2 * np.array([sum(s * s for s in f.values()) for f in wanted]) + self._noise**2
        if not known:
            return prior, np.sqrt(variance)
        x, x_asked = self._matrix(known, index), self._matrix(wanted, index)
        kernel = x @ x.T + self._noise**2 * np.eye(len(known))
        residual = np.array(observed) - np.array([self._mean(r) for r in tried])
        cross = x_asked @ x.T
        mean = prior + cross @ np.linalg.solve(kernel, residual)
        explained = np.einsum("ij,ji->i", cross, np.linalg.solve(kernel, cross.T))
        return mean, np.sqrt(np.maximum(variance - explained, self._noise**2))

    def _matrix(self, rows: Sequence[dict[Feature, float]], index: dict[Feature, int]) -> Array:
        """Row: a recipe; column: a feature that some trial has, scaled by its spread."""
        import numpy as np

        matrix = np.zeros((len(rows), len(index)))
        for row, found in enumerate(rows):
            for feature, spread in found.items():
                if (column := index.get(feature)) is not None:
                    matrix[row, column] = spread * self._scale
        return matrix


def expected_improvement(best: float, mean: float, deviation: float) -> float:
    """Expected amount by which a normal variable lies below ``best`` (Jones, Schonlau and Welch 1998, equation 15)."""
    z = (best - mean) / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density)
