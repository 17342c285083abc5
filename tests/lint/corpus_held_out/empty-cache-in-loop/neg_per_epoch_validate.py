# after validation, once per epoch, in a helper
import gc

import torch


def cleanup():
    gc.collect()
    torch.cuda.empty_cache()


def fit(trainer, epochs):
    for epoch in range(epochs):
        trainer.train_epoch(epoch)
        trainer.validate(epoch)
        cleanup()
