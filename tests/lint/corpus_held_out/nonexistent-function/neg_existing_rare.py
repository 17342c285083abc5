# rare functions that do exist
import torch
from torch import nn


def rare(x: torch.Tensor) -> torch.Tensor:
    torch._dynamo.mark_dynamic(x, 0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.compiler.cudagraph_mark_step_begin()
    y = torch.special.expit(torch.fft.fft2(x).real)
    nn.init.trunc_normal_(y)
    return torch.utils.data.default_collate([y]) + torch.linalg.vector_norm(y)
