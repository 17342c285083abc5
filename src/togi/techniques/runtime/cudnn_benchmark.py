"""The technique ``cudnn_benchmark``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from togi.core.records import Facts, Stage
from togi.techniques.base import Applies, Options, Refuses, Technique
from togi.techniques.switches import ProcessWide, switched_on

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate


class CudnnBenchmark(Technique):
    """Let cuDNN measure its convolution algorithms and take the fastest.

    What it does: sets ``torch.backends.cudnn.benchmark`` round each call. The first call with a new shape runs every
    algorithm; later calls use the winner.

    When it applies: on a GPU, to models with convolutions.

    When it refuses: there is no convolution.

    Claim: faster convolutions for fixed shapes. ``togi explain cudnn_benchmark --prove`` measures it here.

    Source: https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark

    Cost and risk: exact up to rounding, but the choice may differ from run to run. The first call of each shape is
    slow and may need much more memory, which the caching allocator then keeps: bad for inputs of many sizes.
    """

    id = "cudnn_benchmark"
    stage = Stage.RUNTIME
    devices = frozenset({"cuda"})

    def applies(self, facts: Facts) -> Applies | Refuses:
        if any("conv" in name.lower() for name in (*facts.functions, *facts.modules)):
            return Applies()
        return Refuses("it has no convolution, which is what cuDNN would choose algorithms for")

    def expected_speedup(self, facts: Facts, options: Options) -> float:
        return 1.0 if facts.dynamic else 1.1

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 0.05 * sum(count for name, count in facts.functions.items() if "conv" in name)

    def repro_setting(self, options: Options) -> str:
        return "torch.backends.cudnn.benchmark = True"

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        benchmarking = ProcessWide(partial(switched_on, torch.backends.cudnn, "benchmark"), setting="cudnn.benchmark")
        return candidate.with_(contexts=(*candidate.contexts, benchmarking))
