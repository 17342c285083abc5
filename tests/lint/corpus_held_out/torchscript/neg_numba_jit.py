# numba's jit
import numba
import numpy as np
from numba import jit


@jit(nopython=True)
def total(values):
    result = 0.0
    for value in values:
        result += value
    return result


@numba.njit
def scale(values):
    return values * 2


print(total(np.ones(10)), scale(np.ones(3)))
