# on the CPU a call returns when it is done
import time

import torch


@torch.inference_mode()
def latency(model):
    model = model.to("cpu").eval()
    x = torch.randn(1, 3, 224, 224)
    model(x)
    start = time.perf_counter()
    model(x)
    return time.perf_counter() - start
