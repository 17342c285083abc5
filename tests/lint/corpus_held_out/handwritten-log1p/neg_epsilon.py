# a small number inside a logarithm guards against zero
import torch


def entropy(p: torch.Tensor) -> torch.Tensor:
    return -(p * torch.log(p + 1e-8)).sum(-1)
