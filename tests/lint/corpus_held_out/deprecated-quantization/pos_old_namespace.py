# the still older torch.quantization
import torch


def prepare(model, batches):
    model.eval()
    model.qconfig = torch.quantization.get_default_qconfig("x86")  # allow: deprecated-quantization
    prepared = torch.quantization.prepare(model)  # expect: deprecated-quantization
    with torch.no_grad():
        for x in batches:
            prepared(x)
    return torch.quantization.convert(prepared)  # expect: deprecated-quantization
