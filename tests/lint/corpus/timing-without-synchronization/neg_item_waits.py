# reading the result waits for the device
import time

import torch

a = torch.randn(4096, 4096, device="cuda")
start = time.perf_counter()
total = (a @ a).sum().item()
print(total, time.perf_counter() - start)
