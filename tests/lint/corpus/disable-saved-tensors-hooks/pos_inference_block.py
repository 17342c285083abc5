# beside no_grad it has nothing to forbid
import torch


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    results = []
    for x in loader:
        with torch.autograd.graph.disable_saved_tensors_hooks("no activations"):  # expect: disable-saved-tensors-hooks
            results.append(model(x))
    return results
