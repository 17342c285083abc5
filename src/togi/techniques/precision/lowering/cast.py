"""Running a module in a lower floating-point type with the caller's own types outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.footprint.fit.forward import ReplacedForward, why_not_replaceable
from togi.graph.candidate import Candidate
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.subject.training import TrainingStep
from togi.torch_internals.tensors import tree_map_only


class CastModule(nn.Module):
    """``module`` holds weights of ``dtype``; floating inputs are cast to it, outputs back to the original's types."""

    def __init__(self, module: nn.Module, signature: Signature, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.signature = signature
        self.dtype = dtype
        self.restore = restoring(signature)
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        tensors = [_lowered(t, self.dtype) for t in self.signature.flatten_inputs(args, kwargs)]
        args, kwargs = self.signature.build_inputs(tensors)
        return self.restore(self.module(*args, **kwargs))


class AutocastModule(nn.Module):
    """Weights and inputs keep their types; the operators that gain from it run in ``dtype``."""

    def __init__(self, module: nn.Module, signature: Signature, dtype: torch.dtype) -> None:
        super().__init__()
        self.module = module
        self.device_type = signature.device
        self.dtype = dtype
        self.restore = restoring(signature)
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # Without its cache: it holds cast weights by identity, and tracing records the first call's copies.
        with torch.autocast(self.device_type, self.dtype, cache_enabled=False):
            output = self.module(*args, **kwargs)
        return self.restore(output)


class ForwardUnderAutocast(ReplacedForward):
    """Stands where a module's ``forward`` stood. It runs under autocast, and what it returns in ``dtype`` comes back in
    float32: whatever follows is none of its own."""

    of_plan: ClassVar[bool] = False

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        super().__init__(module)
        self.dtype = dtype

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.retired:
            return self.original(*args, **kwargs)
        with torch.autocast(next(self.module.parameters()).device.type, self.dtype):
            found = self.original(*args, **kwargs)
        return tree_map_only(torch.Tensor, lambda t: t.float() if t.dtype is self.dtype else t, found)


def step_under_autocast(step: TrainingStep, dtype: torch.dtype) -> TrainingStep:
    """The training step with its forward pass and loss under autocast; its backward pass runs in the types of those. In
    a loop body of the user's own it is the module's calls alone.

    Raises Refused where its ``forward`` cannot be replaced.
    """
    if step.train_step is not None:
        if reason := why_not_replaceable(step.original):
            raise Refused(f"its calls cannot be put under autocast: {reason}")
        forward = ForwardUnderAutocast(step.original, dtype)
        forward.put()
        return step.changed(forward.take_away)
    device, plain = next(step.original.parameters()).device.type, step.loss

    def loss(module: nn.Module, sample: Inputs) -> Tensor:
        with torch.autocast(device, dtype):
            return plain(module, sample)

    return step.changed(lambda: None, loss=loss)


def lower(candidate: Candidate, dtype: torch.dtype, how: str) -> Candidate:
    """The candidate computing in ``dtype``: ``how`` is ``cast`` or ``autocast``.

    Raises Refused where outputs have no tensor form, or nothing is computed in floating point.
    """
    signature = candidate.signature
    if signature.opaque:
        raise Refused(f"outputs must be cast back, and {signature.opaque}")
    if how == "autocast":
        return candidate.with_(module=AutocastModule(candidate.module, signature, dtype))
    module = candidate.copy()
    if not _cast_weights(module, dtype) and not any(f.dtype.startswith("float") for f in signature.inputs_facts):
        raise Refused("neither a weight nor an input is floating point: there is nothing to cast")
    return candidate.with_(module=CastModule(module, signature, dtype))


def restoring(signature: Signature) -> Callable[[Any], Any]:
    """Casts the tensors of an output to the types the original returns."""
    dtypes = [getattr(torch, facts.dtype) for facts in signature.outputs_facts]

    def restore(output: Any) -> Any:
        tensors = signature.flatten_outputs(output)
        return signature.build_outputs([t.to(d) for t, d in zip(tensors, dtypes, strict=True)])

    return restore


def _cast_weights(module: nn.Module, dtype: torch.dtype) -> bool:
    """Cast them in place; float64 stays (who asked for it needs it), and so do weights that are low already."""
    any_cast = False
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dtype == torch.float32:
            tensor.data = tensor.data.to(dtype)
            any_cast = True
    return any_cast


def _lowered(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor
