# collate functions run on the CPU, in workers
import torch


def collate(samples):
    ids = torch.tensor([s["id"] for s in samples])
    lengths = torch.as_tensor([len(s["tokens"]) for s in samples])
    padded = torch.zeros(len(samples), int(lengths.max()), dtype=torch.long)
    for row, s in enumerate(samples):
        padded[row, : len(s["tokens"])] = torch.tensor(s["tokens"])
    return ids, padded, lengths
