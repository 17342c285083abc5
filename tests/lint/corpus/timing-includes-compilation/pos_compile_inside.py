# compile and call between two readings
import time

import torch
import torchvision

model = torchvision.models.resnet18().eval()
x = torch.randn(1, 3, 224, 224)
with torch.no_grad():
    start = time.time()  # expect: timing-includes-compilation+3
    fast = torch.compile(model, mode="max-autotune")
    fast(x)
    end = time.time()
print("compiled:", end - start)
