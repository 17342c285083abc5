# waits before both readings
import time

import torch


@torch.inference_mode()
def latency(model):
    model = model.cuda().eval()
    x = torch.randn(1, 3, 224, 224, device="cuda")
    model(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(100):
        model(x)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 100
