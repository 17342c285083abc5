# the first call compiles, and it is measured
import time

import torch


@torch.inference_mode()
def bench(model, x):
    model = torch.compile(model.eval())
    torch.cuda.synchronize()
    start = time.perf_counter()  # expect: timing-includes-compilation+4
    for _ in range(20):
        model(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 20
