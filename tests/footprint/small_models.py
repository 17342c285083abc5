"""Models of a few layers, one for each way in which memory is used: convolutions, checkpointed attention, an LSTM."""

from __future__ import annotations

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Conv2d(16, 16, 7, groups=16),
            nn.Dropout(0.1),
            nn.Conv2d(16, 32, 3),
            nn.Hardswish(),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, given: Tensor) -> Tensor:
        return self.head(self.layers(given).mean((2, 3)))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, given: Tensor) -> Tensor:
        return checkpoint(self.layer, given, use_reentrant=False) + given


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 24, batch_first=True)

    def forward(self, given: Tensor) -> Tensor:
        return self.lstm(given)[0]
