"""The one graph form: ``torch.export`` of the flat module, at ATen level, with the subject's dynamic dimensions.

Rewrites look for patterns in it, engines convert from it, artifacts store it. Capturing specialises Python control flow
on the samples, which is why every captured candidate is verified on inputs of other values and sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from togi.subject.signature import Signature
from togi.techniques.base import Refused

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from togi.techniques.candidate import Candidate


class GraphModule(nn.Module):
    """A flat graph (tensors in, tuple of tensors out) that is called like the original."""

    def __init__(self, graph: nn.Module, signature: Signature) -> None:
        super().__init__()
        self.graph = graph
        self.signature = signature

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.signature.build_outputs(self.graph(*self.signature.flatten_inputs(args, kwargs)))


def export(candidate: Candidate) -> ExportedProgram:
    """The candidate's flat module as an exported program.

    Raises Refused with the first line of the reason where it cannot be captured.
    """
    if candidate.signature.opaque:
        raise Refused(candidate.signature.opaque)
    flat = candidate.flat()
    inputs = _distinct_sizes(candidate)
    try:
        with torch.no_grad():
            return torch.export.export(flat, tuple(inputs), dynamic_shapes=_dynamic_shapes(candidate))
    except Exception as error:  # foreign code: anything a model's forward or the tracer may raise
        raise Refused(f"torch.export cannot capture it: {_first_line(error)}") from error


def _distinct_sizes(candidate: Candidate) -> list[Tensor]:
    """The flat sample whose dynamic dimensions are largest: sizes 0 and 1 would be specialised."""
    dynamic = [
        (i, dim)
        for i, facts in enumerate(candidate.signature.inputs_facts)
        for dim, size in enumerate(facts.shape)
        if size is None
    ]
    return max(candidate.flat_samples(), key=lambda tensors: [tensors[i].shape[dim] for i, dim in dynamic])


def _dynamic_shapes(candidate: Candidate) -> Any:
    """For ``FlatModule.forward(*tensors)``: relations between dimensions are left to the tracer (Dim.AUTO)."""
    if not candidate.signature.dynamic:
        return None
    auto = torch.export.Dim.AUTO
    shapes = [
        {dim: auto for dim, size in enumerate(facts.shape) if size is None}
        for facts in candidate.signature.inputs_facts
    ]
    return (tuple(shapes),)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
