# the state is cut off before each batch
import torch
from torch import nn


def repackage(state):
    return tuple(part.detach() for part in state)


def train(batches, criterion, optimizer, state):
    lstm = nn.LSTM(16, 16)
    for x, y in batches:
        state = repackage(state)
        out, state = lstm(x, state)
        optimizer.zero_grad()
        criterion(out, y).backward()
        optimizer.step()
