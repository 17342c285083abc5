# persistent where there are workers
from torch.utils.data import DataLoader


def fit(ds, step, epochs, workers):
    loader = DataLoader(ds, 64, num_workers=workers, pin_memory=True, persistent_workers=bool(workers))
    for epoch in range(epochs):
        for batch in loader:
            step(batch)
