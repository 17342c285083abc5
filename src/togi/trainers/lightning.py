"""For Lightning: ``Trainer(callbacks=[togi.lightning.LightningMemoryBudget("8GiB")])``, and
``LightningTunedStep("step.togi")`` for what ``togi tune --train`` found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.plugins.precision import DoublePrecision, HalfPrecision, MixedPrecision, Precision
from torch import Tensor

from togi.artifact.training import TrainingRecipe
from togi.core.errors import FitError
from togi.subject.inputs import Inputs
from togi.trainers.memory_budget import MemoryBudget, largest_batch, on_device_of, optimizer_name
from togi.trainers.tuned_step import TunedStep

_SMALLER = (
    "Lower the batch_size of the DataLoader and raise accumulate_grad_batches of the Trainer as much, which gives the "
    "same gradients where the loss is a mean over rows. What training_step computes outside of self(...) is not in the "
    "plan: let forward compute it"
)
_KNOWN = (
    "Let configure_optimizers return one of torch's AdamW, Adam or SGD, or give plan=..., the file that 'togi fit "
    "--out' wrote for this module"
)


_PRECISIONS: dict[type[Precision], dict[str, tuple[str | None, str | None]]] = {
    Precision: {"32-true": (None, None)},
    MixedPrecision: {"16-mixed": ("float16", None), "bf16-mixed": ("bfloat16", None)},
    HalfPrecision: {"16-true": (None, "float16"), "bf16-true": (None, "bfloat16")},
    DoublePrecision: {"64-true": (None, "float64")},
}
"""The plugins whose step can be repeated without a Trainer: by their precision, what autocast computes in, and the
default dtype of new tensors."""


class LightningMemoryBudget(Callback):
    """Makes training steps fit into ``memory``: parameters, gradients, optimizer state and activations.

    Before the first step a plan is made and proven in a process of its own, on a copy of the module: loss and gradients
    are those without it, to the bit. It covers what ``training_step`` computes by calling ``self(...)``, and is taken
    away when the training ends.
    """

    def __init__(
        self,
        memory: int | str,
        *,
        plan: str | Path | None = None,
        sample: Any = None,
        time_limit: float | str | None = None,
    ) -> None:
        """
        Args:
            memory: bytes, or ``"8GiB"``.
            plan: a file; the plan in it is used, and where there is none yet, the one that is made is written there.
            sample: the largest batch that ``training_step`` gets. None: the largest of the dataset's first eight.
            time_limit: for planning, as of ``togi.fit``.
        """
        super().__init__()
        self.budget = MemoryBudget(memory, plan, time_limit)
        self.sample = sample

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        _check_one_process(trainer, "LightningMemoryBudget plans for one device")
        optimizer = _only_optimizer(trainer, "a plan")
        autocast, default = _precision_of(trainer.precision_plugin)
        self.budget.begin(
            pl_module,
            lambda: on_device_of(pl_module, _as_argument(self._batch(trainer))),
            partial(training_loss, autocast=autocast, default=default),
            optimizer=lambda: optimizer_name(optimizer, _KNOWN),
            autocast=autocast,
            accumulates=trainer.accumulate_grad_batches > 1,
            remedy=f"{_SMALLER}.",
        )

    def _batch(self, trainer: Any) -> Any:
        """As the Trainer gives it to ``training_step``."""
        batch = self.sample if self.sample is not None else largest_batch(trainer.train_dataloader)
        return trainer.precision_plugin.convert_input(batch)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.budget.step_begins()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.budget.step_ends()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.budget.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.budget.end()


class LightningTunedStep(Callback):
    """Runs training steps with the recipe that ``togi tune --train`` found for the module and its optimizer.

    It is put on when the training begins, and taken off when it ends, also by an exception. What ``training_step``
    computes by calling ``self(...)`` runs in it.
    """

    def __init__(self, recipe: TrainingRecipe | str | Path) -> None:
        """
        Args:
            recipe: the record, or what ``togi tune --train --out`` wrote.

        Raises:
            ArtifactError: there is none of this version there.
        """
        super().__init__()
        self.tuned = TunedStep(recipe)

    def on_train_start(self, trainer: Any, pl_module: LightningModule) -> None:
        _check_one_process(trainer, "LightningTunedStep holds a recipe that was proven on one device")
        optimizer = _only_optimizer(trainer, "a recipe")
        plugin = trainer.precision_plugin
        autocast, _ = _PRECISIONS.get(type(plugin), {}).get(plugin.precision, (None, None))
        self.tuned.begin(pl_module, optimizer, autocast=autocast)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.remove()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.remove()

    def remove(self) -> None:
        """Take the recipe off, where it is still on."""
        self.tuned.end()


def training_loss(module: Any, batch: Any, *, autocast: str | None, default: str | None) -> Tensor:
    """The loss of ``training_step``, in the precision of the Trainer.

    Raises:
        FitError: it returns none, as with manual optimization.
    """
    with _in_precision(next(module.parameters()).device.type, autocast, default):
        outputs = module.training_step(batch, 0)
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    if not isinstance(loss, Tensor):
        raise FitError(
            "training_step returned no loss. Return it, alone or as 'loss' of a dict; with "
            "automatic_optimization=False no plan can be made"
        )
    return loss


@contextmanager
def _in_precision(device: str, autocast: str | None, default: str | None) -> Iterator[None]:
    """As the plugin's ``forward_context``: its autocast keeps no copies of the weights."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, default) if default else before)
    cast = torch.autocast(device, getattr(torch, autocast), cache_enabled=False) if autocast else nullcontext()
    try:
        with cast:
            yield
    finally:
        torch.set_default_dtype(before)


def _precision_of(plugin: Any) -> tuple[str | None, str | None]:
    """What autocast computes in, and the default dtype, each None where the plugin sets none."""
    try:
        return _PRECISIONS[type(plugin)][plugin.precision]
    except KeyError:
        raise FitError(
            f"this Trainer runs with the precision plugin {type(plugin).__name__}, and which memory a step takes under "
            "it is not known. Give Trainer one of precision='32-true', 'bf16-mixed', '16-mixed', 'bf16-true', "
            "'16-true' or '64-true', or leave the callback out"
        ) from None


def _as_argument(batch: Any) -> Inputs:
    """``training_step`` gets the batch as one argument, whatever it is."""
    return Inputs((batch,))


def _only_optimizer(trainer: Any, what: str) -> Any:
    if len(trainer.optimizers) != 1:
        raise FitError(
            f"configure_optimizers returned {len(trainer.optimizers)} optimizers: {what} is for a step with one"
        )
    return trainer.optimizers[0]


def _check_one_process(trainer: Any, what: str) -> None:
    if trainer.world_size > 1:
        raise FitError(
            f"{what}, and this Trainer runs on {trainer.world_size}: give Trainer(devices=1), or leave the callback out"
        )
