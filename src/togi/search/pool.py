"""The recipes that a search considers at once: not tried, and able to work as far as is known."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from togi.core.records import Recipe

if TYPE_CHECKING:
    from togi.search.features import RecipeFeatures
    from togi.search.space import Space

AT_ONCE = 2000
"""So many of each kind, faithful and approximate. Larger spaces are entered from the simplest recipes and the
neighbours of good ones."""


class RecipePool:
    """Faithful recipes are drawn as if there were no others."""

    def __init__(self, space: Space, worth_trying: Callable[[Recipe, RecipeFeatures], bool]) -> None:
        self._space, self._worth_trying = space, worth_trying
        self._sources = {True: space.faithful(), False: space.approximate()}
        self._features: dict[Recipe, RecipeFeatures] = {}

    def __bool__(self) -> bool:
        return bool(self._features)

    def drop(self, recipe: Recipe) -> None:
        self._features.pop(recipe, None)

    def sift(self) -> None:
        """Drop what is no longer worth trying."""
        self._features = {r: features for r, features in self._features.items() if self._worth_trying(r, features)}

    def add(self, recipes: Iterable[Recipe]) -> None:
        for recipe in recipes:
            if recipe not in self._features:
                features = self._space.features(recipe)
                if self._worth_trying(recipe, features):
                    self._features[recipe] = features

    def leave_approximate(self) -> None:
        """Draw none of them any more. Those that are in it are for ``sift``."""
        self._sources[False] = iter(())

    def refilled(self) -> list[RecipeFeatures]:
        """All in it, the faithful first. More are drawn of a kind of which none is left."""
        for exact in self._sources:
            if not any(features.exact is exact for features in self._features.values()):
                self._draw(exact)
        while not self._features and any(self._draw(exact) for exact in self._sources):
            pass
        return sorted(self._features.values(), key=lambda features: not features.exact)

    def _draw(self, exact: bool) -> bool:
        """False where there are no more of the kind."""
        drawn = list(itertools.islice(self._sources[exact], AT_ONCE))
        self.add(drawn)
        return bool(drawn)
