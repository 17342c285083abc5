"""All recipes that could be tried on a subject: selections of configurations.

Recipes are enumerated lazily, the simplest first: there may be millions.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from typing_extensions import Self

from togi.core.errors import TogiError
from togi.core.recipe import PLAIN_STEP_RECIPE, REFERENCE, REFERENCES, ProgramRecipe, Recipe
from togi.core.records import Facts, Trial
from togi.core.settings import Settings
from togi.search.configurations import TechniqueConfiguration, as_listed, configurations_for, unmet_needs
from togi.search.features import Feature, RecipeFeatures
from togi.techniques.base import Technique
from togi.techniques.registry import compatible

STARTING_COST_S, PASSES = 3.0, 20
"""Guess at starting, verifying and measuring one recipe: seconds, and passes of the original; replaced by what trials
cost."""


Selection = tuple[TechniqueConfiguration | None, ...]
"""One configuration, or none, of each factor."""


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
        *,
        one_original: bool = False,
    ) -> None:
        """``one_original``: as it is called today it is the reference. So is a training step."""
        self.excluded = tuple(excluded)
        """One explaining trial for each technique that cannot be tried here."""
        self.configurations = tuple(sorted(configurations, key=lambda configuration: configuration.place))
        self._by_label = {configuration.label: configuration for configuration in self.configurations}
        self._listed = None if listed is None else frozenset(listed)
        self._factors = _factors(self.configurations)
        self._starting_s = starting_s
        self._features: dict[Recipe, RecipeFeatures] = {}
        self._index: dict[Feature, int] = {}
        reference = next((c for c in self.configurations if c.technique.id in REFERENCES), None)
        if reference is None:
            raise TogiError(f"the technique '{REFERENCE}' is missing or refused: it is the reference of every speed-up")
        self.reference = self.recipe((reference,))
        one_original = one_original or self.reference == PLAIN_STEP_RECIPE
        originals = (self.reference,) if one_original else (self.reference, Recipe())
        self.originals = originals if listed is None else tuple(recipe for recipe in originals if recipe in listed)
        """The reference, and the original as it is called today, where that is another one."""

    @classmethod
    def of(cls, facts: Facts, settings: Settings, techniques: Mapping[str, Technique]) -> Self:
        """All that can be tried. Raises UnknownNameError for unknown names in ``settings``."""
        found = configurations_for(facts, settings, techniques)
        return cls(*found, starting_s=_starting_s(facts), one_original=facts.autograd_off)

    @classmethod
    def listing(cls, recipes: Collection[Recipe], facts: Facts, techniques: Mapping[str, Technique]) -> Self:
        """Only these recipes: to replay a recorded study, or to learn from it."""
        choices = {choice.label: choice for recipe in recipes for choice in recipe.choices}
        configurations = [as_listed(techniques[c.technique], facts, dict(c.options)) for c in choices.values()]
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
        """Whether it can be made of these configurations. A program cannot: its parts have spaces of their own."""
        if isinstance(recipe, ProgramRecipe):
            return False
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
        yield from self._product(self._factors)

    def faithful(self) -> Iterator[Recipe]:
        """The recipes without an approximate choice, in the same order: all that there is without a budget."""
        if self._listed is not None:
            yield from filter(self._is_faithful, self.recipes())
            return
        exact = [tuple(c for c in factor if c is None or c.technique.exact) for factor in self._factors]
        yield from self._product([factor for factor in exact if any(factor)])

    def approximate(self) -> Iterator[Recipe]:
        """The others, the simplest first."""
        if any(not configuration.technique.exact for configuration in self.configurations):
            yield from (recipe for recipe in self.recipes() if not self._is_faithful(recipe))

    def _is_faithful(self, recipe: Recipe) -> bool:
        return all(configuration.technique.exact for configuration in self.configurations_of(recipe))

    def _product(self, factors: Sequence[Selection]) -> Iterator[Recipe]:
        grad_modes, *others = factors
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
        if not any(configuration.is_grad_mode for configuration in chosen) or unmet_needs(chosen):
            return
        if compatible(chosen):
            recipe = self.recipe(chosen)
            if self._listed is None or recipe in self._listed:
                yield recipe

    def _repaired(self, selection: Selection) -> Iterator[Selection]:
        """Itself when all needs are met; else once for each configuration that provides the first need that is not."""
        chosen = [configuration for configuration in selection if configuration is not None]
        unmet = sorted(unmet_needs(chosen))
        if not unmet:
            yield selection
            return
        for position, factor in enumerate(self._factors):
            for configuration in factor:
                if configuration is not None and unmet[0] in configuration.provides:
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
    reference_first = tuple(sorted(grad_modes, key=lambda mode: mode.technique.id not in REFERENCES))
    engines = tuple(configuration for configuration in configurations if configuration.is_engine)
    others = [c for c in configurations if not c.is_engine and not c.is_grad_mode]
    by_technique = [tuple(group) for _, group in itertools.groupby(others, key=lambda c: c.technique.id)]
    return (reference_first, *((None, *factor) for factor in (engines, *by_technique) if factor))


def _starting_s(facts: Facts) -> float:
    return STARTING_COST_S + PASSES * (facts.latency_ms or 0.0) * 1e-3
