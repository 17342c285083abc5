# an attribute that may be missing, caught
import torch

try:
    rms_norm = torch.nn.functional.fast_rms_norm
except AttributeError:
    rms_norm = torch.nn.functional.rms_norm


def apply(x):
    return rms_norm(x, (x.size(-1),))
