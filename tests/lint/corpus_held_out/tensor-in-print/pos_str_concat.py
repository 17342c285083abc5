# str() of a tensor per batch
import torch


@torch.no_grad()
def validate(model, loader, log_file, device):
    model.eval()
    for x, y in loader:
        x = x.to(device, non_blocking=True)
        y = y.to(device, non_blocking=True)
        err = (model(x) - y).abs().mean()
        log_file.write("error " + str(err) + "\n")  # expect: tensor-in-print
