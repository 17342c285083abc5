"""Prepares a subject for measuring: a copy of the module, with its inputs, on one device."""

from __future__ import annotations

import copy
import inspect
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from togi.core.choices import Mode
from togi.core.device import parse_device
from togi.core.errors import SubjectError
from togi.core.quantities import first_line
from togi.machine import nvml
from togi.machine.limits import available_bytes
from togi.subject.calibration import calibration_inputs
from togi.subject.inputs import Inputs, Subject, samples_of_step
from togi.torch_internals.modules import compiled_original, in_training


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A subject ready to run."""

    module: nn.Module
    original: nn.Module
    """What it is a copy of: as it was handed over, without wrappers. Itself where it could not be copied."""
    samples: tuple[Inputs, ...]
    calibration: tuple[Inputs, ...]
    training: bool
    """It runs in training mode, or parts of it do."""
    notes: tuple[str, ...] = ()


def prepare(subject: Subject, *, device: str = "cpu", train: bool = False) -> Prepared:
    """A copy on ``device``, in the mode of ``mode_of``; the user's module stays as it was.

    ``train`` says that the caller is going to run a training step and sets the modes. So the samples are those of the
    step, no note speaks of eval(), and nothing is calibrated.

    A module that cannot be copied (a lock, an open file, a backend's session inside) is used itself, with a
    note: the caller is a process of its own.

    Raises SubjectError for a module without values (meta device, lazy parameters not yet initialised) or a device that
    is not there.
    """
    _check_device(device)
    notes = [*subject.notes]
    module = _unwrapped(subject.module, notes)
    _check_values(module)
    mode = mode_of(subject)
    if not train:
        _note_training(module, mode, notes)
    _note_devices(module, device, notes)
    copied = _copied(module, notes)
    samples = samples_of_step(subject) if train else subject.inputs
    if mode is Mode.EVAL:
        _set_eval(copied)
    return Prepared(
        module=_moved(copied, device),
        original=module,
        samples=tuple(sample.to(device) for sample in samples),
        calibration=() if train else tuple(sample.to(device) for sample in calibration_inputs(subject)),
        training=mode is Mode.AS_IS and next(training_parts(module), None) is not None,
        notes=tuple(notes),
    )


def mode_of(subject: Subject) -> Mode:
    """The mode that was asked for; else ``eval()`` for a module that is in training mode itself (the survey refuses it
    where that changes the answer). Parts that alone are in training mode were put into it, so they stay in it."""
    if subject.mode is not None:
        return Mode.of(subject.mode)
    return Mode.EVAL if is_undecided(subject) else Mode.AS_IS


def copy_to_ask(subject: Subject) -> nn.Module:
    """A copy in the mode of ``mode_of``, whose calls change nothing of the original. Of a model so large that a second
    one may not fit, it shares the parameters. Raises whatever copying raises."""
    module = _unwrapped(subject.module, [])
    copied = copy.deepcopy(module) if _fits_twice(module) else sharing_parameters(module)
    if mode_of(subject) is Mode.EVAL:
        _set_eval(copied)
    return copied


def _fits_twice(module: nn.Module) -> bool:
    """Whether a second one takes no more than half of the memory that is free."""
    sizes: dict[torch.device, int] = defaultdict(int)
    for parameter in module.parameters():
        sizes[parameter.device] += parameter.numel() * parameter.element_size()
    return all(2 * size <= _free_bytes(device) for device, size in sizes.items())


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    free = available_bytes() if device.type == "cpu" else None
    return math.inf if free is None else free


def is_undecided(subject: Subject) -> bool:
    """It is in training mode, and nobody said that this, or ``eval()``, is meant."""
    return subject.mode is None and given_in_training(subject)


def given_in_training(subject: Subject) -> bool:
    """The module itself, whatever it is wrapped in, was handed over in training mode."""
    return _is_training(_unwrapped(subject.module, []))


def in_given_modes(subject: Subject, prepared: nn.Module) -> nn.Module:
    """A copy of ``prepared`` that shares its parameters, in the mode that the subject was handed over in. Raises
    whatever copying raises."""
    copied = sharing_parameters(prepared)
    restore_modes(copied, subject.module)
    return copied


def sharing_parameters(module: nn.Module) -> nn.Module:
    """A copy of all but the parameters. Raises whatever copying raises."""
    return copy.deepcopy(module, {id(parameter): parameter for parameter in module.parameters()})


def _check_device(device: str) -> None:
    kind = torch.device(parse_device(device))
    gpu = nvml.read_gpu(device) if kind.type == "cuda" else None
    if gpu is not None and nvml.too_old(gpu, torch.version.cuda):  # NVML alone would call the device available
        raise SubjectError(
            f"device {device} was asked for, but driver {gpu.driver} serves CUDA {gpu.cuda}, and torch "
            f"{torch.__version__} was built for CUDA {torch.version.cuda}, so that it finds no device: "
            f"{nvml.update_driver(gpu, torch.version.cuda)}; --device cpu works."
        )
    if kind.type == "cuda" and not torch.cuda.is_available():
        raise SubjectError(
            f"device {device} was asked for, but torch {torch.__version__} sees no CUDA device here. "
            "'togi doctor' says why; --device cpu works."
        )
    if kind.type == "cuda" and (kind.index or 0) >= torch.cuda.device_count():
        last = torch.cuda.device_count() - 1
        raise SubjectError(f"device {device} was asked for, but the last CUDA device here is cuda:{last}: give that.")


def _unwrapped(module: nn.Module, notes: list[str]) -> nn.Module:
    """The module without the wrappers of torch.compile and of data parallelism: those are ways to run a module, not the
    module."""
    while True:
        inner = compiled_original(module)
        if inner is None and isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = module.module
        if not isinstance(inner, nn.Module):
            return module
        notes.append(f"The module was wrapped in {type(module).__name__}; what is inside was taken.")
        module = inner


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, each once."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def _check_values(module: nn.Module) -> None:
    for name, tensor in named_tensors(module):
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise SubjectError(
                f"'{name}' is a lazy parameter that has no size yet: call the module once in the factory, before it is "
                "returned, or every process would draw weights of its own."
            )
        if tensor.device.type == "meta":
            raise SubjectError(
                f"'{name}' is on the meta device: it has a shape but no values. Load the weights (to_empty, then "
                "load_state_dict) before handing the module over."
            )


def _copied(module: nn.Module, notes: list[str]) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # foreign code: __deepcopy__ and __reduce__ of anything that the module holds
        notes.append(
            f"The module cannot be copied ({type(error).__name__}: {first_line(error)}), so techniques that edit "
            "a copy of it will fail."
        )
        return module


def _is_training(module: nn.Module) -> bool:
    return in_training(module) and not is_exported(module)


def training_parts(module: nn.Module) -> Iterator[nn.Module]:
    """The module and its parts that are in training mode, as far as that means anything: not in an exported program."""
    if is_exported(module):
        return
    if in_training(module):
        yield module
    for child in module.children():
        yield from training_parts(child)


def is_exported(module: nn.Module) -> bool:
    """It is what ``ExportedProgram.module()`` returns: its ``train`` and ``eval`` raise and its flag says nothing,
    because the mode is part of the graph."""
    return isinstance(module, torch.fx.GraphModule) and "eval" in vars(module)


def _note_training(module: nn.Module, mode: Mode, notes: list[str]) -> None:
    parts = {type(part).__name__ for part in training_parts(module)}
    if not parts:
        return
    listed = f" ({', '.join(sorted(parts)[:3])})"
    subject_of = "It was" if _is_training(module) else "Parts of it were"
    note = f"{subject_of} handed over in training mode{'' if _is_training(module) else listed}"
    if mode is Mode.EVAL:
        notes.append(f"{note}; it is run in eval().")
    else:
        notes.append(f"{note}, and it is run so. If that is not meant, call eval() on it first.")


def _set_eval(module: nn.Module) -> None:
    if all(_switches_modes(part) for part in module.modules()):
        module.eval()
    else:
        for part in module.modules():
            part.training = in_training(part) and is_exported(part)


def restore_modes(module: nn.Module, original: nn.Module) -> None:
    """Each part of a prepared ``module`` in the mode that it was handed over in; an exported program has none.

    ``original`` is as it was given, with wrappers, which a prepared module does not have.
    """
    if is_exported(module):
        return
    original = _unwrapped(original, [])
    modes = {name: in_training(part) for name, part in original.named_modules()}
    for name, part in module.named_modules():
        part.training = modes.get(name, in_training(original))


def _switches_modes(module: nn.Module) -> bool:
    """Its ``train`` sets a mode: in an exported program it raises, and ultralytics' models start a training."""
    return not is_exported(module) and "mode" in inspect.signature(type(module).train).parameters


def _note_devices(module: nn.Module, device: str, notes: list[str]) -> None:
    devices = {str(tensor.device) for _, tensor in named_tensors(module)}
    elsewhere = sorted(name for name in devices if torch.device(name).type != torch.device(device).type)
    if elsewhere:
        notes.append(f"It was on {', '.join(elsewhere)} and was moved to {device}.")


def _moved(module: nn.Module, device: str) -> nn.Module:
    try:
        return module.to(device)
    except (RuntimeError, NotImplementedError) as error:
        raise SubjectError(
            f"the module cannot be moved to {device}: {first_line(error)}. If it does not fit, --device cpu works, or "
            "a smaller dtype"
        ) from error
