# the graph is retained so that the state may go on for ever
import torch


def train(model, loader, criterion, optimizer, hidden):
    for inputs, targets in loader:
        outputs, hidden = model(inputs, hidden)  # expect: hidden-state-not-detached
        loss = criterion(outputs, targets)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)  # allow: retain-graph-in-loop
        optimizer.step()
