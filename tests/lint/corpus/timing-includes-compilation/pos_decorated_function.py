# a decorated function is compiled at its first call
import time

import torch


@torch.compile
def gelu(x):
    return 0.5 * x * (1 + torch.erf(x * 0.70710678))


def main():
    x = torch.randn(1 << 20)
    t0 = time.perf_counter()  # expect: timing-includes-compilation+3
    for _ in range(100):
        gelu(x)
    t1 = time.perf_counter()
    print(t1 - t0)
