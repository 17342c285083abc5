# CUDA events
import torch


def measure(model, x):
    x = x.cuda()
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    model(x)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
