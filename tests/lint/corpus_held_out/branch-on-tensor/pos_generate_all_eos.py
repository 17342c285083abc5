# generation loop stops on a tensor, a wait per token
import torch


@torch.inference_mode()
def generate(model, ids: torch.Tensor, eos: int, max_new: int):
    model.eval()
    done = torch.zeros(ids.size(0), dtype=torch.bool, device=ids.device)
    for _ in range(max_new):
        logits = model(ids)[:, -1]
        nxt = logits.argmax(-1, keepdim=True)
        ids = torch.cat([ids, nxt], dim=1)
        done |= nxt.squeeze(1) == eos
        if done.all():  # expect: branch-on-tensor
            break
    return ids
