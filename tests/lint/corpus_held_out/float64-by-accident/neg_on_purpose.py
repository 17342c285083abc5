# double precision asked for by name
import numpy as np
import torch


def solve(a: np.ndarray, b: np.ndarray) -> torch.Tensor:
    left = torch.tensor(a, dtype=torch.float64)
    right = torch.tensor(b, dtype=torch.float64)
    return torch.linalg.solve(left, right)


def test_gradients(f):
    x = torch.randn(3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(f, (x,))
