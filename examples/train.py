"""Training of a small residual network, to be made to fit: docs/fit.md walks through it.

python examples/train.py              # as it is
python examples/train.py plan.json    # under the plan that `togi fit examples/train.py:subject ...` wrote
"""

from __future__ import annotations

import sys

import torch
from torch import Tensor, nn

import togi

STEPS = 3


class Block(nn.Module):
    """Two convolutions round which the input goes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(self.drop(hidden))))


class Net(nn.Module):
    """A stem, eight blocks in a ModuleList, ten classes."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(8))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    images, labels = batch
    return nn.functional.cross_entropy(net(images), labels)


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 3, 128, 128), torch.randint(0, 10, (8,))


def subject() -> togi.Subject:
    """What `togi fit` is given: the module, a batch, and the loss of a step."""
    return togi.Subject(Net().train(), batch(), step=loss)


def main(plan: str | None) -> None:
    """A few steps on made-up images."""
    torch.manual_seed(0)
    net = Net().train()
    if plan is not None:
        togi.Plan.load(plan).apply(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        found = loss(net, batch())
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.detach())
    for step, value in enumerate(torch.stack(losses).tolist()):
        print(f"step {step}: loss {value:.9f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
