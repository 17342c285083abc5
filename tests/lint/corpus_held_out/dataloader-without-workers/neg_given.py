# a positive number
from torch.utils.data import DataLoader


def build(dataset):
    return DataLoader(dataset, batch_size=32, num_workers=8, pin_memory=True, persistent_workers=True)
