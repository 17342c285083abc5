# detach and clone stay on the device
import torch
import torch.nn.functional as F


def train(student, teacher_logits, loader, optimizer):
    kept = []
    for i, x in enumerate(loader):
        optimizer.zero_grad()
        out = student(x)
        loss = F.kl_div(out.log_softmax(-1), teacher_logits[i].softmax(-1), reduction="batchmean")
        loss.backward()
        optimizer.step()
        kept.append(loss.detach().clone())
    return torch.stack(kept)
