# submodules that have to be imported, and are
import torch
import torch.distributed.checkpoint as dcp
import torch.nn.attention.flex_attention as flex
from torch.utils.data.distributed import DistributedSampler


def save(state, path, dataset):
    dcp.save(state, checkpoint_id=path)
    mask = flex.create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128)
    return DistributedSampler(dataset), mask, torch.nn.Module
