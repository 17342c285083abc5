"""All recipes that could be tried on a subject, enumerated lazily, the simplest first: there may be millions."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Self, final

from togi.core.errors import TogiError
from togi.core.records import REFERENCE, Facts, Recipe, Trial
from togi.search.configurations import GRAD_MODE, TechniqueConfiguration, configurations_for
from togi.search.model import Feature, RecipeFeatures
from togi.search.settings import Settings
from togi.techniques.base import Technique
from togi.techniques.registry import compatible

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
    ) -> None:
        self.excluded = tuple(excluded)
        """One explaining trial for each technique that cannot be tried here."""
        self.configurations = tuple(sorted(configurations, key=lambda configuration: configuration.place))
        self._by_label = {configuration.label: configuration for configuration in self.configurations}
        self._listed = None if listed is None else frozenset(listed)
        self._factors = _factors(self.configurations)
        self._features: dict[Recipe, RecipeFeatures] = {}
        self._index: dict[Feature, int] = {}
        reference = next((o for o in self.configurations if o.technique.id == REFERENCE), None)
        if reference is None:
            raise TogiError(f"the technique '{REFERENCE}' is missing or refused: it is the reference of every speed-up")
        self.reference = self._recipe((reference,))
        originals = (self.reference, Recipe())
        self.firsts = originals if listed is None else tuple(recipe for recipe in originals if recipe in listed)
        """What is tried before all else: the reference, and the original as it is called today."""

    @classmethod
    def of(cls, facts: Facts, settings: Settings, techniques: Mapping[str, Technique]) -> Self:
        """All that can be tried. Raises UnknownNameError for unknown names in ``settings``."""
        return cls(*configurations_for(facts, settings, techniques))

    @classmethod
    def listing(cls, recipes: Collection[Recipe], facts: Facts, techniques: Mapping[str, Technique]) -> Self:
        """Only these recipes: to replay a recorded study."""
        choices = {choice.label: choice for recipe in recipes for choice in recipe.choices}
        configurations = [
            TechniqueConfiguration.of(techniques[c.technique], facts, dict(c.options)) for c in choices.values()
        ]
        return cls(configurations, listed=recipes)

    def configurations_of(self, recipe: Recipe) -> tuple[TechniqueConfiguration, ...]:
        """The configurations a recipe is made of. Raises KeyError when it holds a choice that cannot be made here."""
        return tuple(self._by_label[choice.label] for choice in recipe.choices)

    def features(self, recipe: Recipe) -> RecipeFeatures:
        """The recipe taken apart; raises KeyError like ``configurations_of``."""
        if recipe not in self._features:
            self._features[recipe] = RecipeFeatures(recipe, self.configurations_of(recipe), self._index)
        return self._features[recipe]

    def holds(self, recipe: Recipe) -> bool:
        return all(choice.label in self._by_label for choice in recipe.choices)

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
        if any(o.is_grad_mode for o in chosen) and compatible(o.technique for o in chosen):
            recipe = self._recipe(chosen)
            if self._listed is None or recipe in self._listed:
                yield recipe

    def _repaired(self, selection: Selection) -> Iterator[Selection]:
        """Itself when all needs are met; else once for each configuration that provides the first need that is not."""
        chosen = [configuration for configuration in selection if configuration is not None]
        provided = frozenset().union(*(o.technique.provides for o in chosen))
        unmet = sorted(frozenset().union(*(o.technique.needs for o in chosen)) - provided)
        if not unmet:
            yield selection
            return
        for position, factor in enumerate(self._factors):
            for configuration in factor:
                if configuration is not None and unmet[0] in configuration.technique.provides:
                    yield (*selection[:position], configuration, *selection[position + 1 :])

    def _selection(self, recipe: Recipe) -> Selection:
        chosen = set(self.configurations_of(recipe))
        return tuple(next((o for o in factor if o in chosen), None) for factor in self._factors)

    def _recipe(self, configurations: Iterable[TechniqueConfiguration]) -> Recipe:
        return Recipe(choices=tuple(o.choice for o in sorted(configurations, key=lambda o: o.place)))


def _factors(configurations: Sequence[TechniqueConfiguration]) -> tuple[Selection, ...]:
    """The grad modes first (one of them is always chosen), then the engines, then one factor for each technique."""
    grad_modes = tuple(o for o in configurations if GRAD_MODE in o.technique.provides)
    grad_modes = tuple(sorted(grad_modes, key=lambda o: o.technique.id != REFERENCE))
    engines = tuple(o for o in configurations if o.is_engine)
    rest = [o for o in configurations if o not in engines and o not in grad_modes]
    others = [tuple(group) for _, group in itertools.groupby(rest, key=lambda o: o.technique.id)]
    return (grad_modes, *((None, *factor) for factor in (engines, *others) if factor))
