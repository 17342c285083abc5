"""Running a module in a lower floating-point type with the caller's own types outside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.graph.candidate import Candidate
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.subject.training import TrainingStep


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


def step_under_autocast(step: TrainingStep, dtype: torch.dtype) -> TrainingStep:
    """The training step with its forward pass and loss under autocast; its backward pass runs in the types of those."""
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
