"""Puts the recipe of a tuned training step on a training of another library's trainer, and takes it off again."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from togi.artifact.training import AppliedRecipe, LossNeeded, TrainingRecipe
from togi.core.errors import Refused, TogiError
from togi.trainers.memory_budget import say

_on: weakref.WeakKeyDictionary[nn.Module, weakref.finalize[..., TunedStep]] = weakref.WeakKeyDictionary()
"""What takes off the recipes that are on modules."""


class TunedStep:
    """The recipe of one training at a time. It goes with this object, if nothing has taken it off before."""

    def __init__(self, recipe: TrainingRecipe | str | Path) -> None:
        self.recipe = recipe if isinstance(recipe, TrainingRecipe) else TrainingRecipe.read(recipe)
        self._take_off: Callable[[], object] | None = None

    def begin(self, module: nn.Module, optimizer: Any, *, autocast: str | None) -> None:
        """Put the recipe on the module and its optimizer; one that an interrupted training left there goes first.

        Args:
            autocast: the dtype that the trainer's autocast computes in, None without one.

        Raises:
            TogiError: the recipe is of another module or optimizer, needs the loss, which a trainer computes by
                itself, or cannot be applied in this process. Nothing is changed.
        """
        self.end()  # of a training that was interrupted: some trainers tell no callback of that
        if (another := _on.get(module)) is not None:
            another()
        label = self.recipe.recipe.label
        try:
            applied: AppliedRecipe = self.recipe.apply(module, optimizer)
        except LossNeeded:
            raise TogiError(
                f"{label} computes the loss in another way, and a trainer computes it by itself. Tune again with "
                "train_step=, which does what the trainer does with a batch, in place of step=: then nothing is tried "
                "that needs the loss"
            ) from None
        except Refused as refused:
            raise TogiError(
                f"{label} cannot be applied to this training: {str(refused).rstrip('.')}. Mend that, or leave the "
                "callback out"
            ) from None
        take_off = weakref.finalize(self, applied.remove)
        take_off.atexit = False  # a process that ends needs nothing put back
        self._take_off = _on[module] = take_off
        say(f"steps run with {label}")
        if autocast is not None:
            say(
                f"this trainer runs the forward pass under autocast {autocast}. The recipe was proven for the step "
                "that was tuned, so that one has to do the same"
            )

    def end(self) -> None:
        """Take the recipe off, where it is still on."""
        take_off, self._take_off = self._take_off, None
        if take_off is not None:
            take_off()
