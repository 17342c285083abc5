# an event tells when the copy is done
import torch


def scores(model, batch):
    with torch.inference_mode():
        out = model(batch.cuda(non_blocking=True))
    host = out.to("cpu", non_blocking=True)
    done = torch.cuda.Event()
    done.record()
    done.synchronize()
    return host.numpy()
