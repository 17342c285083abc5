"""The shared body of ``channels_last`` and ``channels_last_3d``, which differ in the rank of what they convert."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from togi.core.records import Facts, Recipe, Stage
from togi.techniques.base import OWN_LAYOUT, Applies, Options, Refuses, Technique

if TYPE_CHECKING:
    from togi.graph.candidate import Candidate
    from togi.subject.training import TrainingStep


_IN_WORDS = {2: "two", 3: "three"}
_LINES = """\
def in_layout(value):
    if isinstance(value, torch.Tensor) and value.dim() == {rank} and value.is_floating_point():
        return value.contiguous(memory_format=torch.{format})
    return value

def convert_inputs(module, args, kwargs):
    return tuple(map(in_layout, args)), {{name: in_layout(value) for name, value in kwargs.items()}}

for tensor in (*module.parameters(), *module.buffers()):
    tensor.data = in_layout(tensor.data)
module.zero_grad()  # gradients are made anew in this layout
module.register_forward_pre_hook(convert_inputs, with_kwargs=True, prepend=True)"""
_LINES_OF_STATE = """

def lay_out(optimizer):  # fused kernels take the state to lie in memory as its parameter
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)

lay_out(optimizer)
optimizer.register_load_state_dict_post_hook(lay_out)"""


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

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str:
        return _LINES.format(rank=self.dimensions + 2, format=self.id) + (_LINES_OF_STATE if facts.optimizer else "")

    def apply(self, candidate: Candidate, options: Options) -> Candidate:
        import torch

        from togi.techniques.memory_format import with_memory_format

        return with_memory_format(candidate, getattr(torch, self.id))
