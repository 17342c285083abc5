# old torch only
import torch
from packaging import version

if version.parse(torch.__version__) < version.parse("2.4"):
    from torch.cuda.amp import autocast
else:
    from functools import partial

    autocast = partial(torch.amp.autocast, "cuda")


def run(model, x):
    with autocast():
        return model(x)
