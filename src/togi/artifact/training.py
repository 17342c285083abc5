"""The result of tuning a training step: a record of the recipe, of what it was proven for, and of its proof.

It holds no files of an engine. ``apply`` puts the recipe on a live module and its optimizer, and can take it off again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import ValidationError
from typing_extensions import Self

from togi.artifact.manifest import TRAINING
from togi.core.errors import ArtifactError, TogiError
from togi.core.quantities import first_line
from togi.core.recipe import Recipe
from togi.core.records import Facts, Machine, Record, Trial, now
from togi.core.version import version
from togi.footprint.fit.plan import Plan

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from togi.subject.training import TrainingStep

TRAINING_RECIPE_VERSION: Final = 1
_NAMED = 3


class LossNeeded(TogiError):
    """The recipe computes the loss in another way, and was applied without one."""


class TrainingRecipe(Record):
    """What was found for a training step, and for which step it was proven."""

    schema_version: Literal[1] = TRAINING_RECIPE_VERSION
    kind: str = "training recipe"
    togi_version: str
    created: str
    """ISO 8601, UTC."""
    subject: str = ""
    recipe: Recipe
    architecture: dict[str, str]
    """By module, as in ``named_modules()``: its class and its own parameters."""
    optimizer: str
    """Its class; empty where the step had none."""
    own_loop: bool
    """It was proven in the user's own loop body (``train_step``)."""
    machine: Machine
    plan: Plan | None = None
    """What of the forward pass is not kept (``recompute``); None where all is, or where compiled code decides it."""
    environment: dict[str, str] = {}
    """Environment variables under which the proof was made (an allocator): to be set before Python starts."""
    proof: Trial | None = None
    """The record itself, applied in a fresh process, verified and measured against the original's step."""

    @classmethod
    def of(cls, recipe: Recipe, step: TrainingStep, facts: Facts) -> Self:
        """Not proven yet."""
        from togi.subject.architecture import architecture_of

        return cls(
            togi_version=version(),
            created=now(),
            recipe=recipe,
            architecture=architecture_of(step.original),
            optimizer=facts.optimizer,
            own_loop=facts.own_loop,
            machine=facts.machine,
            plan=step.plan if isinstance(step.plan, Plan) else None,
        )

    def write(self, folder: Path) -> None:
        """Write it into the folder of a study's result."""
        self.save(folder / TRAINING)

    def save(self, path: str | Path) -> None:
        """Write it as indented JSON."""
        Path(path).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """What ``save`` wrote; of a folder, the record in it. Raises ArtifactError for anything else."""
        path = Path(path) / TRAINING if Path(path).is_dir() else Path(path)
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ArtifactError(
                f"the training recipe {path} cannot be read: {error.strerror}. 'togi tune SUBJECT --train --out "
                "NAME.togi' writes one"
            ) from None
        except (ValidationError, ValueError) as error:
            raise ArtifactError(
                f"{path} is not a training recipe of this version ({first_line(error)}). 'togi tune SUBJECT --train "
                "--out NAME.togi' writes one"
            ) from None

    def check(self, step: TrainingStep) -> None:
        """Raises ArtifactError for a step that it was not proven for."""
        from togi.subject.architecture import architecture_of, differences_of
        from togi.subject.optimizers import unwrapped

        differences = differences_of(self.architecture, architecture_of(step.original))
        optimizer = "" if step.optimizer is None else type(unwrapped(step.optimizer)).__name__
        if optimizer != self.optimizer:
            differences.insert(0, f"the optimizer is {optimizer or 'missing'} and was {self.optimizer or 'missing'}")
        if differences:
            more = f"; and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
            raise ArtifactError(
                f"the recipe was proven for another training step: {'; '.join(differences[:_NAMED])}{more}. Its "
                "figures and its proof do not hold here: run 'togi tune --train' on this one"
            )

    def apply(
        self, module: nn.Module, optimizer: Optimizer | None = None, step: Callable[..., Any] | None = None
    ) -> AppliedRecipe:
        """Put the recipe on a live module and its optimizer, in place.

        Args:
            module: in training mode; parameters and names stay, and so does the state of the optimizer.
            optimizer: the one that trains it, as it is or in the wrapper of a trainer (accelerate's, Lightning's).
            step: the loss, ``step(module, sample) -> loss``, with which it was proven. Without it a loop of your own
                goes on as it is, where the recipe is one of module, optimizer and process alone.

        Raises:
            LossNeeded: the recipe computes the loss in another way, and there is no ``step``.
            ArtifactError: the module or the optimizer is of another kind than it was proven for. Nothing is changed.
            Refused: it cannot be done in this process, such as an allocator that was not preloaded.
        """
        from togi.techniques.build import StepFailed, build_step

        plain = dataclasses.replace(_plain(module, optimizer, step, self.own_loop), plan=self.plan)
        self.check(plain)
        try:
            built = build_step(self.recipe, plain)
        except StepFailed as failed:
            raise (failed.__cause__ or failed) from None
        if step is None and built.loss is not plain.loss:
            built.undo()
            raise LossNeeded(
                f"{self.recipe.label} computes the loss in another way, so it needs it: give step=, a function "
                "step(module, sample) -> loss, and take applied.loss(sample) in the loop"
            )
        return AppliedRecipe(built, step is not None, self.own_loop)


