# progress bar text needs the number of every step
from tqdm import tqdm
import torch.nn.functional as F


def fit(model, train_loader, opt, epochs):
    for epoch in range(epochs):
        bar = tqdm(train_loader)
        for tokens, labels in bar:
            opt.zero_grad()
            logits = model(tokens)
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), labels.view(-1))
            loss.backward()
            opt.step()
            bar.set_postfix(loss=loss.item())  # expect: scalar-from-tensor
