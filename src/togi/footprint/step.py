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

from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.footprint.account.record import Category
from togi.graph.dependence.candidates import with_objects_of_its_own
from togi.subject.batch import rows, shared_rows
from togi.subject.inputs import Inputs, Subject, as_given
from togi.subject.prepare import is_exported, prepare, restore_modes
from togi.torch_internals.modules import replace_tensors
from togi.torch_internals.tensors import FakeTensorMode, tensors_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
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
    loss: Callable[[nn.Module, Inputs], Tensor]
    optimizer: torch.optim.Optimizer | None = None
    notes: tuple[str, ...] = ()

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

    def train_once(self, show: Callable[[Tensor], None] = lambda _: None) -> None:
        """Forward, backward and the optimizer; gradients stay. ``show`` is called with the loss, and must not keep it:
        it goes before the optimizer comes."""
        loss = self.loss(self.module, self.sample)
        loss.backward()  # type: ignore[no-untyped-call]
        show(loss)
        del loss
        if self.optimizer is not None:
            self.optimizer.step()


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
        train: with backward. A module handed over in training mode keeps the mode of each of its parts; another is set
            to training as a whole. The loss is the subject's ``step``, else the mean of every floating-point output.
        batch: replaces the size of dimension 0, which all tensor inputs must share.
        dtype: ``bf16`` or ``fp16`` casts module and inputs; None leaves them.

    Raises:
        SubjectError: no parameter takes a gradient, or the inputs share no batch dimension.
    """
    prepared = prepare(subject, device=device, train=train)
    module, sample, notes = prepared.module, prepared.samples[0], list(prepared.notes)
    if train and not (subject.module.training or is_exported(module)):
        module.train()
    elif train:
        restore_modes(module, subject.module)
    if batch is not None:
        sample = with_batch(sample, batch)
    if dtype is not None:
        kind = DTYPES[dtype]
        module, sample = module.to(kind), sample.map(lambda t: t.to(kind) if t.is_floating_point() else t)
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if train and not parameters:
        raise SubjectError(
            "no parameter of the module takes a gradient, so there is no training step: set requires_grad on "
            "what is to be trained, or ask for inference."
        )
    if train and subject.step is None:
        notes.append("The subject has no step: the loss is the mean of all floating-point outputs.")
    return Step(
        module=module,
        sample=sample,
        train=train,
        loss=_own_loss(subject) if subject.step is not None else mean_of_outputs,
        optimizer=_OPTIMIZERS[optimizer](parameters) if train and optimizer != "none" else None,
        notes=tuple(notes),
    )


def with_batch(sample: Inputs, batch: int) -> Inputs:
    """The sample with ``batch`` rows: rows are repeated or left out. Tensors without dimensions stay."""
    if not shared_rows(sample):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in sample.tensors())
        raise SubjectError(
            f"the batch cannot be changed to {batch}: the inputs have the shapes {shapes}, which do not share the size "
            "of dimension 0. Give a sample of that batch size instead."
        )
    return sample.map(lambda tensor: rows(tensor, batch) if tensor.dim() > 0 else tensor)


def mean_of_outputs(module: nn.Module, sample: Inputs) -> Tensor:
    """The sum of the means of all floating-point outputs that take part in autograd."""
    outputs = module(*sample.args, **sample.kwargs)
    means = [tensor.float().mean() for tensor in tensors_of(outputs) if tensor.requires_grad]
    if not means:
        raise SubjectError(
            "no output of the module takes part in autograd, so there is nothing to differentiate. Give the subject a "
            "step(module, sample) -> loss."
        )
    return torch.stack(means).sum()


def _own_loss(subject: Subject) -> Callable[[nn.Module, Inputs], Tensor]:
    step = subject.step
    assert step is not None

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        loss_of_step = step(module, as_given(sample))
        if not isinstance(loss_of_step, Tensor) or loss_of_step.numel() != 1 or not loss_of_step.requires_grad:
            raise SubjectError(
                f"step(module, sample) returned {_describe(loss_of_step)}; it must return the loss: one floating-point "
                "value that depends on the parameters, before backward()."
            )
        return loss_of_step

    return loss


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} with requires_grad={value.requires_grad}"
    return a_type(value)


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
        groups = [
            {**group, "params": [fakes[id(parameter)] for parameter in group["params"]], "foreach": foreach}
            for group in optimizer.param_groups
        ]
        make: Any = type(optimizer)
        optimizer = make(groups)
    sample = step.sample.map(mode.from_tensor)
    with mode:
        return replace(step, sample=sample if batch is None else _of_batch(sample, batch), optimizer=optimizer)


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


def wait_for_device() -> None:
    """A GPU works on after a call returns; times are taken when it is done."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
