"""Configurations: every technique with the options that can be tried on a subject, or the reason why it is left out."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from togi.core.records import REFERENCES, STAGES, Choice, Facts, Outcome, Recipe, Stage, Trial, Unused, reference_recipe
from togi.core.settings import Settings
from togi.techniques.base import Options, Refuses, Technique

GRAD_MODE = "grad_mode"
"""The capability that exactly one choice of every recipe provides."""
EAGER = "eager"
"""Runs the module as it is: what a recipe without an engine does."""

LATER = 0.98
"""What is left of an expected speed-up with each place further down a technique's list of options."""


@dataclass(frozen=True, eq=False)
class TechniqueConfiguration:
    """One technique with one set of options, and what its author expects of it."""

    choice: Choice
    technique: Technique
    expected_speedup_x: float
    cost_s: float
    needs: frozenset[str]
    """What other choices of the same recipe must provide."""
    conflicts: frozenset[str]
    """What none of them may provide."""
    expected_memory_x: float = 1.0
    mends: frozenset[str] = frozenset()
    coarsens: frozenset[str] = frozenset()
    """Labels of the choices that have their turn before it (``Technique.mends``, ``Technique.coarsens``)."""

    @classmethod
    def of(cls, technique: Technique, facts: Facts, options: Options, place: int = 0) -> TechniqueConfiguration:
        """Calls the technique: anything that foreign code may raise is raised.

        ``place`` in the technique's own list, the most promising first: of what comes later less is expected.
        """
        choice = Choice(stage=technique.stage, technique=technique.id, options=options)
        speedup_x, cost_s = technique.expected_speedup(facts, options), technique.cost_s(facts, options)
        memory_x = technique.expected_memory(facts, options)
        if not (0 < speedup_x < float("inf") and 0 < memory_x < float("inf") and 0 <= cost_s < float("inf")):
            raise ValueError(
                f"expected_speedup() {speedup_x!r} and expected_memory() {memory_x!r} must be positive, cost_s() "
                f"{cost_s!r} not negative, all finite"
            )
        return cls(
            choice,
            technique,
            speedup_x * LATER**place,
            cost_s,
            technique.needs_with(facts, options),
            technique.conflicts_with(facts, options),
            memory_x,
            frozenset(first.label for first in technique.mends(facts, options)),
            frozenset(first.label for first in technique.coarsens(facts, options)),
        )

    @functools.cached_property
    def label(self) -> str:
        return self.choice.label

    @functools.cached_property
    def stage(self) -> Stage:
        return self.technique.stage

    @functools.cached_property
    def provides(self) -> frozenset[str]:
        return self.technique.provides

    @functools.cached_property
    def is_engine(self) -> bool:
        return self.stage is Stage.ENGINE

    @functools.cached_property
    def is_grad_mode(self) -> bool:
        return GRAD_MODE in self.provides

    @functools.cached_property
    def place(self) -> tuple[int, int, str]:
        """Sorts choices in the order in which they are applied."""
        return STAGES.index(self.technique.stage), self.technique.rank, self.technique.id


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
        if not (technique.trains if facts.train else technique.infers):
            continue  # it is for another kind of study
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
                reason = _refused(technique, facts.idle_rewrites[offered[0].label])
            except Exception:  # a third party's technique
                reason = _raised(technique)
        excluded[technique.id] = _of_a_step(reason) if facts.train else reason
    configurations = _with_needs_met(configurations, techniques, excluded)
    return tuple(configurations), tuple(excluded.values())


def as_listed(technique: Technique, facts: Facts, options: Options) -> TechniqueConfiguration:
    """With the place that the options have in the technique's own list; the first where they are not in it any more."""
    listed = [dict(choice) for choice in technique.options(facts)]
    return TechniqueConfiguration.of(technique, facts, options, listed.index(options) if options in listed else 0)


