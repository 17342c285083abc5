"""The technique ``attention_backend``."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from togi.core.errors import Refused
from togi.core.quantities import first_line
from togi.core.records import Facts, Stage
from togi.techniques.base import OUTSIDE_TORCH, Applies, Options, Refuses, Technique
from togi.techniques.switches import ProcessWide

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

BACKENDS = {
    "flash": "FLASH_ATTENTION",
    "cudnn": "CUDNN_ATTENTION",
    "efficient": "EFFICIENT_ATTENTION",
    "math": "MATH",
}
"""Names of ``torch.nn.attention.SDPBackend``."""
_SIXTEEN_BITS = frozenset({"float16", "bfloat16"})
_IN_16_BITS = frozenset({"flash", "cudnn"})
"""Kernels that take these types alone; ``efficient`` also takes float32, and ``math`` any.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (``check_tensor_dtype``, ``check_dtypes_low_precision``)
"""


class AttentionBackend(Technique):
    """Compute scaled dot product attention with another kernel than torch would take.

    What it does: calls the module under ``torch.nn.attention.sdpa_kernel`` with one of FlashAttention, cuDNN's kernel,
    the memory-efficient one, or plain products and softmax (``math``) in the first place. On a GPU torch goes on to the
    next where that one cannot run a call (another mask, another size); plain products run all.

    When it applies: to modules that call ``scaled_dot_product_attention``. On a GPU FlashAttention and cuDNN's kernel
    take 16-bit floats alone: of a module in float32 they are tried together with ``bf16`` or ``fp16``. On a CPU torch
    has FlashAttention, which it takes wherever it can, and ``math``.

    When it refuses: the module does not call it; torch says that the kernel cannot run it on the samples (its dtype,
    size of a head, mask), or has no such kernel on the device.

    Claim: which kernel is fastest depends on sizes, masks and the GPU, and torch's order is fixed. Not measured on a
    GPU yet: ``togi explain attention_backend --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.attention.sdpa_kernel.html

    Cost and risk: exact up to rounding. ``math`` keeps all scores in memory. The order is the process's: while a call
    runs, other models in other threads follow it too.
    """

    id = "attention_backend"
    stage = Stage.RUNTIME
    conflicts = frozenset({OUTSIDE_TORCH, "engine:aot_inductor"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        if "scaled_dot_product_attention" in facts.functions:
            return Applies()
        return Refuses("it does not call scaled_dot_product_attention, which is what has several kernels")

    def options(self, facts: Facts) -> Sequence[Options]:
        if facts.device != "cuda":
            return [{"backend": "math"}]
        dtypes = _dtypes(facts)
        if _SIXTEEN_BITS & dtypes:
            return [{"backend": name} for name in BACKENDS]
        lowered = ("efficient", "flash", "cudnn") if "float32" in dtypes else ()
        return [{"backend": name} for name in (*lowered, "math")]

    def needs_with(self, facts: Facts, options: Options) -> frozenset[str]:
        takes_float32 = facts.device != "cuda" or options.get("backend") not in _IN_16_BITS
        return frozenset() if takes_float32 or _SIXTEEN_BITS & _dtypes(facts) else frozenset({"precision"})

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        if options.get("backend") == "math":
            return 0.7
        takes_all = options.get("backend") not in _IN_16_BITS and not _SIXTEEN_BITS & _dtypes(facts)
        return 1.0 if takes_all else 1.03  # in float32, "efficient" is what torch takes wherever it can

    def repro_setting(self, options: Options) -> str:
        return (
            "from torch.nn.attention import SDPBackend, sdpa_kernel\n"
            f"attention = sdpa_kernel(SDPBackend.{BACKENDS[str(options['backend'])]})\n"
            "attention.__enter__()"
        )

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        name = options.get("backend")
        if name not in BACKENDS:
            raise Refused(f"backend must be one of {', '.join(BACKENDS)}, not {name!r}")
        _check(candidate, str(name))
        value = (str(name), candidate.facts.device)
        context = ProcessWide(partial(_preferring, *value), setting="sdpa_kernel", value=value)
        return candidate.with_(contexts=(*candidate.contexts, context))


def _dtypes(facts: Facts) -> set[str]:
    """The types in which attention may compute."""
    return {*facts.parameter_dtypes, *(tensor.dtype for tensor in facts.inputs)}


def _check(candidate: Candidate, name: str) -> None:
    """Run the samples with that kernel alone. Raises Refused with what torch says against it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    module = candidate.copy() if candidate.facts.buffers_change else candidate.module
    for sample in candidate.samples:  # none where a saved program is loaded
        inputs = sample.clone()
        with (
            warnings.catch_warnings(record=True) as warned,
            torch.no_grad(),
            sdpa_kernel(getattr(SDPBackend, BACKENDS[name])),
        ):
            warnings.simplefilter("always")
            try:
                module(*inputs.args, **inputs.kwargs)
            except RuntimeError as error:
                why = " ".join(first_line(warning.message).partition(" (Triggered")[0] for warning in warned)
                raise Refused(
                    f"torch cannot run its attention with {name}: {first_line(error)} {why}".strip()
                ) from error


def _preferring(name: str, device: str) -> AbstractContextManager[Any]:
    """Prefer that kernel. A CPU has no order among kernels: there it is that one alone, and ``math``."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    others = [other for other in BACKENDS if other != name] if device == "cuda" else ["math"]
    order = [getattr(SDPBackend, BACKENDS[backend]) for backend in dict.fromkeys([name, *others])]
    return sdpa_kernel(order, set_priority=device == "cuda")
