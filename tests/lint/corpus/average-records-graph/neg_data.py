# .data is off the graph
import torch


def accumulate(slow, fast, decay=0.999):
    slow_parameters = dict(slow.named_parameters())
    for name, p in fast.named_parameters():
        slow_parameters[name].data.mul_(decay).add_(p.data, alpha=1 - decay)