def _excluded(technique: Technique, facts: Facts, settings: Settings) -> Trial | None:
    """Why it is not tried; the reason that the user can do least about comes first."""
    if settings.only and technique.id not in (*settings.only, *REFERENCES):
        return _refused(technique, "not among the techniques asked for with --only", Unused.NOT_ALLOWED)
    if technique.id in settings.without and technique.id not in REFERENCES:
        return _refused(technique, "left out with --without", Unused.NOT_ALLOWED)
    if facts.device not in technique.devices:
        devices = " or ".join(sorted(technique.devices))
        return _refused(technique, f"needs {devices}, the subject is on {facts.device}", Unused.ANOTHER_DEVICE)
    try:
        answer = technique.applies(facts)
    except Exception:  # a third party's technique
        return _raised(technique)
    if isinstance(answer, Refuses):
        return _refused(technique, answer.reason, answer.why)
    if not (technique.exact or settings.allows(technique.id)):
        reason = f"approximate: it changes results beyond rounding, and was not allowed (--allow {technique.id})"
        return _refused(technique, reason, Unused.NOT_ALLOWED)
    if technique.saves_memory_alone and settings.max_memory_bytes is None and technique.id not in settings.only:
        return _refused(technique, "it saves memory and no time, and no limit was asked for (--max-memory)")
    for package in technique.packages:
        if problem := package.missing():
            return _trial(technique, Outcome.MISSING, problem, package.fix)
    return None


def _with_needs_met(
    configurations: list[TechniqueConfiguration], techniques: Mapping[str, Technique], excluded: dict[str, Trial]
) -> list[TechniqueConfiguration]:
    """Without those that need what only excluded techniques provide; again until nothing changes."""
    while unmet := unmet_needs(configurations):
        remaining = [configuration for configuration in configurations if not configuration.needs & unmet]
        ids = {configuration.technique.id for configuration in remaining}
        for dropped in configurations:
            if dropped.technique.id not in ids:
                needs = dropped.needs & unmet
                excluded[dropped.technique.id] = _unmet(dropped.technique, needs, techniques, excluded)
        configurations = remaining
    return configurations


def unmet_needs(chosen: Iterable[TechniqueConfiguration]) -> frozenset[str]:
    """What some of them need and none provides."""
    every = tuple(chosen)
    provided = frozenset[str]().union(*(configuration.provides for configuration in every))
    return frozenset[str]().union(*(configuration.needs for configuration in every)) - provided


def _unmet(
    technique: Technique, unmet: Iterable[str], techniques: Mapping[str, Technique], excluded: Mapping[str, Trial]
) -> Trial:
    capability = sorted(unmet)[0]
    cause = next((excluded[t.id] for t in techniques.values() if capability in t.provides and t.id in excluded), None)
    if cause is None:
        return _refused(technique, f"needs {capability}, which no technique provides")
    needs = _trial(technique, cause.outcome, f"needs {capability}: {cause.reason}", cause.fix)
    return needs.model_copy(update={"refused_for": cause.refused_for})


def _refused(technique: Technique, reason: str, why: Unused | None = None) -> Trial:
    return _trial(technique, Outcome.REFUSED, reason).model_copy(update={"refused_for": why})


def _trial(technique: Technique, outcome: Outcome, reason: str, fix: str = "", trace: str = "") -> Trial:
    choices = [Choice(stage=technique.stage, technique=technique.id)]
    if GRAD_MODE not in technique.provides:
        choices.extend(reference_recipe(train=False).choices)
    return Trial(
        recipe=Recipe(choices=tuple(choices)),
        outcome=outcome,
        reason=reason,
        fix=fix,
        stage=technique.id,
        traceback=trace,
    )


def _of_a_step(trial: Trial) -> Trial:
    """The same with the reference of a training step."""
    plain = reference_recipe(train=True).choices
    choices = [choice for choice in trial.recipe.choices if choice.technique not in REFERENCES]
    return trial.model_copy(update={"recipe": Recipe(choices=(*choices, *plain))})


def _raised(technique: Technique) -> Trial:
    trace = traceback.format_exc()
    return _trial(technique, Outcome.FAILED, f"planning with it raised {trace.splitlines()[-1]}", trace=trace)
