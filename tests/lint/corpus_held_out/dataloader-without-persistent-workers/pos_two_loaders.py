# train and validation in each epoch
from torch.utils.data import DataLoader

from engine import evaluate, train_one_epoch


def main(train_set, val_set, model, optimizer, config):
    train_loader = DataLoader(train_set, 32, shuffle=True, num_workers=6, pin_memory=True)  # expect: dataloader-without-persistent-workers
    val_loader = DataLoader(val_set, 32, num_workers=6, pin_memory=True)  # expect: dataloader-without-persistent-workers
    for epoch in range(config.epochs):
        train_one_epoch(model, train_loader, optimizer)
        evaluate(model, val_loader)
