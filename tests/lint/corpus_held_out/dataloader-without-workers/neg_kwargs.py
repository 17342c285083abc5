# the settings come as a dictionary
import torch
from torch.utils.data import DataLoader


def build(train, test, use_cuda: bool):
    options = {"batch_size": 64}
    if use_cuda:
        options.update(num_workers=4, pin_memory=True, persistent_workers=True)
    return DataLoader(train, shuffle=True, **options), DataLoader(test, **options)