def as_it_is(
    module: nn.Module, optimizer: Optimizer | None, step: Callable[..., Any] | None, *, own_loop: bool
) -> AppliedRecipe:
    """The step of a live module where nothing was faster. ``own_loop``: that of the study was a loop body."""
    return AppliedRecipe(_plain(module, optimizer, step, own_loop), step is not None, own_loop)


def _plain(
    module: nn.Module, optimizer: Optimizer | None, step: Callable[..., Any] | None, own_loop: bool
) -> TrainingStep:
    from togi.subject.optimizers import unwrapped
    from togi.subject.training import TrainingStep, checked_loss, mean_of_outputs

    return TrainingStep(
        module=module,
        samples=(),
        loss=mean_of_outputs if step is None else checked_loss(step),
        optimizer=unwrapped(optimizer),
        train_step=_loop_of_the_user if own_loop and step is None else None,
    )


def _loop_of_the_user(*_: Any) -> Any:
    """Stands for the loop body in which a record was proven. The user's own runs, and never this."""


@dataclasses.dataclass
class AppliedRecipe:
    """A training step under a proven recipe. A context manager: at its end the recipe is taken off."""

    _step: TrainingStep
    _has_loss: bool
    _in_own_loop: bool = False
    """It was proven in the user's own loop body."""

    def loss(self, sample: Any) -> Tensor:
        """The loss of a sample as the recipe computes it, for a loop of your own: ``loss(sample).backward()``."""
        from togi.subject.inputs import step_sample

        self._check_loss()
        return self._step.loss(self._step.module, step_sample(sample))

    def step(self, sample: Any) -> Tensor:
        """One step as it was proven: gradients dropped, forward, backward, optimizer. Returns the loss, detached.

        Raises TogiError without a loss, and where it was proven in a loop body of your own (``train_step``).
        """
        from togi.subject.inputs import step_sample

        self._check_loss()
        if self._in_own_loop:
            raise TogiError(
                "the recipe was proven in a loop body of your own (train_step), which may clip, scale and schedule, "
                "and a plain step would leave that out: go on with your loop, and take applied.loss(sample) in it"
            )
        losses: list[Tensor] = []
        self._step.run(step_sample(sample), lambda loss: losses.append(loss.detach()))
        return losses[0]

    def _check_loss(self) -> None:
        if not self._has_loss:
            raise TogiError(
                "the recipe was applied without a loss, and your own loop computes it: go on with that, or give "
                "apply() step=, a function step(module, sample) -> loss"
            )

    def remove(self) -> None:
        """Take it off: module, optimizer and process are as before, but for what was trained meanwhile."""
        applied, self._step = self._step, dataclasses.replace(self._step, undone_by=())
        applied.undo()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()
