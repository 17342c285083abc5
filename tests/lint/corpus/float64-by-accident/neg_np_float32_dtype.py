# dtype given to NumPy
import numpy as np
import torch


def tables(n: int):
    a = torch.from_numpy(np.zeros((n, n), dtype=np.float32))
    b = torch.from_numpy(np.linspace(0, 1, n, dtype="float32"))
    c = torch.as_tensor(np.full((n,), 0.5, np.float32))
    d = torch.tensor(np.random.randint(0, 10, n))
    e = torch.from_numpy(np.random.default_rng(0).random(n, dtype=np.float32))
    return a, b, c, d, e
