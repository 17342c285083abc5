# one iterator for the whole training by steps
from torch.utils.data import DataLoader, RandomSampler


def fit(ds, step, steps, batch):
    sampler = RandomSampler(ds, replacement=True, num_samples=steps * batch)
    loader = DataLoader(ds, batch, sampler=sampler, num_workers=8, pin_memory=True)
    for i, data in enumerate(loader):
        step(i, data)
