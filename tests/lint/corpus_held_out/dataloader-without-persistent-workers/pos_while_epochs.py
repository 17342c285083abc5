# a while loop over epochs with early stopping
from torch.utils.data import DataLoader


def fit(train_set, step, evaluate, patience: int):
    loader = DataLoader(train_set, batch_size=32, shuffle=True, num_workers=4, pin_memory=True)  # expect: dataloader-without-persistent-workers
    best, bad, epoch = 0.0, 0, 0
    while bad < patience:
        for batch in loader:
            step(batch)
        score = evaluate()
        best, bad = (score, 0) if score > best else (best, bad + 1)
        epoch += 1
    return best
