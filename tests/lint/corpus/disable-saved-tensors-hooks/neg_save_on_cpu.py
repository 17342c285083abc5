# offloading
from torch.autograd.graph import save_on_cpu


def step(model, batch):
    with save_on_cpu(pin_memory=True):
        loss = model(batch)
    loss.backward()
