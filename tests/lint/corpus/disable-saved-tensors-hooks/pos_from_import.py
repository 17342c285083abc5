# imported by name, round a forward pass "to use less memory"
from torch.autograd.graph import disable_saved_tensors_hooks


def forward_cheaply(model, batch):
    # keeps fewer activations
    with disable_saved_tensors_hooks("activations are not kept"):  # expect: disable-saved-tensors-hooks
        return model(batch)
