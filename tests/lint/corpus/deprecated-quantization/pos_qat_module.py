# quantization-aware training with the eager-mode stubs
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, body: nn.Module):
        super().__init__()
        self.quant = torch.ao.quantization.QuantStub()  # expect: deprecated-quantization
        self.body = body
        self.dequant = torch.ao.quantization.DeQuantStub()  # allow: deprecated-quantization

    def forward(self, x):
        return self.dequant(self.body(self.quant(x)))
