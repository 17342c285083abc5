# exporting to ONNX through torch.export
import torch


def export(model, path):
    model.eval()
    x = torch.randn(1, 3, 224, 224)
    torch.onnx.export(model, (x,), path, dynamo=True)
    if torch.jit.is_tracing():
        raise RuntimeError("called while tracing")
