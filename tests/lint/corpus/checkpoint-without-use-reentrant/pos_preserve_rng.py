# other arguments do not help
from torch.utils.checkpoint import checkpoint as ckpt


def run(block, hidden, rope):
    return ckpt(block, hidden, rope, preserve_rng_state=False)  # expect: checkpoint-without-use-reentrant
