# a helper warms up
import time

import torch


def warm_up(fn, x, times=5):
    for _ in range(times):
        fn(x)


@torch.inference_mode()
def main(model):
    fast = torch.compile(model.eval().cpu())
    x = torch.randn(1, 3, 224, 224)
    warm_up(fast, x)
    start = time.perf_counter()
    fast(x)
    return time.perf_counter() - start
