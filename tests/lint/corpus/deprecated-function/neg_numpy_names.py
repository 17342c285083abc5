# NumPy and SciPy functions of the same names
import numpy as np
import scipy.linalg


def decompose(a):
    q, r = np.linalg.qr(a)
    lu, pivots = scipy.linalg.lu_factor(a)
    return q, r, lu, pivots, np.linalg.norm(a)
