"""All recipes that could be tried on a subject, and what they have in common.

A technique with one set of options is a configuration; a recipe is a selection of them; its features are what it shares
with others. Recipes are enumerated lazily, the simplest first: there may be millions.
"""

from __future__ import annotations

import functools
import itertools
import math
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from typing_extensions import Self

from togi.core.errors import TogiError
from togi.core.records import REFERENCE, STAGES, Choice, Facts, Outcome, Recipe, Stage, Trial
from togi.core.settings import Settings
from togi.techniques.base import OUTSIDE_TORCH, Options, Refuses, Technique
from togi.techniques.registry import compatible

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GRAD_MODE = "grad_mode"
"""The capability that exactly one choice of every recipe provides."""
EAGER = "eager"
"""Runs the module as it is: what a recipe without an engine does."""

LATER = 0.98
"""What is left of an expected speed-up with each place further down a technique's list of options."""

Feature = tuple[str, ...]
Atoms = frozenset[str]
"""Labels of choices, ``technique:ID`` for a technique with any options, and ``eager`` for no engine."""

STAGE_SPREAD = {Stage.REWRITE: 0.12, Stage.LAYOUT: 0.25, Stage.PRECISION: 0.35, Stage.ENGINE: 0.6, Stage.RUNTIME: 0.15}
"""Standard deviation of the log of a choice's effect, by its stage: a guess at first, soon outweighed by trials."""
_SHARED_BY_ENGINES = 0.45
"""Of an engine's: what those outside of torch have in common, which is how slow plain eager is on this model."""

ENGINES_DO_IT = 0.4
"""How much of a rewrite's or layout's expected log speed-up is left under an engine that compiles: most do the same on
their own."""

STARTING_COST_S, PASSES = 3.0, 20
"""Guess at starting, verifying and measuring one recipe: seconds, and passes of the original; replaced by what trials
cost."""


@final
@dataclass(frozen=True, eq=False)
class TechniqueConfiguration:
    """One technique with one set of options, and what its author expects of it."""

    choice: Choice
    technique: Technique
    expected_speedup_x: float
    cost_s: float
    needs: frozenset[str]
    """What other choices of the same recipe must provide."""

    @classmethod
    def of(cls, technique: Technique, facts: Facts, options: Options, place: int = 0) -> TechniqueConfiguration:
        """Calls the technique: anything that foreign code may raise is raised.

        ``place`` in the technique's own list, the most promising first: of what comes later less is expected.
        """
        choice = Choice(stage=technique.stage, technique=technique.id, options=options)
        speedup_x, cost_s = technique.expected_speedup(facts, options), technique.cost_s(facts, options)
        if not (0 < speedup_x < float("inf") and 0 <= cost_s < float("inf")):
            raise ValueError(
                f"expected_speedup() {speedup_x!r} must be positive, cost_s() {cost_s!r} not negative, both finite"
            )
        return cls(choice, technique, speedup_x * LATER**place, cost_s, technique.needs_with(facts, options))

    @functools.cached_property
    def label(self) -> str:
        return self.choice.label

    @functools.cached_property
    def is_engine(self) -> bool:
        return self.technique.stage is Stage.ENGINE

    @functools.cached_property
    def is_grad_mode(self) -> bool:
        return GRAD_MODE in self.technique.provides

    @functools.cached_property
    def place(self) -> tuple[int, int, str]:
        """Sorts choices in the order in which they are applied."""
        return STAGES.index(self.technique.stage), self.technique.rank, self.technique.id


Selection = tuple[TechniqueConfiguration | None, ...]
"""One configuration, or none, of each factor."""


