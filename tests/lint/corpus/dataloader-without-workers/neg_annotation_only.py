# the class is mentioned, not called
from torch.utils.data import DataLoader


def length(loader: DataLoader) -> int:
    if not isinstance(loader, DataLoader):
        raise TypeError("not a DataLoader")
    return len(loader)
