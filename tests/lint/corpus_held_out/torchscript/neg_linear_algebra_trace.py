# torch.trace is the sum of a diagonal
import torch


def divergence(jacobian: torch.Tensor) -> torch.Tensor:
    return torch.trace(jacobian)


def script(path):
    return f"python {path}"
