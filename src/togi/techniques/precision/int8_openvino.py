"""The technique ``int8_openvino``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from togi.core.choices import OperatorKind
from togi.core.instructions import exact_onednn_int8, has_vnni
from togi.core.records import Choice, Facts, Machine
from togi.techniques.base import Applies, LowerPrecision, Options, Package, Refuses
from togi.techniques.half_precision import emulated_rest, with_rest
from togi.techniques.products import mostly_products

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate

_ATTENTION = frozenset({"scaled_dot_product_attention", "multi_head_attention_forward", "softmax"})


class Int8OpenVino(LowerPrecision):
    """Quantize weights, or weights and activations, to 8 bits for OpenVINO (NNCF).

    What it does: post-training quantization of the converted model. With a ``preset``, activations get fixed scales
    from calibration inputs: ``performance`` makes weights and activations symmetric, ``mixed`` lets activations be
    asymmetric. Modules with attention are treated as transformers: what is sensitive there stays in floating point.
    ``fast_bias_correction=False`` corrects each bias with the errors of the layers before it.
    ``keep=depthwise`` quantizes all but depthwise and other grouped convolutions, which err most. ``togi precision``
    also tries ``keep`` and ``alone`` with other kinds of operators, to measure how sensitive each is.
    ``how=dynamic`` compresses weights alone, and the activations of matrix products are quantized while they run, by
    groups of 32; ``how=weights`` leaves activations in floating point. Both need no calibration inputs. ``rest=bf16``
    computes what is not quantized in bfloat16. On processors without VNNI weights of ``preset`` get 7 bits, since
    products of 8 saturate there. Files with 8 bits are used where VNNI is, and elsewhere only if ``togi verify`` proved
    them there.

    When it applies: together with the engine ``openvino``, to modules with convolutions or matrix products.
    ``how`` is offered where there are at least as many products as convolutions, ``how=dynamic`` where VNNI is, and
    ``rest=bf16`` on CPUs with avx512_bf16, amx_bf16 or bf16. ``fast_bias_correction=False`` is offered
    where there is no attention. It changes no operator, so a study tries it where the same without it was not right
    enough.

    When it refuses: where there are neither convolutions nor matrix products; ``keep=depthwise`` where no convolution
    is grouped; ``rest=bf16`` on other CPUs, or where ``ONEDNN_MAX_CPU_ISA`` rules such instructions out.

    Claim: approximate. resnet50 on 2 cores of an AVX-512 VNNI CPU: 27 ms against 54 ms of OpenVINO in float32, relative
    error 1.4e-2. On one core of another, over the best float32 engine: ViT-S 2.7 x, and 2.9 x with ``rest=bf16``, at
    error 0.12; with ``how=dynamic`` 1.7 x, and 2.05 x with ``rest=bf16``, at error 0.025. EfficientNet-Lite0 2.2 x at
    error 0.22, and 2.1 x at 0.11 with ``keep=depthwise`` and ``rest=bf16``. Correcting its biases layer after
    layer lowered the error from 0.26 to 0.19 and the Kullback-Leibler divergence from 0.074 to 0.032, for 9 s more of
    processor time; that of a digits CNN from 0.074 to 0.018. MiniLM errs 0.08; with less SmoothQuant than NNCF applies
    (alpha 0.5 or 0.15 for 0.95) it errs 0.3, so that is not offered.

    Source: https://docs.openvino.ai/2025/openvino-workflow/model-optimization-guide/quantizing-models-post-training.html
    and https://docs.openvino.ai/2025/openvino-workflow/model-optimization-guide/weight-compression.html

    Cost and risk: accuracy, and with a ``preset`` only as good as the calibration inputs: give some hundred of the real
    distribution. A ``preset`` is slower than float32 on CPUs without VNNI; so is ``how=weights`` where computing and
    not reading weights takes the time (ViT-S: 0.92 x).
    """

    id = "int8_openvino"
    rank = 10
    calibrates = True
    devices = frozenset({"cpu"})
    packages = (Package("nncf", "nncf", "2.15"), Package("openvino", "nncf", "2025.0"))
    needs = frozenset({"engine:openvino"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        if facts.modules and not any(name.startswith(("Conv", "Linear", "LSTM", "GRU")) for name in facts.modules):
            products = {"conv2d", "conv1d", "conv3d", "linear", "matmul", "bmm", "einsum", "addmm"}
            if facts.functions and not products & set(facts.functions):
                return Refuses("it holds neither convolutions nor matrix products: nothing would be quantized")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        rest: tuple[Options, ...] = ({},) if emulated_rest(facts) else ({"rest": "bf16"}, {})
        static: list[Options] = [{"preset": "performance", **each} for each in rest]
        mixed: Options = {"preset": "mixed", **rest[0]}
        variants: list[Options] = [] if has_attention(facts) else [{**static[0], "fast_bias_correction": False}]
        if not mostly_products(facts):
            return [*static, {**static[0], "keep": "depthwise"}, mixed, *variants]
        # OpenVINO quantizes activations while running where VNNI is, and nowhere else
        vnni = has_vnni(facts.machine.cpu_flags, facts.machine.onednn_limit)
        dynamic: list[Options] = [{"how": "dynamic", **each} for each in rest] if vnni else []
        # in turns, since where one form of a kind is wrong the other is likely to be
        in_turns = [each for pair in zip_longest(dynamic, static) for each in pair if each is not None]
        # weights alone gain for one row or a few: for more, bf16 alone is faster
        return [*in_turns, {"how": "weights"}, mixed, *variants]

    def mends(self, facts: Facts, options: Options) -> Sequence[Choice]:
        plain = {name: value for name, value in options.items() if name != "fast_bias_correction"}
        return [Choice(stage=self.stage, technique=self.id, options=plain)] if plain != options else ()

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        if options.get("how") == "weights":
            return 1.3
        return 1.6 if options.get("preset") == "mixed" or "keep" in options else 1.8

    def cost_s(self, facts: Facts, options: Options) -> float:
        """MiniLM (300 functions) took 12 s with ranges, a CNN of 22 one."""
        layer_by_layer = 2.0 if "fast_bias_correction" in options else 1.0
        return layer_by_layer * (1.0 + 0.04 * sum(facts.functions.values()))

    def instructions(self, machine: Machine) -> tuple[str, ...]:
        return exact_onednn_int8(machine.cpu_flags, machine.onednn_limit)

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.precision.lowering.quantization import compress_openvino, quantize_openvino

        if "how" in options:
            quantized = candidate.with_pass("openvino", partial(compress_openvino, dynamic=options["how"] == "dynamic"))
        else:
            transformer = has_attention(candidate.facts)
            keep = [OperatorKind.of(kind) for kind in str(options.get("keep") or "").split("+") if kind]
            alone = OperatorKind.of(options["alone"]) if "alone" in options else None
            preset = str(options["preset"])
            quantize = partial(
                quantize_openvino,
                preset=preset,
                transformer=transformer,
                keep=keep,
                alone=alone,
                fast_bias_correction=bool(options.get("fast_bias_correction", True)),
            )
            quantized = candidate.with_pass("openvino", quantize)
        return with_rest(quantized, options)


def has_attention(facts: Facts) -> bool:
    """What is sensitive in a transformer stays in floating point then."""
    return bool(_ATTENTION & set(facts.functions))
