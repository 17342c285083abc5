# one operation of tensors made on the device
from time import perf_counter

import torch

a = torch.randn(4096, 4096, device="cuda")
b = torch.randn(4096, 4096, device="cuda")
t0 = perf_counter()  # expect: timing-without-synchronization+2
c = a @ b
t1 = perf_counter()
print(f"{(t1 - t0) * 1e3:.2f} ms")
