# kernels are only queued when the clock is read
import time

import torch


def latency(model, device="cuda"):
    model = model.to(device).eval()
    x = torch.randn(1, 3, 224, 224, device=device)
    with torch.inference_mode():
        for _ in range(10):
            model(x)
        start = time.perf_counter()  # expect: timing-without-synchronization+3
        for _ in range(100):
            model(x)
        elapsed = time.perf_counter() - start
    return elapsed / 100
