# every batch is padded to its own longest clip
import torch
from torch.backends import cudnn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(clips):
    return pad_sequence(clips, batch_first=True)


def main(ds, model):
    cudnn.benchmark = True  # expect: cudnn-benchmark-varying-shapes
    loader = DataLoader(ds, 8, collate_fn=collate, num_workers=4, pin_memory=True, persistent_workers=True)
    with torch.inference_mode():
        model.eval()
        for clip in loader:
            model(clip.to("cuda", non_blocking=True).unsqueeze(1))
