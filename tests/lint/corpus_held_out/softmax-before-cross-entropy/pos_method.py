# the method of a tensor
import torch
import torch.nn.functional as F


def policy_loss(logits: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.softmax(dim=-1), actions)  # expect: softmax-before-cross-entropy
