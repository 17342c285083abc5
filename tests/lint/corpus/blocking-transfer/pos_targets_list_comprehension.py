# images and target dictionaries, one blocking copy each
import torch
from torch.utils.data import DataLoader


def train(model, dataset, optimizer, collate_fn):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        dataset,
        batch_size=4,
        shuffle=True,
        num_workers=4,
        collate_fn=collate_fn,
        pin_memory=True,
        persistent_workers=True,
    )
    model.to(device).train()
    for images, targets in loader:
        images = [image.to(device) for image in images]  # expect: blocking-transfer
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]  # expect: blocking-transfer
        losses = sum(model(images, targets).values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
