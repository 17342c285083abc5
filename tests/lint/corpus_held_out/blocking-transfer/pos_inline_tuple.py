# both halves of the batch in one statement
import torch
from torch.utils.data import DataLoader
from tqdm import tqdm


def run(model, ds, opt, crit, workers):
    dev = "cuda"
    dl = DataLoader(ds, batch_size=128, num_workers=workers, pin_memory=True, persistent_workers=workers > 0)
    for x, y in tqdm(dl, desc="train"):
        x, y = x.to(dev), y.to(dev)  # expect: blocking-transfer
        opt.zero_grad()
        crit(model(x), y).backward()
        opt.step()
