# the state of a GRU goes from batch to batch with its graph
import torch
from torch import nn


class Characters(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed = nn.Embedding(size, 32)
        self.gru = nn.GRU(32, 64)
        self.out = nn.Linear(64, size)

    def forward(self, x, state):
        y, state = self.gru(self.embed(x), state)
        return self.out(y), state


def train(chunks, size):
    net = Characters(size)
    optimizer = torch.optim.Adam(net.parameters())
    state = torch.zeros(1, 8, 64)
    for x, y in chunks:
        logits, state = net(x, state)  # expect: hidden-state-not-detached
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
