# .item() of NumPy results touches no device
import numpy as np


def summarize(batches: list[np.ndarray]) -> list[float]:
    means = []
    for batch in batches:
        values = np.asarray(batch, dtype=np.float32)
        means.append(values.mean().item())
    return means
