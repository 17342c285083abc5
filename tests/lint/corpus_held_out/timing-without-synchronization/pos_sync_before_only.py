# synchronized at the start, not at the end
import time

import torch


@torch.no_grad()
def bench(net, x):
    net = net.cuda().eval()
    x = x.cuda()
    net(x)
    torch.cuda.synchronize()
    start = time.perf_counter()  # expect: timing-without-synchronization+2
    net(x)
    return time.perf_counter() - start
