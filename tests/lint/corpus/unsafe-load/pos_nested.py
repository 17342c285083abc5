# inside another call
import torch
from torch import nn


def restore(net: nn.Module, ckpt_file: str) -> None:
    net.load_state_dict(torch.load(ckpt_file))  # expect: unsafe-load
