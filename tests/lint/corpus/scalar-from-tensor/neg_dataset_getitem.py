# datasets work on CPU tensors in worker processes
import torch
from torch.utils.data import Dataset


class Spans(Dataset):
    def __init__(self, starts: torch.Tensor, tokens: torch.Tensor) -> None:
        self.starts = starts
        self.tokens = tokens

    def __len__(self):
        return len(self.starts) - 1

    def __getitem__(self, index):
        begin = self.starts[index].item()
        end = self.starts[index + 1].item()
        return self.tokens[begin:end]
