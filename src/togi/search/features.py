"""Features of a recipe: what it shares with others, by which trials are learned from, and what is expected of it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from togi.core.records import Recipe, Stage
from togi.search.configurations import EAGER, TechniqueConfiguration
from togi.techniques.base import OUTSIDE_TORCH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Feature = tuple[str, ...]
Atoms = frozenset[str]
"""Labels of choices, ``technique:ID`` for a technique with any options, and ``eager`` for no engine."""

STAGE_SPREAD = {
    Stage.REWRITE: 0.12,
    Stage.LAYOUT: 0.25,
    Stage.PRECISION: 0.35,
    Stage.ENGINE: 0.6,
    Stage.ACTIVATIONS: 0.2,
    Stage.OPTIMIZER: 0.1,
    Stage.RUNTIME: 0.15,
}
"""Standard deviation of the log of a choice's effect, by its stage: a guess at first, soon outweighed by trials."""
_SLOW_EAGER, _OUTSIDE_TORCH, _OWN, _OWN_INSIDE = 0.4, 0.2, 0.4, 0.3
"""Of an engine's, together: what all have in common, which is how slow plain eager is on this model; what those outside
of torch have in common; an engine's own; and that of one inside of torch, which runs some of eager's kernels."""

_OF_A_STEP = 0.35
"""What is left of these in a training step, of which a compiler changes less (eight small models: 0.98 to 1.26 x)."""

_NEVER_FASTER = 0.4
"""What is left of the spread where nobody gains time by a technique: it is slower by more or less."""

ENGINES_DO_IT = 0.4
"""How much of a rewrite's or layout's expected log speed-up is left under an engine that compiles: most do the same on
their own."""


class RecipeFeatures:
    """One recipe, taken apart. ``columns`` numbers its features in ``index`` (shared by all recipes of a space)."""

    def __init__(
        self,
        recipe: Recipe,
        configurations: Sequence[TechniqueConfiguration],
        index: dict[Feature, int],
        starting_s: float,
    ) -> None:
        import numpy as np

        self.recipe = recipe
        self.configurations = tuple(configurations)
        self.exact = all(configuration.technique.exact for configuration in configurations)
        self.hopeful = all(c.is_grad_mode or c.expected_speedup_x > 1 for c in configurations)
        """A gain is expected of each of its choices."""
        self.engine = next((configuration for configuration in configurations if configuration.is_engine), None)
        self.atoms = _atoms(configurations, self.engine)
        self.evidence = {configuration: _evidence(configuration, self.engine) for configuration in configurations}
        """What success and failure are counted on, for each configuration."""
        spreads = dict(_features(configurations, self.engine, _OF_A_STEP if recipe.trains else 1.0))
        self.columns: NDArray[np.intp] = np.array([index.setdefault(f, len(index)) for f in spreads], dtype=np.intp)
        self.spreads: NDArray[np.float64] = np.array(list(spreads.values()))
        """Standard deviation of each feature's effect on log latency."""
        self.variance = float(self.spreads @ self.spreads)
        self.expected_log_latency = _expected_log_latency(configurations, self.engine)
        """Log latency relative to the reference that the techniques' own expectations amount to."""
        self.expected_log_memory = sum(math.log(configuration.expected_memory_x) for configuration in configurations)
        """Log memory relative to the reference, likewise."""
        self.expected_log_cost = math.log(starting_s + sum(configuration.cost_s for configuration in configurations))


def _expected_log_latency(
    configurations: Sequence[TechniqueConfiguration], engine: TechniqueConfiguration | None
) -> float:
    total = 0.0
    for configuration in configurations:
        redundant = engine is not None and configuration.technique.stage in (Stage.REWRITE, Stage.LAYOUT)
        total -= math.log(configuration.expected_speedup_x) * (ENGINES_DO_IT if redundant else 1.0)
    return total


def _features(
    configurations: Sequence[TechniqueConfiguration], engine: TechniqueConfiguration | None, engines_vary: float
) -> Iterator[tuple[Feature, float]]:
    """What the recipe may share with others, with the standard deviation of its effect. ``engines_vary``: the share of
    an engine's that is left."""
    family, engine_label = (engine.technique.id, engine.label) if engine else (EAGER, EAGER)
    if engine:
        for feature, spread in _features_of_engine(engine):
            yield feature, engines_vary * spread
    others = [configuration for configuration in configurations if not configuration.is_engine]
    for configuration in others:
        spread = 0.04 if configuration.is_grad_mode else STAGE_SPREAD[configuration.technique.stage]
        if configuration.technique.saves_memory_alone:
            spread *= _NEVER_FASTER
        id = configuration.technique.id
        yield ("technique", id), spread
        yield ("technique", id, "on", family), spread * 0.8
        yield ("technique", id, "on", engine_label, ""), spread * 0.3
        if configuration.choice.options:
            yield ("choice", configuration.label), spread * 0.6
            yield ("choice", configuration.label, "on", family), spread * 0.5
    for first, second in itertools.combinations([c for c in others if not c.is_grad_mode], 2):
        yield ("pair", first.technique.id, second.technique.id), 0.05


def _features_of_engine(engine: TechniqueConfiguration) -> Iterator[tuple[Feature, float]]:
    family, outside = engine.technique.id, OUTSIDE_TORCH in engine.technique.provides
    yield ("engines",), _SLOW_EAGER
    if outside:
        yield ("engines", OUTSIDE_TORCH), _OUTSIDE_TORCH
    yield ("engine", family), _OWN if outside else _OWN_INSIDE
    if engine.choice.options:
        yield ("engine", engine.label), 0.2
    each = 0.2 / math.sqrt(max(1, len(engine.choice.options)))  # no less is known of an engine with more options
    for key, value in engine.choice.options.items():
        yield ("engine", family, key, str(value)), each


def _atoms(configurations: Sequence[TechniqueConfiguration], engine: TechniqueConfiguration | None) -> Atoms:
    atoms = {configuration.label for configuration in configurations} | {
        f"technique:{configuration.technique.id}" for configuration in configurations
    }
    return frozenset(atoms if engine else atoms | {EAGER})


def _evidence(configuration: TechniqueConfiguration, engine: TechniqueConfiguration | None) -> tuple[str, ...]:
    """The choice, the technique, and the choice with the engine (joined by ``|``)."""
    family = f"technique:{engine.technique.id}" if engine else EAGER
    alone = (configuration.label, f"technique:{configuration.technique.id}")
    return (
        alone if configuration.is_engine or configuration.is_grad_mode else (*alone, f"{configuration.label}|{family}")
    )
