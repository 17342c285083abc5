# pin_memory=False with .cuda()
import torch
from torch.utils.data import DataLoader


@torch.no_grad()
def test(dataset, model):
    model.cuda().eval()
    hits = torch.zeros((), device="cuda")
    for x, y in DataLoader(dataset, 256, num_workers=8, pin_memory=False):  # expect: dataloader-without-pinning
        x, y = x.cuda(), y.cuda()  # expect: blocking-transfer
        hits += (model(x).argmax(1) == y).sum()
    return hits / len(dataset)
