# bound beforehand with partial
import functools

from torch.utils.checkpoint import checkpoint

checkpoint_fn = functools.partial(checkpoint, use_reentrant=False)


def run(block, x):
    return checkpoint_fn(block, x)
