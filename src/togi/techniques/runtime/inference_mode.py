"""The technique ``inference_mode``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts, Stage
from togi.techniques.base import OUTSIDE_TORCH, Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class InferenceMode(Technique):
    """Call the module under ``torch.inference_mode``.

    What it does: like ``no_grad``, and tensors made inside carry no version counter and no view tracking, which saves a
    little on every operation.

    When it applies: always, in place of ``no_grad``.

    When it refuses: an engine computes outside of torch (OpenVINO, ONNX Runtime, ncnn, TensorRT), where it cannot
    matter. Or the forward pass changes a buffer: a tensor made in inference mode would then stay behind in the module,
    and later training with it fails ("Inference tensors cannot be saved for backward").

    Claim: less time per call for models of many small operations; nothing for models of few large ones.
    ``togi explain inference_mode --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/notes/autograd.html#inference-mode

    Cost and risk: what is made inside could be written to and recorded in inference mode alone. So callers are given
    ordinary tensors on the same memory, which takes microseconds for each output.
    """

    id = "inference_mode"
    stage = Stage.RUNTIME
    provides = frozenset({"grad_mode"})
    conflicts = frozenset({"grad_mode", OUTSIDE_TORCH})
    speedup = 1.01

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.buffers_change:
            return Refuses("the forward pass changes a buffer, which would become an inference tensor")
        return Applies()

    def repro_setting(self, options: Options) -> str:
        return ""  # the script has its own place for the mode of autograd

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        return candidate.with_(contexts=(*candidate.contexts, torch.inference_mode))
