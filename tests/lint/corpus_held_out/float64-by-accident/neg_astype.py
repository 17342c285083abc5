# cast before it is wrapped
import numpy as np
import torch


def latent(batch: int, dim: int):
    z = np.random.randn(batch, dim).astype(np.float32)
    return torch.from_numpy(z)
