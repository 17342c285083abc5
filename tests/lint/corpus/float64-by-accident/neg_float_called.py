# cast after it is wrapped
import numpy as np
import torch


def schedule(steps):
    betas = torch.from_numpy(np.linspace(1e-4, 0.02, steps)).float()
    alphas = torch.tensor(np.cumprod(1 - betas.numpy()), dtype=torch.float32)
    extra = torch.as_tensor(np.zeros(steps)).to(torch.float32)
    return betas, alphas, extra
