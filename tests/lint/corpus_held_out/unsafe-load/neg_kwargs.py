# may be among the keyword arguments
import torch


def read(path, **kwargs):
    kwargs.setdefault("weights_only", True)
    return torch.load(path, **kwargs)
