# a tokenizer's dictionary is moved key by key
import torch
from torch.utils.data import DataLoader

device = torch.device("cuda:0")


def finetune(model, encoded, optimizer, collate):
    loader = DataLoader(
        encoded, batch_size=16, shuffle=True, collate_fn=collate, num_workers=2, pin_memory=True, persistent_workers=True
    )
    model.train()
    for batch in loader:
        batch = {k: v.to(device) for k, v in batch.items()}  # expect: blocking-transfer
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
