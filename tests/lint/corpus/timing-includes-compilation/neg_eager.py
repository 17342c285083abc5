# an eager model
import time

import torch


@torch.inference_mode()
def bench(model):
    model = model.cpu().eval()
    x = torch.randn(1, 3, 224, 224)
    start = time.perf_counter()
    model(x)
    return time.perf_counter() - start
