# replaced by torch.nn.attention.sdpa_kernel
import torch
import torch.nn.functional as F


def attend(q, k, v):
    with torch.backends.cuda.sdp_kernel(enable_math=False):  # expect: deprecated-function
        return F.scaled_dot_product_attention(q, k, v)
