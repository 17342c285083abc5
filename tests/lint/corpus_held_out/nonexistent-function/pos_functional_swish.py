# invented functional names
import torch
import torch.nn.functional as F


def mix(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    hot = torch.one_hot(labels, 10)  # expect: nonexistent-function
    return F.swish(x) * hot  # expect: nonexistent-function
