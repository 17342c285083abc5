# training accuracy is computed with scikit-learn for each batch
import torch.nn.functional as F
from sklearn.metrics import f1_score


def train(model, loader, optimizer, device):
    scores = []
    for x, y in loader:
        x = x.to(device, non_blocking=True)
        target = y.to(device, non_blocking=True)
        optimizer.zero_grad()
        logits = model(x)
        loss = F.cross_entropy(logits, target)
        loss.backward()
        optimizer.step()
        guess = logits.argmax(1).detach().cpu()  # expect: copy-to-host
        scores.append(f1_score(y, guess, average="macro"))
    return scores
