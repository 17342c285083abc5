# torch.tensor keeps NumPy's float64
import numpy as np
import torch


class Betas(torch.nn.Module):
    def __init__(self, steps: int):
        super().__init__()
        betas = np.linspace(1e-4, 0.02, steps)
        alphas = np.cumprod(1.0 - betas)
        self.register_buffer("alphas", torch.tensor(alphas))  # expect: float64-by-accident
