"""Predicts a number per recipe (log latency, log cost) from few trials: Bayesian regression on what recipes share.

Two recipes resemble each other as far as they share choices: the same engine, the same engine options, the same
technique, the same technique on the same engine, the same pair of techniques. Each shared thing (a feature) has an
effect that is unknown, with zero mean and a spread that says how much such things usually matter; what the techniques
themselves expect is the mean. The posterior is exact (Rasmussen and Williams, Gaussian Processes for Machine Learning,
2006, section 2.2), and costs n^3 for n trials: milliseconds for hundreds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, final

from togi.core.records import Recipe, Stage
from togi.search.configurations import EAGER, TechniqueConfiguration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

NOISE = 0.02
"""Standard deviation of what recipes do not share, and of the measurement, in log latency."""

Feature = tuple[str, ...]
Atoms = frozenset[str]
"""Labels of choices, ``technique:ID`` for a technique with any options, and ``eager`` for no engine."""

STAGE_SPREAD = {Stage.REWRITE: 0.12, Stage.LAYOUT: 0.25, Stage.PRECISION: 0.35, Stage.ENGINE: 0.6, Stage.RUNTIME: 0.15}
"""Standard deviation of the log of a choice's effect, by its stage: a guess at first, soon outweighed by trials."""

ENGINES_DO_IT = 0.4
"""How much of a rewrite's or layout's expected log speed-up is left under an engine that compiles: most do the same on
their own."""

STARTING_COST_S = 3.0
"""Guess at starting, verifying and measuring one recipe; replaced by what trials cost."""


@final
class RecipeFeatures:
    """One recipe, taken apart. ``columns`` numbers its features in ``index`` (shared by all recipes of a space)."""

    def __init__(
        self, recipe: Recipe, configurations: Sequence[TechniqueConfiguration], index: dict[Feature, int]
    ) -> None:
        import numpy as np

        self.recipe = recipe
        self.configurations = tuple(configurations)
        self.engine = next((configuration for configuration in configurations if configuration.is_engine), None)
        self.atoms = _atoms(configurations, self.engine)
        self.evidence = {configuration: _evidence(configuration, self.engine) for configuration in configurations}
        """What success and failure are counted on, for each configuration."""
        found = dict(_features(configurations, self.engine))
        self.columns: NDArray[np.intp] = np.array([index.setdefault(f, len(index)) for f in found], dtype=np.intp)
        self.spreads: NDArray[np.float64] = np.array(list(found.values()))
        """Standard deviation of each feature's effect on log latency."""
        self.variance = float(self.spreads @ self.spreads)
        self.expected_log_latency = _expected_log_latency(configurations, self.engine)
        """Log latency relative to the reference that the techniques' own expectations amount to."""
        self.expected_log_cost = math.log(
            STARTING_COST_S + sum(configuration.cost_s for configuration in configurations)
        )


def _expected_log_latency(
    configurations: Sequence[TechniqueConfiguration], engine: TechniqueConfiguration | None
) -> float:
    total = 0.0
    for configuration in configurations:
        redundant = engine is not None and configuration.technique.stage in (Stage.REWRITE, Stage.LAYOUT)
        total -= math.log(configuration.expected_speedup_x) * (ENGINES_DO_IT if redundant else 1.0)
    return total


def _features(
    configurations: Sequence[TechniqueConfiguration], engine: TechniqueConfiguration | None
) -> Iterator[tuple[Feature, float]]:
    """What the recipe may share with others, with the standard deviation of its effect."""
    family, engine_label = (engine.technique.id, engine.label) if engine else (EAGER, EAGER)
    if engine:
        yield ("engine", family), STAGE_SPREAD[Stage.ENGINE]
        if engine.choice.options:
            yield ("engine", engine_label), 0.2
        for key, value in engine.choice.options.items():
            yield ("engine", family, key, str(value)), 0.2
    others = [configuration for configuration in configurations if not configuration.is_engine]
    for configuration in others:
        spread = 0.04 if configuration.is_grad_mode else STAGE_SPREAD[configuration.technique.stage]
        id = configuration.technique.id
        yield ("technique", id), spread
        yield ("technique", id, "on", family), spread * 0.8
        yield ("technique", id, "on", engine_label, ""), spread * 0.3
        if configuration.choice.options:
            yield ("choice", configuration.label), spread * 0.6
            yield ("choice", configuration.label, "on", family), spread * 0.5
    for one, other in itertools.combinations([o for o in others if not o.is_grad_mode], 2):
        yield ("pair", one.technique.id, other.technique.id), 0.05


def _atoms(configurations: Sequence[TechniqueConfiguration], engine: TechniqueConfiguration | None) -> Atoms:
    found = {configuration.label for configuration in configurations} | {
        f"technique:{configuration.technique.id}" for configuration in configurations
    }
    return frozenset(found if engine else found | {EAGER})


def _evidence(configuration: TechniqueConfiguration, engine: TechniqueConfiguration | None) -> tuple[str, ...]:
    """The choice, the technique, and the choice with the engine (joined by ``|``)."""
    family = f"technique:{engine.technique.id}" if engine else EAGER
    alone = (configuration.label, f"technique:{configuration.technique.id}")
    return (
        alone if configuration.is_engine or configuration.is_grad_mode else (*alone, f"{configuration.label}|{family}")
    )


@final
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
        kept = np.unique(np.concatenate([features.columns for features in tried]))
        known, wanted = self._matrix(tried, kept), self._matrix(asked, kept)
        kernel = known @ known.T + self._noise**2 * np.eye(len(tried))
        cross = wanted @ known.T
        residual = np.array(observed) - np.array([self._mean(features) for features in tried])
        whitened = np.linalg.solve(kernel, np.column_stack([residual, cross.T]))
        mean = prior + cross @ whitened[:, 0]
        explained = np.einsum("ij,ji->i", cross, whitened[:, 1:])
        return mean, np.sqrt(np.maximum(variance - explained, self._noise**2))

    def _matrix(self, rows: Sequence[RecipeFeatures], kept: NDArray[np.intp]) -> Array:
        """Row: a recipe; column: one of the features ``kept``, holding its spread where the recipe has it."""
        import numpy as np

        place = np.full(max(int(kept[-1]), *(int(t.columns.max(initial=0)) for t in rows)) + 1, -1)
        place[kept] = np.arange(len(kept))
        columns = place[np.concatenate([features.columns for features in rows])]
        numbers = np.repeat(np.arange(len(rows)), [len(features.columns) for features in rows])
        spreads = np.concatenate([features.spreads for features in rows])
        matrix = np.zeros((len(rows), len(kept)))
        shared = columns >= 0
        matrix[numbers[shared], columns[shared]] = spreads[shared] * self._scale
        return matrix


def expected_improvement(best: float, mean: float, deviation: float) -> float:
    """Expected amount by which a normal variable lies below ``best`` (Jones, Schonlau and Welch 1998, equation 15)."""
    z = (best - mean) / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * (z * 0.5 * math.erfc(-z / math.sqrt(2)) + density)
