# a scripted function
import torch


@torch.jit.script  # expect: torchscript+1
def fused_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / 1.41421))
