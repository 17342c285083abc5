"""The technique ``int4_onnxruntime``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from togi.core.instructions import exact_int8, has_vnni
from togi.core.records import Choice, Facts, Machine
from togi.techniques.base import Applies, LowerPrecision, Options, Package, Refuses
from togi.techniques.products import no_gain_by_four_bits

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class Int4OnnxRuntime(LowerPrecision):
    """Compress the weights of large matrix products to 4 bits for ONNX Runtime.

    What it does: products by a constant of 65,536 numbers or more get weights of 4 bits with a scale for each 128 of
    them (``MatMulNBits``), and activations are quantized to 8 bits by blocks as well while they run. All else stays in
    float32. No calibration inputs are needed.

    When it applies: together with the engine ``onnxruntime``, on CPUs with VNNI, to models with at least as many matrix
    products as convolutions and 67 million parameters or more: with fewer, weights of 8 bits are near the processor
    already. A study tries it once blocks of 8 bits (``int8_onnxruntime``) were right and so fast that half of the bytes
    could still gain.

    When it refuses: smaller models, models of convolutions, CPUs without VNNI; where no product is large enough.

    Claim: approximate. A step of a decoder of 135 M parameters on one core of an AVX-512 VNNI CPU: 2.2 x over the best
    float32 engine, where blocks of 8 bits give 1.8 x, but perplexity rises by 48 % and with these by 1.5 %. MiniLM
    (22 M) gains nothing over 8 bits at nine times the error (0.25 for 0.027). The larger the model, the less it errs.

    Source: https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#commicrosoftmatmulnbits and
    onnxruntime pull request 24491 (8 bits take 1.2 to 6 times as long as 4 for one row, and as long for 4,096)

    Cost and risk: accuracy, far more than with 8 bits, and most of all of small models: give a budget on validation
    data. For many rows at once it gains nothing over 8 bits.
    """

    id = "int4_onnxruntime"
    rank = 10
    devices = frozenset({"cpu"})
    packages = (Package("onnxruntime", "onnx", "1.20"), Package("onnx", "onnx"))
    needs = frozenset({"engine:onnxruntime"})
    speedup = 1.6

    def applies(self, facts: Facts) -> Applies | Refuses:
        return no_gain_by_four_bits(facts, vnni=has_vnni(facts.machine.cpu_flags)) or Applies()

    def coarsens(self, facts: Facts, options: Options) -> Sequence[Choice]:
        return [Choice(stage=self.stage, technique="int8_onnxruntime", options={"how": "blocks"})]

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 5.0 + 0.1 * sum(facts.functions.values())

    def instructions(self, machine: Machine) -> tuple[str, ...]:
        return exact_int8(machine.cpu_flags)

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.precision.lowering.quantization import quantize_onnx

        return candidate.with_pass("onnxruntime", partial(quantize_onnx, how="blocks", bits=4))
