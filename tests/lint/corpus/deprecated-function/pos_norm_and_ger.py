# torch.norm and torch.ger
import torch


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    outer = torch.ger(a, b)  # expect: deprecated-function
    return outer / (torch.norm(a) * torch.norm(b))  # expect: deprecated-function
