"""The subject of a study: what is known of it, and what any process of the study is held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from togi.artifact.manifest import Saved
from togi.artifact.save import write_manifest
from togi.artifact.training import TrainingRecipe
from togi.core.records import ErrorReport, Facts, Outcome, Recipe, Trial, reference_recipe
from togi.core.settings import Settings
from togi.decide.faithful import accept
from togi.study.failures import explained
from togi.subject.signature import Signature
from togi.techniques import is_exact
from togi.worker.pool import WorkerPool, environment_of
from togi.worker.supervise import Limits, TrialEnded

SURVEY_TIMEOUT_S = 900.0


class HasVerdict(Protocol):
    """A process whose recipe was verified (``RunningTrial``)."""

    @property
    def recipe(self) -> Recipe: ...
    @property
    def error(self) -> ErrorReport | None: ...


@dataclass
class TunedSubject:
    """A subject with the processes that run it and the settings under which it is tuned."""

    pool: WorkerPool
    name: str
    facts: Facts
    signature: Signature
    settings: Settings
    has_truth: bool = False

    @property
    def reference(self) -> Recipe:
        """What every speed-up relates to."""
        return reference_recipe(train=self.facts.train)

    @property
    def limits(self) -> Limits:
        """What a trial may take, and every process that is made of what it saved."""
        return Limits(timeout_s=self.settings.trial_timeout_s, memory_bytes=self.settings.trial_memory_bytes)

    def make_truth(self, tell: Callable[[str], None], *, whole: bool = False) -> None:
        """Make what every trial is compared with, once: all of it if it is to be ``whole``, else what exact recipes
        need. Raises SubjectError when the subject cannot be run."""
        if self.has_truth:
            return
        with explained(self.name):
            limits = Limits(timeout_s=SURVEY_TIMEOUT_S)
            self.facts = self.pool.make_truth(
                self.facts, limits, lambda phase: tell(f"{phase} of {self.name}"), whole=whole
            )
        self.has_truth = True

    def complete_truth(self, recipe: Recipe, tell: Callable[[str], None]) -> None:
        """Make what of it was left out until ``recipe`` needs it. Raises TrialEnded where there is no time for it, or
        its training step cannot run for it; SubjectError where validation data, or their metric, cannot judge."""
        limits = Limits(timeout_s=SURVEY_TIMEOUT_S)
        try:
            self.facts = self.pool.complete_truth(
                recipe, self.facts, limits, lambda phase: tell(f"{phase} of {self.name}, the rest of it")
            )
        except TrialEnded as ended:
            if ended.cut_off or self.facts.train:
                raise
            with explained(self.name):
                raise

    def accepted(self, running: HasVerdict) -> tuple[Outcome, str]:
        """What its verification means under these settings, and why."""
        if running.error is None:
            return Outcome.FAILED, "it was not verified"
        settings, recipe = self.settings, running.recipe
        named = any(settings.named(choice.technique) for choice in recipe.every_choice)
        return accept(
            running.error,
            exact=is_exact(recipe) and not named,
            max_error=settings.max_error,
            max_drop=settings.max_drop,
            judging=settings.judging,
        )

    def write_manifest(self, folder: Path, proof: Trial, saved: Saved) -> None:
        """Write the manifest of an artifact whose files are there."""
        environment = environment_of(proof.recipe, self.facts)
        if self.facts.train:
            known = {"subject": self.name, "proof": proof, "environment": environment}
            TrainingRecipe.read(folder).model_copy(update=known).write(folder)
            return
        write_manifest(
            folder,
            subject=self.name,
            recipe=proof.recipe,
            signature=self.signature.within(saved.domains),
            facts=self.facts,
            proof=proof,
            chain=saved.links,
            parts=saved.parts,
            weights=saved.weights,
            settings=saved.settings,
            environment=environment,
            max_error=self.settings.max_error,
            max_drop=self.settings.max_drop,
            judging=self.settings.judging,
            calibration=saved.calibration,
            objective=self.settings.objective,
        )
