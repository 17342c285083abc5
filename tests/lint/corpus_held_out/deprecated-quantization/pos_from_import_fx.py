# FX graph mode, imported by name
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx  # expect: deprecated-quantization+6


def quantize(model, qconfig_mapping, example):
    # post-training, per channel
    model.eval()
    prepared = prepare_fx(model, qconfig_mapping, example)
    return convert_fx(prepared)  # allow: deprecated-quantization
