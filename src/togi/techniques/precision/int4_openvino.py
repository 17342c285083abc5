"""The technique ``int4_openvino``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from togi.core.instructions import exact_onednn_int8, has_vnni
from togi.core.records import Choice, Facts, Machine
from togi.techniques.base import Applies, LowerPrecision, Options, Package, Refuses
from togi.techniques.half_precision import emulated_rest, with_rest
from togi.techniques.products import no_gain_by_four_bits

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class Int4OpenVino(LowerPrecision):
    """Compress the weights of large matrix products to 4 bits for OpenVINO (NNCF).

    What it does: weights of matrix products get 4 bits with one scale for each 128 of them, symmetric round zero; a
    weight that does not divide into such groups gets smaller ones, or 8 bits. The embedding and the last product, which
    err most, keep 8 bits. Activations of products are quantized to 8 bits while they run. ``rest=bf16`` computes all
    else in bfloat16. No calibration inputs are needed.

    When it applies: together with the engine ``openvino``, on CPUs with VNNI, to models with at least as many matrix
    products as convolutions and 67 million parameters or more: with fewer, weights of 8 bits are near the processor
    already. ``rest=bf16`` is offered on CPUs with avx512_bf16, amx_bf16 or bf16. A study tries it once weights of 8
    bits were right and so fast that half of the bytes could still gain.

    When it refuses: smaller models, models of convolutions, CPUs without VNNI; where no weight could be compressed;
    ``rest=bf16`` on other CPUs, or where ``ONEDNN_MAX_CPU_ISA`` rules such instructions out.

    Claim: approximate. A step of a decoder of 135 M parameters on one core of an AVX-512 VNNI CPU: 2.3 x over the best
    float32 engine, where weights of 8 bits give 2.0 x, but perplexity rises by 31 % and with these by 0.6 %. MiniLM
    (22 M) gains nothing over 8 bits at seven times the error (0.27 for 0.04). The larger the model, the less it errs.

    Source: https://docs.openvino.ai/2025/openvino-workflow/model-optimization-guide/weight-compression.html

    Cost and risk: accuracy, far more than with 8 bits, and most of all of small models: give a budget on validation
    data. For many rows at once it gains nothing over 8 bits.
    """

    id = "int4_openvino"
    rank = 10
    devices = frozenset({"cpu"})
    packages = (Package("nncf", "nncf", "2.15"), Package("openvino", "nncf", "2025.0"))
    needs = frozenset({"engine:openvino"})
    speedup = 2.0

    def applies(self, facts: Facts) -> Applies | Refuses:
        vnni = has_vnni(facts.machine.cpu_flags, facts.machine.onednn_limit)
        return no_gain_by_four_bits(facts, vnni=vnni) or Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{} if emulated_rest(facts) else {"rest": "bf16"}]

    def coarsens(self, facts: Facts, options: Options) -> Sequence[Choice]:
        finer: list[Options] = [{"how": "dynamic"}, {"how": "dynamic", "rest": "bf16"}, {"how": "weights"}]
        return [Choice(stage=self.stage, technique="int8_openvino", options=each) for each in finer]

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 4.0 + 0.1 * sum(facts.functions.values())

    def instructions(self, machine: Machine) -> tuple[str, ...]:
        return exact_onednn_int8(machine.cpu_flags, machine.onednn_limit)

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.precision.lowering.quantization import compress_openvino

        compressed = candidate.with_pass("openvino", partial(compress_openvino, dynamic=True, bits=4))
        return with_rest(compressed, options)
