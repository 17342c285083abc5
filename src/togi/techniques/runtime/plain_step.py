"""The technique ``plain_step``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts, Recipe, Stage
from togi.techniques.base import Applies, Options, Refuses, StepTechnique

if TYPE_CHECKING:
    from togi.subject.training import TrainingStep


class PlainStep(StepTechnique):
    """Run the training step as it is.

    What it does: nothing. The user's own step, in a process as the user's own is (malloc gives freed memory back), is
    the reference of every speed-up of a training step.

    When it applies: always.

    When it refuses: never.

    Claim: none.

    Source: none.

    Cost and risk: none.
    """

    id = "plain_step"
    stage = Stage.RUNTIME
    rank = 1
    provides = frozenset({"grad_mode"})
    conflicts = frozenset({"grad_mode"})
    step_to_the_bit = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Applies()

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        return step

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str:
        return ""
