"""The training steps of the benchmarks train, train_limits and train_proof, one factory each, as a user would write
them.

    togi tune benchmarks/train_models.py:resnet18 --train
    togi memory benchmarks/train_models.py:resnet18_checkpointed --train    # each block with torch.utils.checkpoint
    togi memory benchmarks/train_models.py:resnet18_in_4_parts --train      # in micro-batches
    togi memory benchmarks/train_models.py:resnet18_max_autotune --train    # compiled

Kinds that differ: dense, wide and depthwise convolutions, transformers on pictures and on text with small and large
vocabularies, an encoder-decoder with skips and dropout, recurrence. Weights and data are random.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from togi import Subject
from togi.subject.micro_batches import backward

os.environ.setdefault("HF_HUB_OFFLINE", "1")

SAMPLES = 1
"""Batches of each: a turn of a race is a pass over all of them."""


def class_loss(module: nn.Module, sample: tuple[Tensor, Tensor]) -> Tensor:
    given, labels = sample
    return F.cross_entropy(module(given), labels)


def own_loss(module: nn.Module, sample: dict[str, Tensor]) -> Tensor:
    loss: Tensor = module(**sample).loss
    return loss


def tag_loss(module: nn.Module, sample: tuple[Tensor, Tensor]) -> Tensor:
    tokens, tags = sample
    return F.cross_entropy(module(tokens).flatten(0, 1), tags.flatten())


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3)


def pictures(module: nn.Module, rows: int, size: int, optimizer: Any, samples: int = SAMPLES) -> Subject:
    batches = [(torch.randn(rows, 3, size, size), torch.randint(0, 10, (rows,))) for _ in range(samples)]
    return Subject(module.train(), batches, step=class_loss, optimizer=optimizer)


def resnet18() -> Subject:
    """ResNet-18, 8 x 128 px, SGD."""
    import torchvision

    torch.manual_seed(0)
    return pictures(torchvision.models.resnet18(num_classes=10), 8, 128, sgd)


def resnet50() -> Subject:
    """ResNet-50, 8 x 96 px, SGD."""
    import torchvision

    torch.manual_seed(0)
    return pictures(torchvision.models.resnet50(num_classes=10), 8, 96, sgd)


def mobilenetv3() -> Subject:
    """MobileNetV3 large, 16 x 128 px, AdamW."""
    import torchvision

    torch.manual_seed(0)
    return pictures(torchvision.models.mobilenet_v3_large(num_classes=10), 16, 128, adamw)


def vit_tiny() -> Subject:
    """ViT-tiny, 4 x 224 px, AdamW."""
    import timm

    torch.manual_seed(0)
    return pictures(timm.create_model("vit_tiny_patch16_224", num_classes=10), 4, 224, adamw)


def bert_mini() -> Subject:
    """BERT of 4 layers, masked words of 16 x 128 tokens, AdamW."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    config = BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)
    return Subject(BertForMaskedLM(config).train(), masked_words(16, 128, 30522), step=own_loss, optimizer=adamw)


def masked_words(rows: int, length: int, words: int, samples: int = SAMPLES) -> list[dict[str, Tensor]]:
    """Batches in which 15 % of the tokens count."""
    batches = []
    for _ in range(samples):
        ids = torch.randint(100, words, (rows, length))
        labels = torch.where(torch.rand(rows, length) < 0.15, ids, -100)
        batches.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return batches


def gpt2_4() -> Subject:
    """GPT-2 of 4 layers, 2 x 128 tokens, AdamW."""
    return gpt2(4, 128)


def gpt2_12() -> Subject:
    """GPT-2 small, 2 x 256 tokens, AdamW. For train_limits.py alone."""
    return gpt2(12, 256)


def gpt2(layers: int, length: int) -> Subject:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    module = GPT2LMHeadModel(GPT2Config(n_layer=layers, use_cache=False)).train()
    return Subject(module, next_words(2, length, 50257), step=own_loss, optimizer=adamw)


def next_words(rows: int, length: int, words: int, samples: int = SAMPLES) -> list[dict[str, Tensor]]:
    return [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, words, (samples, rows, length)).unbind()]


