"""The technique ``bf16``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from togi.core.records import Facts, Recipe
from togi.techniques.base import Options
from togi.techniques.half_precision import HalfPrecision

if TYPE_CHECKING:
    from togi.subject.training import TrainingStep


_LINES = """\
loss_as_it_is = loss

def loss(module, batch):
    with torch.autocast("{device}", torch.bfloat16):
        return loss_as_it_is(module, batch)"""
_LINES_OF_OWN_LOOP = """\
forward = module.forward

def forward_in_bf16(*args, **kwargs):
    with torch.autocast("{device}", torch.bfloat16):
        return forward(*args, **kwargs).float()  # of one tensor: cast each where it returns several

module.forward = forward_in_bf16"""


class Bf16(HalfPrecision):
    """Compute in bfloat16: float32's range with 8 bits of precision.

    What it does: ``how=cast`` stores the float32 weights in bfloat16 and casts floating inputs; ``how=autocast`` keeps
    weights and casts around the operators that gain from it. Outputs come back in the types the original returns. A
    training step runs its forward pass and loss under autocast; parameters, gradients and optimizer stay float32. In a
    loop body of the user's own (``train_step``) the module's calls run so, and return float32.

    When it applies: to modules with float32 weights or inputs, on a GPU, and on CPUs with instructions for it (x86:
    avx512_bf16, amx_bf16; ARM: bf16).

    When it refuses: on CPUs without these instructions or where ``ONEDNN_MAX_CPU_ISA`` rules them out: it is emulated
    and slower there; where nothing is float32.

    Claim: approximate. Relative error of 4e-3 to 3e-2, 10,000 to 28,000 times that of plain eager (resnet50,
    mobilenetv3, ViT-tiny, ConvNeXt-atto, EfficientNet-Lite0 on an AVX-512 CPU). Half the memory for weights with
    ``cast``.

    Source: https://docs.pytorch.org/docs/stable/amp.html

    Cost and risk: accuracy. Values that are compared or summed over many terms suffer most: give a metric, or a bound.
    """

    id = "bf16"
    type_name = "bfloat16"
    provides = HalfPrecision.provides | {"bfloat16"}
    speedup = 1.3
    trains = True

    def apply_step(self, step: TrainingStep, options: Options) -> TrainingStep:
        import torch

        from togi.techniques.precision.lowering.cast import step_under_autocast

        return step_under_autocast(step, torch.bfloat16)

    def step_lines(self, options: Options, recipe: Recipe, facts: Facts) -> str:
        return (_LINES_OF_OWN_LOOP if facts.own_loop else _LINES).format(device=facts.device)
