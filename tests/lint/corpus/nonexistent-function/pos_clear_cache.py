# the function is called empty_cache
import torch


def release(model):
    del model
    torch.cuda.clear_cache()  # expect: nonexistent-function