class Double(nn.Sequential):
    def __init__(self, before: int, after: int, dropped: float) -> None:
        super().__init__(
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Dropout2d(dropped),
            nn.Conv2d(after, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, width: int = 24, depth: int = 3, classes: int = 4, dropped: float = 0.1) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        upwards = list(reversed(range(depth)))
        self.down = nn.ModuleList(Double(a, b, dropped) for a, b in zip([3, *widths], widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, 2) for i in upwards)
        self.joined = nn.ModuleList(Double(2 * widths[i], widths[i], dropped) for i in upwards)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, given: Tensor) -> Tensor:
        skips = []
        for level, down in enumerate(self.down):
            given = down(given if level == 0 else F.max_pool2d(given, 2))
            skips.append(given)
        skips.pop()
        for up, joined in zip(self.up, self.joined, strict=True):
            given = joined(torch.cat([skips.pop(), up(given)], 1))
        answer: Tensor = self.head(given)
        return answer


def unet() -> Subject:
    """U-Net with dropout, 4 x 128 px, AdamW."""
    torch.manual_seed(0)
    batches = [(torch.randn(4, 3, 128, 128), torch.randint(0, 4, (4, 128, 128))) for _ in range(SAMPLES)]
    return Subject(UNet().train(), batches, step=class_loss, optimizer=adamw)


class Tagger(nn.Module):
    def __init__(self, words: int = 10_000, width: int = 128, hidden: int = 256) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, hidden, 2, batch_first=True, bidirectional=True, dropout=0.2)
        self.head = nn.Linear(2 * hidden, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        tags: Tensor = self.head(self.layers(self.table(tokens))[0])
        return tags


def lstm() -> Subject:
    """A bidirectional LSTM of 2 layers with dropout, 32 x 50 tokens, AdamW."""
    torch.manual_seed(0)
    batches = [(torch.randint(0, 10_000, (32, 50)), torch.randint(0, 20, (32, 50))) for _ in range(SAMPLES)]
    return Subject(Tagger().train(), batches, step=tag_loss, optimizer=adamw)


ALL = [resnet18, resnet50, mobilenetv3, vit_tiny, bert_mini, gpt2_4, unet, lstm]

BLOCKS: dict[str, Callable[[Any], Iterable[nn.Module]]] = {
    "resnet18": lambda m: [*m.layer1, *m.layer2, *m.layer3, *m.layer4],
    "resnet50": lambda m: [*m.layer1, *m.layer2, *m.layer3, *m.layer4],
    "mobilenetv3": lambda m: m.features,
    "vit_tiny": lambda m: m.blocks,
    "bert_mini": lambda m: m.bert.encoder.layer,
    "gpt2_4": lambda m: m.transformer.h,
    "gpt2_12": lambda m: m.transformer.h,
    "unet": lambda m: [*m.down, *m.joined],
}
"""What a user would checkpoint. An LSTM is one whole."""


def checkpointed(name: str) -> Subject:
    """The same step with ``torch.utils.checkpoint`` round each block, as documented."""
    subject: Subject = globals()[name]()
    for block in BLOCKS[name](subject.module):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    return subject


def in_parts(name: str, parts: int) -> Subject:
    """The same step in micro-batches, as a loop of the user's own."""
    subject: Subject = globals()[name]()
    loss = subject.step

    def train_step(module: nn.Module, optimizer: torch.optim.Optimizer, sample: Any) -> Tensor:
        optimizer.zero_grad()
        found = backward(module, sample, loss, parts)
        optimizer.step()
        return found

    return dataclasses.replace(subject, step=None, train_step=train_step)


def max_autotune(name: str) -> Subject:
    """The same step with forward and loss compiled, and kernels chosen by their time."""
    subject: Subject = globals()[name]()
    return dataclasses.replace(subject, step=torch.compile(subject.step, mode="max-autotune-no-cudagraphs"))


def __getattr__(name: str) -> Any:
    """Factories of the same steps by another way."""
    found = re.fullmatch(r"(?P<of>\w+?)_(?:(?P<way>checkpointed|max_autotune)|in_(?P<parts>\d+)_parts)", name)
    if found is None or found["of"] not in globals():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if found["way"] is not None:
        return functools.partial(globals()[found["way"]], found["of"])
    return functools.partial(in_parts, found["of"], int(found["parts"]))
