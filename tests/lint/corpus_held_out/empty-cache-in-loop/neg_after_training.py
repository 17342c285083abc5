# once, when the model is gone
import gc

import torch


def release(holder):
    holder.model = None
    gc.collect()
    torch.cuda.empty_cache()
