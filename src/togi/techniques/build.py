"""Applies the techniques of a recipe to a candidate, in order, and classifies what goes wrong."""

from __future__ import annotations

import hashlib
import traceback

import torch
from torch import Tensor, nn

from togi.core.errors import Refused, TogiError
from togi.core.quantities import first_line
from togi.core.records import Ending, Facts, Outcome, Recipe
from togi.graph.candidate import Candidate
from togi.measure.memory import is_out_of_memory
from togi.subject.inputs import Subject
from togi.subject.plain_tensors import stored
from togi.subject.prepare import prepare
from togi.subject.signature import Signature
from togi.subject.training import TrainingStep
from togi.techniques import technique
from togi.torch_internals.modules import forward_hook_counts, in_training


class StepFailed(Exception):
    """A technique raised while it was applied: an error, or Refused. ``__cause__`` is what it raised."""

    def __init__(self, technique: str) -> None:
        super().__init__(technique)
        self.technique = technique


def first_candidate(subject: Subject, facts: Facts, signature: Signature) -> Candidate:
    """The subject as the pipeline's start: a copy on the device."""
    ready = prepare(subject, device=facts.device)
    return Candidate(
        module=ready.module,
        samples=ready.samples,
        calibration=ready.calibration,
        signature=signature,
        facts=facts,
    )


def build(recipe: Recipe, candidate: Candidate) -> Candidate:
    """Apply the recipe.

    Raises StepFailed (a technique raised; Refused where it found that it does not apply), or UserModuleChanged.
    """
    before = fingerprint(candidate.module)
    module = candidate.module
    steps = [(technique(choice.technique), dict(choice.options)) for choice in recipe.choices]
    for step, options, change in [(*each, "configure") for each in steps] + [(*each, "apply") for each in steps]:
        try:
            candidate = getattr(step, change)(candidate, options)
        except Exception as error:  # foreign code: a technique and the backend below it
            raise StepFailed(step.id) from error
    if fingerprint(module) != before:
        raise UserModuleChanged
    return candidate


def build_step(recipe: Recipe, step: TrainingStep) -> TrainingStep:
    """Apply the recipe to a training step, in place. Raises StepFailed as ``build`` does; what was done until then is
    taken back."""
    for choice in recipe.choices:
        try:
            step = technique(choice.technique).apply_step(step, dict(choice.options))
        except Exception as error:  # foreign code: a technique and the backend below it
            step.undo()
            raise StepFailed(choice.technique) from error
    return step


class UserModuleChanged(Exception):
    """A technique changed the module it was given instead of a copy."""


def fingerprint(module: nn.Module) -> str:
    """Changes when a parameter, a buffer, a training flag, a hook or the module tree changes. Costs one read of all."""
    digest = hashlib.sha256()
    for name, part in module.named_modules():
        hooks = list(forward_hook_counts(part))
        digest.update(f"{name}|{type(part).__qualname__}|{in_training(part)}|{hooks}".encode())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        strides = tensor.stride() if tensor.layout is torch.strided else tensor.layout
        values = "|".join(map(_checksum, stored(tensor))) if tensor.device.type != "meta" else "-"
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|{strides}|{values}".encode())
    return digest.hexdigest()


def _checksum(tensor: Tensor) -> str:
    """Sum and alternating sum of the bytes as integers: exact, independent of NaN, at memory speed."""
    if tensor.device.type == "meta" or tensor.numel() == 0 or tensor.layout is not torch.strided:
        return "-"
    flat = tensor.detach().contiguous().flatten()
    size = flat.element_size()
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size)
    if integers is None:
        flat, integers = torch.view_as_real(flat).flatten(), torch.int64
    words = flat.view(integers)
    return f"{int(words.sum(dtype=torch.int64))},{int(words[::3].sum(dtype=torch.int64))}"


def classify(error: BaseException, stage: str) -> Ending:
    """Classify an exception of ``stage`` as an outcome, with its one line for people."""
    if isinstance(error, UserModuleChanged):
        return Ending(outcome=Outcome.WRONG, reason="it changed the user's module instead of a copy", stage=stage)
    where = error.technique if isinstance(error, StepFailed) else stage
    cause = error.__cause__ if isinstance(error, StepFailed) and error.__cause__ is not None else error
    if isinstance(cause, Refused):
        return Ending(outcome=Outcome.REFUSED, reason=str(cause), stage=where)
    outcome, reason, fix = Outcome.FAILED, f"{where} raised {type(cause).__name__}: {first_line(cause)}", ""
    if isinstance(cause, TogiError):  # written for people already
        reason = str(cause).rstrip(".")
    elif is_out_of_memory(cause):
        outcome, reason = Outcome.OUT_OF_MEMORY, f"{where} ran out of memory: {first_line(cause)}"
    elif isinstance(cause, ModuleNotFoundError) and cause.name and not cause.name.startswith("togi"):
        outcome, reason = Outcome.MISSING, f"{where} needs the package {cause.name}"
        fix = f"pip install {cause.name.split('.')[0]}"
    trace = "".join(traceback.format_exception(cause))
    return Ending(outcome=outcome, reason=reason, stage=where, fix=fix, traceback=trace)
