# asked before it is used
import torch


def prepare(model):
    if hasattr(torch.compiler, "optimize"):
        return torch.compiler.optimize(model)
    return torch.compile(model)
