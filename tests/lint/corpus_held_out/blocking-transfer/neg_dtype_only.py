# .to changes the type, not the device
import torch
from torch.utils.data import DataLoader


def count(dataset):
    loader = DataLoader(dataset, batch_size=512, num_workers=4, pin_memory=False)
    total = torch.zeros(10, dtype=torch.int64)
    for _, labels in loader:
        labels = labels.to(torch.int64)
        total += torch.nn.functional.one_hot(labels, 10).sum(0)
    return total
