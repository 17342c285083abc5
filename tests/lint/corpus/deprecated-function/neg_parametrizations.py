# the present weight norm
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.parametrizations import weight_norm


def conv(channels):
    return weight_norm(nn.Conv1d(channels, channels, 3))


def clip(model):
    clip_grad_norm_(model.parameters(), 1.0)
