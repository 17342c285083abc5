# the number is read on one step out of a hundred, for the log
import torch.nn.functional as F


def train(model, loader, optimizer, writer):
    model.train()
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            writer.add_scalar("loss", loss.item(), step)
