# a prefetcher with its own stream and non_blocking copies
import torch
from torch.utils.data import DataLoader


class Prefetcher:
    def __init__(self, dataset):
        self.loader = DataLoader(dataset, 128, num_workers=8, pin_memory=True, persistent_workers=True)
        self.stream = torch.cuda.Stream()

    def __iter__(self):
        ready = None
        for batch in self.loader:
            with torch.cuda.stream(self.stream):
                moved = {k: v.to("cuda", non_blocking=True) for k, v in batch.items()}
            if ready is not None:
                yield ready
            torch.cuda.current_stream().wait_stream(self.stream)
            ready = moved
        if ready is not None:
            yield ready
