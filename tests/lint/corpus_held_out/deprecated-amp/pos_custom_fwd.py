# autograd functions' decorators
import torch
from torch.autograd import Function


class Square(Function):
    @staticmethod
    @torch.cuda.amp.custom_fwd  # expect: deprecated-amp
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.cuda.amp.custom_bwd  # expect: deprecated-amp
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad
