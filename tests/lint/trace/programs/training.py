"""Training steps: optimizers, hooks, custom functions, gradient clipping and scaling."""

import torch
import torch.nn.functional as F
from torch import nn

import togi


def _model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def _samples():
    torch.manual_seed(1)
    return torch.randn(6, 4)


def step_that_reads_the_loss():
    def step(module, x):
        loss = module(x).square().mean()
        loss.backward()
        history.append(loss.item())  # sync
        return loss

    history = []
    return togi.Subject(_model(), _samples(), step=step)


def step_that_keeps_the_loss():
    def step(module, x):
        loss = module(x).square().mean()
        loss.backward()
        history.append(loss.detach())
        return loss

    history = []
    return togi.Subject(_model(), _samples(), step=step)


def adam():
    def step(module, x):
        optimizers.setdefault(id(module), torch.optim.Adam(module.parameters(), lr=1e-3))
        optimizer = optimizers[id(module)]
        optimizer.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizers = {}
    return togi.Subject(_model(), _samples(), step=step)


def sgd_with_momentum():
    def step(module, x):
        optimizer = optimizers.setdefault(id(module), torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9))
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    optimizers = {}
    return togi.Subject(_model(), _samples(), step=step)


def clipping():
    def step(module, x):
        loss = module(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def clipping_with_a_check():
    def step(module, x):
        loss = module(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 1.0, error_if_nonfinite=True)  # sync
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def reading_the_norm():
    def step(module, x):
        loss = module(x).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        if torch.isfinite(norm):  # sync
            seen.append(1)
        return loss

    seen = []
    return togi.Subject(_model(), _samples(), step=step)


def scaled_gradients():
    def step(module, x):
        if "scaler" not in state:
            state["scaler"] = torch.amp.GradScaler("cuda")
            state["optimizer"] = torch.optim.SGD(module.parameters(), lr=1e-3)
        loss = module(x).square().mean()
        state["scaler"].scale(loss).backward()
        state["scaler"].step(state["optimizer"])  # sync
        state["scaler"].update()
        return loss

    state = {}
    return togi.Subject(_model(), _samples(), step=step)


def hook_that_reads():
    def look(gradient):
        if gradient.abs().max() > 100:  # sync
            return gradient / 2
        return gradient

    def step(module, x):
        hidden = module[0](x)
        hidden.register_hook(look)
        loss = module[2](module[1](hidden)).square().mean()
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def hook_that_does_not_read():
    def look(gradient):
        return torch.where(gradient.abs().max() > 100, gradient / 2, gradient)

    def step(module, x):
        hidden = module[0](x)
        hidden.register_hook(look)
        loss = module[2](module[1](hidden)).square().mean()
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def custom_function_that_reads_in_backward():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            scale = x.abs().max().item()  # sync
            return gradient * 2 * (scale > 0)

    def step(module, x):
        loss = Double.apply(module(x)).square().mean()
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def losses():
    def step(module, x):
        labels = torch.zeros(x.shape[0], dtype=torch.long, device=x.device)
        loss = F.cross_entropy(module(x), labels, ignore_index=-100, label_smoothing=0.1)
        loss = (
            loss
            + F.smooth_l1_loss(module(x), module(x).detach())
            + F.binary_cross_entropy_with_logits(module(x)[:, 0], torch.ones(x.shape[0], device=x.device))
        )
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def masked_loss():
    def step(module, x):
        out = module(x)
        valid = x[:, 0] > 0
        loss = out[valid].square().sum() / 4  # sync
        loss.backward()  # sync
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def weighted_loss():
    def step(module, x):
        out = module(x)
        valid = (x[:, 0] > 0).float()
        loss = (out.square().sum(-1) * valid).sum() / valid.sum().clamp(min=1)
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def checkpointed():
    def step(module, x):
        hidden = torch.utils.checkpoint.checkpoint(module[0], x, use_reentrant=False)
        loss = module[2](module[1](hidden)).square().mean()
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def embedding_gradients():
    def step(module, x):
        tokens = (x > 0).long()
        loss = module(tokens).square().mean()
        loss.backward()
        return loss

    torch.manual_seed(0)
    return togi.Subject(nn.Sequential(nn.Embedding(4, 8), nn.LayerNorm(8), nn.Dropout(0.1)), _samples(), step=step)


def batch_norm_and_convolution():
    def step(module, x):
        loss = module(x[None, None]).square().mean()
        loss.backward()
        return loss

    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.GELU(), nn.AdaptiveAvgPool2d(1))
    return togi.Subject(module, _samples(), step=step)


def autocast_step():
    def step(module, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = module(x).float().square().mean()
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def batch_from_the_host():
    def step(module, x):
        batch = torch.ones(6, 4)
        loss = module(batch.to(x.device)).square().mean()  # sync
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)


def early_stop_on_the_loss():
    def step(module, x):
        loss = module(x).square().mean()
        if not torch.isfinite(loss).all():  # sync
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        return loss

    return togi.Subject(_model(), _samples(), step=step)
