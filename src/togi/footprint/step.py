"""The run whose memory is asked for: one inference pass, or one training step with its optimizer.

What a subject leaves open is filled in here, the same for the account, the prediction and the plan: the loss where no
``step`` is given, the optimizer, the batch size, the dtype.

It can also be made on fake tensors: shapes, dtypes and strides of the real ones, and no values. They are on the CPU
even where another device is predicted: fake CUDA tensors fail under autograd in a torch that was built without CUDA,
and can abort the process. Source: torch.fx docs, "Fake tensor".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import Self

from togi.core.errors import SubjectError
from togi.footprint.account.record import Category
from togi.graph.dependence.candidates import with_objects_of_its_own
from togi.subject.batch import rows, shared_rows
from togi.subject.inputs import Inputs, Subject, with_own_containers
from togi.subject.optimizers import MakeOptimizer, again, made_optimizer
from togi.subject.prepare import prepare
from togi.subject.training import (
    LossFunction,
    OwnStep,
    ShowLoss,
    TrainingStep,
    mean_of_outputs,
    prepared_for_training,
)
from togi.torch_internals.cuda import wait_for_device
from togi.torch_internals.modules import replace_tensors
from togi.torch_internals.tensors import FakeTensorMode, tensors_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-6),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-6, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-6),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-6),
}


@dataclass(frozen=True, kw_only=True)
class Step:
    """One pass over one sample; with ``train`` also backward, and the optimizer's step where there is one."""

    module: nn.Module
    sample: Inputs
    train: bool
    loss: LossFunction
    optimizer: torch.optim.Optimizer | None = None
    make_optimizer: MakeOptimizer | None = None
    train_step: OwnStep | None = None
    own_loss: Callable[..., Any] | None = None
    """As of a ``TrainingStep``."""
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, training: TrainingStep) -> Self:
        """A training step on the first of its samples."""
        return cls(
            module=training.module,
            sample=training.samples[0],
            train=True,
            loss=training.loss,
            optimizer=training.optimizer,
            make_optimizer=training.make_optimizer,
            train_step=training.train_step,
            own_loss=training.own_loss,
            notes=training.notes,
        )

    def existing(self) -> Iterator[tuple[Category, Iterable[Tensor]]]:
        """The tensors that are there when it begins, by what they are for."""
        yield Category.PARAMETER, self.module.parameters()
        yield Category.BUFFER, self.module.buffers()
        yield Category.INPUT, self.sample.tensors()
        yield Category.OPTIMIZER, self.optimizer_state()

    def optimizer_state(self) -> list[Tensor]:
        return tensors_of(list(self.optimizer.state.values())) if self.optimizer is not None else []

    def run(self) -> None:
        """Once. Gradients are dropped at the end, as a training loop does before the next step."""
        if not self.train:
            with torch.no_grad():
                self.module(*self.sample.args, **self.sample.kwargs)
            return
        self.train_once()
        self.module.zero_grad()

    def train_once(self, show: ShowLoss = lambda _: None) -> None:
        """Forward, backward and the optimizer; gradients stay."""
        self.training.train_once(with_own_containers(self.sample), show)

    @property
    def training(self) -> TrainingStep:
        """The training step that it runs."""
        return TrainingStep(
            module=self.module,
            samples=(self.sample,),
            loss=self.loss,
            optimizer=self.optimizer,
            make_optimizer=self.make_optimizer,
            train_step=self.train_step,
            own_loss=self.own_loss,
        )


