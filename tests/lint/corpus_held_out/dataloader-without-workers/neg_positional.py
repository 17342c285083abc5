# the sixth positional argument
from torch.utils.data import DataLoader


def build(dataset):
    return DataLoader(dataset, 16, True, None, None, 4, None, True, persistent_workers=True)
