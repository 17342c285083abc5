"""The technique ``bf16_openvino``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts
from togi.techniques.base import Applies, LowerPrecision, Options, Refuses
from togi.techniques.half_precision import emulated

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class Bf16OpenVino(LowerPrecision):
    """Let OpenVINO compute in bfloat16 where it gains.

    What it does: sets OpenVINO's inference precision to bfloat16, its own default on CPUs with such instructions, which
    the engine ``openvino`` otherwise overrides with float32. Weights, inputs and outputs keep their types.

    When it applies: together with the engine ``openvino``, on CPUs with avx512_bf16, amx_bf16 or bf16.

    When it refuses: on other CPUs, where OpenVINO would ignore it; where ``ONEDNN_MAX_CPU_ISA`` rules such instructions
    out, since OpenVINO emulates them then or cannot compile the model.

    Claim: approximate; faster than float32 most of all on CPUs with AMX. ``togi explain bf16_openvino --prove``
    measures it here.

    Source: https://docs.openvino.ai/2025/openvino-workflow/running-inference/optimize-inference/precision-control.html

    Cost and risk: accuracy, as with bf16; OpenVINO chooses which operators are lowered.
    """

    id = "bf16_openvino"
    devices = frozenset({"cpu"})
    needs = frozenset({"engine:openvino"})
    speedup = 1.3

    def applies(self, facts: Facts) -> Applies | Refuses:
        return emulated(facts, "bfloat16", "OpenVINO would stay in float32") or Applies()

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        from togi.techniques.engine.programs.openvino_library import ask_for_bf16

        return candidate.with_pass("openvino", ask_for_bf16)