def make_step(
    subject: Subject,
    *,
    train: bool,
    optimizer: str = "none",
    batch: int | None = None,
    dtype: str | None = None,
    device: str = "cpu",
) -> Step:
    """The step of the subject's first sample, on a copy of its module.

    Args:
        train: with backward. The loss is the subject's ``step``, else the mean of every floating-point output; or its
            ``train_step`` does it all.
        optimizer: in place of the subject's own; ``none`` leaves that.
        batch: replaces the size of dimension 0, which all tensor inputs must share.
        dtype: ``bf16`` or ``fp16`` casts module and inputs; None leaves them.

    Raises:
        SubjectError: no parameter takes a gradient, or the inputs share no batch dimension.
    """
    prepared = prepared_for_training(subject, device=device) if train else prepare(subject, device=device)
    module, sample = prepared.module, prepared.samples[0]
    if batch is not None:
        sample = with_batch(sample, batch)
    if dtype is not None:
        kind = DTYPES[dtype]
        module, sample = module.to(kind), sample.map(lambda t: t.to(kind) if t.is_floating_point() else t)
    if not train:
        return Step(module=module, sample=sample, train=False, loss=mean_of_outputs, notes=prepared.notes)
    named = _OPTIMIZERS.get(optimizer)
    return Step.of(TrainingStep.on(module, (sample,), subject, make_optimizer=named, notes=prepared.notes))


def with_batch(sample: Inputs, batch: int) -> Inputs:
    """The sample with ``batch`` rows: rows are repeated or left out. Tensors without dimensions stay."""
    if not shared_rows(sample):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in sample.tensors())
        raise SubjectError(
            f"the batch cannot be changed to {batch}: the inputs have the shapes {shapes}, which do not share the size "
            "of dimension 0. Give a sample of that batch size instead."
        )
    return sample.map(lambda tensor: rows(tensor, batch) if tensor.dim() > 0 else tensor)


def fake_copy(step: Step) -> tuple[Step, FakeTensorMode]:
    """A copy of ``step`` on fake tensors, to be run under the mode returned; ``step`` stays as it is.

    It takes a fraction of a second and no memory. Optimizer state is there, as before any step but the first.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake = fake_step(replace(step, module=with_objects_of_its_own(step.module)), mode)
    if fake.optimizer is not None:
        with mode:
            fake.run()
    return fake, mode


def fake_step(step: Step, mode: FakeTensorMode, *, batch: int | None = None, foreach: bool | None = None) -> Step:
    """The step with every parameter, buffer and input of it replaced. Changes the module in place.

    Args:
        batch: rows of the inputs, as for ``make_step``; they are never made.
        foreach: whether the optimizer treats all parameters at once; None for its own choice, which is made by device.
    """
    fakes: dict[int, nn.Parameter] = {}
    replace_tensors(
        step.module,
        lambda parameter: fakes.setdefault(id(parameter), _fake_parameter(parameter, mode)),
        mode.from_tensor,
    )
    optimizer = step.optimizer
    if optimizer is not None:
        make = step.make_optimizer
        optimizer = again(optimizer, fakes) if make is None else made_optimizer(make, step.module)
        _choose_foreach(optimizer, foreach)
    sample = step.sample.map(mode.from_tensor)
    with mode:
        return replace(step, sample=sample if batch is None else _of_batch(sample, batch), optimizer=optimizer)


def _choose_foreach(optimizer: torch.optim.Optimizer, foreach: bool | None) -> None:
    """Where the optimizer leaves it open."""
    for group in optimizer.param_groups:
        if group.get("foreach", False) is None and not group.get("fused"):
            group["foreach"] = foreach


def _of_batch(sample: Inputs, batch: int) -> Inputs:
    """``with_batch`` without a list of as many tensors as rows; it also says whether there is a batch at all."""
    single = with_batch(sample, 1)
    return single.map(lambda tensor: tensor.new_empty((batch, *tensor.shape[1:])) if tensor.dim() else tensor)


def _fake_parameter(parameter: nn.Parameter, mode: FakeTensorMode) -> nn.Parameter:
    fake: Tensor = mode.from_tensor(parameter.detach())
    return nn.Parameter(fake, requires_grad=parameter.requires_grad)


def step_ms(step: Step) -> float:
    """Milliseconds of one run; on a GPU until it is done."""
    wait_for_device()
    started = time.perf_counter()
    step.run()
    wait_for_device()
    return (time.perf_counter() - started) * 1e3
