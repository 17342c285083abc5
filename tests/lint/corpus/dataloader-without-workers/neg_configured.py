# the user sets it
from torch.utils.data import DataLoader


def build(dataset, args):
    return DataLoader(
        dataset,
        batch_size=args.batch_size,
        num_workers=args.workers,
        pin_memory=args.pin,
        persistent_workers=args.workers > 0,
    )
