# masks go to NumPy for each batch
import numpy as np
import torch


@torch.no_grad()
def evaluate(model, val_loader, device, num_classes):
    model.eval()
    hist = np.zeros((num_classes, num_classes), dtype=np.int64)
    for image, label in val_loader:
        image = image.to(device, non_blocking=True)
        pred = model(image)["out"].argmax(1)
        pred = pred.cpu().numpy()  # expect: copy-to-host
        truth = label.numpy()
        hist += np.bincount(num_classes * truth.ravel() + pred.ravel(), minlength=num_classes**2).reshape(hist.shape)
    return np.diag(hist) / hist.sum(1)
