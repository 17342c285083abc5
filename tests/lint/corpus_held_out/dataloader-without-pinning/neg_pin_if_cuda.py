# pinned where there is a device
import torch
from torch.utils.data import DataLoader

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def build(ds):
    return DataLoader(ds, 64, num_workers=4, pin_memory=device.type == "cuda", persistent_workers=True)
