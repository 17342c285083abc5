# sliding-window inference on a volume with a flush per window
import torch


@torch.inference_mode()
def sliding_window(net, volume, size: int, stride: int):
    net.eval()
    out = torch.zeros_like(volume)
    for z in range(0, volume.size(2) - size + 1, stride):
        out[:, :, z : z + size] += net(volume[:, :, z : z + size])
        torch.cuda.empty_cache()  # expect: empty-cache-in-loop
    return out
