# torch.ao.quantization moved to torchao
import torch
from torch import nn


def shrink(model: nn.Module) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)  # expect: deprecated-quantization
