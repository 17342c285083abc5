"""The result of ``togi.tune``: the record of the study, and what it chose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from togi.artifact.save import publish
from togi.artifact.training import TrainingRecipe, as_it_is
from togi.core.errors import TogiError
from togi.core.records import Outcome, Recipe, Study, Trial

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from togi.artifact.installed import Installed
    from togi.artifact.optimized import OptimizedModule
    from togi.artifact.training import AppliedRecipe


@dataclass(frozen=True)
class Best:
    """The chosen recipe of a study, with its artifact."""

    recipe: Recipe
    trial: Trial
    artifact: Path | None
    """The folder that holds it, or None where nothing could be saved (the verdict says why)."""
    own_loop: bool = False
    """A training step that was tuned is a loop body of the user's own (``train_step``)."""

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Copy the artifact to ``path`` (``NAME.togi``). Raises OutputExistsError unless ``force``."""
        return publish(self.folder(), Path(path), force=force)

    def load(self) -> OptimizedModule:
        """The tuned model: same call signature and output structure as the original. Raises TogiError where a training
        step was tuned: its recipe is applied to the live model."""
        if self.recipe.trains:
            raise TogiError(
                "a training step was tuned, and its result is a recipe for your own model: best.apply(model, optimizer)"
            )
        from togi.artifact.load import load as load_artifact

        return load_artifact(self.folder())

    @overload
    def apply(self, program: Any, *, keep_originals: bool = True) -> Installed: ...

    @overload
    def apply(self, program: Any, optimizer: Optimizer | None, *, step: Any = None) -> AppliedRecipe: ...

    def apply(
        self, program: Any, optimizer: Any = None, *, step: Any = None, keep_originals: bool = True
    ) -> Installed | AppliedRecipe:
        """Put the tuned parts into the live program; ``.remove()`` of what is returned takes them out again.

        Of a training step: put the recipe on the live module and its optimizer (``TrainingRecipe.apply``). Where the
        original was chosen, since nothing was faster, program or step stay as they are.

        Args:
            program: what was tuned: a module, ``model.generate``, a pipeline or a function, with the same weights.
            optimizer, step: of a training step.
            keep_originals: False frees the weights that the parts replace. Calls outside of what was proven, which the
                original serves otherwise, then raise.

        Raises TogiError when the program was tuned as a whole (``load`` gives the module to call) or what was chosen
        could not be saved (it says what to do by hand), ArtifactError when it is another program.
        """
        if self.recipe.trains:
            if self.recipe.is_reference:
                return as_it_is(program, optimizer, step, own_loop=self.own_loop)
            return TrainingRecipe.read(self.folder()).apply(program, optimizer, step)
        if self.recipe.is_reference:
            from togi.artifact.installed import install

            return install((), program, keep_originals=keep_originals)
        return self.load().into(program, keep_originals=keep_originals)

    def folder(self) -> Path:
        """The artifact's. Raises TogiError where nothing could be saved."""
        if self.artifact is None:
            from togi.study.conclusion import unsaved

            raise TogiError(f"there is nothing to load, to copy or to put into a program: {unsaved(self.trial)}")
        return self.artifact


@dataclass(frozen=True)
class StudyResult:
    """A study that has ended, with what it chose."""

    record: Study
    artifact: Path | None = None

    @property
    def best(self) -> Best:
        """The choice of the study: the original without a measurement where the time limit was too short for anything.
        Raises TogiError where nothing was: ``record.verdict`` says why."""
        recipe = self.record.best
        if recipe is None:
            raise TogiError(f"the study chose nothing. {self.record.verdict}")
        trial = self.record.trial(recipe) or Trial(recipe=recipe, outcome=Outcome.OK)
        return Best(recipe, trial, self.artifact, self.record.facts.own_loop)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        return self.best.save(path, force=force)

    def __str__(self) -> str:
        return str(self.record)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str | None] | None:
        """For notebooks."""
        return self.record._repr_mimebundle_()

    @property
    def trials(self) -> tuple[Trial, ...]:
        return self.record.trials
