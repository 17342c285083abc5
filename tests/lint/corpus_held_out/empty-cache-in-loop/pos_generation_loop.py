# a token loop with gc and empty_cache
import gc

import torch


@torch.inference_mode()
def generate(model, ids, steps):
    model.eval()
    for _ in range(steps):
        logits = model(ids)[:, -1]
        ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        gc.collect()
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop
    return ids
