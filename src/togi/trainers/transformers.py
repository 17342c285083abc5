"""For the ``Trainer`` of transformers: ``Trainer(..., callbacks=[togi.transformers.TrainerMemoryBudget("8GiB")])``, and
``TrainerTunedStep("step.togi")`` for what ``togi tune --train`` found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback
from typing_extensions import Self

from togi.artifact.training import TrainingRecipe
from togi.core.errors import FitError
from togi.trainers.memory_budget import MemoryBudget, largest_batch, on_device_of, optimizer_name, say
from togi.trainers.tuned_step import TunedStep

_SMALLER = (
    "Lower per_device_train_batch_size and raise gradient_accumulation_steps as much in TrainingArguments, which gives "
    "the same gradients where the loss is a mean over rows"
)
_KNOWN = (
    "Set optim='adamw_torch', 'adamw_torch_fused' or 'sgd' in TrainingArguments, or give plan=..., the file that "
    "'togi fit --out' wrote for this model"
)


class TrainerMemoryBudget(TrainerCallback):
    """Makes training steps fit into ``memory``: parameters, gradients, optimizer state and activations.

    Before the first step a plan is made and proven in a process of its own, on a copy of the model: loss and gradients
    are those without it, to the bit. It is taken away when the training ends. The loss is the one that the model
    returns: what a Trainer with a loss of its own (compute_loss_func, compute_loss) takes for that is not in the plan.
    """

    def __init__(
        self,
        memory: int | str,
        *,
        plan: str | Path | None = None,
        sample: Mapping[str, Any] | None = None,
        time_limit: float | str | None = None,
    ) -> None:
        """
        Args:
            memory: bytes, or ``"8GiB"``.
            plan: a file; the plan in it is used, and where there is none yet, the one that is made is written there.
            sample: the largest batch that the model gets. None: the largest of the dataset's first eight.
            time_limit: for planning, as of ``togi.fit``.
        """
        self.budget = MemoryBudget(memory, plan, time_limit)
        self.sample = sample

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **given: Any) -> None:
        _check_one_process(args, "TrainerMemoryBudget plans for one device")
        autocast = _autocast_dtype(args)
        self.budget.begin(
            model,
            lambda: on_device_of(model, self.sample or largest_batch(given.get("train_dataloader"))),
            partial(loss_of, dtype=autocast),
            optimizer=lambda: optimizer_name(given.get("optimizer"), _KNOWN),
            autocast=autocast,
            accumulates=args.gradient_accumulation_steps > 1,
            remedy=f"{_SMALLER}.",
        )
        for note in _not_covered(args):
            say(note)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.budget.step_begins()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.budget.step_ends()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.budget.end()


class TrainerTunedStep(TrainerCallback):
    """Runs training steps with the recipe that ``togi tune --train`` found for the model and its optimizer.

    It is put on when the training begins, and taken off when it ends. A Trainer tells no callback of an exception: then
    ``remove``, the end of a ``with`` block around the training, or the next training of the model takes it off.
    """

    def __init__(self, recipe: TrainingRecipe | str | Path) -> None:
        """
        Args:
            recipe: the record, or what ``togi tune --train --out`` wrote.

        Raises:
            ArtifactError: there is none of this version there.
        """
        self.tuned = TunedStep(recipe)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **given: Any) -> None:
        _check_one_process(args, "TrainerTunedStep holds a recipe that was proven on one device")
        self.tuned.begin(model, given.get("optimizer"), autocast=_autocast_dtype(args))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.remove()

    def remove(self) -> None:
        """Take the recipe off, where it is still on."""
        self.tuned.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def loss_of(model: nn.Module, sample: Mapping[str, Any], *, dtype: str | None) -> Tensor:
    """The loss as the Trainer computes it: the model's own.

    Raises:
        FitError: the model returns none.
    """
    device = next(model.parameters()).device.type
    with torch.autocast(device, getattr(torch, dtype or "bfloat16"), enabled=dtype is not None):
        outputs = model(**sample)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs[0]
    if not isinstance(loss, Tensor):
        raise FitError(
            "the model returned no loss: a Trainer computes it where the batch has labels. Let the dataset (or "
            "sample=...) hold what TrainingArguments names as label_names"
        )
    return loss


def _autocast_dtype(args: Any) -> str | None:
    return "bfloat16" if args.bf16 else "float16" if args.fp16 else None


def _not_covered(args: Any) -> Iterator[str]:
    """What this training does otherwise than the plan takes for granted."""
    if args.label_smoothing_factor:
        yield (
            "the plan is for the loss that the model returns. With label_smoothing_factor the Trainer computes another "
            "one from the logits, and the memory of that is not in the plan"
        )
    if args.torch_compile:
        yield "a model under a plan runs eagerly, so torch_compile has no effect on its steps"


def _check_one_process(args: Any, what: str) -> None:
    if args.world_size > 1 or args.n_gpu > 1:
        raise FitError(
            f"{what}, and this Trainer runs on {max(args.world_size, args.n_gpu)} "
            f"({args.parallel_mode.value}): set CUDA_VISIBLE_DEVICES to one, or leave the callback out"
        )
