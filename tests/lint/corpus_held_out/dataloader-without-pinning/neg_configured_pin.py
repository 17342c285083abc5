# the configuration decides
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader


@dataclass
class Data:
    batch: int = 32
    workers: int = 4
    pin: bool = True


def build(ds, config: Data):
    torch.cuda.set_device(0)
    return DataLoader(
        ds, config.batch, num_workers=config.workers, pin_memory=config.pin, persistent_workers=config.workers > 0
    )
