# a list of losses with their graphs
import torch


def train(net, loader, opt, criterion, epochs):
    curve = []
    for _ in range(epochs):
        for x, y in loader:
            opt.zero_grad()
            loss = criterion(net(x), y)
            loss.backward()
            opt.step()
            curve.append(loss)  # expect: loss-kept-with-graph
    return curve
