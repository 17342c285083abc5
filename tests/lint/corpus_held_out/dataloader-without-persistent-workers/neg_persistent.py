# persistent
from torch.utils.data import DataLoader


def fit(ds, step, epochs):
    loader = DataLoader(ds, 64, num_workers=8, pin_memory=True, persistent_workers=True)
    for epoch in range(epochs):
        for batch in loader:
            step(batch)
