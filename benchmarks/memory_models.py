"""Models for ``memory_prediction.py``: the kinds that people train, small enough for a second or two a step.

Each factory gives a module in training mode without anything pretrained. What is published is built from its published
configuration by timm or transformers, narrower or shallower where it says so; the rest is written here.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")

Made = tuple[nn.Module, Any]


def resnet50() -> Made:
    """arXiv:1512.03385, from timm."""
    return _timm("resnet50", batch=4, size=128)


def convnext_atto() -> Made:
    """arXiv:2201.03545, from timm."""
    return _timm("convnext_atto", batch=8, size=128)


def efficientnet_b0() -> Made:
    """Depthwise convolutions, squeeze-and-excitation. arXiv:1905.11946, from timm."""
    return _timm("efficientnet_b0", batch=4, size=128)


def vit_tiny() -> Made:
    """arXiv:2010.11929, from timm."""
    return _timm("vit_tiny_patch16_224", batch=4, size=224)


def swin_tiny() -> Made:
    """Attention in shifted windows, half the depth. arXiv:2103.14030, from timm."""
    return _timm("swin_tiny_patch4_window7_224", batch=2, size=224, depths=(1, 1, 3, 1))


def mlp_mixer() -> Made:
    """arXiv:2105.01601, from timm."""
    return _timm("mixer_s32_224", batch=8, size=224)


def unet() -> Made:
    """arXiv:1505.04597, narrower, with batch norm."""
    return _models().UNet(width=16).train(), torch.randn(2, 3, 128, 128)


def bert() -> Made:
    """BERT-mini, with dropout. arXiv:1908.08962, from transformers."""
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024)
    tokens = torch.randint(1000, config.vocab_size, (8, 128))
    return BertModel(config).train(), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def gpt2() -> Made:
    """GPT-2 with 4 layers of width 256, with its own loss. From transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=8192, use_cache=False)
    tokens = torch.randint(0, config.vocab_size, (4, 128))
    return GPT2LMHeadModel(config).train(), {"input_ids": tokens, "labels": tokens.clone()}


