# pinned
import torch
from torch.utils.data import DataLoader


def build(ds):
    torch.cuda.set_device(0)
    return DataLoader(ds, 64, num_workers=4, pin_memory=True, persistent_workers=True)
