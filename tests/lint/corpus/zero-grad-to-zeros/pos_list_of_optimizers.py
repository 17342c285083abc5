# each of several optimizers
import torch


def train(encoder, decoder, loader, loss_fn):
    optimizers = [torch.optim.Adam(encoder.parameters()), torch.optim.Adam(decoder.parameters())]
    for x in loader:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)  # expect: zero-grad-to-zeros
        loss_fn(decoder(encoder(x)), x).backward()
        for optimizer in optimizers:
            optimizer.step()
