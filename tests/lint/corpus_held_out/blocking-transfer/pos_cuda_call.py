# .cuda() of each batch without non_blocking
import torch
from torch.utils.data import DataLoader


def fit(net, data, optimizer, loss_fn, epochs=3):
    net.cuda()
    batches = DataLoader(data, 32, shuffle=True, num_workers=4, pin_memory=True, persistent_workers=True)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            out = net(x.cuda())  # expect: blocking-transfer
            loss_fn(out, y.cuda()).backward()  # expect: blocking-transfer
            optimizer.step()
