"""A training step: a module, its loss and its optimizer, run on one sample at a time; and the state it begins with.

With ``step(module, sample) -> loss`` the loop is togi's: gradients dropped, forward, backward, the optimizer's step. A
``train_step(module, optimizer, sample) -> loss`` is the whole body of a loop: it clips, scales, accumulates and
schedules by itself. ``Snapshot`` holds what either begins with, so that several runs can begin alike.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import Self

from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.core.records import Record
from togi.subject.behaviour import GeneratorStates
from togi.subject.inputs import Inputs, Subject, as_given
from togi.subject.optimizers import MakeOptimizer, OptimizerState, again, made_optimizer, trainable
from togi.subject.prepare import Prepared, given_in_training, is_exported, named_tensors, prepare, restore_modes
from togi.subject.remembered import numbers_of, put_numbers
from togi.subject.resting import resting
from togi.subject.surroundings import Surroundings
from togi.torch_internals.autograd import version_of
from togi.torch_internals.modules import compiled_original, has_hooks, in_training, own_buffers
from togi.torch_internals.tensors import tensors_of

LossFunction = Callable[[nn.Module, Inputs], Tensor]
OwnStep = Callable[[nn.Module, Optimizer, Any], Any]
ShowLoss = Callable[[Tensor], None]
"""Is called with the loss, and must not keep it: its graph goes before the optimizer comes."""


def _nobody(_: Tensor) -> None:
    """Nobody asks for the loss."""


@dataclass(frozen=True, kw_only=True)
class TrainingStep:
    """One step of a training loop, on a module that nobody else trains."""

    module: nn.Module
    samples: tuple[Inputs, ...]
    loss: LossFunction
    optimizer: Optimizer | None = None
    make_optimizer: MakeOptimizer | None = None
    """Makes the optimizer of a copy. None: one of the same class, with the same groups."""
    train_step: OwnStep | None = None
    """The user's own loop body, in the place of ``loss`` and all that follows it."""
    own_loss: Callable[..., Any] | None = None
    """The user's own function of which ``loss`` is made: what it keeps outside, such as a count, is the step's."""
    parts: int = 1
    """In how many parts ``loss`` runs the batch."""
    loss_is_compiled: bool = False
    """``loss`` runs in code that ``torch.compile`` makes of it."""
    plan: Record | None = None
    """Says what of the forward pass is not kept (``togi.footprint.fit.plan.Plan``). What is built of a step that has
    one makes none."""
    notes: tuple[str, ...] = ()
    undone_by: tuple[Callable[[], object], ...] = ()
    """What puts back what was changed in place, the last change first."""

    @classmethod
    def of(cls, subject: Subject, *, device: str = "cpu") -> Self:
        """The step of a copy of the subject's module.

        Raises SubjectError where there is nothing to train, or no optimizer that can train it.
        """
        prepared = prepared_for_training(subject, device=device)
        return cls.on(prepared.module, prepared.samples, subject, notes=prepared.notes)

    @classmethod
    def on(
        cls,
        module: nn.Module,
        samples: tuple[Inputs, ...],
        subject: Subject,
        *,
        make_optimizer: MakeOptimizer | None = None,
        notes: tuple[str, ...] = (),
    ) -> Self:
        """The subject's step on a module that was prepared. ``make_optimizer`` takes the place of the subject's own.

        Raises SubjectError as ``of`` does.
        """
        if not trainable(module):
            raise SubjectError(
                "no parameter of the module takes a gradient, so there is no training step: set requires_grad on "
                "what is to be trained, or ask for inference."
            )
        if subject.step is None and subject.train_step is None:
            notes = (*notes, "The subject has no step: the loss is the mean of all floating-point outputs.")
        check_surroundings(subject.train_step)
        make = make_optimizer or subject.optimizer
        return cls(
            module=module,
            samples=samples,
            loss=mean_of_outputs if subject.step is None else checked_loss(subject.step),
            optimizer=None if make is None else made_optimizer(make, module),
            make_optimizer=make,
            train_step=subject.train_step,
            own_loss=subject.step,
            notes=notes,
        )

    @property
    def original(self) -> nn.Module:
        """The module, without the wrapper of ``torch.compile``."""
        inner = compiled_original(self.module)
        return inner if isinstance(inner, nn.Module) else self.module

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """By name; a tied one has its first."""
        return dict(self.original.named_parameters())

    @property
    def surroundings(self) -> Surroundings:
        """What the user's function keeps outside of module and optimizer."""
        return Surroundings(self.train_step, self.optimizer, self.own_loss)

    def run(self, sample: Inputs, show: ShowLoss = _nobody) -> None:
        """Run one step of a loop, which first drops the gradients of the step before."""
        if self.train_step is None:
            self.module.zero_grad()
        self.train_once(sample, show)

    def train_once(self, sample: Inputs, show: ShowLoss = _nobody) -> None:
        """Run forward, backward and the optimizer; gradients are added, and stay."""
        if self.train_step is not None:
            assert self.optimizer is not None  # a subject with a train_step has one
            show(_returned_loss(self.train_step(self.module, self.optimizer, as_given(sample))))
            return
        loss = self.loss(self.module, sample)
        loss.backward()  # type: ignore[no-untyped-call]
        show(loss)
        del loss
        if self.optimizer is not None:
            self.optimizer.step()

    def changed(self, undo: Callable[[], object], note: str = "", **fields: Any) -> Self:
        """The step after a change in place, which ``undo`` takes back, with other values for these fields."""
        notes = (*self.notes, note) if note else self.notes
        return replace(self, undone_by=(undo, *self.undone_by), notes=notes, **fields)

    def undo(self) -> None:
        """Take back all changes in place. Where one cannot be, the others are, and its error is raised at the end."""
        with ExitStack() as stack:
            for undo in reversed(self.undone_by):
                stack.callback(undo)

    def copy(self, copied: Callable[[nn.Module], nn.Module] = copy.deepcopy) -> Self:
        """A step on a copy of the module, with an optimizer that has not run. ``copied`` may change the dtype.

        What the user's function keeps outside of both is shared (see ``undisturbed``). Raises whatever copying raises.
        """
        module = copied(self.module)
        if self.optimizer is None:
            return replace(self, module=module)
        if self.make_optimizer is not None:
            return replace(self, module=module, optimizer=made_optimizer(self.make_optimizer, module))
        theirs = dict(module.named_parameters())
        counterparts = {id(parameter): theirs[name] for name, parameter in self.parameters.items()}
        return replace(self, module=module, optimizer=again(self.optimizer, counterparts))

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Leave generators, the numbers that modules count, and what the user's function keeps outside of module and
        optimizer, as they are now."""
        surroundings, states = self.surroundings, GeneratorStates.now()
        values, numbers = surroundings.read(), numbers_of(self.original)
        try:
            yield
        finally:
            states.restore()
            put_numbers(self.original, numbers)
            surroundings.write(values)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that a training step begins with: parameters, buffers, gradients, modes, what is frozen, the numbers that
    modules count, the optimizer's state and settings, the state of every generator, and what the user's function keeps
    elsewhere."""

    tensors: dict[str, Tensor]
    """Parameters and buffers."""
    gradients: dict[str, Tensor | None]
    modes: dict[str, bool]
    trained: dict[str, bool]
    """Of each parameter, whether it takes a gradient."""
    numbers: dict[str, bool | int | float]
    """In attributes of modules."""
    optimizer: OptimizerState
    generators: GeneratorStates
    surroundings: dict[str, Any]

    @classmethod
    def of(cls, step: TrainingStep) -> Self:
        return cls(
            tensors={name: resting(tensor) for name, tensor in named_tensors(step.original)},
            gradients={name: None if p.grad is None else resting(p.grad) for name, p in step.parameters.items()},
            modes={name: in_training(part) for name, part in step.original.named_modules()},
            trained={name: parameter.requires_grad for name, parameter in step.parameters.items()},
            numbers=numbers_of(step.original),
            optimizer=OptimizerState(step.optimizer, step.parameters),
            generators=GeneratorStates.now(),
            surroundings=step.surroundings.read(),
        )

    def restore(self, step: TrainingStep) -> None:
        """Put all of it into a step of the same module, in place; that one may be in another dtype."""
        own = dict(named_tensors(step.original))
        for name, tensor in self.tensors.items():
            _put(step.original, name, own.get(name), tensor)
        for name, parameter in step.parameters.items():
            gradient = self.gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter, copy=True)
            if self.trained.get(name, parameter.requires_grad) != parameter.requires_grad:
                parameter.requires_grad_(self.trained[name])
        for name, part in step.original.named_modules():
            if self.modes.get(name, in_training(part)) != in_training(part):
                part.training = self.modes[name]
        put_numbers(step.original, self.numbers)
        self.optimizer.write(step.optimizer, step.parameters)
        step.surroundings.write(self.surroundings)
        self.generators.restore()


