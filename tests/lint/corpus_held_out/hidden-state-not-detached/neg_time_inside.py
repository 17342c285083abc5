# the loop over time belongs to one step
import torch
from torch import nn


def train(sequences, criterion, optimizer):
    cell = nn.LSTMCell(8, 8)
    for sequence, target in sequences:
        h = torch.zeros(4, 8)
        c = torch.zeros(4, 8)
        for x in sequence:
            h, c = cell(x, (h, c))
        optimizer.zero_grad()
        criterion(h, target).backward()
        optimizer.step()
