"""The technique ``int8_onnxruntime``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from togi.core.errors import Refused
from togi.core.instructions import exact_int8, has_vnni
from togi.core.records import Choice, Facts, Machine
from togi.techniques.base import Applies, LowerPrecision, Options, Package, Refuses
from togi.techniques.products import mostly_products

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class Int8OnnxRuntime(LowerPrecision):
    """Quantize weights and activations to 8 bits for ONNX Runtime.

    What it does: ``how=static`` inserts quantize and dequantize operators (QDQ) with scales from calibration inputs,
    weights per channel, round all that ONNX Runtime computes in 8 bits on CPUs. ``how=products`` does so round
    convolutions and products with weights alone, so that attention, sums and normalisations stay in floating point.
    ``how=dynamic`` quantizes weights of matrix products only, and activations while running,
    without calibration. ``how=blocks`` does the same for large matrix products alone, with a scale for each 128 weights
    and activations instead of each channel (``MatMulNBits``), which keeps more accuracy. On processors without VNNI
    weights get 7 bits, since products of 8 saturate there.
    Files with 8 bits are used where VNNI is, and elsewhere only if ``togi verify`` proved them there.
    ``ranges=percentile`` gives activations of ``static`` ranges that leave out one value in 100,000.

    When it applies: together with the engine ``onnxruntime`` on a CPU, to modules with convolutions or matrix products;
    ``dynamic`` is offered where there are linear layers, ``products`` where there are at least as many of them as
    convolutions, ``blocks`` there too if VNNI is. ``ranges`` is offered where there are
    more convolutions; it computes as fast, so a study tries it where the same without it was not right enough.

    When it refuses: where there is neither; ``blocks`` on processors without VNNI, and where no product has 65,536
    weights or more.

    Claim: approximate; faster on CPUs with VNNI, and a quarter of the memory for weights. On one core of such a CPU,
    over the best float32 engine: MiniLM 2.5 x with ``dynamic`` (error 0.12) and 1.4 x with ``blocks`` (0.03), a step of
    a decoder of 135 M parameters 1.8 x with these (perplexity + 1.5 %). Over ONNX Runtime in float32, an encoder of two
    layers of 256: 2.0 x with ``static`` (error 0.027), 1.9 x with ``products`` (0.0045).
    ``togi explain int8_onnxruntime --prove`` measures it here.

    Source: https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html and
    https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#commicrosoftmatmulnbits

    Cost and risk: accuracy, and only as good as the calibration inputs. Slower than float32 on CPUs without VNNI.
    """

    id = "int8_onnxruntime"
    rank = 10
    calibrates = True
    devices = frozenset({"cpu"})
    packages = (Package("onnxruntime", "onnx", "1.20"), Package("onnx", "onnx"))
    needs = frozenset({"engine:onnxruntime"})
    speedup = 1.5

    def applies(self, facts: Facts) -> Applies | Refuses:
        if not self.options(facts):
            return Refuses("it holds neither convolutions nor matrix products: nothing would be quantized")
        return Applies()

    def options(self, facts: Facts) -> Sequence[Options]:
        names = {*facts.functions, *(name.lower() for name in facts.modules)}
        convolutions = any(name.startswith("conv") for name in names)
        products = any(name in names for name in ("linear", "matmul", "bmm", "addmm", "einsum", "multiheadattention"))
        static: list[Options] = [{"how": "static"}] if convolutions or products else []
        dynamic: list[Options] = [{"how": "dynamic"}] if products else []
        if mostly_products(facts):
            dynamic.append({"how": "products"})
            if has_vnni(facts.machine.cpu_flags):
                dynamic.append({"how": "blocks"})
        plain = static + dynamic if convolutions else dynamic + static
        clipped: list[Options] = [{"how": "static", "ranges": "percentile"}]
        return [*plain, *clipped] if convolutions and not mostly_products(facts) else plain

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        """Where convolutions prevail, ``dynamic`` leaves float32 what takes the time: CREPE and EfficientNet-Lite0 gain
        nothing by it, and 4.4 and 2.1 x by ``static``."""
        return self.speedup if mostly_products(facts) or options["how"] != "dynamic" else 1.05

    def cost_s(self, facts: Facts, options: Options) -> float:
        """MiniLM (300 functions) took 4 s with weights alone and 7 with ranges, a CNN of 22 less than one."""
        return 1.0 + (0.015 if options["how"] in ("dynamic", "blocks") else 0.03) * sum(facts.functions.values())

    def instructions(self, machine: Machine) -> tuple[str, ...]:
        return exact_int8(machine.cpu_flags)

    def mends(self, facts: Facts, options: Options) -> Sequence[Choice]:
        """Other ranges are computed by the same kernels."""
        return [Choice(stage=self.stage, technique=self.id, options={"how": "static"})] if "ranges" in options else ()

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.precision.lowering.quantization import quantize_onnx

        if options["how"] == "blocks" and not has_vnni(candidate.facts.machine.cpu_flags):
            raise Refused("this CPU has no instructions for products of 8 bits (VNNI), by which blocks gain")
        quantize = partial(quantize_onnx, how=str(options["how"]), percentile="ranges" in options)
        return candidate.with_pass("onnxruntime", quantize)
