"""Two training loops of a few lines that hold what real ones hold, each part of which can be replaced.

``pictures``: convolutions, batch normalisation, dropout, two micro-batches, AdamW with groups, clipping, a schedule.
``text``: attention, tied, frozen and recomputed parts, dropout, a scaled loss, SGD with momentum, the mean over tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from togi.subject.inputs import Subject
from togi.subject.training import TrainingStep

CLASSES, TOKENS, LENGTH, WIDTH = 6, 30, 8, 16
IGNORED = -100


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.first, self.second, self.head = nn.Linear(128, 32), nn.Linear(32, 32), nn.Linear(32, CLASSES)
        self.recomputed: Callable[..., Any] | None = None

    def block(self, given: Tensor) -> Tensor:
        return F.max_pool2d(F.relu(self.norm2(self.conv2(given))), 2)

    def forward(self, given: Tensor) -> Tensor:
        hidden = F.relu(self.norm1(self.conv1(given)))
        hidden = self.block(hidden) if self.recomputed is None else self.recomputed(self.block, hidden)
        hidden = F.relu(self.first(self.drop(hidden.flatten(1))))
        return self.head(F.relu(self.second(hidden)) + hidden)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm2, self.wide, self.narrow = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.causal, self.approximate = True, "none"

    def forward(self, given: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm1(given)).chunk(3, -1)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        hidden = given + self.drop(self.out(attended))
        return hidden + self.drop(self.narrow(F.gelu(self.wide(self.norm2(hidden)), approximate=self.approximate)))


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(TOKENS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02, requires_grad=False)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.table.weight
        self.recomputed: Callable[..., Any] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens) + self.places
        for block in self.blocks:
            hidden = block(hidden) if self.recomputed is None else self.recomputed(block, hidden)
        return self.head(self.norm(hidden))


Parts = Sequence[tuple[Tensor, Tensor, float]]


def rows_in_two(given: Tensor, labels: Tensor) -> Parts:
    """Two micro-batches, weighted by their rows."""
    rows = len(labels)
    cut = rows * 5 // 8
    return [(given[:cut], labels[:cut], cut / rows), (given[cut:], labels[cut:], (rows - cut) / rows)]


def tokens_in_two(given: Tensor, labels: Tensor) -> Parts:
    """Two micro-batches, weighted by the tokens that count."""
    count = float((labels != IGNORED).sum())
    halves = ((given[:3], labels[:3]), (given[3:], labels[3:]))
    return [(tokens, wanted, float((wanted != IGNORED).sum()) / count) for tokens, wanted in halves]


def class_loss(module: nn.Module, given: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(module(given), labels)


def token_loss(module: nn.Module, given: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(module(given).flatten(0, 1), labels.flatten(), ignore_index=IGNORED)


def nothing(*_: Any) -> None:
    """The place of a change that an honest loop does not make."""


@dataclass(frozen=True, kw_only=True)
class Loop:
    """The body of a user's loop. What is not set changes nothing."""

    loss: Callable[[nn.Module, Tensor, Tensor], Tensor]
    divided: Callable[[Tensor, Tensor], Parts]
    scale: float = 1.0
    most: float = 1.0
    """The norm that gradients are clipped to."""
    given: Callable[[Any], Any] = lambda sample: sample
    dropped: Callable[[Optimizer], None] = lambda optimizer: optimizer.zero_grad()
    before: Callable[[nn.Module, Optimizer], None] = nothing
    gradients: Callable[[dict[str, nn.Parameter]], None] = nothing
    """Before clipping and unscaling."""
    clipped: Callable[[nn.Module, float, float], None] | None = None
    stepping: Callable[[nn.Module, Optimizer], None] = nothing
    stepped: Callable[[nn.Module, Optimizer], None] = nothing
    advanced: int = 1
    """How often the schedule goes on."""
    told: Callable[[Tensor], Any] = lambda loss: loss

    def __call__(self, module: nn.Module, optimizer: Any, sample: Any) -> Any:
        given, labels = self.given(sample)
        self.dropped(optimizer)
        self.before(module, optimizer)
        total = torch.zeros(())
        for part, wanted, weight in self.divided(given, labels):
            loss = self.loss(module, part, wanted) * weight
            (loss * self.scale).backward()
            total = total + loss.detach()
        self.gradients(dict(module.named_parameters()))
        (self.clipped or unscaled_and_clipped)(module, self.scale, self.most)
        self.stepping(module, optimizer)
        optimizer.step()
        self.stepped(module, optimizer)
        for _ in range(self.advanced):
            optimizer.schedule.step()
        return self.told(total)


def unscaled_and_clipped(module: nn.Module, scale: float, most: float) -> None:
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(scale)
    nn.utils.clip_grad_norm_(module.parameters(), most)


def scheduled(optimizer: Optimizer) -> Optimizer:
    """With a schedule of its own, which warms up and falls."""
    made: Any = optimizer
    made.schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5) * 0.97**step)
    return optimizer


def adamw(parameters: list[nn.Parameter]) -> Optimizer:
    decayed = [p for p in parameters if p.dim() > 1]
    others = [p for p in parameters if p.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    return scheduled(torch.optim.AdamW(groups, lr=2e-3))


def momentum(parameters: list[nn.Parameter]) -> Optimizer:
    return scheduled(torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=1e-3))


PICTURES = Loop(loss=class_loss, divided=rows_in_two, most=0.5)
TEXT = Loop(loss=token_loss, divided=tokens_in_two, most=0.5, scale=1024.0)


def pictures() -> TrainingStep:
    torch.manual_seed(0)
    samples = [(torch.randn(16, 1, 8, 8), torch.randint(CLASSES, (16,))) for _ in range(4)]
    return TrainingStep.of(Subject(Pictures().train(), samples, optimizer=adamw, train_step=PICTURES))


def text() -> TrainingStep:
    torch.manual_seed(0)
    samples = []
    for number in range(4):
        tokens = torch.randint(TOKENS, (8, LENGTH))
        wanted = tokens.roll(-1, 1)
        for row in range(8):
            wanted[row, LENGTH - (row + number) % 5 :] = IGNORED
        samples.append((tokens, wanted))
    return TrainingStep.of(Subject(Text().train(), samples, optimizer=momentum, train_step=TEXT))
