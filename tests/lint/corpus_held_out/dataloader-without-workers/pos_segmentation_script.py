# validation data read in the main process
import torch
from torch.utils.data import DataLoader, random_split

from datasets import Carvana


def train_net(net, device, batch_size=2, val_percent=0.1):
    dataset = Carvana("imgs", "masks")
    n_val = int(len(dataset) * val_percent)
    train_set, val_set = random_split(dataset, [len(dataset) - n_val, n_val])
    options = dict(batch_size=batch_size, num_workers=4, pin_memory=True, persistent_workers=True)
    train_loader = DataLoader(train_set, shuffle=True, **options)
    val_loader = DataLoader(val_set, batch_size=batch_size, drop_last=True, pin_memory=True)  # expect: dataloader-without-workers
    return net.to(device), train_loader, val_loader