def t5() -> Made:
    """T5-small with 2 + 2 layers. arXiv:1910.10683, from transformers."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=2,
        d_model=256,
        d_ff=1024,
        num_heads=4,
        vocab_size=8192,
        use_cache=False,
        decoder_start_token_id=0,
    )
    tokens = torch.randint(1, config.vocab_size, (4, 96))
    return T5ForConditionalGeneration(config).train(), {"input_ids": tokens, "labels": tokens.clone()}


def mamba() -> Made:
    """Selective state spaces, the plain path, 2 layers. arXiv:2312.00752, from transformers."""
    from transformers import MambaConfig, MambaForCausalLM

    config = MambaConfig(num_hidden_layers=2, hidden_size=128, vocab_size=4096, use_cache=False)
    return MambaForCausalLM(config).train(), {"input_ids": torch.randint(0, config.vocab_size, (2, 48))}


def lstm() -> Made:
    """Two bidirectional layers between an embedding and tags."""
    return _models().Tagger(hidden=256).train(), torch.randint(0, 20_000, (8, 64))


def gru() -> Made:
    """Two layers over sound-like frames."""
    return Frames().train(), torch.randn(8, 100, 40)


def detr() -> Made:
    """A ResNet-18 under an encoder-decoder transformer with object queries. arXiv:2005.12872, smaller."""
    return Detector().train(), torch.randn(2, 3, 128, 128)


def mixture_of_experts() -> Made:
    """Experts with a fixed capacity, dispatched by one-hot products. arXiv:2006.16668 (GShard), top 1."""
    return Experts().train(), torch.randn(4, 128, 128)


def diffusion_block() -> Made:
    """Residual convolutions with a time embedding and attention over pixels. arXiv:2006.11239, one level."""
    return Denoiser().train(), (torch.randn(2, 64, 32, 32), torch.rand(2))


def graph_convolution() -> Made:
    """Messages along edges: gather, scatter. arXiv:1609.02907."""
    return Graph().train(), (torch.randn(2000, 64), torch.randint(0, 2000, (2, 12_000)))


def audio_conv() -> Made:
    """One-dimensional strided and dilated convolutions."""
    return _models().AudioNet().train(), torch.randn(4, 1, 8000)


ALL = (
    resnet50,
    convnext_atto,
    efficientnet_b0,
    vit_tiny,
    swin_tiny,
    mlp_mixer,
    unet,
    bert,
    gpt2,
    t5,
    mamba,
    lstm,
    gru,
    detr,
    mixture_of_experts,
    diffusion_block,
    graph_convolution,
    audio_conv,
)


class Frames(nn.Module):
    """(batch, time, features) -> (batch, classes)."""

    def __init__(self, features: int = 40, hidden: int = 256, classes: int = 35) -> None:
        super().__init__()
        self.gru = nn.GRU(features, hidden, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(hidden, classes)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.gru(frames)[0][:, -1])


class Detector(nn.Module):
    """(batch, 3, height, width) -> (batch, queries, classes) logits and (batch, queries, 4) boxes."""

    def __init__(self, width: int = 128, queries: int = 50, classes: int = 91) -> None:
        super().__init__()
        from torchvision.models import resnet18

        self.backbone = nn.Sequential(*list(resnet18(weights=None).children())[:-2])
        self.project = nn.Conv2d(512, width, 1)
        self.transformer = nn.Transformer(width, 4, 2, 2, 4 * width, dropout=0.1, batch_first=True)
        self.queries = nn.Parameter(torch.rand(queries, width))
        self.classes, self.boxes = nn.Linear(width, classes), nn.Linear(width, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.project(self.backbone(images)).flatten(2).transpose(1, 2)
        found = self.transformer(features, self.queries.expand(len(images), -1, -1))
        return self.classes(found), self.boxes(found).sigmoid()


class Experts(nn.Module):
    """(batch, tokens, width) -> the same."""

    def __init__(self, width: int = 128, experts: int = 8, capacity: int = 96) -> None:
        super().__init__()
        self.capacity = capacity
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) * 0.02)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) * 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        flat = tokens.flatten(0, 1)
        weight, chosen = self.gate(flat).softmax(-1).max(-1)
        mask = nn.functional.one_hot(chosen, self.up.shape[0])
        place = (mask.cumsum(0) - 1) * mask
        slot = nn.functional.one_hot(place.sum(-1).clamp(max=self.capacity), self.capacity + 1)[:, :-1]
        dispatch = mask.unsqueeze(-1) * slot.unsqueeze(1) * 1.0
        given = torch.einsum("tec,td->ecd", dispatch, flat)
        hidden = nn.functional.gelu(torch.bmm(given, self.up))
        combined = torch.einsum("tec,ecd->td", dispatch * weight[:, None, None], torch.bmm(hidden, self.down))
        return (flat + combined).view_as(tokens)


class Denoiser(nn.Module):
    """(batch, channels, height, width), (batch,) times -> (batch, channels, height, width)."""

    def __init__(self, channels: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.time = nn.Sequential(nn.Linear(channels, 4 * channels), nn.SiLU(), nn.Linear(4 * channels, channels))
        self.first = nn.Sequential(nn.GroupNorm(8, channels), nn.SiLU(), nn.Conv2d(channels, channels, 3, padding=1))
        self.second = nn.Sequential(
            nn.GroupNorm(8, channels), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(channels, channels, 3, padding=1)
        )
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, image: Tensor, time: Tensor) -> Tensor:
        frequencies = torch.exp(torch.linspace(0, -9, image.shape[1] // 2, device=image.device))
        angles = time[:, None] * frequencies
        embedded = self.time(torch.cat([angles.sin(), angles.cos()], 1))[:, :, None, None]
        image = image + self.second(self.first(image) + embedded)
        q, k, v = self.qkv(self.norm(image)).unflatten(1, (3, self.heads, -1)).flatten(4).transpose(3, 4).unbind(1)
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        return image + self.out(attended.transpose(2, 3).reshape(image.shape))


class Graph(nn.Module):
    """(nodes, features), (2, edges) -> (nodes, classes)."""

    def __init__(self, features: int = 64, hidden: int = 128, classes: int = 10) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(features, hidden), nn.Linear(hidden, hidden)])
        self.head = nn.Linear(hidden, classes)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for layer in self.layers:
            messages = layer(nodes)[source]
            nodes = torch.zeros(len(nodes), messages.shape[1]).index_add(0, target, messages).relu()
        return self.head(nodes)


def _timm(name: str, *, batch: int, size: int, **options: Any) -> Made:
    import timm

    return timm.create_model(name, pretrained=False, **options).train(), torch.randn(batch, 3, size, size)


def _models() -> Any:
    """benchmarks/models.py, whose folder is no package."""
    path = Path(__file__).with_name("models.py")
    spec = importlib.util.spec_from_file_location("togi_benchmark_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
