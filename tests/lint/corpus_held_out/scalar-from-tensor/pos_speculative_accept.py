# the number of accepted tokens is read at each round
import torch


@torch.inference_mode()
def speculative_decode(target, draft, ids, rounds: int, width: int):
    target.eval()
    draft.eval()
    for _ in range(rounds):
        proposal = draft.propose(ids, width)
        choice = target(torch.cat([ids, proposal], 1))[:, -width - 1 :].argmax(-1)
        agreed = (choice[:, :-1] == proposal).cumprod(1).sum()
        count = int(agreed)  # expect: scalar-from-tensor
        ids = torch.cat([ids, choice[:, : count + 1]], 1)
    return ids
