"""A subject: the user's module with its example inputs, and how it is called with one of them.

A *sample* is a tensor or an array, a tuple of positional arguments, a dict of keyword arguments, or ``Inputs``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from togi.core.choices import Direction, Mode
from togi.core.errors import SubjectError
from togi.core.quantities import a_type
from togi.subject.leaves import is_array
from togi.subject.nested import ENTER, is_opaque, mapped, replaced, tensors_in

if TYPE_CHECKING:
    import torch
    from torch import nn

    from togi.subject.validation import Validation

Dynamic = Mapping[str, Mapping[int, str] | Sequence[int]]
"""Input name -> dimensions that vary: ``{"input_ids": {0: "batch", 1: "sequence"}}`` or ``{"x": [0]}``."""


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call: ``module(*args, **kwargs)``."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, sample: Any) -> Inputs:
        """Normalise one sample. A list is refused: it could mean several samples or one list argument."""
        import torch

        if isinstance(sample, Inputs):
            return sample
        if isinstance(sample, torch.Tensor) or is_array(sample):
            return cls((sample,))
        if isinstance(sample, tuple):
            return cls(sample)
        if isinstance(sample, Mapping) and all(isinstance(key, str) for key in sample):
            return cls((), dict(sample))
        raise SubjectError(
            f"a sample is {a_type(sample)}, which togi cannot call the module with. "
            "Give a tensor or an array, a tuple of positional arguments, a dict of keyword arguments, or "
            "togi.Inputs(args, kwargs). A module whose argument is a list takes togi.Inputs(([image],))."
        )

    def map(self, change: Callable[[torch.Tensor], Any]) -> Inputs:
        """Every tensor, however deeply nested, replaced by ``change(tensor)``; containers are new, caches too."""
        return Inputs(mapped(self.args, change), mapped(dict(self.kwargs), change))

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor, however deeply nested, in order."""
        return tensors_in((self.args, dict(self.kwargs)))

    def clone(self) -> Inputs:
        """Fresh tensors and arrays with the same values and strides (an overlapping view becomes contiguous). Random
        generators get the same state."""
        return Inputs(replaced(self.args, _fresh, new=True), replaced(dict(self.kwargs), _fresh, new=True))

    def to(self, device: Any) -> Inputs:
        return self.map(lambda tensor: tensor.to(device))


def _fresh(part: Any) -> Any:
    import torch

    if isinstance(part, torch.Tensor):
        return _clone(part)
    if isinstance(part, torch.Generator):  # one that a call draws from would be another for the next call
        return part.clone_state()
    return copy.copy(part) if is_array(part) or isinstance(part, bytearray) else ENTER


def _copied(part: Any, memo: dict[int, Any]) -> Any:
    """The same object where it is code, or where it cannot be copied."""
    import torch

    from togi.subject.compared import is_code

    if is_code(part) or isinstance(part, torch.nn.Module):
        return part
    met = dict(memo)
    try:
        copied = copy.deepcopy(part, met)
    except Exception:  # foreign code: a lock or an open file in it
        return part
    memo.update(met)
    return copied


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if tensor.is_inference() or tensor.layout is not torch.strided:  # torch copies no sparse one of rows deeply
        return tensor.detach().clone()
    return copy.deepcopy(tensor.detach())


