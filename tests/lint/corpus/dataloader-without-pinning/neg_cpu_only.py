# a program for the CPU
import torch
from torch.utils.data import DataLoader


def count_classes(ds, classes):
    device = torch.device("cpu")
    histogram = torch.zeros(classes, dtype=torch.long, device=device)
    for _, y in DataLoader(ds, 1024, num_workers=4):
        histogram += torch.nn.functional.one_hot(y, classes).sum(0)
    return histogram
