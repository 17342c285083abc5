# the same, by position
import torch


def fit(model, batches):
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for batch in batches:
        loss = model(batch)
        opt.zero_grad(False)  # expect: zero-grad-to-zeros
        loss.backward()
        opt.step()
