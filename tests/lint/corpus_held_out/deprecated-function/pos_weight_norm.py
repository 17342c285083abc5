# nn.utils.weight_norm gave way to parametrizations
from torch import nn
from torch.nn.utils import weight_norm  # allow: deprecated-function


def conv(channels: int) -> nn.Module:
    return weight_norm(nn.Conv1d(channels, channels, 3))  # expect: deprecated-function