@final
class Space:
    """Recipes as a product of factors: which engine, which grad mode, and for every other technique with which options.

    Every recipe has at most one engine and exactly one grad mode, and its techniques are compatible.
    """

    def __init__(
        self,
        configurations: Sequence[TechniqueConfiguration],
        excluded: Sequence[Trial] = (),
        listed: Collection[Recipe] | None = None,
        starting_s: float = STARTING_COST_S,
    ) -> None:
        self.excluded = tuple(excluded)
        """One explaining trial for each technique that cannot be tried here."""
        self.configurations = tuple(sorted(configurations, key=lambda configuration: configuration.place))
        self._by_label = {configuration.label: configuration for configuration in self.configurations}
        self._listed = None if listed is None else frozenset(listed)
        self._factors = _factors(self.configurations)
        self._starting_s = starting_s
        self._features: dict[Recipe, RecipeFeatures] = {}
        self._index: dict[Feature, int] = {}
        reference = next((c for c in self.configurations if c.technique.id == REFERENCE), None)
        if reference is None:
            raise TogiError(f"the technique '{REFERENCE}' is missing or refused: it is the reference of every speed-up")
        self.reference = self.recipe((reference,))
        originals = (self.reference, Recipe())
        self.originals = originals if listed is None else tuple(recipe for recipe in originals if recipe in listed)
        """The reference, and the original as it is called today."""

    @classmethod
    def of(cls, facts: Facts, settings: Settings, techniques: Mapping[str, Technique]) -> Self:
        """All that can be tried. Raises UnknownNameError for unknown names in ``settings``."""
        return cls(*configurations_for(facts, settings, techniques), starting_s=_starting_s(facts))

    @classmethod
    def listing(cls, recipes: Collection[Recipe], facts: Facts, techniques: Mapping[str, Technique]) -> Self:
        """Only these recipes: to replay a recorded study, or to learn from it."""
        choices = {choice.label: choice for recipe in recipes for choice in recipe.choices}
        configurations = [_as_listed(techniques[c.technique], facts, dict(c.options)) for c in choices.values()]
        return cls(configurations, listed=recipes, starting_s=_starting_s(facts))

    def configurations_of(self, recipe: Recipe) -> tuple[TechniqueConfiguration, ...]:
        """The configurations a recipe is made of. Raises KeyError when it holds a choice that cannot be made here."""
        return tuple(self._by_label[choice.label] for choice in recipe.choices)

    def features(self, recipe: Recipe) -> RecipeFeatures:
        """The recipe taken apart; raises KeyError like ``configurations_of``."""
        if recipe not in self._features:
            self._features[recipe] = RecipeFeatures(
                recipe, self.configurations_of(recipe), self._index, self._starting_s
            )
        return self._features[recipe]

    def holds(self, recipe: Recipe) -> bool:
        return all(choice.label in self._by_label for choice in recipe.choices)

    def like(self, recipe: Recipe) -> Recipe | None:
        """The same; a choice that cannot be made here is the most promising one of its technique. None where there is
        no such recipe."""
        of_technique = {c.choice.technique: c for c in reversed(self.configurations)}
        likeliest = [self._by_label.get(choice.label, of_technique.get(choice.technique)) for choice in recipe.choices]
        here = [configuration for configuration in likeliest if configuration is not None]
        same = self.recipe(here)
        return same if here == likeliest and (self._listed is None or same in self._listed) else None

    def recipes(self) -> Iterator[Recipe]:
        """Every recipe once, those with fewer choices first."""
        if self._listed is not None:
            yield from sorted(self._listed - {Recipe()}, key=lambda r: (len(r.choices), r.label))
            return
        grad_modes, *others = self._factors
        for depth in range(len(others) + 1):
            for factors in itertools.combinations(others, depth):
                for selection in itertools.product(grad_modes, *(filter(None, factor) for factor in factors)):
                    yield from self._if_valid(selection)

    def neighbours(self, recipe: Recipe) -> Iterator[Recipe]:
        """Recipes that differ in one factor; and where a new choice needs another one, with that as well."""
        selection = self._selection(recipe)
        for position, factor in enumerate(self._factors):
            for configuration in factor:
                if configuration is selection[position]:
                    continue
                changed = (*selection[:position], configuration, *selection[position + 1 :])
                for repaired in self._repaired(changed):
                    yield from self._if_valid(repaired)

    def _if_valid(self, selection: Iterable[TechniqueConfiguration | None]) -> Iterator[Recipe]:
        chosen = [configuration for configuration in selection if configuration is not None]
        if not any(configuration.is_grad_mode for configuration in chosen) or _unmet_needs(chosen):
            return
        if compatible(configuration.technique for configuration in chosen):
            recipe = self.recipe(chosen)
            if self._listed is None or recipe in self._listed:
                yield recipe

    def _repaired(self, selection: Selection) -> Iterator[Selection]:
        """Itself when all needs are met; else once for each configuration that provides the first need that is not."""
        chosen = [configuration for configuration in selection if configuration is not None]
        unmet = sorted(_unmet_needs(chosen))
        if not unmet:
            yield selection
            return
        for position, factor in enumerate(self._factors):
            for configuration in factor:
                if configuration is not None and unmet[0] in configuration.technique.provides:
                    yield (*selection[:position], configuration, *selection[position + 1 :])

    def _selection(self, recipe: Recipe) -> Selection:
        chosen = set(self.configurations_of(recipe))
        return tuple(next((c for c in factor if c in chosen), None) for factor in self._factors)

    def recipe(self, configurations: Iterable[TechniqueConfiguration]) -> Recipe:
        in_order = sorted(configurations, key=lambda configuration: configuration.place)
        return Recipe(choices=tuple(configuration.choice for configuration in in_order))


