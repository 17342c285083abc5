"""The technique ``tf32``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique
from togi.techniques.switches import ProcessWide

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class Tf32(Technique):
    """Multiply float32 matrices on tensor cores, in TensorFloat-32.

    What it does: sets ``torch.set_float32_matmul_precision("high")`` round each call: factors are rounded to 10 bits of
    mantissa, sums stay float32. Engines with a switch of their own get it set. (Convolutions use TF32 by default
    already: the facts say what plain eager does here.)

    When it applies: on a GPU, to float32 models.

    When it refuses: no parameter is float32; plain eager multiplies in TF32 already.

    Claim: faster float32 matrix products on GPUs from Ampere on; no effect before. ``togi explain tf32 --prove``
    measures it here.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices

    Cost and risk: approximate: about three decimal digits per product.
    """

    id = "tf32"
    stage = Stage.PRECISION
    exact = False
    devices = frozenset({"cuda"})
    provides = frozenset({"matmul_precision"})
    conflicts = frozenset({"matmul_precision"})
    surrounds_calls = True
    speedup = 1.3

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.parameter_dtypes and "float32" not in {
            dtype.removeprefix("torch.") for dtype in facts.parameter_dtypes
        }:
            return Refuses("no parameter is float32, which is what TF32 replaces")
        if "matmul" in facts.tf32:
            return Refuses("plain eager multiplies matrices in TF32 already: the subject's file asked torch for it")
        return Applies()

    def configure(self, candidate: Candidate, options: Options) -> Candidate:
        facts = candidate.facts
        return candidate.with_(facts=facts.model_copy(update={"tf32": (*facts.tf32, "matmul")}))

    def repro_setting(self, options: Options) -> str:
        return 'torch.set_float32_matmul_precision("high")'

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.torch_internals.float32 import high_matmul_precision

        high = ProcessWide(high_matmul_precision, setting="float32_matmul_precision")
        return candidate.with_(contexts=(*candidate.contexts, high))