@dataclass(frozen=True)
class Subject:
    """A module with its example inputs: what is optimized.

    Args:
        module: the model. It is never changed; trials work on copies.
        samples: one sample or a list of samples; the latency that is minimised is one pass over all of them.
        metric: ``metric(outputs) -> float``: the outputs of one pass over the samples, in order. With it, approximate
            techniques are judged by the drop of the metric (``max_drop``). On validation data (the measure ``own``)
            ``metric(outputs, labels)``, or without labels ``metric(outputs)``: of the samples of one group at a time.
        calibration: samples for quantization: a list, a ``DataLoader`` or another iterable, or a folder of tensors or
            pictures. None: the samples are used, with a note.
        step: the loss of a training step, ``step(module, sample) -> loss``, for ``togi memory --train`` and
            ``togi fit``, which run its backward pass. It is given the sample as it is, of any type. A batch that is a
            list, as a DataLoader returns, is given as ``samples=[batch]``: a list holds several samples.
        dynamic: dimensions that vary beyond what the samples show.
        mode: ``eval`` calls ``eval()`` on the copies, ``as-is`` leaves each part in its mode. Needed only for a module
            in training mode that answers otherwise than in ``eval()``; parts that alone are in training mode stay so.
        better: which values of the metric are, ``higher`` or ``lower``. None: found by damaging copies of the model.
        validation: data by which accuracy is judged, apart from the samples (``togi.Validation``).
        optimizer: makes the optimizer of a training step from the parameters that take a gradient, with its groups and
            settings: ``lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)``.
        train_step: in place of ``step``, the whole body of a training loop, ``train_step(module, optimizer, sample) ->
            loss``, with backward pass, clipping, scaler, accumulation and schedule in it; it needs an ``optimizer``.
        notes: sentences that every report shows of it, such as what a folder was taken for.

    Raises UnknownNameError for another mode or direction, and SubjectError for parts of a training step that do not go
    together.
    """

    module: nn.Module
    samples: Any
    metric: Callable[..., float] | None = None
    calibration: Any = None
    step: Callable[..., Any] | None = None
    dynamic: Dynamic | None = None
    mode: Mode | str | None = None
    better: Direction | str | None = None
    validation: Validation | None = None
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] | None = None
    train_step: Callable[..., Any] | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.mode is not None:
            Mode.of(self.mode)
        if self.better is not None:
            Direction.of(self.better)
        _check_training(self.step, self.optimizer, self.train_step)

    @property
    def inputs(self) -> tuple[Inputs, ...]:
        return samples_of(self.samples)


def _check_training(step: Any, optimizer: Any, train_step: Any) -> None:
    if optimizer is not None and not callable(optimizer):
        raise SubjectError(
            f"optimizer is {a_type(optimizer)}, and togi trains copies of the module, which need optimizers of their "
            "own: give the function that makes one, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    if train_step is not None and optimizer is None:
        raise SubjectError(
            "train_step(module, optimizer, sample) needs an optimizer: give the function that makes it, "
            "optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)"
        )
    if train_step is not None and step is not None:
        raise SubjectError(
            "step and train_step are two ways to say what a training step does, and togi cannot know which is meant: "
            "give step(module, sample) -> loss, or train_step(module, optimizer, sample) -> loss for a loop body of "
            "your own"
        )


def apart(sample: Inputs) -> Inputs:
    """As ``clone``, and copies of all other objects that a call may write into, where their classes allow that. What
    is given twice is copied once."""
    memo: dict[int, Any] = {}

    def fresh(part: Any) -> Any:
        known = _fresh(part)
        return _copied(part, memo) if known is ENTER and is_opaque(part) else known

    return Inputs(replaced(sample.args, fresh, new=True), replaced(dict(sample.kwargs), fresh, new=True))


def given_anew(copied: Callable[[Inputs], Inputs] = apart) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Gives a call a copy of its arguments, for calls that write into them."""

    def given(args: Any, kwargs: Any) -> tuple[Any, Any]:
        fresh = copied(Inputs(args, kwargs))
        return fresh.args, fresh.kwargs

    return given


def as_given(sample: Inputs) -> Any:
    """The sample in the form that ``step_sample`` was given, which a training step expects."""
    if sample.kwargs:
        return dict(sample.kwargs) if not sample.args else sample
    return sample.args[0] if len(sample.args) == 1 else sample.args


def step_sample(sample: Any) -> Inputs:
    """The sample of a training step, which is one argument of the user's function, whatever it is: ``as_given`` hands
    out a tensor, tuple or dict as such, and any other object (a list, a tuple of one, a BatchEncoding) as it is."""
    if type(sample) is tuple and len(sample) != 1:
        return Inputs(sample)
    if type(sample) is dict and sample and all(isinstance(key, str) for key in sample):
        return Inputs((), dict(sample))
    return sample if isinstance(sample, Inputs) else Inputs((sample,))


def with_own_containers(sample: Inputs) -> Inputs:
    """The same tensors in new containers: a step may take a batch apart (``batch.pop("labels")``) and is repeated."""
    return sample.map(lambda tensor: tensor)


def samples_of_step(subject: Subject) -> tuple[Inputs, ...]:
    """The samples of the subject's training step; without a function of the user's they are calls of the module."""
    own = subject.step is not None or subject.train_step is not None
    return samples_of(subject.samples, step_sample if own else Inputs.of)


def samples_of(samples: Any, read: Callable[[Any], Inputs] = Inputs.of) -> tuple[Inputs, ...]:
    """One sample, or a list of samples, as a non-empty tuple of ``Inputs``."""
    calls = tuple(map(read, samples)) if isinstance(samples, list) else (read(samples),)
    if not calls:
        raise SubjectError("the list of samples is empty: togi needs at least one example input to run the module with")
    return calls
