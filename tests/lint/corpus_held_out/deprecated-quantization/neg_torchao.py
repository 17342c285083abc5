# the successor
from torchao.quantization import Int8WeightOnlyConfig, quantize_


def shrink(model):
    quantize_(model, Int8WeightOnlyConfig())
    return model
