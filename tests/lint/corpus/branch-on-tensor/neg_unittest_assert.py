# a test compares tensors once, no hot code
import torch

from mylib.layers import FastNorm


def test_matches_reference():
    torch.manual_seed(0)
    x = torch.randn(4, 16)
    ours = FastNorm(16)(x)
    theirs = torch.nn.functional.layer_norm(x, (16,))
    assert torch.allclose(ours, theirs, atol=1e-6)
    if (ours - theirs).abs().max() > 1e-4:
        raise AssertionError("too far apart")
