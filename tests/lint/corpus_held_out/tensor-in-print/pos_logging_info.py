# logging formats the tensor on every batch
import logging

import torch

logger = logging.getLogger(__name__)


def run(model, dataloader, optimizer, criterion):
    for i, (inp, tgt) in enumerate(dataloader):
        optimizer.zero_grad()
        out = model(inp)
        loss = criterion(out, tgt)
        loss.backward()
        optimizer.step()
        logger.info("step %d loss %s", i, loss)  # expect: tensor-in-print
