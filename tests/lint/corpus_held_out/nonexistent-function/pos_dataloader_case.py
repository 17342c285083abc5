# Dataloader with a small l
import torch


def loader(ds):
    return torch.utils.data.Dataloader(ds, batch_size=8, num_workers=4)  # expect: nonexistent-function
