# NumPy values only
import numpy as np


def report(predictions, references):
    for step, (p, r) in enumerate(zip(predictions, references)):
        error = np.abs(np.asarray(p) - np.asarray(r)).mean()
        print(f"{step}: {error:.4f}", np.unique(r))
