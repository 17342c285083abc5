# the number follows the machine
import os

import torch

workers = min(os.cpu_count() or 1, 8)


def build(ds, batch):
    return torch.utils.data.DataLoader(
        ds, batch_size=batch, num_workers=workers, pin_memory=True, persistent_workers=workers > 0
    )
