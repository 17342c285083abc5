"""The recipes of a price list: each precision on the engine that it needs, next to these engines in float32."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from togi.core.choices import OperatorKind
from togi.core.records import REFERENCES, Facts, Recipe, Trial
from togi.core.settings import Settings
from togi.search.configurations import TechniqueConfiguration, configurations_for
from togi.search.space import Space
from togi.techniques.base import LowerPrecision, Options, Technique
from togi.techniques.registry import all_techniques, compatible

SENSITIVE = "int8_openvino"
"""The technique that leaves kinds of operators in floating point."""
_WHOLE: Options = {"preset": "performance"}
_COMPILER = "torch_compile"
"""Runs what needs no engine of its own; compiling takes long, so it comes last."""


@dataclass(frozen=True)
class ListedRecipes:
    """What a price list tries, in this order."""

    prices: tuple[Recipe, ...]
    """Without the reference."""
    whole: Recipe | None
    """All operators in 8 bits, with which kinds are compared. None: sensitivity cannot be measured here."""
    kept: Mapping[OperatorKind, Recipe]
    """The same, but for one kind."""
    alone: Mapping[OperatorKind, Recipe]
    """Only one kind."""
    joint: Mapping[tuple[OperatorKind, ...], tuple[Recipe, ...]]
    """One kind or two kept, the rest in bfloat16 (if this CPU has it) and in float32."""
    excluded: tuple[Trial, ...]
    """Precisions that cannot be tried, with the reason."""
    reference: Recipe

    @property
    def all(self) -> frozenset[Recipe]:
        every = itertools.chain(self.kept.values(), self.alone.values(), *self.joint.values())
        return frozenset((self.reference, *self.prices, *every))


def listed_recipes(facts: Facts, settings: Settings, techniques: Mapping[str, Technique]) -> ListedRecipes:
    """Those that this machine and this subject allow. Raises UnknownNameError for unknown names in ``settings``."""
    configurations, excluded = configurations_for(facts, settings, techniques)
    return _Listing(Space(configurations), configurations, excluded, facts).made()


@dataclass(frozen=True)
class _Listing:
    space: Space
    configurations: Sequence[TechniqueConfiguration]
    excluded: Sequence[Trial]
    facts: Facts

    def made(self) -> ListedRecipes:
        lowered = [each for each in self.configurations if isinstance(each.technique, LowerPrecision)]
        pairs = [
            (engine, each)
            for each in lowered
            if (engine := self._engine_of(each)) is not None and compatible((engine, each))
        ]
        pairs.sort(key=lambda pair: (pair[0].technique.id == _COMPILER, bool(pair[1].mends or pair[1].coarsens)))
        engines = dict.fromkeys(engine for engine, _ in pairs)
        prices = [self._recipe(engine) for engine in engines] + [self._recipe(*pair) for pair in pairs]
        sensitive = next((pair for pair in pairs if pair[1].technique.id == SENSITIVE), None)
        return ListedRecipes(
            prices=tuple(dict.fromkeys(prices)),
            whole=None if sensitive is None else self._of_kind(sensitive, {}),
            kept={} if sensitive is None else {k: self._of_kind(sensitive, {"keep": str(k)}) for k in OperatorKind},
            alone={} if sensitive is None else {k: self._of_kind(sensitive, {"alone": str(k)}) for k in OperatorKind},
            joint={} if sensitive is None else dict(self._joint(sensitive)),
            excluded=tuple(trial for trial in self.excluded if _lowers(trial)),
            reference=self.space.reference,
        )

    def _engine_of(self, lowered: TechniqueConfiguration) -> TechniqueConfiguration | None:
        """The one that it needs; else torch's compiler. Of its options the most promising."""
        wanted = {need.removeprefix("engine:") for need in lowered.needs} or {_COMPILER}
        return next((each for each in self.configurations if each.technique.id in wanted and each.is_engine), None)

    def _recipe(self, *chosen: TechniqueConfiguration) -> Recipe:
        grad_mode = next(each for each in self.configurations if each.technique.id in REFERENCES)
        return self.space.recipe((*chosen, grad_mode))

    def _of_kind(self, sensitive: tuple[TechniqueConfiguration, ...], options: Options) -> Recipe:
        engine, lowered = sensitive
        made = TechniqueConfiguration.of(lowered.technique, self.facts, {**_WHOLE, **options})
        return self._recipe(engine, made)

    def _joint(
        self, sensitive: tuple[TechniqueConfiguration, ...]
    ) -> Iterable[tuple[tuple[OperatorKind, ...], tuple[Recipe, ...]]]:
        offered = sensitive[1].technique.options(self.facts)
        rests: list[Options] = [{"rest": "bf16"}] if any("rest" in options for options in offered) else []
        for count in (1, 2):
            for kinds in itertools.combinations(OperatorKind, count):
                keep: Options = {"keep": "+".join(kinds)}
                yield kinds, tuple(self._of_kind(sensitive, {**keep, **rest}) for rest in (*rests, {}))


def _lowers(trial: Trial) -> bool:
    known = all_techniques()
    return any(isinstance(known.get(choice.technique), LowerPrecision) for choice in trial.recipe.choices)