def _put(module: nn.Module, name: str, there: Tensor | None, value: Tensor) -> None:
    """In place, where a tensor of that shape is there; a buffer that was replaced by one of another size is set."""
    if there is not None and there.shape == value.shape:
        with torch.no_grad():
            there.copy_(value)
        return
    owner, _, attribute = name.rpartition(".")
    if attribute in (buffers := own_buffers(module.get_submodule(owner))):
        buffers[attribute] = value.to(buffers[attribute] if there is not None else value, copy=True)


def prepared_for_training(subject: Subject, *, device: str = "cpu") -> Prepared:
    """A copy that trains. A module handed over in training mode keeps the mode of each of its parts; another is set to
    training as a whole."""
    _check_hooks(subject.module)
    prepared = prepare(subject, device=device, train=True)
    if given_in_training(subject) or is_exported(prepared.module):
        restore_modes(prepared.module, subject.module)
    else:
        prepared.module.train()
    return prepared


def _check_hooks(module: nn.Module) -> None:
    if hooked := [name for name, parameter in module.named_parameters() if has_hooks(parameter)]:
        raise SubjectError(
            f"{', '.join(hooked[:3])} {'has' if len(hooked) == 1 else 'have'} hooks (register_hook, "
            "register_post_accumulate_grad_hook). A copy of a parameter has none, so togi would train without them: do "
            "in train_step what they do, or leave them out"
        )


