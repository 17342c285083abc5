# printed while it may still hold what was there before
import torch


def report(parameters):
    total = torch.stack([p.norm() for p in parameters]).sum()
    total = total.to(torch.device("cpu"), non_blocking=True)  # expect: unawaited-copy-to-host
    print("norm", total)
