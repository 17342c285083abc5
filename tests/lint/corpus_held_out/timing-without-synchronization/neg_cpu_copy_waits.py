# the result is copied to the host before the clock is read
import time

import torch

model = torch.nn.Linear(1024, 1024, device="cuda").eval()
x = torch.randn(64, 1024, device="cuda")
with torch.inference_mode():
    model(x)
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = model(x).cpu()
    print(result.shape, time.perf_counter() - start)
