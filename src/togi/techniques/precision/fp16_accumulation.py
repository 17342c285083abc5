"""The technique ``fp16_accumulation``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from togi.core.records import Facts
from togi.techniques.base import OUTSIDE_TORCH, Applies, Options, Refuses
from togi.techniques.half_precision import HalfPrecision
from togi.techniques.switches import ProcessWide, switched_on

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_KEPT: Options = {"how": "keep"}
"""Of a module that is in float16 already."""


class Fp16Accumulation(HalfPrecision):
    """Multiply matrices in float16 and add up their products in float16 as well.

    What it does: sets ``torch.backends.cuda.matmul.allow_fp16_accumulation`` round each call, so that cuBLAS adds up in
    float16 instead of float32. ``how=keep`` is for modules in float16; one in float32 is lowered first, as ``fp16``
    does it (``cast``, ``autocast``). Sums of partial sums in 16 bits (``allow_fp16_reduced_precision_reduction`` and
    the same for bfloat16) are torch's default already, so plain eager has them.

    When it applies: on CUDA, to modules with float16 or float32 weights or inputs.

    When it refuses: nothing is float16 or float32.

    Claim: up to twice the speed of large float16 products on GPUs whose tensor cores add up in float16 at twice the
    rate (GeForce RTX 30 and 40: 330 against 165 TFLOPS on an RTX 4090 by its data sheet); Hopper has one rate for both.
    Not yet measured by this project: ``togi explain fp16_accumulation --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#full-fp16-accumulation-in-fp16-gemms and pytorch issue
    123558

    Cost and risk: approximate, and the more so the longer the sums: 11 bits for each partial sum, and infinity above
    65504. The switch is the process's: while a call runs, products of other threads follow it too.
    """

    id = "fp16_accumulation"
    devices = frozenset({"cuda"})
    conflicts = frozenset({"precision", OUTSIDE_TORCH})
    type_name = "float16"
    surrounds_calls = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        return Applies() if _in_float16(facts) else super().applies(facts)

    def options(self, facts: Facts) -> Sequence[Options]:
        return [_KEPT] if _in_float16(facts) else super().options(facts)

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.1 if options == _KEPT else 1.4

    def repro_setting(self, options: Options) -> str:
        return "torch.backends.cuda.matmul.allow_fp16_accumulation = True"

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        if options != _KEPT and candidate.program is None:  # a saved program was lowered before it was made
            candidate = super().apply(candidate, options)
        switch = partial(switched_on, torch.backends.cuda.matmul, "allow_fp16_accumulation")
        in_float16 = ProcessWide(switch, setting="allow_fp16_accumulation")
        return candidate.with_(contexts=(*candidate.contexts, in_float16))


def _in_float16(facts: Facts) -> bool:
    return "float16" in {*facts.parameter_dtypes, *(tensor.dtype for tensor in facts.inputs)}
