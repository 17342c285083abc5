# filtering annotations in a data set
import torch
from torch.utils.data import Dataset


class Coco(Dataset):
    def __init__(self, items, root):
        self.items = items
        self.root = root

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        boxes = torch.as_tensor(self.items[index]["boxes"], dtype=torch.float32)
        labels = torch.as_tensor(self.items[index]["labels"])
        keep = (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
        return boxes[keep], labels[keep], torch.unique(labels)
