# a training step measured with time.time()
import time

import torch


def train(model, loader, optimizer, criterion, log):
    model.cuda()
    for x, y in loader:
        x = x.cuda(non_blocking=True)
        y = y.cuda(non_blocking=True)
        begin = time.time()  # expect: timing-without-synchronization+4
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
        log.append(time.time() - begin)