def _factors(configurations: Sequence[TechniqueConfiguration]) -> tuple[Selection, ...]:
    """The grad modes first (one of them is always chosen), then the engines, then one factor for each technique."""
    grad_modes = [configuration for configuration in configurations if configuration.is_grad_mode]
    reference_first = tuple(sorted(grad_modes, key=lambda mode: mode.technique.id != REFERENCE))
    engines = tuple(configuration for configuration in configurations if configuration.is_engine)
    others = [c for c in configurations if not c.is_engine and not c.is_grad_mode]
    by_technique = [tuple(group) for _, group in itertools.groupby(others, key=lambda c: c.technique.id)]
    return (reference_first, *((None, *factor) for factor in (engines, *by_technique) if factor))


def configurations_for(
    facts: Facts, settings: Settings, techniques: Mapping[str, Technique]
) -> tuple[tuple[TechniqueConfiguration, ...], tuple[Trial, ...]]:
    """What can be tried, and one explaining trial (refused, missing, failed) for each technique that cannot.

    Raises UnknownNameError for a name in the settings that no technique has.
    """
    settings.check(techniques)
    configurations: list[TechniqueConfiguration] = []
    excluded: dict[str, Trial] = {}
    for technique in techniques.values():
        if technique.id == EAGER:
            continue  # a recipe without an engine is the same, and is saved the same way
        reason = _excluded(technique, facts, settings)
        if reason is None:
            try:
                offered = [
                    TechniqueConfiguration.of(technique, facts, options, place)
                    for place, options in enumerate(technique.options(facts))
                ]
                busy = [configuration for configuration in offered if configuration.label not in facts.idle_rewrites]
                configurations.extend(busy)
                if busy or not offered:
                    continue
                reason = _trial(technique, Outcome.REFUSED, facts.idle_rewrites[offered[0].label])
            except Exception:  # a third party's technique
                reason = _raised(technique)
        excluded[technique.id] = reason
    configurations = _with_needs_met(configurations, techniques, excluded)
    return tuple(configurations), tuple(excluded.values())


def _as_listed(technique: Technique, facts: Facts, options: Options) -> TechniqueConfiguration:
    """With the place that the options have in the technique's own list; the first where they are not in it any more."""
    listed = [dict(choice) for choice in technique.options(facts)]
    return TechniqueConfiguration.of(technique, facts, options, listed.index(options) if options in listed else 0)


def _excluded(technique: Technique, facts: Facts, settings: Settings) -> Trial | None:
    """Why it is not tried; the reason that the user can do least about comes first."""
    if settings.only and technique.id not in (*settings.only, REFERENCE):
        return _trial(technique, Outcome.REFUSED, "not among the techniques asked for with --only")
    if technique.id in settings.without and technique.id != REFERENCE:
        return _trial(technique, Outcome.REFUSED, "left out with --without")
    if facts.device not in technique.devices:
        devices = " or ".join(sorted(technique.devices))
        return _trial(technique, Outcome.REFUSED, f"needs {devices}, the subject is on {facts.device}")
    try:
        answer = technique.applies(facts)
    except Exception:  # a third party's technique
        return _raised(technique)
    if isinstance(answer, Refuses):
        return _trial(technique, Outcome.REFUSED, answer.reason)
    if not (technique.exact or settings.allows(technique.id)):
        reason = f"approximate: it changes results beyond rounding, and was not allowed (--allow {technique.id})"
        return _trial(technique, Outcome.REFUSED, reason)
    for package in technique.packages:
        if problem := package.missing():
            return _trial(technique, Outcome.MISSING, problem, package.fix)
    return None


