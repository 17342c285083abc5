# np.zeros without a dtype
import numpy as np
import torch


def one_hot(labels: list[int], classes: int) -> torch.Tensor:
    table = np.zeros((len(labels), classes))
    table[np.arange(len(labels)), labels] = 1
    return torch.as_tensor(table)  # expect: float64-by-accident
