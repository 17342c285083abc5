"""Predicts a number per recipe (log latency, log cost) from few trials: Bayesian regression on what recipes share.

Two recipes resemble each other as far as they share choices: the same engine, the same engine options, the same
technique, the same technique on the same engine, the same pair of techniques. Each shared thing (a feature) has an
effect that is unknown, with zero mean and a spread that says how much such things usually matter; what the techniques
themselves expect is the mean. The posterior is exact (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, section 2.2), and costs n^3 for n trials: milliseconds for hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from togi.search.features import RecipeFeatures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

NOISE = 0.02
"""Standard deviation of what recipes do not share, and of the measurement, in log latency."""


class Regression:
    """Posterior mean and standard deviation of one number per recipe."""

    def __init__(self, mean: Callable[[RecipeFeatures], float], scale: float = 1.0, noise: float = NOISE) -> None:
        """``mean``: what is expected of a recipe before any trial. ``scale``: multiplies all spreads."""
        self._mean = mean
        self._scale = scale
        self._noise = noise

    def predict(
        self, tried: Sequence[RecipeFeatures], observed: Sequence[float], asked: Sequence[RecipeFeatures]
    ) -> tuple[Array, Array]:
        """``(mean, standard deviation)``, each float64 of shape (len(asked),)."""
        import numpy as np

        prior = np.array([self._mean(features) for features in asked])
        variance = self._scale**2 * np.array([features.variance for features in asked]) + self._noise**2
        if not tried:
            return prior, np.sqrt(variance)
        columns = np.unique(np.concatenate([features.columns for features in tried]))
        known, wanted = self._matrix(tried, columns), self._matrix(asked, columns)
        kernel = known @ known.T + self._noise**2 * np.eye(len(tried))
        cross = wanted @ known.T
        residual = np.array(observed) - np.array([self._mean(features) for features in tried])
        whitened = np.linalg.solve(kernel, np.column_stack([residual, cross.T]))
        mean = prior + cross @ whitened[:, 0]
        explained = np.einsum("ij,ji->i", cross, whitened[:, 1:])
        return mean, np.sqrt(np.maximum(variance - explained, self._noise**2))

    def _matrix(self, rows: Sequence[RecipeFeatures], shown: NDArray[np.intp]) -> Array:
        """Row: a recipe; column: one of the features ``shown``, holding its spread where the recipe has it."""
        import numpy as np

        place = np.full(max(int(shown[-1]), *(int(t.columns.max(initial=0)) for t in rows)) + 1, -1)
        place[shown] = np.arange(len(shown))
        columns = place[np.concatenate([features.columns for features in rows])]
        numbers = np.repeat(np.arange(len(rows)), [len(features.columns) for features in rows])
        spreads = np.concatenate([features.spreads for features in rows])
        matrix = np.zeros((len(rows), len(shown)))
        shared = columns >= 0
        matrix[numbers[shared], columns[shared]] = spreads[shared] * self._scale
        return matrix


def expected_improvement(best: float, mean: float, deviation: float) -> float:
    """Expected amount by which a normal variable lies below ``best`` (Jones, Schonlau and Welch 1998, equation 15)."""
    z = (best - mean) / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density)
