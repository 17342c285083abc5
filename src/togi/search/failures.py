"""A model of failures: which combinations need not be tried again, and how likely a recipe is to succeed.

A failure blames a set of choices; every recipe that holds the whole set would fail likewise and is dropped. Where one
technique is known to have failed, the choices applied after it are innocent. Where it raised the same twice with
another one, they are not tried together again.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter

from togi.core.records import REFERENCES, Outcome, Trial
from togi.search.configurations import EAGER, TechniqueConfiguration
from togi.search.features import Atoms, RecipeFeatures

SETTLED = frozenset({Outcome.OK, Outcome.UNSTABLE})
"""Outcomes that blame nobody."""


class FailureModel:
    """Learns from every trial told; answers for recipes not tried."""

    def __init__(self) -> None:
        self._ruled_out: list[Atoms] = []
        self._succeeded: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._failures: dict[tuple[str, str], set[Atoms]] = {}
        """(technique, reason) -> the combinations it failed in."""
        self._failed_together: dict[tuple[Atoms, str], set[Atoms]] = {}
        """(two techniques, what the later one raised) -> the combinations in which it did."""
        self._worked_together: set[Atoms] = set()

    def learn(self, features: RecipeFeatures, trial: Trial) -> str:
        """Returns what was concluded, as a sentence; empty when nothing."""
        if trial.outcome in SETTLED:
            self._succeeded.update(_all_evidence(features))
            self._worked_together |= {_two(*two) for two in itertools.combinations(features.configurations, 2)}
            return ""
        culprit = _culprit(features, trial)
        blamed = self._blamed(features, trial, culprit)
        if not blamed:
            return ""
        self._failed.update(e for e in _all_evidence(features) if any(part in blamed for part in e.split("|")))
        if culprit is not None:
            blamed = self._generalised(culprit, features, trial, blamed)
        if self.ruled_out(blamed):
            return ""
        self._ruled_out.append(blamed)
        names = " with ".join(sorted(atom.removeprefix("technique:") for atom in blamed))
        reason = trial.reason.rstrip(".") or trial.outcome.value
        return f"{names} is not tried again: {trial.outcome.value}" + (
            f" ({reason})" if reason != trial.outcome else ""
        )

    def ruled_out(self, recipe_atoms: Atoms) -> bool:
        """It holds a combination that has failed."""
        return any(blamed <= recipe_atoms for blamed in self._ruled_out)

    def doubt(self, features: RecipeFeatures) -> None:
        """It ran, but is of no use (it does not meet a limit, or is slow in company): recipes like it become less
        likely, none is ruled out."""
        doubted = [evidence for choice, evidence in features.evidence.items() if not self._innocent(choice)]
        self._failed.update(set().union(*doubted))

    def chance(self, features: RecipeFeatures) -> float:
        """Probability that the recipe works, from how often what it is made of has worked."""
        return math.prod(
            min(
                self._rate(evidence, 0.95 if configuration.technique.exact else 0.85)
                for evidence in features.evidence[configuration]
            )
            for configuration in features.configurations
        )

    def _rate(self, evidence: str, prior: float) -> float:
        good, bad = self._succeeded[evidence], self._failed[evidence]
        return (good + 2 * prior) / (good + bad + 2)

    def _blamed(self, features: RecipeFeatures, trial: Trial, culprit: TechniqueConfiguration | None) -> Atoms:
        """The choices that together are taken to be the cause."""
        if culprit is not None:
            if trial.outcome is Outcome.MISSING:
                return frozenset({f"technique:{culprit.technique.id}"})
            before = [configuration for configuration in features.configurations if configuration.place < culprit.place]
            suspects = [*before, culprit]
        else:
            suspects = list(features.configurations)
        blamed = {configuration.label for configuration in suspects if not self._innocent(configuration)}
        approximate = any(not configuration.technique.exact for configuration in suspects)
        if blamed and trial.outcome is Outcome.WRONG and approximate and features.engine is None:
            blamed.add(EAGER)  # another engine may round in other places
        return frozenset(blamed)

    def _innocent(self, configuration: TechniqueConfiguration) -> bool:
        """A grad mode, once it has worked anywhere."""
        return configuration.is_grad_mode and (
            configuration.technique.id in REFERENCES or self._succeeded[configuration.label] > 0
        )

    def _generalised(
        self, culprit: TechniqueConfiguration, features: RecipeFeatures, trial: Trial, blamed: Atoms
    ) -> Atoms:
        """The technique as such, when it failed for the same reason in two combinations and never worked."""
        id = culprit.technique.id
        combinations = self._failures.setdefault((id, trial.reason), set())
        combinations.add(blamed)
        structural = trial.outcome not in (Outcome.WRONG, Outcome.TIMED_OUT, Outcome.OUT_OF_MEMORY)
        if structural and trial.reason and len(combinations) > 1 and not self._succeeded[f"technique:{id}"]:
            return frozenset({f"technique:{id}"})
        return self._generalised_to_two(culprit, features, trial, blamed)

    def _generalised_to_two(
        self, culprit: TechniqueConfiguration, features: RecipeFeatures, trial: Trial, blamed: Atoms
    ) -> Atoms:
        """The technique with another one, whatever the options of both, where it raised the same kind of exception in
        two combinations with it and never worked with it: an engine has no kernels for a type, say. Of three it is not
        known which two."""
        raised = trial.reason.partition(":")[0]
        alone = trial.outcome is Outcome.FAILED and raised and len(blamed) == 2
        for other in features.configurations if alone else ():
            if other is not culprit and other.label in blamed:
                two = _two(culprit, other)
                combinations = self._failed_together.setdefault((two, raised), set())
                combinations.add(blamed)
                if len(combinations) > 1 and two not in self._worked_together:
                    return two
        return blamed


def _two(one: TechniqueConfiguration, other: TechniqueConfiguration) -> Atoms:
    return frozenset({f"technique:{one.technique.id}", f"technique:{other.technique.id}"})


def _culprit(features: RecipeFeatures, trial: Trial) -> TechniqueConfiguration | None:
    """The technique named by the trial; when building failed without a name, the engine."""
    named = next(
        (configuration for configuration in features.configurations if configuration.technique.id == trial.stage), None
    )
    if named is None and trial.stage == "build" and trial.outcome is not Outcome.WRONG:
        return features.engine
    return named


def _all_evidence(features: RecipeFeatures) -> set[str]:
    return set().union(*features.evidence.values())
