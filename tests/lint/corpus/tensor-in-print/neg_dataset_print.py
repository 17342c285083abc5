# tensors of a data set are on the CPU, printed while preparing
import torch

tokens = torch.load("tokens.pt", weights_only=True)
lengths = torch.tensor([len(row) for row in tokens])
print("tokens", lengths.sum(), "longest", lengths.max())
for name in ("train", "test"):
    part = torch.load(f"{name}.pt", weights_only=True)
    print(name, part.shape, f"mean {part.float().mean():.3f}")
