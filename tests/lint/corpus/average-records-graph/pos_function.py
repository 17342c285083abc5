# an average of weights under a recording autograd
import torch


def accumulate(slow, fast, decay=0.999):
    slow_parameters = dict(slow.named_parameters())
    for name, p in fast.named_parameters():
        slow_parameters[name].mul_(decay).add_(p, alpha=1 - decay)  # expect: average-records-graph
