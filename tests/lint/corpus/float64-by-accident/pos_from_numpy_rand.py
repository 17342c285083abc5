# NumPy's random numbers are float64
import numpy as np
import torch


def latent(batch: int, dim: int, device):
    z = torch.from_numpy(np.random.randn(batch, dim))  # expect: float64-by-accident
    return z.to(device)
