# NumPy's mean of a list of floats, moved to the device
import numpy as np
import torch


def normalizer(observations: list[list[float]], device):
    values = np.array(observations, dtype=np.float64)
    mean = torch.as_tensor(values.mean(axis=0), dtype=torch.float32, device=device)
    noise = np.random.normal(0.0, 0.1, size=values.shape)
    jitter = torch.tensor(noise, device=device)  # expect: float64-by-accident
    return mean, jitter
