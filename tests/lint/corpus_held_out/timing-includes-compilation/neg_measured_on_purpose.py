# the time to compile is what is wanted
import time

import torch


def compile_seconds(model, x):
    start = time.perf_counter()
    compiled = torch.compile(model)
    compiled(x)
    compile_time = time.perf_counter() - start
    return compiled, compile_time
