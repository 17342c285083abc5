# a dataset's tensors are on the CPU: numpy() is a view
import torch
from torch.utils.data import Dataset


class Clips(Dataset):
    def __init__(self, waveforms: list[torch.Tensor], augment):
        self.waveforms = waveforms
        self.augment = augment

    def __len__(self):
        return len(self.waveforms)

    def __getitem__(self, i):
        clip = self.waveforms[i].numpy()
        return torch.from_numpy(self.augment(clip))
