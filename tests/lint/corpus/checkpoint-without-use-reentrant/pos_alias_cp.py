# import ... as cp
import torch.utils.checkpoint as cp


def dense_forward(fn, features):
    if any(f.requires_grad for f in features):
        return cp.checkpoint(fn, *features)  # expect: checkpoint-without-use-reentrant
    return fn(*features)
