# ONNX Runtime's function of the same name
from onnxruntime.quantization import QuantType, quantize_dynamic


def convert(source, target):
    quantize_dynamic(source, target, weight_type=QuantType.QInt8)
