# a call over many lines
from torch.utils.data import DataLoader, Dataset
from PIL import Image


class Photos(Dataset):
    def __init__(self, paths, transform):
        self.paths, self.transform = paths, transform

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        return self.transform(Image.open(self.paths[i]))


def make(paths, transform):
    return DataLoader(  # expect: dataloader-without-workers+5
        Photos(paths, transform),
        batch_size=32,
        shuffle=True,
        pin_memory=True,
    )
