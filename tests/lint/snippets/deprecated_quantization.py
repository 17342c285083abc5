# %%
from torchao.quantization import quantize_

quantize_(model, config)

# %%
from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

prepare_pt2e(model, quantizer)

# %%
y = torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)

# %%
from accelerate import prepare

model = prepare(model)

# %%
try:
    import torchao
except ImportError:
    import torch

    model = torch.ao.quantization.quantize_dynamic(model)

# %%
model = torch.quantization.quantize_dynamic(model, {torch.nn.Linear})  # expect: deprecated-quantization

# %%
import torch.ao.quantization as tq

tq.prepare(model, inplace=True)  # expect: deprecated-quantization
tq.convert(model, inplace=True)  # expect: deprecated-quantization

# %%
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

model = convert_fx(prepare_fx(model, mapping, example))  # expect: deprecated-quantization

# %%
from torch.quantization import quantize_dynamic as qd

model = qd(model)  # expect: deprecated-quantization
