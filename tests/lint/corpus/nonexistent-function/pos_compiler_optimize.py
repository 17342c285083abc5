# torch.compiler has no optimize
import torch


def prepare(model):
    return torch.compiler.optimize(model)  # expect: nonexistent-function
