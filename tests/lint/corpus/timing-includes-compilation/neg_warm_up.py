# called before it is measured
import time

import torch


@torch.inference_mode()
def bench(model, x):
    model = torch.compile(model.eval())
    for _ in range(3):
        model(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    model(x)
    torch.cuda.synchronize()
    return time.perf_counter() - start
