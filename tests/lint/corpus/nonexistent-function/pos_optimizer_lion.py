# optimizers that live in other packages
from torch import optim


def make(parameters):
    return optim.Lion(parameters, lr=1e-4)  # expect: nonexistent-function
