# each block is compiled once while the model is prepared
import torch
from torch import nn


def compile_blocks(model: nn.Module) -> nn.Module:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = torch.compile(block, dynamic=False)
    return model
