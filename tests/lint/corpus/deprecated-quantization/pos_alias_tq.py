# through an alias, quantization-aware training
import torch.ao.quantization as tq  # allow: deprecated-quantization


class Trainer:
    def start(self, model):
        model.train()
        model.qconfig = tq.get_default_qat_qconfig("x86")  # allow: deprecated-quantization
        return tq.prepare_qat(model)  # expect: deprecated-quantization
