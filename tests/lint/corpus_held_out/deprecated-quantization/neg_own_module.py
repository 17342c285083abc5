# a project's own quantization package
from mymodel.quantization import get_default_qconfig, prepare_fx, quantize_dynamic


def shrink(model, x):
    model.qconfig = get_default_qconfig("int4")
    return quantize_dynamic(prepare_fx(model, x))
