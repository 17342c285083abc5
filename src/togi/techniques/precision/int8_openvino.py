"""The technique ``int8_openvino``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from togi.core.instructions import exact_onednn_int8
from togi.core.records import Facts, Machine
from togi.techniques.base import Applies, LowerPrecision, Options, Package, Refuses

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "softmax"})


class Int8OpenVino(LowerPrecision):
    """Quantize weights and activations to 8 bits for OpenVINO, from calibration inputs (NNCF).

    What it does: post-training quantization of the converted model. ``preset=mixed`` lets activations be asymmetric,
    which keeps more accuracy; ``performance`` makes both symmetric. Modules with attention are treated as
    transformers: what is sensitive there stays in floating point. On processors without VNNI weights get 7 bits, since
    products of 8 saturate there. Files with 8 bits are used where VNNI is, and elsewhere only if ``togi verify`` proved
    them there.

    When it applies: together with the engine ``openvino``, to modules with convolutions or matrix products.

    When it refuses: where there is neither.

    Claim: approximate. resnet50 on 2 cores of an AVX-512 VNNI CPU: 27 ms against 54 ms of OpenVINO in float32, relative
    error 1.4e-2.

    Source: https://docs.openvino.ai/2025/openvino-workflow/model-optimization-guide/quantizing-models-post-training.html

    Cost and risk: accuracy, and only as good as the calibration inputs: give some hundred of the real distribution.
    Slower than float32 on CPUs without VNNI.
    """

    id = "int8_openvino"
    rank = 10
    devices = frozenset({"cpu"})
    packages = (Package("nncf", "nncf", "2.15"), Package("openvino", "nncf", "2025.0"))
    needs = frozenset({"engine:openvino"})
    speedup = 1.8

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.modules and not any(name.startswith(("Conv", "Linear", "LSTM", "GRU")) for name in facts.modules):
            products = {"conv2d", "conv1d", "conv3d", "linear", "matmul", "bmm", "einsum", "addmm"}
            if facts.functions and not products & set(facts.functions):
                return Refuses("it holds neither convolutions nor matrix products: nothing would be quantized")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        return [{"preset": "mixed"}, {"preset": "performance"}]

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 10.0 + 0.1 * sum(facts.functions.values())

    def instructions(self, machine: Machine) -> tuple[str, ...]:
        return exact_onednn_int8(machine.cpu_flags, machine.onednn_limit)

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.precision.lowering.quantization import quantize_openvino

        transformer = bool(_ATTENTION & set(candidate.facts.functions))
        quantize = partial(quantize_openvino, preset=str(options["preset"]), transformer=transformer)
        return candidate.with_pass("openvino", quantize)