def _with_needs_met(
    configurations: list[TechniqueConfiguration], techniques: Mapping[str, Technique], excluded: dict[str, Trial]
) -> list[TechniqueConfiguration]:
    """Without those that need what only excluded techniques provide; again until nothing changes."""
    while unmet := _unmet_needs(configurations):
        remaining = [configuration for configuration in configurations if not configuration.needs & unmet]
        ids = {configuration.technique.id for configuration in remaining}
        for dropped in configurations:
            if dropped.technique.id not in ids:
                needs = dropped.needs & unmet
                excluded[dropped.technique.id] = _unmet(dropped.technique, needs, techniques, excluded)
        configurations = remaining
    return configurations


def _unmet_needs(chosen: Iterable[TechniqueConfiguration]) -> frozenset[str]:
    """What some of them need and none provides."""
    every = tuple(chosen)
    provided = frozenset[str]().union(*(configuration.technique.provides for configuration in every))
    return frozenset[str]().union(*(configuration.needs for configuration in every)) - provided


def _unmet(
    technique: Technique, unmet: Iterable[str], techniques: Mapping[str, Technique], excluded: Mapping[str, Trial]
) -> Trial:
    capability = sorted(unmet)[0]
    cause = next((excluded[t.id] for t in techniques.values() if capability in t.provides and t.id in excluded), None)
    if cause is None:
        return _trial(technique, Outcome.REFUSED, f"needs {capability}, which no technique provides")
    return _trial(technique, cause.outcome, f"needs {capability}: {cause.reason}", cause.fix)


def _trial(technique: Technique, outcome: Outcome, reason: str, fix: str = "", trace: str = "") -> Trial:
    choices = [Choice(stage=technique.stage, technique=technique.id)]
    if GRAD_MODE not in technique.provides:
        choices.append(Choice(stage=Stage.RUNTIME, technique=REFERENCE))
    return Trial(
        recipe=Recipe(choices=tuple(choices)),
        outcome=outcome,
        reason=reason,
        fix=fix,
        stage=technique.id,
        traceback=trace,
    )


def _raised(technique: Technique) -> Trial:
    trace = traceback.format_exc()
    return _trial(technique, Outcome.FAILED, f"planning with it raised {trace.splitlines()[-1]}", trace=trace)


def _starting_s(facts: Facts) -> float:
    return STARTING_COST_S + PASSES * (facts.latency_ms or 0.0) * 1e-3


@final
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
        self.engine = next((configuration for configuration in configurations if configuration.is_engine), None)
        self.atoms = _atoms(configurations, self.engine)
        self.evidence = {configuration: _evidence(configuration, self.engine) for configuration in configurations}
        """What success and failure are counted on, for each configuration."""
        spreads = dict(_features(configurations, self.engine))
        self.columns: NDArray[np.intp] = np.array([index.setdefault(f, len(index)) for f in spreads], dtype=np.intp)
        self.spreads: NDArray[np.float64] = np.array(list(spreads.values()))
        """Standard deviation of each feature's effect on log latency."""
        self.variance = float(self.spreads @ self.spreads)
        self.expected_log_latency = _expected_log_latency(configurations, self.engine)
        """Log latency relative to the reference that the techniques' own expectations amount to."""
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
    configurations: Sequence[TechniqueConfiguration], engine: TechniqueConfiguration | None
) -> Iterator[tuple[Feature, float]]:
    """What the recipe may share with others, with the standard deviation of its effect."""
    family, engine_label = (engine.technique.id, engine.label) if engine else (EAGER, EAGER)
    if engine:
        if OUTSIDE_TORCH in engine.technique.provides:
            yield ("engines", OUTSIDE_TORCH), _SHARED_BY_ENGINES
            yield ("engine", family), math.sqrt(STAGE_SPREAD[Stage.ENGINE] ** 2 - _SHARED_BY_ENGINES**2)
        else:
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
    for first, second in itertools.combinations([c for c in others if not c.is_grad_mode], 2):
        yield ("pair", first.technique.id, second.technique.id), 0.05


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
