"""The shared body of ``channels_last`` and ``channels_last_3d``, which differ in the rank of what they convert."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from togi.core.records import Facts, Stage
from togi.techniques.base import OWN_LAYOUT, Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate
    from togi.subject.training import TrainingStep


_IN_WORDS = {2: "two", 3: "three"}


class InnermostChannels(Technique):
    """Keeps activations and weights of convolutions with the channels innermost in memory. Its id is torch's name for
    that layout."""

    stage = Stage.LAYOUT
    provides = frozenset({"memory_format"})
    conflicts = frozenset({"memory_format", OWN_LAYOUT})
    dimensions: ClassVar[int]
    """Of the convolutions."""
    speedup = 1.2
    trains = True

    def applies(self, facts: Facts) -> Applies | Refuses:
        d = f"{self.dimensions}d"
        convolutions = {f"conv{d}", f"conv_transpose{d}", "convolution", f"Conv{d}", f"ConvTranspose{d}"}
        if convolutions & {*facts.functions, *facts.modules}:
            return Applies()
        words = _IN_WORDS[self.dimensions]
        return Refuses(f"it has no {words}-dimensional convolution, which is what this layout is for")

    def cost_s(self, facts: Facts, options: Options) -> float:
        return 0.1 + 3e-3 * (facts.latency_ms or 0.0)

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        import torch

        from togi.techniques.memory_format import step_in_memory_format

        return step_in_memory_format(step, getattr(torch, self.id))

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        from togi.techniques.memory_format import with_memory_format

        return with_memory_format(candidate, getattr(torch, self.id))
