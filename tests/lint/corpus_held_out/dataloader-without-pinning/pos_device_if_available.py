# the usual choice of the device
import torch
from torch.utils.data import DataLoader

device = "cuda" if torch.cuda.is_available() else "cpu"


def fit(ds, net, opt, loss_fn, epochs):
    net.to(device)
    dl = DataLoader(ds, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)  # expect: dataloader-without-pinning
    for _ in range(epochs):
        for x, y in dl:
            x, y = x.to(device), y.to(device)  # expect: blocking-transfer
            opt.zero_grad()
            loss_fn(net(x), y).backward()
            opt.step()
