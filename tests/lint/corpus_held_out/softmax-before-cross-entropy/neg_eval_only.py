# forward returns probabilities in evaluation only
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 5)

    def forward(self, x):
        logits = self.fc(x)
        if not self.training:
            return torch.softmax(logits, dim=1)
        return logits


net = Net()
criterion = nn.CrossEntropyLoss()


def loss(x, y):
    return criterion(net(x), y)
