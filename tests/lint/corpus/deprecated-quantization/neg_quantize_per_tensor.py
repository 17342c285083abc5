# torch.quantize_per_tensor is a plain operator, still there
import torch


def pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.quantize_per_tensor(weight, scale=0.1, zero_point=0, dtype=torch.qint8)