def check_surroundings(train_step: OwnStep | None) -> None:
    """Raises SubjectError for what is of an optimizer that is not the one that ``train_step`` is given."""
    surroundings = Surroundings(train_step, None)
    if outside := surroundings.optimizers:
        raise SubjectError(
            f"train_step uses an optimizer from outside ({', '.join(outside)}), and togi trains a copy, whose "
            "parameters that one does not have. Use the optimizer that train_step is given; parameters that are "
            "trained in another way are groups of it"
        )
    if outside := surroundings.schedules:
        raise SubjectError(
            f"train_step uses what holds another optimizer ({', '.join(outside)}), and togi trains a copy, with an "
            "optimizer of its own, whose rates that one does not set. Make the schedule in optimizer(parameters) and "
            "keep it there: optimizer.schedule = LambdaLR(optimizer, ...), then optimizer.schedule.step() in train_step"
        )


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


def checked_loss(step: Callable[..., Any]) -> LossFunction:
    """The user's ``step(module, sample)``. Calling it raises SubjectError for what is not a loss, and for a first
    call that runs the backward pass by itself."""
    is_known = False

    def observed(module: nn.Module, sample: Inputs) -> Any:
        """Once, since asking every parameter takes time."""
        nonlocal is_known
        before = _gradients(module)
        returned = step(module, as_given(sample))
        is_known = True
        if _gradients(module) != before:
            raise SubjectError(
                "step(module, sample) calls backward() by itself, and togi calls it once more, which would double the "
                "gradients. Return the loss before backward(), or give all of it, with the optimizer's step, as "
                "train_step(module, optimizer, sample)"
            )
        return returned

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        compiling = torch.compiler.is_compiling()
        loss_of_step = step(module, as_given(sample)) if compiling or is_known else observed(module, sample)
        if not isinstance(loss_of_step, Tensor) or loss_of_step.numel() != 1 or not loss_of_step.requires_grad:
            raise SubjectError(
                f"step(module, sample) returned {_describe(loss_of_step)}; it must return the loss: one floating-point "
                "value that depends on the parameters, before backward()."
            )
        return loss_of_step

    return loss


def _gradients(module: nn.Module) -> list[tuple[int, int] | None]:
    """Which tensors they are, and how often each was written to."""
    gradients = [parameter.grad if parameter.is_leaf else None for parameter in module.parameters()]
    return [None if gradient is None else (id(gradient), version_of(gradient)) for gradient in gradients]


def _returned_loss(loss: Any) -> Tensor:
    if isinstance(loss, int | float):
        return torch.tensor(float(loss))
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise SubjectError(
            f"train_step(module, optimizer, sample) returned {_describe(loss)}; it must return the loss of the sample: "
            "one number, after backward() and optimizer.step()."
        )
    return loss


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} with requires_grad={value.requires_grad}"
    return a_type(value)
