# int() and float() of configuration, not of tensors
import argparse


def train(model, loader, optimizer, args: argparse.Namespace):
    for step, (x, y) in enumerate(loader):
        lr = float(args.lr) * min(1.0, (step + 1) / int(args.warmup))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.zero_grad()
        loss = model(x, y)
        loss.backward()
        optimizer.step()
