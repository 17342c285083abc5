"""All that one training step does, observed: its loss, each gradient as the backward pass leaves it, each update, the
buffers, the optimizer's state and settings, and the random state.

A gradient is taken by a hook as soon as it is added up: clipping, unscaling and normalising optimizers hide a gradient
that is wrong by a factor.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from togi.subject.behaviour import GeneratorStates
from togi.subject.inputs import Inputs
from togi.subject.optimizers import settings_of, state_tensors
from togi.subject.plain_tensors import plain
from togi.subject.prepare import named_tensors
from togi.subject.remembered import numbers_of
from togi.subject.resting import resting
from togi.subject.surroundings import Surroundings
from togi.subject.training import TrainingStep
from togi.torch_internals.autograd import version_of
from togi.verify.compare import identical


@dataclass(frozen=True, kw_only=True)
class ObservedStep:
    """The record of a step, and of the steps after it. Tensors are dense copies on the CPU, by the names that errors
    carry: ``loss``, ``gradient layer1.weight``, ``update layer1.weight``, ``buffer bn.running_mean``, ``state
    layer1.weight.exp_avg``, ``setting lr of group 0``, ``kept scaler._scale``, ``kept module.layer1.calls``."""

    tensors: dict[str, Tensor]
    later: dict[str, Tensor]
    """Of the steps after it: losses, gradients, and at last updates and buffers since the beginning. What an optimizer
    that runs seldom, or clipping, keeps out of the updates shows in the gradients."""
    generators: GeneratorStates
    optimizer_steps: int
    """How often the optimizer ran in the first step."""
    structure: tuple[str, ...]
    """Names of parameters and buffers that came or went."""
    first_ms: float = 0.0
    """What the first step took, with all that was compiled in it."""
    parts: int = 1
    """In how many parts it ran the batch."""

    def all(self) -> dict[str, Tensor]:
        return self.tensors | self.later

    def without(self, names: Collection[str]) -> ObservedStep:
        """The record without some of the tensors of the first step."""
        return replace(self, tensors={name: t for name, t in self.tensors.items() if name not in names})

    def differing(self, other: ObservedStep) -> list[str]:
        """Names of tensors that differ in a bit, or that one of the two does not have."""
        own, others = self.all(), other.all()
        return [
            name
            for name in own | others
            if name not in own or name not in others or not identical(own[name], others[name])
        ]


COUNTED = "kept module."
"""Begins the names of numbers in attributes of modules, of those that the step changes."""
Around = Callable[[], AbstractContextManager[Any]]
"""Makes what surrounds every run of a step, such as float64 arithmetic."""
Keep = Callable[[str, Tensor], Tensor | None]
"""Makes of a tensor, which is there for a moment, what is kept by its name; None where nothing is. Of a gradient that
is added up in parts it is called for each sum, and the last one counts."""


def kept_whole(_name: str, tensor: Tensor) -> Tensor:
    return resting(tensor)


def observe_steps(
    step: TrainingStep,
    samples: Sequence[Inputs],
    original: TrainingStep,
    around: Around = nullcontext,
    keep: Keep = kept_whole,
) -> ObservedStep:
    """Run ``step`` on the first sample and observe it, then on the others, of which less is kept.

    ``original`` is the step that it stands for: a candidate may wrap its ``train_step``, which keeps the same objects.

    Raises whatever the step raises.
    """
    before = {name: resting(plain(parameter)) for name, parameter in step.parameters.items()}
    names, numbers = names_of(step), numbers_of(step.original)
    first, *others = samples
    watch = _StepWatch(step, keep)
    with watch.watching(), around():
        began = time.perf_counter()
        step.run(first.clone(), watch.take_loss)
        first_ms = (time.perf_counter() - began) * 1e3
    watch.take_what_no_hook_saw()
    surroundings = Surroundings(original.train_step, step.optimizer, original.own_loss)
    tensors = {"loss": keep("loss", watch.losses[0]), **watch.gradients}
    kept = ((f"kept {name}", plain(tensor)) for name, tensor in surroundings.tensors().items())
    for name, tensor in itertools.chain(_moved(step, before), _of_optimizer(step), kept, _counted(step, numbers)):
        tensors[name] = keep(name, tensor)
    generators = GeneratorStates.now()
    later: dict[str, Tensor | None] = {}
    for number, sample in enumerate(others, 2):
        again = _StepWatch(step, keep, f" of step {number}")
        with again.watching(), around():
            step.run(sample.clone(), again.take_loss)
        again.take_what_no_hook_saw()
        loss = f"loss{again.suffix}"
        later |= {loss: keep(loss, again.losses[0]), **again.gradients}
    for name, tensor in _moved(step, before) if others else ():
        moved = f"{name} after {len(samples)} steps"
        later[moved] = keep(moved, tensor)
    return ObservedStep(
        tensors=_known(tensors),
        later=_known(later),
        generators=generators,
        optimizer_steps=watch.optimizer_steps,
        structure=tuple(sorted(names ^ names_of(step))),
        first_ms=first_ms,
        parts=step.parts,
    )


@contextmanager
def counting_steps(step: TrainingStep) -> Iterator[list[int]]:
    """A list with one entry, which counts how often the optimizer runs."""
    count = [0]

    def counted(*_: Any) -> None:
        count[0] += 1

    handle = None if step.optimizer is None else step.optimizer.register_step_pre_hook(counted)
    try:
        yield count
    finally:
        if handle is not None:
            handle.remove()


@dataclass
class _StepWatch:
    """Takes what is there for a moment only: the loss, and gradients before anything changes them."""

    step: TrainingStep
    keep: Keep
    suffix: str = ""
    """Of the names of all that it takes."""
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    """By the names that errors carry."""
    losses: list[Tensor] = field(default_factory=list)
    optimizer_steps: int = 0

    def __post_init__(self) -> None:
        self._found = {
            name: (parameter.grad, version_of(parameter.grad))
            for name, parameter in self.step.parameters.items()
            if parameter.grad is not None
        }

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for name, parameter in self.step.parameters.items():
                if parameter.requires_grad:
                    handle = parameter.register_post_accumulate_grad_hook(self._taker(name))  # type: ignore[no-untyped-call]
                    stack.callback(handle.remove)
            count = stack.enter_context(counting_steps(self.step))
            if self.step.optimizer is not None:
                before_it = self.step.optimizer.register_step_pre_hook(lambda *_: self.take_what_no_hook_saw())
                stack.callback(before_it.remove)
            yield
            self.optimizer_steps = count[0]

    def take_loss(self, loss: Tensor) -> None:
        self.losses.append(_loss(loss))

    def take_what_no_hook_saw(self) -> None:
        """Gradients that were assigned, as after ``torch.autograd.grad``; not those that were there before the step."""
        for name, parameter in self.step.parameters.items():
            gradient = parameter.grad
            if gradient is None or self._name(name) in self.gradients or self._is_old(name, gradient):
                continue
            self._take(name, gradient)

    def _is_old(self, name: str, gradient: Tensor) -> bool:
        found, version = self._found.get(name, (None, 0))
        return gradient is found and version_of(gradient) == version

    def _taker(self, name: str) -> Callable[[nn.Parameter], None]:
        def take(parameter: nn.Parameter) -> None:
            if parameter.grad is not None:
                self._take(name, parameter.grad)

        return take

    def _take(self, name: str, gradient: Tensor) -> None:
        self.gradients[self._name(name)] = self.keep(self._name(name), plain(gradient))

    def _name(self, parameter: str) -> str:
        return f"gradient {parameter}{self.suffix}"


def _moved(step: TrainingStep, before: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Updates since ``before``, and buffers."""
    for name, parameter in step.parameters.items():
        after = plain(parameter)
        if name in before and after.shape == before[name].shape:
            yield f"update {name}", after - before[name]
    for name, buffer in step.original.named_buffers():
        yield f"buffer {name}", plain(buffer)


def _counted(step: TrainingStep, before: Mapping[str, bool | int | float]) -> Iterator[tuple[str, Tensor]]:
    """Numbers in attributes of modules that are others than before."""
    for name, number in numbers_of(step.original).items():
        if number != before.get(name):
            yield f"{COUNTED}{name}", torch.tensor(float(number), dtype=torch.float64)


def _of_optimizer(step: TrainingStep) -> Iterator[tuple[str, Tensor]]:
    """Its state, and the settings of its groups."""
    if step.optimizer is None:
        return
    for name, tensor in state_tensors(step.optimizer, step.parameters):
        yield f"state {name}", plain(tensor)
    for name, number in settings_of(step.optimizer).items():
        yield f"setting {name}", torch.tensor(number, dtype=torch.float64)


def _known(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def names_of(step: TrainingStep) -> set[str]:
    """Of all parameters and buffers."""
    return {name for name, _ in named_tensors(step.original)}


def _loss(loss: Tensor) -> Tensor:
    return plain(loss).clone().reshape(())
